//! Arbitrary frames into the switch's forwarding; the oracle and what a script's bytes mean are in
//! `crates/engine/tests/common/forwarding.rs`.
#![no_main]

#[allow(dead_code, reason = "shared with the engine's tests")]
#[path = "../../crates/engine/tests/common/forwarding.rs"]
mod forwarding;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    forwarding::run(script);
});
