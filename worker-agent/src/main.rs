//! `tally-agent`: the agent of a host, all-reduce from the command line, and the parameter server.

mod cli;
mod progress;

use clap::{CommandFactory, Parser};
use cli::{AllreduceArgs, Cli, Command, DoctorArgs, LossArgs, PsArgs, ServeArgs, StatusArgs};
use progress::Console;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tally_agent::config::{AgentConfig, PsConfig, WorkerConfig};
use tally_agent::daemon;
use tally_agent::link::loss::{Direction, Loss};
use tally_agent::log::Log;
use tally_agent::tensors::Tensors;
use tally_agent::{AgentError, Options};
use tally_endpoint::{PsEvent, Ranks};
use tally_program::{Exit, documents};
use tally_schema::agent::status::Status;

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
        Command::Ps(args) => ps(&args, log).map(done),
        Command::Serve(args) => serve(&args, log).map(done),
        Command::Status(args) => status(&args).map(done),
        Command::Doctor(args) => doctor(&args),
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

fn ps(args: &PsArgs, log: Log) -> Result<(), AgentError> {
    let config = PsConfig::load(&args.config)?;
    let loss = loss(args.loss, log);
    let stop = stop_flag();
    let mut observe = |job: tally_wire::JobId, event| {
        let job = job.0;
        match event {
            PsEvent::Joined => log.info(format_args!("job {job}: joined, waiting for workers")),
            PsEvent::Running { epoch, workers } => log.info(format_args!(
                "job {job}: running with {workers} workers, epoch {}",
                epoch.0
            )),
            PsEvent::Ended { epoch } => {
                log.info(format_args!("job {job}: epoch {} has ended", epoch.0));
            }
            PsEvent::Aborted {
                reason,
                rank,
                behind,
            } => {
                let rank = rank.map_or(String::new(), |r| format!(", {r}"));
                let why = match behind {
                    Ranks(0) => String::new(),
                    behind => format!(", which gave up waiting for {behind}"),
                };
                log.error(format_args!("job {job}: failed: {reason:?}{rank}{why}"));
            }
            PsEvent::Refused(hint) => log.warn(format_args!(
                "job {job}: not taken in: {hint}; trying again"
            )),
            PsEvent::Left => log.info(format_args!("job {job}: left")),
        }
    };
    let report = tally_agent::serve(&config, loss, &mut observe, &stop)?;
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

fn serve(args: &ServeArgs, log: Log) -> Result<(), AgentError> {
    let config = AgentConfig::load(&args.config)?;
    if args.check {
        println!("{}: good", args.config.display());
        return Ok(());
    }
    let loss = loss(args.loss, log);
    daemon::run(&config, loss, log, &stop_flag())
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
