//! What is killed in the middle of an all-reduce: the switch and the parameter server, which come
//! back, or the card, which does not.

use super::{Args, PATIENCE};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::time::Duration;
use tally_schema::switch::report::CardReport;
use tally_testkit::cluster::{Cluster, Process, Program, Restarted};

/// How often the sum is made in which the card is killed. In software it takes a few milliseconds.
pub const KILLED_ROUNDS: u64 = 8;
/// Ports of a switch that a card can name.
const CARD_PORTS: u32 = 16;

/// What `--restart` kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Restart {
    /// The switch, half way
    Switch,
    /// The parameter server, half way
    Ps,
    /// The parameter server after a third, the switch after two
    Both,
}

impl Restart {
    /// As it is written.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "switch" => Self::Switch,
            "ps" => Self::Ps,
            "both" => Self::Both,
            _ => bail!("--restart {text}: switch, ps or both"),
        })
    }

    /// Which processes, each after how many of how many parts of the fragments.
    fn plan(self) -> &'static [(Process, u64, u64)] {
        match self {
            Self::Switch => &[(Process::Switch, 1, 2)],
            Self::Ps => &[(Process::Ps, 1, 2)],
            Self::Both => &[(Process::Ps, 1, 3), (Process::Switch, 2, 3)],
        }
    }
}

/// That the card was killed in mid-run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Killed {
    /// Results of the job that had left the switch by then.
    pub results: u64,
    /// Data fragments of the job.
    pub fragments: u64,
    /// The longest time without a result from then on.
    pub standstill_ms: f64,
}

/// Checks that the card can hold the job, which would stay in software otherwise.
pub fn fits_card(args: &Args, card: &CardReport) -> Result<()> {
    // The parameter server's port is one of those that a card knows.
    let workers_max = card.members.min(CARD_PORTS - 1);
    ensure!(
        (2..=workers_max).contains(&u32::from(args.workers)),
        "--workers {}: a job on the card has 2 to {workers_max}",
        args.workers
    );
    ensure!(
        u32::from(args.payload) <= card.payload_bytes,
        "--payload {}: the card has room for {}",
        args.payload,
        card.payload_bytes
    );
    ensure!(
        u32::from(args.window()) <= card.ring / 2,
        "--window {}: the card has results of {} fragments, half of which is the largest window",
        args.window(),
        card.ring
    );
    Ok(())
}

/// Results that the card has finished so far, if there is one.
pub fn card_results(cluster: &Cluster) -> Result<Option<u64>> {
    Ok(cluster
        .switch_report()?
        .card
        .map(|card| card.traffic.results))
}

/// Kills the card about a third into the first sum, or when the job is on it if that is later, and
/// checks that the switch reports the card as failed.
pub fn kill_card(
    cluster: &mut Cluster,
    workers: &mut [Program],
    before: u64,
    fragments: u64,
    patience: Duration,
) -> Result<Killed> {
    let standstill = cluster.kill_card(before + fragments / KILLED_ROUNDS / 3, patience, || {
        let mut all = true;
        for worker in &mut *workers {
            all &= worker.is_running()?;
        }
        Ok(all)
    })?;
    let results = standstill.results - before;
    ensure!(
        results < fragments && standstill.time > Duration::ZERO,
        "the all-reduce was over before the card was killed, after {results} of {fragments} fragments: \
         --card needs more --elements"
    );
    let card = cluster.switch_report()?.card.unwrap_or_default();
    ensure!(
        card.events.failures > 0,
        "the card was killed, but the switch reports it as {}",
        card.state
    );
    let standstill_ms = standstill.time.as_secs_f64() * 1e3;
    eprintln!(
        "  card killed after {results} of {fragments} fragments; job resumed in software after \
         {standstill_ms:.0} ms"
    );
    Ok(Killed {
        results,
        fragments,
        standstill_ms,
    })
}

/// Kills and starts again each process of `restart`, when its share of the fragments has results.
/// `before` is the number of results that left the switch in earlier runs.
pub fn restart_all(
    restart: Restart,
    cluster: &mut Cluster,
    workers: &mut [Program],
    before: u64,
    fragments: u64,
) -> Result<Vec<Restarted>> {
    let mut restarts = Vec::new();
    for &(process, part, parts) in restart.plan() {
        let at = before + fragments * part / parts;
        let results = cluster.wait_for_results(at, PATIENCE)? - before;
        let down = cluster.restart(process)?;
        for worker in &mut *workers {
            ensure!(
                results < fragments && worker.is_running()?,
                "the all-reduce was over before the {process} had come back: \
                 --restart needs more --elements"
            );
        }
        eprintln!("  {process} killed after {results} of {fragments} fragments, and back");
        restarts.push(Restarted {
            process,
            results,
            fragments,
            down_ms: down.as_secs_f64() * 1e3,
        });
    }
    Ok(restarts)
}

#[cfg(test)]
mod tests {
    use super::{Args, CardReport, fits_card};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_job_that_no_card_can_have_is_refused_with_what_it_can() {
        let card = CardReport {
            payload_bytes: 1024,
            members: 16,
            ring: 512,
            ..CardReport::default()
        };
        let told = |line: &str| {
            let line = format!("demo --card {line}");
            let Line { args } = Line::parse_from(line.split_whitespace());
            fits_card(&args, &card).map_err(|error| error.to_string())
        };
        for good in ["", "--workers 2", "--workers 15 --window 256"] {
            assert_eq!(told(good), Ok(()), "{good}");
        }
        for (bad, word) in [
            ("--workers 1", "2 to 15"),
            ("--workers 16", "2 to 15"),
            ("--payload 1088", "1024"),
            ("--window 257", "512"),
        ] {
            let error = told(bad).unwrap_err();
            assert!(error.contains(word) && error.contains(bad), "{error}");
        }
    }
}
