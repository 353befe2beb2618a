//! Has Verilator translate the RTL to C++, once for each size of model, and compiles that together
//! with `shim/`, which drives the pins.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// A model: its name, and the RTL's parameters.
type Size = (&'static str, [(&'static str, u32); 7]);

/// What `Model` can be. The full one is what the register block of a card describes unless its
/// maker chooses otherwise; the small one makes collisions, rings that go round and full tables
/// likely.
const SIZES: [Size; 2] = [
    (
        "small",
        [
            ("SLOTS", 64),
            ("PAYLOAD_BYTES", 256),
            ("JOBS", 4),
            ("MEMBERS", 8),
            ("RING", 32),
            ("F32", 1),
            ("DATA_BITS", 512),
        ],
    ),
    (
        "full",
        [
            ("SLOTS", 1024),
            ("PAYLOAD_BYTES", 1024),
            ("JOBS", 8),
            ("MEMBERS", 16),
            ("RING", 512),
            ("F32", 1),
            ("DATA_BITS", 512),
        ],
    ),
];

fn main() {
    println!("cargo:rerun-if-changed=../rtl");
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let rtl = sources(Path::new("../rtl"), "sv");
    let root = verilator(["--getenv", "VERILATOR_ROOT"]);
    let include = Path::new(root.trim()).join("include");

    let mut runtime = compiler(&include);
    runtime.file(include.join("verilated.cpp"));
    runtime.file(include.join("verilated_threads.cpp"));
    runtime.file("shim/stop.cpp");
    if is_on("TRACE") {
        runtime.file(include.join("verilated_fst_c.cpp"));
        println!("cargo:rustc-link-lib=z");
    }
    if is_on("COVERAGE") {
        runtime.file(include.join("verilated_cov.cpp"));
    }
    // Before their runtime, for linkers that look at archives in order.
    for size in &SIZES {
        compile(size, &rtl, &out, &include);
    }
    runtime.compile("tally_card_runtime");
}

fn is_on(feature: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{feature}")).is_some()
}

/// The files with this extension in a folder, in order of their names; packages first, which others
/// use.
fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| {
        eprintln!("{}: {error}", folder.display());
        exit(1)
    });
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new(extension)))
        .collect();
    files.sort_by_key(|path| (!path.to_string_lossy().ends_with("_pkg.sv"), path.clone()));
    files
}

/// Runs Verilator and gives what it printed.
fn verilator(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let done = Command::new("verilator").args(arguments).output();
    let output = done.unwrap_or_else(|error| {
        eprintln!("tally-card is made from RTL by Verilator, which cannot be run: {error}.");
        eprintln!("On Debian and Ubuntu: apt-get install verilator g++");
        exit(1)
    });
    if !output.status.success() {
        eprintln!("verilator failed ({}):", output.status);
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        exit(1);
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn compile((name, parameters): &Size, rtl: &[PathBuf], out: &Path, include: &Path) {
    let prefix = format!("Vtally_{name}");
    let folder = out.join(name);
    // What an earlier version had must not be compiled.
    let _ = fs::remove_dir_all(&folder);
    let mut arguments: Vec<String> = [
        "--cc",
        "--assert",
        "--top-module",
        "tally_card",
        "-O3",
        "--x-assign",
        "fast",
        "--x-initial",
        "unique",
        "-Wno-fatal",
        "--output-split",
        "20000",
    ]
    .map(str::to_owned)
    .into();
    arguments.extend(["--prefix".to_owned(), prefix.clone()]);
    arguments.extend(["--Mdir".to_owned(), folder.to_string_lossy().into_owned()]);
    for (parameter, value) in parameters {
        arguments.push(format!("-G{parameter}={value}"));
    }
    if is_on("TRACE") {
        arguments.extend(["--trace-fst", "--trace-structs"].map(str::to_owned));
    }
    if is_on("COVERAGE") {
        arguments.extend(["--coverage-line", "--coverage-toggle"].map(str::to_owned));
    }
    arguments.extend(rtl.iter().map(|path| path.to_string_lossy().into_owned()));
    verilator(&arguments);

    // What runs once is not worth the optimiser's time.
    let files = sources(&folder, "cpp").into_iter();
    let (slow, fast): (Vec<_>, Vec<_>) =
        files.partition(|path| path.to_string_lossy().ends_with("__Slow.cpp"));
    let mut start = compiler(include);
    start.include(&folder).files(slow).opt_level(0);
    let start = start.compile_intermediates();

    let mut model = compiler(include);
    model.include(&folder).files(fast).objects(start);
    model.file("shim/shim.cpp");
    model.define("MODEL", prefix.as_str());
    model.define("MODEL_HEADER", format!("\"{prefix}.h\"").as_str());
    model.define("MODEL_API", format!("tally_{name}_api").as_str());
    for (parameter, value) in parameters {
        let value = value.to_string();
        model.define(&format!("RTL_{parameter}"), value.as_str());
    }
    model.compile(&format!("tally_card_{name}"));
}

/// Optimised in every profile: the tests are of millions of frames.
fn compiler(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .include(include)
        .include(include.join("vltstd"))
        // A failed assertion is reported by the shim, and ends no process.
        .define("VL_USER_STOP", None)
        .define("VL_USER_FATAL", None);
    for (feature, define) in [("TRACE", "VM_TRACE"), ("COVERAGE", "VM_COVERAGE")] {
        build.define(define, if is_on(feature) { "1" } else { "0" });
    }
    if is_on("TRACE") {
        build.define("VM_TRACE_FST", "1");
    }
    build
}
