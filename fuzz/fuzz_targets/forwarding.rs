//! Arbitrary frames into the ordinary switch of two cores; the oracle and what a script's bytes
//! mean are in `crates/engine/tests/common/forwarding.rs`.
#![no_main]

#[allow(dead_code, reason = "shared with the engine's tests")]
#[path = "../../crates/engine/tests/common"]
mod common {
    pub mod forwarding;
    pub mod platform;
    pub mod switch;
}

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    common::forwarding::run(script);
});
