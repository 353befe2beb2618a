//! `tally-perf allreduce --ranks-per-host N`: hosts with N ranks, each a worker of its own (flat),
//! or all of a host one worker (parallel, ADR 43).
//!
//! Each host is a network namespace with one link and one agent. The ranks are threads of this
//! program, which share memory with the agents as training processes do. Flat and parallel take
//! turns. A round begins after a barrier of the job, and ends with the last rank's result. Every
//! element of every rank is checked in every round.
//!
//! B_intra is 2 (n - 1) / n of a tensor by the time in which one core sums n tensors a payload at a
//! time and writes the sum to all, which is what an agent does beside its packets. B_inter is the
//! rate of a link; without shaping, n tensors by the time of flat.

use super::{Args, Kind, WINDOW_SHAPED};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tally_kernels::Kernels;
use tally_local::{Arithmetic, Client, Dtype, Hello, Operation, Priority, Region, Submission};
use tally_report::{Machine, Report, Spread, Target};
use tally_testkit::cluster::{Cluster, Cpus, Links, Network, Spec, Timeouts};

/// Elements after which the data repeats.
const PERIOD: usize = 1000;
/// Periods that are written and compared at once.
const PERIODS: usize = 64;
/// Bytes of a tensor that the host's reduction is measured with at most.
const INTRA_BYTES_MAX: usize = 32 << 20;
const INTRA_ROUNDS: u32 = 3;
/// Part of 1/n that parallel may send more: descriptors, control and repeated frames.
const SENT_SHARE: f64 = 0.9;
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

/// How the ranks of a host use their link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// Each is a worker.
    Flat,
    /// All are one.
    Parallel,
}

/// Hosts, and what is between them.
#[derive(Clone, Copy, Debug, Serialize)]
struct Setting {
    kind: Kind,
    hosts: u8,
    ranks_per_host: u16,
    links: Links,
}

impl Setting {
    fn ranks(self) -> u16 {
        u16::from(self.hosts) * self.ranks_per_host
    }
}

/// One way in one setting.
#[derive(Clone, Debug)]
struct Turn {
    seconds: Vec<f64>,
    /// Bytes that a host sent, by round.
    sent: f64,
}

/// What both ways take in one setting.
#[derive(Clone, Debug, Serialize)]
struct Row {
    setting: Setting,
    flat_seconds: Spread,
    parallel_seconds: Spread,
    /// Time of flat by that of parallel, of each turn.
    flat_to_parallel: Spread,
    /// The same by the formula.
    predicted: f64,
    flat_sent_mbyte: f64,
    parallel_sent_mbyte: f64,
    intra_gbit_per_s: f64,
    inter_gbit_per_s: f64,
    /// Parallel is faster where B_intra/B_inter is above this.
    crossover: f64,
}

#[derive(Serialize)]
struct Parameters<'a> {
    elements: u64,
    rate_mbit: u32,
    turns: u32,
    rounds: u32,
    arithmetic: &'a str,
    cpus: Cpus,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let mut rows = Vec::new();
    let mtu = *args.mtu.first().context("an MTU")?;
    for kind in [Kind::Shaped, Kind::Unshaped] {
        if args.only.is_some_and(|only| only != kind) {
            continue;
        }
        for &hosts in &args.workers {
            for &ranks_per_host in &args.ranks_per_host {
                let rate_mbit = (kind == Kind::Shaped).then_some(args.rate_mbit);
                let setting = Setting {
                    kind,
                    hosts,
                    ranks_per_host,
                    links: Links { mtu, rate_mbit },
                };
                ensure!(
                    setting.ranks() <= 64,
                    "--ranks-per-host: {hosts} hosts of {ranks_per_host} are {} ranks; a switch has 64 workers",
                    setting.ranks()
                );
                rows.push(measure(args, setting)?);
            }
        }
    }
    let mut cpus = Cpus::of_this_machine(1)?;
    cpus.share();
    let parameters = Parameters {
        elements: args.elements,
        rate_mbit: args.rate_mbit,
        turns: args.turns,
        rounds: args.rounds,
        arithmetic: &args.arithmetic,
        cpus,
    };
    let targets = rows.iter().map(target).collect();
    Report::new(
        Machine::detect(),
        &parameters,
        &rows,
        targets,
        table(args, &rows),
    )
}

fn measure(args: &Args, setting: Setting) -> Result<Row> {
    let each = setting.ranks_per_host;
    let (mut flat, mut parallel) = (Vec::new(), Vec::new());
    let mut sent = [0.0; 2];
    for n in 1..=args.turns {
        for mode in [Mode::Flat, Mode::Parallel] {
            eprintln!(
                "{} hosts of {each} ranks, turn {n} of {}: {mode:?}",
                setting.hosts, args.turns
            );
            let turn = turn(args, setting, mode).with_context(|| format!("{mode:?}"))?;
            let median = Spread::of(&turn.seconds)
                .context("at least one round")?
                .median;
            sent[usize::from(mode == Mode::Parallel)] = turn.sent / 1e6;
            match mode {
                Mode::Flat => flat.push(median),
                Mode::Parallel => parallel.push(median),
            }
        }
    }
    let ratios: Vec<_> = flat.iter().zip(&parallel).map(|(f, p)| f / p).collect();
    let spread = |of: &[f64]| Spread::of(of).context("at least one turn");
    let bits = args.elements as f64 * 32.0;
    let flat_seconds = spread(&flat)?;
    let n = f64::from(each);
    let intra = intra_gbit(args, each, setting.links.payload_bytes().into());
    let inter = match setting.links.rate_mbit {
        Some(mbit) => f64::from(mbit) / 1e3,
        None => n * bits / flat_seconds.median / 1e9,
    };
    Ok(Row {
        setting,
        flat_seconds,
        parallel_seconds: spread(&parallel)?,
        flat_to_parallel: spread(&ratios)?,
        predicted: n / (2.0 * (n - 1.0) / n * inter / intra + 1.0),
        flat_sent_mbyte: sent[0],
        parallel_sent_mbyte: sent[1],
        intra_gbit_per_s: intra,
        inter_gbit_per_s: inter,
        crossover: 2.0 / n,
    })
}

fn turn(args: &Args, setting: Setting, mode: Mode) -> Result<Turn> {
    let (ranks, each) = (setting.ranks(), setting.ranks_per_host);
    let window = args.window.unwrap_or(WINDOW_SHAPED);
    let bytes = args.elements as usize * 4;
    let spec = Spec {
        network: Network::Namespaces,
        jobs: vec![match mode {
            Mode::Flat => u8::try_from(ranks)?,
            Mode::Parallel => setting.hosts,
        }],
        share_cpus: !args.apart,
        mtu: Some(setting.links.mtu),
        rate_mbit: setting.links.rate_mbit,
        payload_bytes: setting.links.payload_bytes(),
        window,
        slots: Some(u32::from(window).next_power_of_two() * 2),
        memory_mib: Some(u32::try_from(bytes >> 20)? + 16),
        timeouts: Timeouts {
            join_ms: 30_000,
            stall_ms: 30_000,
            ..Timeouts::default()
        },
        ..Spec::default()
    };
    let mut cluster = Cluster::start(spec)?;
    let mut agents = Vec::new();
    for host in 0..setting.hosts {
        agents.push(cluster.start_agent_where(0, host, |config| {
            config.jobs[0].workers = ranks;
            config.jobs[0].ranks_per_host = match mode {
                Mode::Flat => 1,
                Mode::Parallel => each,
            };
        })?);
    }
    let before = sent_bytes(&cluster)?;
    let seconds = std::thread::scope(|scope| -> Result<Vec<f64>> {
        let start = |rank: u16| {
            let socket = cluster.agent_socket(0, (rank / each) as u8);
            let hello = Hello {
                job: Cluster::job_id(0),
                rank,
                workers: ranks,
            };
            scope.spawn(move || train(args, &socket, hello))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let mut slowest = vec![0.0_f64; args.rounds as usize + 1];
        for thread in threads {
            let Ok(seconds) = thread.join() else {
                bail!("a rank crashed");
            };
            for (all, one) in slowest.iter_mut().zip(seconds?) {
                *all = all.max(one);
            }
        }
        Ok(slowest)
    })?;
    let sent = (sent_bytes(&cluster)? - before) as f64 / seconds.len() as f64;
    for agent in agents {
        agent.stop(Duration::from_secs(10))?;
    }
    cluster.stop_ps(0)?;
    cluster.stop_switch()?;
    Ok(Turn {
        // The first round warms up.
        seconds: seconds[1..].to_vec(),
        sent,
    })
}

/// Bytes that the first host has sent over its link.
fn sent_bytes(cluster: &Cluster) -> Result<u64> {
    let output = cluster
        .command_on(cluster.worker_host(0, 0), "cat")
        .arg("/sys/class/net/eth0/statistics/tx_bytes")
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().context("the link's counter")
}

/// One rank: the seconds of each round.
fn train(args: &Args, socket: &std::path::Path, hello: Hello) -> Result<Vec<f64>> {
    let elements = args.elements as usize;
    let sum = Submission {
        operation: Operation::Sum,
        dtype: Dtype::F32,
        arithmetic: if args.arithmetic == "fixed" {
            Arithmetic::Fixed
        } else {
            Arithmetic::Native
        },
        priority: Priority::FIRST,
        more_follow: false,
        name: "gradients".into(),
    };
    let (rank, ranks) = (usize::from(hello.rank), usize::from(hello.workers));
    let ours = pattern(|i| value(rank, i));
    let sums = pattern(|i| (0..ranks).map(|rank| value(rank, i)).sum());
    let mut client = Client::connect(socket, &hello, CONNECT_WITHIN)?;
    let region = client.region(4 * elements)?;
    let mut seconds = Vec::new();
    for _ in 0..=args.rounds {
        chunks(elements, |at, bytes| {
            region.write(at, &ours[..bytes]);
            Ok(())
        })?;
        let barrier = client.barrier("round")?;
        client.wait(barrier, None)?;
        let began = Instant::now();
        let ticket = client.submit(&region, 0, elements, &sum)?;
        client.wait(ticket, None)?;
        seconds.push(began.elapsed().as_secs_f64());
        check(&region, elements, &sums).with_context(|| format!("rank {rank}"))?;
    }
    client.finish(Some(CONNECT_WITHIN))?;
    Ok(seconds)
}

/// Whole numbers, whose sums are exact in every order.
fn value(rank: usize, i: usize) -> f32 {
    ((i * 7 + rank * 13) % PERIOD) as f32
}

/// Elements that repeat, as bytes.
fn pattern(of: impl Fn(usize) -> f32) -> Vec<u8> {
    let period: Vec<u8> = (0..PERIOD).flat_map(|i| of(i).to_ne_bytes()).collect();
    period.repeat(PERIODS)
}

/// Calls `take` with the offset and the length of each piece that begins with a period.
fn chunks(elements: usize, mut take: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    let (all, most) = (4 * elements, 4 * PERIOD * PERIODS);
    (0..all)
        .step_by(most)
        .try_for_each(|at| take(at, most.min(all - at)))
}

fn check(region: &Region, elements: usize, sums: &[u8]) -> Result<()> {
    let mut room = vec![0; sums.len()];
    chunks(elements, |at, bytes| {
        region.read(at, &mut room[..bytes]);
        ensure!(
            room[..bytes] == sums[..bytes],
            "a wrong sum from byte {at} on"
        );
        Ok(())
    })
}

/// What one core's reduction of a host achieves, in NetReduce's terms.
fn intra_gbit(args: &Args, each: u16, payload_bytes: usize) -> f64 {
    let bytes = (args.elements as usize * 4).clamp(payload_bytes, INTRA_BYTES_MAX);
    let bytes = bytes - bytes % payload_bytes;
    let mut parts = vec![vec![1_u8; bytes]; each.into()];
    let mut scratch = vec![vec![0_u8; payload_bytes]; each.into()];
    let kernels = Kernels::best();
    let mut least = f64::INFINITY;
    for _ in 0..INTRA_ROUNDS {
        let began = Instant::now();
        for at in (0..bytes).step_by(payload_bytes) {
            for (scratch, part) in scratch.iter_mut().zip(&parts) {
                scratch.copy_from_slice(&part[at..at + payload_bytes]);
            }
            let Some((sum, others)) = scratch.split_first_mut() else {
                continue;
            };
            let others: Vec<_> = others.iter().map(Vec::as_slice).collect();
            kernels.sum_f32_many(sum, &others);
            for part in &mut parts {
                part[at..at + payload_bytes].copy_from_slice(sum);
            }
        }
        least = least.min(began.elapsed().as_secs_f64());
    }
    let n = f64::from(each);
    2.0 * (n - 1.0) / n * bytes as f64 * 8.0 / least / 1e9
}

fn target(row: &Row) -> Target {
    let n = row.setting.ranks_per_host;
    let kind = match row.setting.kind {
        Kind::Shaped => "shaped",
        Kind::Unshaped => "unshaped",
    };
    let name = format!("sent_flat_to_parallel_{kind}_{}x{n}", row.setting.hosts);
    let ratio = row.flat_sent_mbyte / row.parallel_sent_mbyte;
    let least = SENT_SHARE * f64::from(n);
    let how = "bytes that a host sends in a round, flat to parallel";
    Target::at_least(&name, ratio, "ratio", least, how)
}

fn table(args: &Args, rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "all-reduce of {} f32 ({:.1} MB) at every rank; {} turns of {} rounds; every element checked; {}\n\
         ranks of a host: flat, each a worker; parallel, all one worker\n",
        args.elements,
        args.elements as f64 * 4e-6,
        args.turns,
        args.rounds,
        args.arithmetic,
    );
    let _ = writeln!(
        out,
        "{:<10} {:>5} {:>10} {:>9} {:>10} {:>20} {:>8} {:>16} {:>17} {:>9}",
        "links",
        "hosts",
        "ranks/host",
        "flat s",
        "parallel s",
        "flat/parallel",
        "formula",
        "sent MB a round",
        "B_intra/B_inter",
        "crossover"
    );
    for row in rows {
        let s = row.setting;
        let links = s
            .links
            .rate_mbit
            .map_or("unshaped".to_owned(), |mbit| format!("{mbit} Mbit/s"));
        let ratio = row.flat_to_parallel;
        let _ = writeln!(
            out,
            "{links:<10} {:>5} {:>10} {:>9.3} {:>10.3} {:>20} {:>8.2} {:>16} {:>17} {:>9.2}",
            s.hosts,
            s.ranks_per_host,
            row.flat_seconds.median,
            row.parallel_seconds.median,
            format!("{:.2} ({:.2}..{:.2})", ratio.median, ratio.min, ratio.max),
            row.predicted,
            format!(
                "{:.1} / {:.1}",
                row.flat_sent_mbyte, row.parallel_sent_mbyte
            ),
            format!(
                "{:.1}/{:.1}={:.1}",
                row.intra_gbit_per_s,
                row.inter_gbit_per_s,
                row.intra_gbit_per_s / row.inter_gbit_per_s
            ),
            row.crossover,
        );
    }
    let _ = writeln!(
        out,
        "\nparallel is faster where B_intra/B_inter is above the crossover, 2/n; formula: its flat/parallel"
    );
    out
}
