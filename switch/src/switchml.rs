//! What the switch does for SwitchML's clients beside their packets: the calls by which they begin.

pub mod controller;
pub mod proto;
