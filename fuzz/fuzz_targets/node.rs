//! Arbitrary frames into a switch in the middle of a tree. The oracle and what a script's bytes
//! mean are in `crates/engine/tests/common/node.rs`.
#![no_main]

#[allow(dead_code, reason = "shared with the engine's tests")]
#[path = "../../crates/engine/tests/common"]
mod common {
    pub mod dialect;
    pub mod dispatch;
    pub mod node;
    pub mod pair;
    pub mod plain;
    pub mod platform;
    pub mod sums;
    pub mod switch;
    pub mod table;
}

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    common::node::run(script);
});
