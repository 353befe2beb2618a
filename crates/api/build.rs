//! Generates the code of the calls. The compiler of `.proto` files is a crate: nothing has to be
//! installed.

use std::error::Error;

const PROTOS: [&str; 2] = ["proto/control.proto", "proto/fleet.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for proto in PROTOS {
        println!("cargo::rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
