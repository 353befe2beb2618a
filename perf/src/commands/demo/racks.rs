//! The demonstration over racks with and without Tally (Rina): agents on all hosts, and this
//! program as their processes.

use super::run::inputs;
use super::workloads::{Data, Workload, input, workloads};
use super::{Args, PATIENCE};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tally_local::Hello;
use tally_report::{Machine, Report};
use tally_testkit::racks::{Process, RackSpec, Racks, RacksSpec, Source, members_text};
use tally_testkit::reference::Reference;

/// How often a synthetic tensor is summed when a switch is killed in the middle.
const KILLED_ROUNDS: usize = 6;

/// One all-reduce.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    arithmetic: String,
    exact: bool,
    verdict: String,
    goodput_gbps: f64,
    seconds: f64,
    /// Time that the switch was away.
    down_ms: Option<f64>,
}

#[derive(Serialize)]
struct Parameters {
    racks: Vec<RackSpec>,
    elements: u64,
    loss: f64,
    seed: u64,
    restart: Option<String>,
    payload_bytes: u16,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
}

/// Racks as they are written: `tally` and `plain`, each with up to 64 hosts behind a colon.
pub fn parse(text: &str) -> Result<Vec<RackSpec>, String> {
    let rack = |word: &str| {
        let (kind, hosts) = word.split_once(':').unwrap_or((word, "2"));
        let hosts = hosts.parse().ok().filter(|hosts| (1..=64).contains(hosts));
        match (kind, hosts) {
            ("tally" | "plain", Some(hosts)) => Ok(RackSpec {
                sums: kind == "tally",
                hosts,
            }),
            _ => Err(format!("`{word}`: tally or plain, with :HOSTS of 1 to 64")),
        }
    };
    text.split(',').map(rack).collect()
}

/// The rack whose switch `--restart` kills.
pub fn restarted(args: &Args, racks: &[RackSpec]) -> Result<Option<usize>> {
    let Some(what) = &args.restart else {
        return Ok(None);
    };
    ensure!(
        what == "switch",
        "--restart {what}: with --racks only `switch`"
    );
    let rack = racks.iter().position(|rack| rack.sums);
    let rack = rack.context("--restart switch: no rack of --racks has Tally's switch")?;
    Ok(Some(rack))
}

/// Runs it.
pub fn run(args: &Args, racks: &[RackSpec]) -> Result<Report> {
    let restarted = restarted(args, racks)?;
    let summing = racks.iter().filter(|rack| rack.sums).count();
    let own = std::env::current_exe()?;
    let programs = own.parent().context("a folder of programs")?;
    let spec = RacksSpec {
        payload_bytes: args.payload,
        loss: args.loss,
        loss_seed: args.seed,
        ..RacksSpec::new(racks.to_vec(), programs.to_owned())
    };
    eprintln!(
        "starting {} agents in {} racks, {summing} of which have Tally's switch (network namespaces)",
        spec.hosts(),
        racks.len()
    );
    let mut all = Racks::start(spec)?;
    let mut rows = Vec::new();
    for workload in workloads(args)? {
        eprintln!(
            "{} workers all-reduce: {} ({})",
            all.spec().hosts(),
            workload.name,
            workload.arithmetic
        );
        let is_synthetic = matches!(workload.data, Data::Synthetic(..));
        let killed = restarted.filter(|_| is_synthetic);
        rows.push(run_one(args, &mut all, &workload, killed)?);
    }
    all.end()?;
    let parameters = Parameters {
        racks: racks.to_vec(),
        elements: args.elements(),
        loss: args.loss,
        seed: args.seed,
        restart: args.restart.clone(),
        payload_bytes: args.payload,
    };
    let wrong = rows.iter().filter(|row| !row.exact).count();
    let table = table(&parameters, &rows);
    let targets = super::summary::exactness(wrong, &[]);
    let results = Results { rows };
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}

/// What one rank sums.
fn source(args: &Args, workload: &Workload, rank: u16) -> Source {
    match &workload.data {
        Data::Real(folder) => Source::File(input(folder, rank)),
        &Data::Synthetic(elements, element) => Source::Synthetic {
            seed: args.seed,
            rank,
            element,
            elements,
        },
    }
}

fn run_one(
    args: &Args,
    racks: &mut Racks,
    workload: &Workload,
    killed: Option<usize>,
) -> Result<Row> {
    let workers = racks.spec().hosts() as u16;
    let rounds = if killed.is_some() { KILLED_ROUNDS } else { 1 };
    let (begun, done) = (Barrier::new(workers.into()), AtomicUsize::new(0));
    let one = |rank: u16, socket: PathBuf, output: PathBuf| {
        let process = Process {
            socket,
            hello: hello(rank, workers),
            source: source(args, workload, rank),
            arithmetic: workload.arithmetic,
            rounds,
            patience: PATIENCE,
        };
        process.sum(&output, &begun, || {
            if rank == 0 {
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let outputs: Vec<_> = (0..workers)
        .map(|rank| racks.folder().join(format!("sum{rank}.safetensors")))
        .collect();
    let sockets: Vec<_> = (0..workers).map(|rank| racks.socket(rank.into())).collect();
    let mut down_ms = None;
    let summed: Vec<Result<(usize, Vec<f64>)>> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..workers)
            .zip(sockets)
            .zip(&outputs)
            .map(|((rank, socket), output)| scope.spawn(move || one(rank, socket, output.clone())))
            .collect();
        let restarted = killed.map(|rack| restart(racks, rack, &done));
        let summed = threads
            .into_iter()
            .map(|it| {
                it.join()
                    .unwrap_or_else(|_| Err(anyhow::anyhow!("a rank crashed")))
            })
            .collect();
        down_ms = restarted.transpose()?;
        anyhow::Ok(summed)
    })?;
    let summed: Vec<_> = summed.into_iter().collect::<Result<_>>()?;
    let seconds = summed.iter().map(|it| it.1.iter().sum::<f64>());
    let seconds = seconds.fold(0.0, f64::max);
    let (bytes, _) = summed.first().context("at least one worker")?;
    let reference = Reference {
        program: args.reference.clone(),
    };
    let verdict = reference.check_ring(
        &members_text(&racks.spec().racks),
        workload.arithmetic,
        args.payload,
        &inputs(workload, args.seed, workers),
        outputs,
    )?;
    Ok(Row {
        name: workload.name.clone(),
        arithmetic: workload.arithmetic.to_owned(),
        exact: verdict.exact,
        verdict: verdict.text,
        goodput_gbps: (bytes * rounds * 8) as f64 / seconds / 1e9,
        seconds,
        down_ms,
    })
}

/// Kills a switch and starts it again, between the first round and the last; how long it was away.
fn restart(racks: &mut Racks, rack: usize, done: &AtomicUsize) -> Result<f64> {
    let deadline = Instant::now() + PATIENCE;
    while done.load(Ordering::Relaxed) < KILLED_ROUNDS / 3 {
        ensure!(Instant::now() < deadline, "no round is done");
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    racks.kill_switch(rack)?;
    racks.start_switch(rack)?;
    let rounds = done.load(Ordering::Relaxed);
    ensure!(
        rounds < KILLED_ROUNDS,
        "the all-reduces were over before the switch had come back: --restart needs more --elements"
    );
    eprintln!("  switch of rack {rack} killed after {rounds} of {KILLED_ROUNDS} rounds, and back");
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

const fn hello(rank: u16, workers: u16) -> Hello {
    let job = Racks::job_id(0);
    Hello { job, rank, workers }
}

fn table(parameters: &Parameters, rows: &[Row]) -> String {
    let mut out = String::new();
    let words = parameters.racks.iter().map(|rack| {
        let kind = if rack.sums { "tally" } else { "plain" };
        format!("{kind}:{}", rack.hosts)
    });
    let _ = writeln!(
        out,
        "racks {}, payload {} B, loss {} % in racks with Tally, seed {}\nring of members with ranks {}\n",
        words.collect::<Vec<_>>().join(","),
        parameters.payload_bytes,
        parameters.loss * 100.0,
        parameters.seed,
        members_text(&parameters.racks)
    );
    let _ = writeln!(
        out,
        "{:<32} {:<7} {:>6} {:>8} {:>9} {:>13}",
        "gradients", "sum as", "exact", "Gbit/s", "seconds", "switch away"
    );
    for row in rows {
        let down = row.down_ms.map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let _ = writeln!(
            out,
            "{:<32} {:<7} {:>6} {:>8.3} {:>9.3} {:>13}",
            row.name,
            row.arithmetic,
            if row.exact { "yes" } else { "NO" },
            row.goodput_gbps,
            row.seconds,
            down
        );
    }
    let wrong: Vec<_> = rows.iter().filter(|row| !row.exact).collect();
    let _ = match wrong.len() {
        0 => writeln!(out, "\nEXACT: every worker has every bit of every sum."),
        n => writeln!(out, "\nWRONG: {n} of {} runs.", rows.len()),
    };
    for row in wrong {
        let _ = writeln!(out, "{} ({}):\n{}", row.name, row.arithmetic, row.verdict);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{members_text, parse};

    #[test]
    fn racks_are_parsed_and_named_by_members() {
        let racks = parse("tally,plain:1,tally:3").unwrap();
        assert_eq!(members_text(&racks), "[[0, 1], [2], [3, 4, 5]]");
        let error = parse("tally,ring").unwrap_err();
        assert_eq!(error, "`ring`: tally or plain, with :HOSTS of 1 to 64");
        assert!(parse("plain:0").is_err() && parse("plain:65").is_err());
    }
}
