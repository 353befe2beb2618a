//! Generates the code of the agent's calls. The compiler of `.proto` files is a crate: nothing has
//! to be installed.

use std::error::Error;

const PROTO: &str = "proto/agent.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
