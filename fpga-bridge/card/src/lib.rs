//! The RTL of the card, compiled by Verilator.
