//! The card's RTL, compiled by Verilator: a [`Model`] to test and to measure, which the program
//! `tally-card` attaches to a port as a card.

#[allow(
    missing_docs,
    reason = "its public parts are documented where they come from"
)]
mod ffi;
pub mod measure;
pub mod model;

pub use model::{BusError, Flaw, Gaps, Model, Parameters, Size, Statistics};
