//! Programs of the host that know the kernel's network.

use serde::de::DeserializeOwned;
use std::io;
use std::process::{Command, Output};

/// Where programs are that an ordinary user's `PATH` may not have.
const ALSO: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Runs `program` to its end. None of those that are used here waits for anything without being
/// told how long.
fn run(program: &str, arguments: &[&str]) -> io::Result<Output> {
    let with = |program: &str| {
        Command::new(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .output()
    };
    let mut outcome = with(program);
    for folder in ALSO {
        if outcome
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            outcome = with(&format!("{folder}/{program}"));
        }
    }
    outcome
}

/// Why a program said nothing of use, and what to do.
#[derive(Clone, Debug)]
pub(super) struct Missing {
    pub(super) why: String,
    pub(super) fix: String,
}

/// What `program` prints.
pub(super) fn text(
    program: &str,
    package: &str,
    arguments: &[&str],
) -> Result<(bool, String), Missing> {
    let output = run(program, arguments).map_err(|why| Missing {
        fix: match why.kind() {
            io::ErrorKind::NotFound => format!("apt-get install {package}"),
            _ => format!("{program} {}", arguments.join(" ")),
        },
        why: format!("`{program}`: {why}"),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    Ok((output.status.success(), format!("{text}{errors}")))
}

/// What `ip -j` prints.
pub(super) fn ip<T: DeserializeOwned>(arguments: &[&str]) -> Result<Vec<T>, Missing> {
    let mut all = vec!["-j"];
    all.extend(arguments);
    let (good, mut text) = text("ip", "iproute2", &all)?;
    let problem = |why: &str| Missing {
        why: format!("`ip {}`: {}", arguments.join(" "), why.trim()),
        fix: format!("ip {}", arguments.join(" ")),
    };
    if !good {
        return Err(problem(&text));
    }
    // Nothing found is nothing printed.
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // The parser needs it to be its own.
    simd_json::serde::from_slice(&mut std::mem::take(&mut text).into_bytes())
        .map_err(|e| problem(&e.to_string()))
}

/// What `ip -d link` says.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
pub(super) struct Frames {
    pub(super) mtu: usize,
    /// 0 where there is no bound.
    #[serde(default)]
    pub(super) max_mtu: usize,
}

/// What a ping of so many bytes came to.
#[derive(Clone, Debug)]
pub(super) enum Ping {
    Answered,
    Silent,
    /// This host may not send it, or has no `ping` that can.
    Impossible(Missing),
}

/// Sends ICMP echoes in IPv4 packets of `bytes`, which may not be cut up, until one is answered,
/// for a second.
pub(super) fn ping(from: std::net::Ipv4Addr, to: std::net::Ipv4Addr, bytes: usize) -> Ping {
    // IPv4 and ICMP headers.
    let size = bytes.saturating_sub(20 + 8).to_string();
    let (from, to) = (from.to_string(), to.to_string());
    let options = [
        "-n", "-c", "1", "-w", "1", "-i", "0.2", "-M", "do", "-s", &size, "-I", &from, &to,
    ];
    match text("ping", "iputils-ping", &options) {
        Err(missing) => Ping::Impossible(missing),
        Ok((true, _)) => Ping::Answered,
        Ok((false, text)) if text.contains("packets transmitted") => Ping::Silent,
        Ok((false, text)) => {
            let why = text.lines().next().unwrap_or("no word").trim().to_owned();
            Ping::Impossible(Missing {
                why: format!("`ping`: {why}"),
                fix: format!("ping {}", options.join(" ")),
            })
        }
    }
}
