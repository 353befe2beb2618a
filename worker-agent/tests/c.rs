//! The C interface: what `tally.h` promises, kept to by the library, with programs in C at a real
//! agent.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use rig::Rig;
use rig::agent::Agent;
use rig::common::switch::Habits;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tally_local::{Arithmetic, Dtype, Kind, NAME_BYTES_MAX};

const HABITS: Habits = Habits {
    collide: 100,
    preempt: 100,
    mark: 50,
};
const HEADER: &str = include_str!("../c/tally.h");
const LIBRARY: &str = include_str!("../c/src/lib.rs");
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// Where cargo puts the libraries that this test depends on.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    told(&output)
}

#[track_caller]
fn told(output: &Output) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    out.into_owned()
}

enum Library {
    Static,
    Shared,
}

/// Compiles a program, and links it with the library.
fn build(source: &Path, library: &Library, program: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-g"])
        .args(STRICT);
    cc.arg("-I")
        .arg(folder())
        .arg("-o")
        .arg(program)
        .arg(source);
    match library {
        Library::Static => cc.arg(libraries().join("libtally.a")),
        Library::Shared => {
            let at = libraries();
            cc.arg("-L").arg(&at).arg("-ltally");
            cc.arg(format!("-Wl,-rpath,{}", at.display()))
        }
    };
    run(cc.args(["-lpthread", "-ldl", "-lm"]));
}

/// Runs a program at all ranks of an agent's job; returns what each one printed.
fn at_all(agent: &Agent, program: &Path, arguments: &[&str]) -> Vec<String> {
    let start = |rank: u8| {
        Command::new(program)
            .args(arguments)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", agent.rig.workers.to_string())
            .env("TALLY_JOB", "7")
            .env("TALLY_SOCKET", agent.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..agent.rig.workers).map(start).collect();
    let outputs: Vec<_> = children
        .into_iter()
        .map(|it| it.wait_with_output().unwrap())
        .collect();
    outputs.iter().map(told).collect()
}

#[test]
fn the_example_sums() {
    let source = folder().join("examples/all_reduce.c");
    for (library, elements) in [
        (Library::Static, "20001"),
        (Library::Shared, "1"),
        (Library::Shared, "0"),
    ] {
        let agent = Agent::new(Rig::new(2, HABITS, true), &["--loss", "0.01"]);
        let program = agent.folder.path().join("all_reduce");
        build(&source, &library, &program);
        for (rank, said) in at_all(&agent, &program, &[elements]).iter().enumerate() {
            let want = format!(
                "rank {rank}: libtally {} summed {elements} elements over 2 ranks, whose mean rank is 0.5\n",
                env!("CARGO_PKG_VERSION")
            );
            assert_eq!(*said, want);
        }
    }
}

#[test]
fn any_arguments_from_c_are_served_or_refused() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let program = agent.folder.path().join("calls");
    build(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/calls.c"),
        &Library::Shared,
        &program,
    );
    for said in at_all(&agent, &program, &[]) {
        assert!(said.ends_with("all good\n"), "{said}");
    }
}

#[test]
fn one_that_differs_is_named_to_c() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let program = agent.folder.path().join("all_reduce");
    build(
        &folder().join("examples/all_reduce.c"),
        &Library::Static,
        &program,
    );
    let start = |rank: &str, elements: &str| {
        let mut command = Command::new(&program);
        command.arg(elements).env("RANK", rank);
        command.env("WORLD_SIZE", "2").env("TALLY_JOB", "7");
        command.env("TALLY_SOCKET", agent.socket());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children = [start("0", "1000"), start("1", "1001")];
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("error 10: job 7 rank "), "{said}");
        assert!(
            said.contains("gradients") && said.contains("1001"),
            "{said}"
        );
    }
}

/// Names in front of a parenthesis, in those lines that `line` chooses.
fn functions(text: &str, line: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    let lines = text.lines().filter(|it| line(it));
    let names = lines.filter_map(|it| it.split_once('(')?.0.rsplit([' ', '*']).next());
    names.filter(|it| it.starts_with("tally_")).collect()
}

#[test]
fn header_and_library_agree() {
    let is_other = |line: &str| line.starts_with([' ', '/']) || line.starts_with("typedef");
    let declared = functions(HEADER, |line| !is_other(line));
    let defined = functions(LIBRARY, |line| line.contains("extern \"C\" fn"));
    assert_eq!(declared, defined);
    assert!(declared.len() > 15, "{declared:?}");

    let mut numbers: Vec<_> = vec![
        ("TALLY_OK".to_owned(), 0),
        ("TALLY_SUM".into(), 0),
        ("TALLY_MEAN".into(), 1),
        ("TALLY_NAME_BYTES_MAX".into(), NAME_BYTES_MAX),
    ];
    let shout = |it: &dyn std::fmt::Debug| format!("{it:?}").to_uppercase();
    numbers.extend(Dtype::ALL.map(|it| (format!("TALLY_{}", shout(&it)), it as usize)));
    numbers.extend(Arithmetic::ALL.map(|it| (format!("TALLY_{}", shout(&it)), it as usize)));
    numbers.extend(Kind::ALL.map(|it| {
        let name = match it {
            Kind::AgentGone => "AGENT_GONE".into(),
            it => shout(&it),
        };
        (format!("TALLY_ERROR_{name}"), it as usize)
    }));
    let enumerators = HEADER.lines().filter(|it| it.starts_with("    TALLY_"));
    assert_eq!(
        enumerators.count() + 1,
        numbers.len(),
        "a name without a test"
    );

    let mut source = String::from("#include \"tally.h\"\n#include <stdio.h>\n");
    for (name, number) in &numbers {
        source += &format!("typedef char is_{name}[{name} == {number} ? 1 : -1];\n");
    }
    source += "typedef void (*function)(void);\nstatic const function all[] = {\n";
    for name in &declared {
        source += &format!("    (function){name},\n");
    }
    source += "};\nint main(void) {\n    unsigned n = 0;\n    for (; n < sizeof all / sizeof *all && all[n]; n++) {}\n";
    source += "    printf(\"%u\\n\", n);\n    return 0;\n}\n";
    let at = tempfile::tempdir().unwrap();
    let file = at.path().join("agree.c");
    std::fs::write(&file, source).unwrap();
    for library in [Library::Static, Library::Shared] {
        let program = at.path().join("agree");
        build(&file, &library, &program);
        assert_eq!(
            run(&mut Command::new(&program)),
            format!("{}\n", declared.len())
        );
    }
}

#[test]
fn header_and_example_are_also_cpp() {
    for standard in ["-std=c++11", "-std=c++20"] {
        let mut cpp = Command::new("g++");
        cpp.args(["-x", "c++", "-fsyntax-only", standard])
            .args(STRICT);
        cpp.arg("-I").arg(folder());
        run(cpp.arg(folder().join("examples/all_reduce.c")));
    }
}
