//! Generates the code of SwitchML's calls. The compiler of `.proto` files is a crate: nothing has
//! to be installed.

use std::error::Error;

const PROTO: &str = "proto/switchml.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure()
        // Clients connect by `tonic::transport`; the switch itself is not to depend on that half.
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
