//! Finds the system's libdpdk, compiles the shim and binds the allow-list below.
//!
//! The lists in this file and `src/shim.h` are the whole surface. To move to another DPDK,
//! build, and read what the C compiler says about `src/shim.c`.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

/// Older releases lack `rte_thread_register` with today's meaning, or the `mtu` in `rxmode`.
const VERSION_MIN: &str = "22.11";

/// Linked because symbols of theirs are called; every other driver is a plugin that the EAL
/// loads from DPDK's own plugin folder (see the crate's documentation).
const LIBRARIES: &[&str] = &[
    "rte_net_ring",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_eal",
];

const FUNCTIONS: &[&str] = &[
    // EAL
    "rte_eal_init",
    "rte_eal_cleanup",
    "rte_eal_hotplug_add",
    "rte_eal_hotplug_remove",
    "rte_strerror",
    "rte_version",
    "rte_get_tsc_hz",
    "rte_thread_register",
    "rte_thread_unregister",
    // Pools, buffers and rings
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_copy",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "rte_ring_create",
    "rte_ring_free",
    // Ports
    "rte_eth_from_rings",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_set_mtu",
    "rte_eth_dev_get_mtu",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_dev_close",
    "rte_eth_dev_socket_id",
    "rte_eth_promiscuous_enable",
    "rte_eth_macaddr_get",
    "rte_eth_stats_get",
    // Ours, in src/shim.h
    "tally_.*",
];

const TYPES: &[&str] = &["tally_.*"];

/// Never looked into, only pointed at.
const OPAQUE: &[&str] = &["rte_ring", "rte_mempool", "rte_mbuf_ext_shared_info"];

const CONSTANTS: &[&str] = &["RTE_PKTMBUF_HEADROOM", "TALLY_.*"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/shim.h");
    println!("cargo:rerun-if-changed=src/shim.c");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");

    pkg_config(&[&format!("--atleast-version={VERSION_MIN}")]);
    // Everything, `-march=` and `-include rte_config.h` too: without the latter the layout of
    // DPDK's structures is another one.
    let cflags = pkg_config(&["--cflags"]);
    let libdir = pkg_config(&["--variable=libdir"]).join(" ");

    let mut shim = cc::Build::new();
    shim.file("src/shim.c").opt_level(3).warnings(true);
    for flag in &cflags {
        shim.flag(flag);
    }
    shim.compile("tally_dpdk_shim");

    println!("cargo:rustc-link-search=native={libdir}");
    for library in LIBRARIES {
        println!("cargo:rustc-link-lib=dylib={library}");
    }

    let mut bindings = bindgen::Builder::default()
        .header("src/shim.h")
        .clang_args(&cflags)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .use_core()
        .generate_comments(false)
        .derive_default(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .allowlist_recursively(true)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    for name in FUNCTIONS {
        bindings = bindings.allowlist_function(name);
    }
    for name in TYPES {
        bindings = bindings.allowlist_type(name);
    }
    for name in CONSTANTS {
        bindings = bindings.allowlist_var(name);
    }
    for name in OPAQUE {
        bindings = bindings.opaque_type(name);
    }
    let bindings = match bindings.generate() {
        Ok(bindings) => bindings,
        Err(error) => give_up(&format!("bindgen could not read DPDK's headers: {error}")),
    };
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        give_up("OUT_DIR is not set: run through cargo");
    };
    if let Err(error) = bindings.write_to_file(out.join("bindings.rs")) {
        give_up(&format!("cannot write the bindings: {error}"));
    }
}

/// Asks pkg-config about libdpdk; its answer is split at blanks.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = match Command::new(&program)
        .args(arguments)
        .arg("libdpdk")
        .output()
    {
        Ok(output) => output,
        Err(error) => give_up(&format!("cannot run `{program}`: {error}")),
    };
    if !output.status.success() {
        give_up(&format!(
            "`{program} {} libdpdk` failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn give_up(reason: &str) -> ! {
    eprintln!(
        "\ndpdk-sys needs DPDK {VERSION_MIN} or later, its headers, and libclang.\n\
         {reason}\n\
         On Debian and Ubuntu:\n\n    \
         apt-get install libdpdk-dev dpdk pkg-config libclang-dev clang\n"
    );
    exit(1);
}
