//! Finds the system's libdpdk, compiles the shim and binds the allow-list below.
//!
//! The lists in this file and `src/shim.h` are the whole surface. For another DPDK release: add it
//! to [`TESTED`], build, fix the C compiler's errors in `src/shim.c`, and run `./test dpdk`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// The tested long-term releases of DPDK, each with its first accepted stable update, oldest first.
///
/// docs/OPERATIONS.md has the commands. Before 22.11.7, 23.11.3 and 24.11 `net_memif` writes past
/// the end of an array when it receives with `zero-copy=yes`.
const TESTED: &[(u32, u32, u32)] = &[(22, 11, 7), (23, 11, 3), (24, 11, 0), (25, 11, 0)];

/// Linked because symbols of theirs are called; every other driver is a plugin that the EAL
/// loads from DPDK's own plugin folder (see the crate's documentation).
const LIBRARIES: &[&str] = &[
    "rte_net_ring",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_telemetry",
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
    // Telemetry
    "rte_telemetry_register_cmd",
    "rte_tel_data_start_array",
    "rte_tel_data_start_dict",
    "rte_tel_data_add_array_string",
    "rte_tel_data_add_dict_string",
    // Ours, in src/shim.h
    "tally_.*",
];

const TYPES: &[&str] = &["tally_.*"];

/// Structures of which Rust names no field.
const OPAQUE: &[&str] = &["rte_mbuf", "rte_mempool", "rte_ring", "rte_tel_data"];

const CONSTANTS: &[&str] = &["RTE_PKTMBUF_HEADROOM", "TALLY_.*"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/shim.h");
    println!("cargo:rerun-if-changed=src/shim.c");
    for name in [
        "PKG_CONFIG",
        "PKG_CONFIG_PATH",
        "PKG_CONFIG_LIBDIR",
        "PKG_CONFIG_SYSROOT_DIR",
    ] {
        println!("cargo:rerun-if-env-changed={name}");
    }

    let version = pkg_config(&["--modversion"]).join(" ");
    if !is_tested(&version) {
        give_up(&format!(
            "DPDK {version} was found; Tally is tested with {}, and later updates of these",
            tested()
        ));
    }
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

    // A package's files keep their times, so the headers of an upgrade may be older than this
    // build. The library's file name contains the ABI version, so an upgrade removes that file.
    if let Ok(eal) = fs::canonicalize(Path::new(&libdir).join("librte_eal.so")) {
        println!("cargo:rerun-if-changed={}", eal.display());
    }
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
        Err(error) => give_up(&format!(
            "bindgen cannot read DPDK's headers: {}",
            error.to_string().replace('\n', " ")
        )),
    };
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        give_up("OUT_DIR is not set: run through cargo");
    };
    if let Err(error) = bindings.write_to_file(out.join("bindings.rs")) {
        give_up(&format!("cannot write the bindings: {error}"));
    }
}

/// Whether a version, such as `24.11.4` or `25.11.0-rc2`, is an accepted update of a tested
/// release.
fn is_tested(version: &str) -> bool {
    let numbers: Vec<u32> = version
        .split(['.', '-'])
        .map_while(|number| number.parse().ok())
        .collect();
    let &[year, month, update, ..] = numbers.as_slice() else {
        return false;
    };
    TESTED
        .iter()
        .any(|&(y, m, first)| (year, month) == (y, m) && update >= first)
}

/// The tested releases as text: `22.11.6, 23.11.3, ...`
fn tested() -> String {
    let releases: Vec<_> = TESTED
        .iter()
        .map(|(year, month, update)| format!("{year}.{month:02}.{update}"))
        .collect();
    releases.join(", ")
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
        Err(error) => give_up(&format!("cannot run `{program}`: {error}; {PACKAGES}")),
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        give_up(&format!(
            "`{program} {} libdpdk` failed: {}; {PACKAGES}",
            arguments.join(" "),
            why.lines().next().unwrap_or_default()
        ));
    }
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Packages with DPDK, pkg-config and libclang, by distribution.
const PACKAGES: &str = "DPDK with its headers, pkg-config and libclang are in \
    `apt-get install libdpdk-dev pkg-config libclang-dev` on Debian and Ubuntu, and in \
    `dnf install dpdk-devel pkgconf-pkg-config clang-devel` on Fedora and RHEL";

/// Ends the build with a one-line error. Cargo prints nothing else, as the exit status is 0.
fn give_up(reason: &str) -> ! {
    println!("cargo::error={reason}");
    exit(0);
}
