//! What an operator asks of the running agent: `job`, `reload`, `drain` and `upgrade`.

use crate::cli::{DrainArgs, JobArgs, JobCommand, JobValues, ReloadArgs, UpgradeArgs};
use crate::print;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use tally_agent::AgentError;
use tally_agent::control::client::Client;
use tally_agent::control::proto::{Changed, Job, JobLine};
use tally_agent::log::Log;

/// Between two questions how many processes are left.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Bytes of the longest key file.
const KEY_FILE_MAX: u64 = 4096;

pub(crate) fn job(args: &JobArgs) -> Result<(), AgentError> {
    let mut agent = Client::connect(&args.control.path())?;
    let changed = match &args.command {
        JobCommand::Add(values) => agent.add_job(job_of(values)?, values.version.expected)?,
        JobCommand::Set(values) => agent.set_job(job_of(values)?, values.version.expected)?,
        JobCommand::Remove(args) => agent.remove_job(args.id, args.version.expected)?,
        JobCommand::List { json } => {
            let list = agent.list_jobs()?;
            return print(&if *json {
                list_json(list.version, &list.jobs)
            } else {
                list_text(list.version, &list.jobs)
            });
        }
    };
    say(&changed)
}

pub(crate) fn reload(args: &ReloadArgs) -> Result<(), AgentError> {
    let changed = Client::connect(&args.control.path())?.reload(args.version.expected)?;
    say(&changed)
}

pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<(), AgentError> {
    let done = Client::connect(&args.control.path())?.upgrade()?;
    print(&format!(
        "process {} serves from now on; {} processes stay with the agent of before until they leave\n",
        done.pid, done.processes
    ))
}

/// Waits until the last process has left, or says how many have not.
pub(crate) fn drain(args: &DrainArgs, log: Log) -> Result<(), AgentError> {
    let mut agent = Client::connect(&args.control.path())?;
    if args.cancel {
        let done = agent.drain(true)?;
        return print(&format!(
            "new processes are taken again; {} are served\n",
            done.processes
        ));
    }
    let timeout = args.timeout.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|why| AgentError::Options(format!("--timeout: {why}")))?;
    let began = Instant::now();
    let mut told = None;
    loop {
        let state = agent.drain(false)?;
        let left = state.processes + state.processes_before;
        if left == 0 {
            return print("drained: no process is left\n");
        }
        if timeout.is_some_and(|most| began.elapsed() >= most) {
            return Err(AgentError::Drain { left });
        }
        if told.replace(left) != Some(left) {
            log.info(format_args!("waiting for {left} processes to leave"));
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn say(changed: &Changed) -> Result<(), AgentError> {
    let mut text = String::new();
    for line in &changed.changes {
        text += &format!("changed: {line}\n");
    }
    for line in &changed.needs_restart {
        text += &format!("not changed: {line}\n");
    }
    if text.is_empty() {
        text = "nothing is different\n".into();
    }
    print(&format!(
        "{text}configuration version {}\n",
        changed.version
    ))
}

fn job_of(values: &JobValues) -> Result<Job, AgentError> {
    Ok(Job {
        id: values.id.into(),
        key: key(&values.key_file)?,
        workers: values.workers.into(),
        priority: values.priority.map(u32::from),
        ranks_per_host: Some(values.ranks_per_host.into()),
    })
}

/// The key in a file, which no other user may read.
pub(crate) fn key(path: &Path) -> Result<String, AgentError> {
    use std::os::unix::fs::PermissionsExt;
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .take(KEY_FILE_MAX)
            .read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path);
        if let Ok(Ok(found)) = file.as_ref().map(std::fs::File::metadata)
            && found.permissions().mode() & 0o077 != 0
        {
            return Err(AgentError::Options(format!(
                "{}: mode {:04o} lets other users read the key, expected 0600 (chmod 600 {})",
                path.display(),
                found.permissions().mode() & 0o7777,
                path.display()
            )));
        }
        file.and_then(|file| file.take(KEY_FILE_MAX).read_to_string(&mut text))
    };
    read.map_err(|why| AgentError::Options(format!("{}: {why}", path.display())))?;
    Ok(text.trim().to_owned())
}

fn list_text(version: u64, jobs: &[JobLine]) -> String {
    let mut text = format!("configuration version {version}\n");
    text += "   job  workers  ranks per host  priority  processes here\n";
    for job in jobs {
        let priority = job.priority.map_or("computed".into(), |it| it.to_string());
        text += &format!(
            "{:>6}  {:>7}  {:>14}  {:>8}  {:>14}\n",
            job.id, job.workers, job.ranks_per_host, priority, job.processes
        );
    }
    text
}

fn list_json(version: u64, jobs: &[JobLine]) -> String {
    let job = |it: &JobLine| {
        let priority = it.priority.map_or("null".into(), |it| it.to_string());
        format!(
            r#"{{"id": {}, "workers": {}, "ranks_per_host": {}, "priority": {priority}, "processes": {}}}"#,
            it.id, it.workers, it.ranks_per_host, it.processes
        )
    };
    let jobs: Vec<_> = jobs.iter().map(job).collect();
    format!(
        "{{\"version\": {version}, \"jobs\": [{}]}}\n",
        jobs.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use simd_json::prelude::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lists_are_for_people_and_for_programs() {
        let line = |id, priority| JobLine {
            id,
            workers: 4,
            priority,
            processes: 2,
            ranks_per_host: 2,
        };
        let jobs = [line(7, None), line(65535, Some(9))];
        assert_eq!(
            list_text(3, &jobs),
            "configuration version 3\n   job  workers  ranks per host  priority  processes here\n     \
             7        4               2  computed               2\n 65535        4               2         9               2\n"
        );
        let mut json = list_json(3, &jobs).into_bytes();
        let read = simd_json::to_owned_value(&mut json).unwrap();
        assert_eq!(read["jobs"][1]["priority"].as_u64(), Some(9));
        assert!(read["jobs"][0]["priority"].is_null());
        assert_eq!(read["jobs"][0]["ranks_per_host"].as_u64(), Some(2));
        assert_eq!(read["version"].as_u64(), Some(3));
        assert_eq!(list_json(1, &[]), "{\"version\": 1, \"jobs\": []}\n");
    }

    #[test]
    fn a_key_that_others_can_read_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "  81828384\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let error = key(&path).unwrap_err().to_string();
        assert!(error.contains("mode 0640"), "{error}");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(key(&path).unwrap(), "81828384");
        assert!(key(&folder.path().join("none")).is_err());
    }
}
