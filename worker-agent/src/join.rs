//! `join`: a host asks a controller for its place in a job, and gives the job to the running agent.

use crate::cli::JoinArgs;
use crate::print;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tally_agent::config::{AgentConfig, AgentController};
use tally_agent::control::client::Client;
use tally_agent::control::proto::Job;
use tally_agent::log::Log;
use tally_agent::{AgentError, ControllerError};
use tally_api::client::{TcpTarget, connect_controller};
use tally_api::proto::fleet::{JoinReply, JoinRequest};
use tally_program::table::plain;
use tally_wire::MAX_TREE_WORKERS;
use tonic::{Code, Status};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Longest wait for one answer: another controller may have one.
const ANSWER: Duration = Duration::from_secs(3);

pub(crate) fn join(args: &JoinArgs, log: Log) -> Result<(), AgentError> {
    let config = AgentConfig::load(&args.config)?;
    let controller = config.controller.as_ref().ok_or_else(|| {
        AgentError::Options(format!(
            "{}: no `controller`, which says where to ask for places in jobs",
            args.config.display()
        ))
    })?;
    let request = JoinRequest {
        job: args.job.clone(),
        host: host(controller)?,
    };
    let place = ask(args, controller, &request, log)?;
    check_answer(args.env, &place)?;
    check_switch(&config, &request.host, &place)?;
    let each = u32::from(args.ranks_per_host);
    let mut agent = Client::connect(&args.control.path())?;
    let job = Job {
        id: place.id,
        key: place.key.clone(),
        workers: place.workers * each,
        priority: args.priority.map(u32::from),
        ranks_per_host: Some(each),
    };
    // The job may be there, as it was in an earlier plan.
    let is_there = agent.list_jobs()?.jobs.iter().any(|it| it.id == place.id);
    if is_there {
        agent.set_job(job, None)?;
    } else {
        agent.add_job(job, None)?;
    }
    print(&shown(args, &place))
}

/// A host's place, for programs.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    job: u32,
    hosts: u32,
    host_rank: u32,
    ranks_per_host: u32,
    switch: &'a str,
    first_host: &'a str,
    plan: u64,
}

fn shown(args: &JoinArgs, place: &JoinReply) -> String {
    let JoinReply {
        id,
        workers,
        rank,
        switch,
        version,
        first_host,
        ..
    } = place;
    let each = u32::from(args.ranks_per_host);
    if args.env {
        // One a line, as Slurm's TaskProlog takes them.
        let variables = [
            ("TALLY_JOB", id.to_string()),
            ("NNODES", workers.to_string()),
            ("NODE_RANK", rank.to_string()),
            ("NPROC_PER_NODE", each.to_string()),
            ("MASTER_ADDR", first_host.clone()),
        ];
        let lines = variables.iter();
        return lines
            .map(|(name, value)| format!("export {name}={value}\n"))
            .collect();
    }
    if args.json {
        let shown = Shown {
            name: &args.job,
            job: *id,
            hosts: *workers,
            host_rank: *rank,
            ranks_per_host: each,
            switch,
            first_host,
            plan: *version,
        };
        // Texts and numbers are JSON.
        return simd_json::to_string(&shown).expect("a place is JSON") + "\n";
    }
    let mut text = format!(
        "job {}: number {id}, host {rank} of {workers} at switch {}",
        plain(&args.job),
        plain(switch)
    );
    match (rank * each, (rank + 1) * each - 1) {
        (first, last) if first == last => _ = writeln!(text, ", rank {first}"),
        (first, last) => _ = writeln!(text, ", ranks {first} to {last}"),
    }
    text
}

/// That an answer can be used: a shell evaluates what `--env` prints.
fn check_answer(is_for_shell: bool, place: &JoinReply) -> Result<(), ControllerError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    let host = &place.first_host;
    if is_for_shell && (host.is_empty() || !host.chars().all(is_plain)) {
        return Err(ControllerError::Answer(format!(
            "the first host `{}`, which is no value for a shell: expected letters, digits, `.`, \
             `_`, `:` and `-`",
            plain(host)
        )));
    }
    let JoinReply { rank, workers, .. } = place;
    if rank >= workers || *workers > u32::from(MAX_TREE_WORKERS) {
        let text = format!("rank {rank} of {workers} hosts");
        return Err(ControllerError::Answer(text));
    }
    Ok(())
}

/// This host's name in the fleet.
fn host(controller: &AgentController) -> Result<String, AgentError> {
    if let Some(host) = &controller.host {
        return Ok(host.clone());
    }
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = read.map_err(|error| AgentError::Options(format!("the host's name: {error}")))?;
    Ok(host.trim_end().to_owned())
}

/// Asks one controller after the other until one has an answer.
fn ask(
    args: &JoinArgs,
    controller: &AgentController,
    request: &JoinRequest,
    log: Log,
) -> Result<JoinReply, AgentError> {
    let no_runtime = |error| AgentError::Options(format!("no runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(no_runtime)?;
    let folder = args.config.parent().unwrap_or(Path::new("."));
    let until = Instant::now() + args.timeout;
    let mut told = None;
    loop {
        let mut problem = String::new();
        for address in &controller.addresses {
            let target = TcpTarget {
                address: address.clone(),
                certificate: folder.join(&controller.certificate),
                key: folder.join(&controller.key),
                ca: folder.join(&controller.ca),
                name: controller.server_name.clone(),
            };
            let asked = async {
                let connected = connect_controller(&target).await;
                let mut calls = connected.map_err(|error| Err(error.to_string()))?;
                calls.join(request.clone()).await.map_err(Ok)
            };
            let answer = runtime.block_on(async { tokio::time::timeout(ANSWER, asked).await });
            match answer {
                Ok(Ok(place)) => return Ok(place.into_inner()),
                Ok(Err(Ok(status))) if is_final(&status) => {
                    let why = status.message().to_owned();
                    let address = address.clone();
                    return Err(ControllerError::Refused { address, why }.into());
                }
                Ok(Err(Ok(status))) => problem = format!("{address}: {}", status.message()),
                Ok(Err(Err(error))) => problem = error,
                Err(_) => problem = format!("{address}: no answer in {} s", ANSWER.as_secs()),
            }
        }
        if Instant::now() >= until {
            let seconds = args.timeout.as_secs_f64();
            return Err(ControllerError::NoAnswer { problem, seconds }.into());
        }
        if told.as_ref() != Some(&problem) {
            log.info(format_args!("waiting: {problem}"));
            told = Some(problem);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Whether waiting does not help.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::NotFound | Code::PermissionDenied | Code::InvalidArgument | Code::Unimplemented
    )
}

/// A host whose agent is at another switch than the plan has it would wait for nothing.
fn check_switch(config: &AgentConfig, host: &str, place: &JoinReply) -> Result<(), AgentError> {
    let own = config.switch.address.to_string();
    match &place.address {
        Some(address) if *address != own => Err(AgentError::Options(format!(
            "switch.address: found {own}, expected {address}: host {host} is at switch {} by the \
             fleet",
            place.switch
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(first_host: &str, rank: u32, workers: u32) -> JoinReply {
        JoinReply {
            first_host: first_host.to_owned(),
            rank,
            workers,
            ..JoinReply::default()
        }
    }

    #[test]
    fn no_answer_is_a_command_for_a_shell() {
        for host in ["node1", "node-1.lab", "10.0.0.1", "fd00::1", "a_b"] {
            check_answer(true, &place(host, 0, 1)).unwrap();
        }
        for host in ["", "a;reboot", "$(reboot)", "`reboot`", "a\nb", "a'b", "é"] {
            let error = check_answer(true, &place(host, 0, 1)).unwrap_err();
            assert!(
                error.to_string().contains("no value for a shell"),
                "{error}"
            );
            check_answer(false, &place(host, 0, 1)).unwrap();
        }
    }

    #[test]
    fn a_rank_is_below_the_hosts_of_a_tree() {
        check_answer(false, &place("a", 4095, 4096)).unwrap();
        for (rank, workers) in [(0, 0), (1, 1), (0, 4097), (u32::MAX, u32::MAX)] {
            let error = check_answer(false, &place("a", rank, workers)).unwrap_err();
            let want = format!("the controller answers: rank {rank} of {workers} hosts");
            assert_eq!(error.to_string(), want);
        }
    }
}
