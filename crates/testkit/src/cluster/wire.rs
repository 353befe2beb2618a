//! Lossy wires between hosts and switch: the kernel drops frames, for UDP and TCP alike.
//!
//! Each pair of a host has a namespace in its middle. A classifier at the ingress of both devices
//! there redirects a frame to the other device, or, with the probability of loss, to a bridge
//! without ports, which frees it. The classifier is a classic BPF program with the kernel's random
//! numbers, which have no seed.
//!
//! The catches: a frame is lost behind its link's shaper, so it has used bandwidth. Superframes are
//! segmented before, so that frames are lost independently. ARP is never lost: the kernel repeats a
//! request only after a second, which would measure ARP.

use super::commands::{check_run, ip};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::ops::AddAssign;
use std::process::Command;

/// IPv4 packets from this length on carry payload, shorter ones are control, as ACKs of TCP.
const LONG_BYTES: u32 = 300;
/// The bridge without ports.
const SINK: &str = "lost";
/// Priorities of the filters of a device: they are tried in this order.
const LONG: u32 = 1;
const SHORT: u32 = 2;
const REST: u32 = 3;

/// Frames lost on a wire in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostFrames {
    /// Frames with payload.
    pub long: u64,
    /// Other frames.
    pub short: u64,
}

impl AddAssign for LostFrames {
    fn add_assign(&mut self, other: Self) {
        self.long += other.long;
        self.short += other.short;
    }
}

/// Frames lost on the wire of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireLosses {
    /// From the host to the switch.
    pub to_switch: LostFrames,
    /// From the switch to the host.
    pub to_host: LostFrames,
}

/// The host's end and the switch's end of a wire.
pub(super) fn ends(host: usize) -> [String; 2] {
    [format!("near{host}"), format!("far{host}")]
}

/// Makes the bridge where lost frames end.
pub(super) fn prepare(namespace: &str) -> Result<()> {
    let add = ["-n", namespace, "link", "add", "dev", SINK, "mtu", "9000"];
    ip(&[&add[..], &["type", "bridge"]].concat())?;
    ip(&["-n", namespace, "link", "set", SINK, "up"])
}

/// Joins the two ends of a host's wire, which loses this share of frames.
pub(super) fn join(namespace: &str, host: usize, share: f64) -> Result<()> {
    ensure!((0.0..1.0).contains(&share), "loss of {share}: 0 to below 1");
    let [near, far] = ends(host);
    for (from, to) in [(&near, &far), (&far, &near)] {
        tc(namespace, &["qdisc", "add", "dev", from, "clsact"])?;
        if share > 0.0 {
            filter(namespace, from, LONG, &program(true, share), SINK)?;
            filter(namespace, from, SHORT, &program(false, share), SINK)?;
        }
        filter(namespace, from, REST, ALL, to)?;
    }
    Ok(())
}

/// A classic BPF program that takes all frames.
const ALL: &str = "1,6 0 0 4294967295";

/// A classic BPF program that takes this share of the long or the short frames.
fn program(long: bool, share: f64) -> String {
    // A = length; if A >= LONG_BYTES ...; A = random number; if A >= threshold ...; take; leave.
    let (jump_if, jump_else) = if long { (0, 3) } else { (3, 0) };
    let threshold = (share * f64::from(u32::MAX)) as u32;
    format!(
        "6,128 0 0 0,53 {jump_if} {jump_else} {LONG_BYTES},32 0 0 4294963256,53 1 0 {threshold},\
         6 0 0 4294967295,6 0 0 0"
    )
}

fn filter(namespace: &str, from: &str, priority: u32, program: &str, to: &str) -> Result<()> {
    let priority = priority.to_string();
    let protocol = if to == SINK { "ip" } else { "all" };
    let at = ["filter", "add", "dev", from, "ingress", "prio", &priority];
    let what = ["protocol", protocol, "bpf", "bytecode", program];
    let then = ["action", "mirred", "egress", "redirect", "dev", to];
    tc(namespace, &[&at[..], &what, &then].concat())
}

fn tc(namespace: &str, arguments: &[&str]) -> Result<()> {
    check_run(Command::new("tc").args(["-n", namespace]).args(arguments))
}

/// What `tc` says of a filter, as far as it is needed here.
#[derive(Deserialize)]
struct Filter {
    pref: u32,
    options: Option<FilterOptions>,
}

#[derive(Deserialize)]
struct FilterOptions {
    actions: Vec<Action>,
}

#[derive(Deserialize)]
struct Action {
    stats: Stats,
}

#[derive(Deserialize)]
struct Stats {
    packets: u64,
}

/// Frames that a host's wire has lost.
pub(super) fn losses(namespace: &str, host: usize) -> Result<WireLosses> {
    let [near, far] = ends(host);
    Ok(WireLosses {
        to_switch: lost_at(namespace, &near)?,
        to_host: lost_at(namespace, &far)?,
    })
}

fn lost_at(namespace: &str, device: &str) -> Result<LostFrames> {
    let mut command = Command::new("tc");
    command.args(["-n", namespace, "-s", "-j", "filter", "show"]);
    let output = command.args(["dev", device, "ingress"]).output();
    let mut text = output.with_context(|| format!("{command:?}"))?.stdout;
    let filters: Vec<Filter> =
        simd_json::from_slice(&mut text).with_context(|| format!("{command:?}"))?;
    let of = |priority| {
        let filters = filters.iter().filter(|filter| filter.pref == priority);
        let actions = filters.flat_map(|filter| filter.options.iter().flat_map(|o| &o.actions));
        actions.map(|action| action.stats.packets).sum()
    };
    Ok(LostFrames {
        long: of(LONG),
        short: of(SHORT),
    })
}
