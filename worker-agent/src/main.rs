//! `tally-agent`: the agent of a host, all-reduce from the command line, and the parameter server.

mod cli;
mod join;
mod operator;
mod progress;

use clap::{CommandFactory, Parser};
use cli::{
    AllreduceArgs, Cli, Command, DoctorArgs, LossArgs, PsArgs, RingArgs, ServeArgs, StatusArgs,
};
use progress::Console;
use std::io::Write;
use std::mem;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_agent::config::{AgentConfig, PsConfig, PsJob, WorkerConfig};
use tally_agent::daemon;
use tally_agent::link::loss::{Direction, Loss};
use tally_agent::log::Log;
use tally_agent::monitor;
use tally_agent::tensors::Tensors;
use tally_agent::{AgentError, Options, ps};
use tally_program::service::{self, Watchdog};
use tally_program::{Exit, documents};
use tally_schema::agent::status::Status;
use tally_verbs::RingId;
use tally_verbs::rendezvous::RingConfig;

fn main() -> ExitCode {
    match documents::write_if_asked(Cli::command()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tally-agent: {error}");
            return Exit::File.into();
        }
    }
    let command = Cli::parse().command;
    let log = match Log::from_environment("tally-agent") {
        Ok(log) => log,
        Err(problem) => {
            let error = AgentError::Options(problem);
            eprintln!("tally-agent: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let done = |()| ExitCode::SUCCESS;
    let outcome = match command {
        Command::Allreduce(args) => allreduce(&args, log).map(done),
        Command::Ring(args) => ring(args).map(done),
        Command::Ps(args) => serve_ps(&args, log).map(done),
        Command::Serve(args) => serve(&args, log).map(done),
        Command::Status(args) => status(&args).map(done),
        Command::Doctor(args) => doctor(&args),
        Command::Join(args) => join::join(&args, log).map(done),
        Command::Job(args) => operator::job(&args).map(done),
        Command::Reload(args) => operator::reload(&args).map(done),
        Command::Drain(args) => operator::drain(&args, log).map(done),
        Command::Upgrade(args) => operator::upgrade(&args).map(done),
    };
    let code = outcome.unwrap_or_else(|error| {
        log.error(&error);
        ExitCode::from(error.exit_code())
    });
    log.flush();
    code
}

/// Becomes true at SIGINT or SIGTERM. A second signal ends the process at once.
fn stop_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the first signal finds the flag false, and the second hook sets it. They
        // fail only for signals that cannot be caught.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone());
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    stop
}

/// Becomes true at SIGHUP, which ends no daemon.
fn reload_flag() -> Arc<AtomicBool> {
    let reload = Arc::new(AtomicBool::new(false));
    // As in `stop_flag`.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGHUP, reload.clone());
    reload
}

/// Losses that the user asks for, with a line in the log.
fn loss(args: LossArgs, log: Log) -> Option<Loss> {
    let loss = args.loss()?;
    let Loss {
        probability,
        burst,
        direction,
        seed,
    } = loss;
    let percent = probability * 100.0;
    let of = match direction {
        Direction::Both => "all datagrams",
        Direction::Out => "datagrams to the switch",
        Direction::In => "datagrams from the switch",
    };
    let bursts = match burst {
        1 => String::new(),
        burst => format!(" in bursts of {burst}"),
    };
    if probability > 0.0 {
        log.warn(format_args!(
            "losing {percent}% of {of} on purpose{bursts}, seed {seed}"
        ));
    }
    Some(loss)
}

fn allreduce(args: &AllreduceArgs, log: Log) -> Result<(), AgentError> {
    let mut config = WorkerConfig::load(&args.config)?;
    if args.rank.is_some() {
        config.job.rank = args.rank;
        config.check(&args.config)?;
    }
    let rank = config.job.rank.ok_or_else(|| {
        let file = args.config.display();
        AgentError::Options(format!("no rank: give --rank, or job.rank in {file}"))
    })?;
    let input = match (&args.input, args.synthetic) {
        (Some(path), _) => Tensors::read(path)?,
        (None, _) => Tensors::synthetic(args.seed, rank, args.elements, args.element),
    };
    let options = Options {
        op: args.op,
        arithmetic: args.arithmetic,
        rounds: args.repeat,
        compute: Duration::from_millis(args.compute),
        loss: loss(args.loss, log),
    };
    let stop = stop_flag();
    let mut console = Console::new(args.progress, log, config.job.id, rank);
    let outcome = tally_agent::allreduce(&config, &options, input, &mut console, &stop);
    console.end();
    let (output, report) = outcome?;
    if let Some(path) = &args.output {
        output.write(path)?;
    }
    if let Some(path) = &args.report {
        tally_agent::report::write(&report, path)?;
    }
    let again = report.retransmissions;
    println!(
        "job {}: {} of {} elements from {} workers in {:.3} s, {:.3} Gbit/s; \
         {} fragments: {} from the switch, {} from the parameter server, {} sent again; \
         latency p50 {:.0} us, p99 {:.0} us",
        report.job,
        report.op,
        report.elements,
        report.workers,
        report.seconds,
        report.goodput_gbit_per_s,
        report.fragments,
        report.from_switch,
        report.from_ps,
        again.timeout + again.early + again.nack,
        report.latency_us.p50,
        report.latency_us.p99,
    );
    Ok(())
}

fn ring(args: RingArgs) -> Result<(), AgentError> {
    let key = operator::key(&args.key_file)?;
    let ring = RingConfig {
        ring: RingId(args.ring),
        key: key.parse().map_err(|error| {
            AgentError::Options(format!("{}: {error}", args.key_file.display()))
        })?,
        members: args.members,
    };
    let config = tally_verbs::Config {
        dscp: args.dscp,
        packets: args.packets,
        window: args.window,
        join_timeout: Duration::from_secs(args.join),
        ..tally_verbs::Config::new(ring, args.rank, args.address, args.coordinator)
    };
    let input = match (&args.input, args.synthetic) {
        (Some(path), _) => Tensors::read(path)?,
        (None, _) => Tensors::synthetic(args.seed, args.rank.into(), args.elements, args.element),
    };
    let (output, summary) = tally_agent::ring(config, args.repeat, input)?;
    if let Some(path) = &args.output {
        output.write(path)?;
    }
    println!(
        "ring {}: sum of {} elements from {} hosts on {} in {:.3} s, {:.3} Gbit/s; epoch {}",
        args.ring,
        summary.elements,
        args.members,
        summary.device,
        summary.spent.as_secs_f64(),
        summary.gbit_per_s,
        summary.epoch,
    );
    Ok(())
}

fn serve_ps(args: &PsArgs, log: Log) -> Result<(), AgentError> {
    let config = PsConfig::load(&args.config)?;
    tally_agent::log::configure(config.log);
    let loss = loss(args.loss, log);
    let stop = stop_flag();
    let reload = reload_flag();
    let mut observe = |job, event| ps::log_event(log, "", job, event);
    let mut running = config.clone();
    let mut watchdog = Watchdog::from_environment();
    let (mut is_ready, mut is_stopping) = (false, false);
    let mut news = || {
        if !mem::replace(&mut is_ready, true) {
            service::ready(&format!("serving {} jobs", running.jobs.len()));
        }
        watchdog.alive(Instant::now());
        if stop.load(Ordering::Relaxed) && !mem::replace(&mut is_stopping, true) {
            service::stopping();
        }
        let is_asked = reload.swap(false, Ordering::Relaxed);
        is_asked
            .then(|| reload_ps(&mut running, args, log))
            .flatten()
    };
    let report = ps::serve_jobs(&config, loss, &mut observe, &stop, &mut news)?;
    if let Some(path) = &args.report {
        tally_agent::report::write(&report, path)?;
    }
    for job in &report.jobs {
        println!(
            "job {}: {} partials, {} results, {} sent again, {} reminds, {} nacks",
            job.job, job.partials, job.results, job.results_resent, job.reminds, job.nacks
        );
    }
    Ok(())
}

/// The jobs of a parameter server's file that is read again, if it can be used and they differ.
fn reload_ps(running: &mut PsConfig, args: &PsArgs, log: Log) -> Option<Vec<PsJob>> {
    let new = match PsConfig::load(&args.config) {
        Ok(new) => new,
        Err(error) => {
            log.error(format_args!("reload refused: {error}; nothing was changed"));
            return None;
        }
    };
    let changes = running.apply(new);
    if changes.is_empty() {
        log.info("configuration read again: nothing is different");
    }
    for line in &changes.applied {
        log.info(format_args!("changed: {line}"));
    }
    for line in &changes.needs_restart {
        log.warn(format_args!("not changed: {line}"));
    }
    (!changes.applied.is_empty()).then(|| running.jobs.clone())
}

fn serve(args: &ServeArgs, log: Log) -> Result<(), AgentError> {
    // A signal that comes while the configuration is read is no end.
    let (stop, reload) = (stop_flag(), reload_flag());
    let config = AgentConfig::load(&args.config)?;
    if args.check {
        println!("{}: good", args.config.display());
        return Ok(());
    }
    tally_agent::log::configure(config.log);
    monitor::serve_agent(&config);
    let origin = daemon::Origin::of_this_process().map_err(|source| AgentError::Report {
        path: "/proc/self/exe".into(),
        source,
    })?;
    daemon::run(daemon::Start {
        path: args.config.clone(),
        config,
        loss: loss(args.loss, log),
        log,
        stop,
        reload,
        origin,
        takes_over: args.take_over,
    })
}

/// For an agent to answer.
const STATUS_WITHIN: Duration = Duration::from_secs(5);

fn status(args: &StatusArgs) -> Result<(), AgentError> {
    let json = tally_local::status(&args.socket, STATUS_WITHIN)?;
    if args.json {
        return print(&(json + "\n"));
    }
    let status: Status = tally_config::parse(&args.socket, json.as_bytes())?;
    print(&status.to_string())
}

/// Writes to standard output. A reader that went away (`| head`) is no error.
fn print(text: &str) -> Result<(), AgentError> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(source) if source.kind() != std::io::ErrorKind::BrokenPipe => Err(AgentError::Report {
            path: "standard output".into(),
            source,
        }),
        _ => Ok(()),
    }
}

fn doctor(args: &DoctorArgs) -> Result<ExitCode, AgentError> {
    let diagnosis = tally_agent::doctor::examine(&args.config);
    let text = if args.json {
        diagnosis.to_json() + "\n"
    } else {
        diagnosis.to_string()
    };
    print(&text)?;
    Ok(if diagnosis.is_good() {
        ExitCode::SUCCESS
    } else {
        Exit::Failure.into()
    })
}
