//! The bridge to an FPGA card that aggregates in hardware.

pub mod registers;
