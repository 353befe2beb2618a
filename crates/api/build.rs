//! Generates the code of the calls. The compiler of `.proto` files is a crate: nothing has to be
//! installed.

use std::error::Error;

const PROTO: &str = "proto/control.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
