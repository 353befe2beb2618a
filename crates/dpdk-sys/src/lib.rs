//! FFI to the system's libdpdk: what `tally-dpdk` calls, and nothing more.
//!
//! # How it works
//!
//! `build.rs` finds libdpdk with pkg-config, lets bindgen read `src/shim.h` with DPDK's own
//! compiler flags, and keeps the names on the allow-list at its top. `src/shim.c` wraps the
//! functions that DPDK defines inline in headers, once per burst, and keeps its structures
//! (`rte_eth_conf`, `rte_eth_dev_info`, `rte_eth_stats`) in C. Rust looks into none of them but
//! `rte_mbuf`, by the offsets that the build takes from DPDK's headers: [`rte_mbuf`] has a
//! method for each field.
//!
//! # Versions
//!
//! The build fails with any but the tested releases of DPDK (`TESTED` in `build.rs`).
//! Differences between releases are `#if RTE_VERSION` in `src/shim.c`; Rust has none.
//!
//! # Drivers
//!
//! Drivers are plugins. A program that is linked with the shared libraries gets every driver
//! in DPDK's plugin folder (`RTE_EAL_PMD_PATH`, on Debian
//! `/usr/lib/<arch>/dpdk/pmds-<abi>`) from `rte_eal_init`, so none needs to be linked for
//! its own sake, and `--as-needed` can do no harm. Only `net_ring` is linked, because
//! `rte_eth_from_rings` is called by name; the folder's copy is the same file, and the loader
//! loads it once. The plugins come with the Debian packages that `libdpdk-dev` depends on.
//!
//! # The catches
//!
//! - `rte_errno` belongs to the thread: [`tally_errno`] must be called on the thread that failed.
//! - A static build of DPDK would find no drivers; only the shared one is supported.

#![no_std]

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_qualifications,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_lossless,
    clippy::semicolon_if_nothing_returned
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

mod mbuf;

pub use bindings::*;
