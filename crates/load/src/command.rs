//! `tally-load run`: simulated workers load a running switch at its highest rate or at a given one.
//!
//! # What it does
//!
//! It reads the switch's own configuration file and sends to no other address. It plays the workers
//! of the switch's jobs and, unless told otherwise, their parameter servers: they join with the
//! job's key, contribute, take results, and leave. Every result's sum is checked; a wrong one ends
//! the command with an error. The [crate] says how it works.
//!
//! *Closed loop*: `--window` fragments of each job are always in flight; it finds the rate that the
//! switch takes. *Open loop*, with `--rate`: contributions are due by the clock, independent of
//! results; it finds the latency at that rate.
//!
//! It ends after `--seconds` (an hour at most) or `--frames`, or when interrupted. Then the members
//! leave, and the report is printed.
//!
//! # The catches
//!
//! - Latency is from when a fragment's *last* contribution was due to its result's arrival at a
//!   port. It includes the generator's own poll iterations at both ends. In the open loop "due" is
//!   the clock's, so that a stall counts for all contributions that were due in it (corrected for
//!   coordinated omission); `uncorrected_us` leaves that out. In the closed loop due means that the
//!   window had room, and the latency is mostly the window's.
//! - Results leave a switch once for each port with workers. Workers that share a port share that
//!   frame, and its loss.
//! - One thread plays all members. `idle_share` is the share of its time in which it was idle;
//!   below 5 % the rate may be the generator's and not the switch's.
//! - It does not slow down for marks or collisions, as workers would.
//! - Seconds are those of the clock, also while other programs use the machine.

use crate::args::Args;
use crate::live::Live;
use crate::plan::Plan;
use crate::report::{parameters, results, table};
use crate::rig::Rig;
use crate::run::{LOST_AFTER_NS, Peer, Run};
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tally_report::{Machine, Report, Target};

/// Runs it.
///
/// # Errors
/// If it cannot begin, if a job breaks off, or if a sum is wrong.
pub fn run(args: &Args) -> Result<Report> {
    args.check()?;
    // Before this thread is pinned: then it would see one CPU only.
    let machine = Machine::detect();
    let plan = Plan::new(&args.config, &args.wishes())?;
    let cpu = args.cpu.or_else(|| plan.generator_cpu());
    let stop = stop_on_signals()?;
    // Before this thread is pinned: the view must not share its CPU.
    let live = (!args.quiet).then(Live::start).transpose()?;
    let rig = Rig::new(&plan, args.element.into(), cpu)?;
    let mut wire = rig.open(&plan.ports)?;
    let hosts = plan.jobs.iter();
    let hosts = hosts.flat_map(|job| job.workers.iter().chain(&job.ps));
    wire.find_switch(&plan.switch, hosts)?;
    let limits = args.limits();
    let outcome = Run::to_the_end(&plan, Peer::Switch, &mut wire, &limits, live, &stop)?;
    drop((wire, rig));

    let parameters = parameters(args, &plan, cpu);
    let results = results(&plan, &outcome);
    let lost = results.all.counts.lost;
    let seconds = LOST_AFTER_NS / 1_000_000_000;
    let how = format!("fragments without a result within {seconds} s, retransmissions included");
    let targets = vec![Target::at_most("lost", lost as f64, "fragments", 0.0, &how)];
    let table = table(&parameters, &results);
    Report::new(machine, &parameters, &results, targets, table)
}

/// A flag that SIGINT and SIGTERM set. The second one kills.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
