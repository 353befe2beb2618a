//! What a host without the RoCE device is told.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use tally_verbs::{Device, VerbsError};

#[test]
fn a_missing_device_is_named_by_its_address() {
    let Err(error) = Device::open(Ipv4Addr::new(192, 0, 2, 1)) else {
        panic!("an address of documentation has a device");
    };
    let said = error.to_string();
    match error {
        VerbsError::NoDevice { .. } => {
            let begin = "no RoCE device has the IPv4 address 192.0.2.1; devices found: ";
            assert!(said.starts_with(begin), "{said}");
        }
        VerbsError::NoLibrary(_) => {
            let begin = "libibverbs.so.1 is not installed: ";
            assert!(said.starts_with(begin), "{said}");
        }
        VerbsError::Device { .. } => panic!("{said}"),
    }
}
