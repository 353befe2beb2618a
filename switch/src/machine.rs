//! What the machine says of a configuration: CPUs, memory, devices, folders.
//!
//! Nothing is opened that another program may use: a switch with the same configuration can run.
//! So it is found here what else would be lines of DPDK's log, or frames that never arrive. Each
//! [`Check`] that is not good says what to do.
//!
//! The catch: what a driver refuses (queues, flow rules, descriptors) shows when the switch starts.

pub mod fabric;
mod port;
mod system;

use crate::config::{Config, MemoryKind};
use crate::pools::megabytes;
use std::path::{Path, PathBuf};
pub use system::cpus_allowed;
use tally_schema::doctor::{Check, Diagnosis, Verdict};

/// What the names of DPDK's files of hugepages begin with.
const PREFIX: &str = "tally";

/// Looks at all that a switch with the configuration at `path` needs, and where its report is to
/// be. The exit code tells faults of the file from those of the machine.
#[must_use]
pub fn examine(path: &Path, report: Option<&Path>) -> Examined {
    let (config, faults) = Config::load_all(path);
    let mut checks: Vec<_> = faults
        .iter()
        .map(|fault| Check::bad("configuration", fault.to_string(), fix(path)))
        .collect();
    let is_usable = checks.is_empty();
    if let Some(config) = &config {
        if is_usable {
            checks.push(Check::good("configuration", summary(path, config)));
            let warnings = [config.pool_warning(), config.switchml_warning()];
            let warnings = warnings.into_iter().flatten();
            checks.extend(warnings.map(|it| Check::warning("configuration", it, fix(path))));
        }
        checks.extend(cpus(config));
        if is_usable {
            checks.push(memory(config));
        }
        for section in &config.ports {
            checks.extend(port::examine(section, config.eal.memory));
        }
        checks.extend(config.stats_socket.as_deref().map(socket));
        checks.extend(config.control.iter().map(|it| socket(&it.socket)));
    }
    checks.extend(report.map(|path| written("report", path)));
    let count = |verdict| checks.iter().filter(|it| it.verdict == verdict).count();
    Examined {
        is_usable,
        diagnosis: Diagnosis {
            bad: count(Verdict::Bad),
            warnings: count(Verdict::Warning),
            checks,
        },
    }
}

/// What was found, and whether the file itself is good.
pub struct Examined {
    /// Whether a switch can be told to do what the file says.
    pub is_usable: bool,
    /// All that was looked at.
    pub diagnosis: Diagnosis,
}

/// What the configuration comes to, in a line.
#[must_use]
pub fn summary(path: &Path, config: &Config) -> String {
    format!(
        "{}: {} ports, {} data cores, {} jobs, {} slots of {} ways, {} KiB ({}), payload up to {} bytes, {}, {} MiB",
        path.display(),
        config.ports.len(),
        config.cores.len(),
        config.jobs.len(),
        config.slots(),
        config.ways(),
        config.pool_bytes() >> 10,
        config.pool.policy,
        usize::from(config.units()) * 64,
        config.switchml_summary(),
        megabytes(config)
    )
}

pub(crate) fn fix(path: &Path) -> String {
    format!("edit {}; docs/OPERATIONS.md has all keys", path.display())
}

/// That every CPU of the configuration is one of this process's.
///
/// # Errors
/// The key, the CPU, and those that there are.
pub fn check_cpus(config: &Config) -> Result<(), String> {
    let bad = cpus(config)
        .into_iter()
        .find(|it| it.verdict == Verdict::Bad);
    bad.map_or(Ok(()), |it| Err(it.found))
}

fn cpus(config: &Config) -> Vec<Check> {
    // A machine that does not say has to be tried.
    let Some(allowed) = cpus_allowed() else {
        return Vec::new();
    };
    let shown = system::ranges(&allowed);
    let all = config.cores.iter().enumerate();
    let data = all.map(|(i, &cpu)| (format!("cores[{i}]"), cpu));
    let control = config
        .control_core
        .map(|cpu| ("control_core".to_owned(), cpu));
    let bad = |(key, cpu): (String, usize)| {
        let why =
            format!("{key}: found CPU {cpu}, expected one of {shown}, which this process may use");
        Check::bad(
            "cpus",
            why,
            "lscpu --extended; taskset -p $$; AllowedCPUs= of the unit",
        )
    };
    let missing = data
        .chain(control)
        .filter(|(_, cpu)| !allowed.contains(cpu));
    let mut checks: Vec<_> = missing.map(bad).collect();
    if let Some(control) = config.control_core.filter(|it| config.cores.contains(it)) {
        let found = format!("control_core {control} is a data core too: each waits for the other");
        checks.push(Check::warning(
            "cpus",
            found,
            "a CPU of its own for control_core, or none",
        ));
    }
    if checks.is_empty() {
        checks.push(Check::good(
            "cpus",
            format!("{:?} of {shown}", config.cores),
        ));
    }
    checks
}

fn memory(config: &Config) -> Check {
    let needed = u64::from(megabytes(config));
    if config.eal.memory == MemoryKind::NoHuge {
        return match system::memory_available_mib() {
            Some(free) if free < needed => {
                let found = format!("{needed} MiB are needed, and {free} MiB are available");
                Check::bad(
                    "memory",
                    found,
                    "smaller pool.slots, queue.frames or ports[].mtu",
                )
            }
            _ => Check::good("memory", format!("{needed} MiB of ordinary pages")),
        };
    }
    let pools = system::hugepages();
    let free: u64 = pools.iter().map(|it| it.free * it.kib / 1024).sum();
    if free < needed {
        let pages = needed.div_ceil(2) + 8;
        let found = format!("{needed} MiB of hugepages are needed, and {free} MiB are free");
        return Check::bad(
            "hugepages",
            found,
            format!("sysctl vm.nr_hugepages={pages}"),
        );
    }
    if config.eal.memory == MemoryKind::Hugepages {
        let left = system::left_over_pages(PREFIX);
        if left > 0 {
            let found =
                format!("{left} files of an earlier switch hold pages; a new one takes them over");
            return Check::good("hugepages", found);
        }
        if !system::has_hugetlbfs() {
            let fix = "mount -t hugetlbfs none /dev/hugepages; or \"memory\": \"in-memory\"";
            return Check::bad("hugepages", "hugetlbfs is not mounted", fix);
        }
    }
    Check::good(
        "hugepages",
        format!("{free} MiB are free, {needed} are needed"),
    )
}

/// What holds hugepages after the end of a switch with this configuration.
#[must_use]
pub fn left_over(config: &Config) -> Option<String> {
    let left = match config.eal.memory {
        MemoryKind::Hugepages => system::left_over_pages(PREFIX),
        MemoryKind::InMemory | MemoryKind::NoHuge => 0,
    };
    (left > 0).then(|| {
        format!(
            "{left} files hold hugepages until the next switch takes them over; to free them: \
             rm /dev/hugepages/{PREFIX}map_*"
        )
    })
}

/// Whether a switch could listen there.
fn socket(path: &Path) -> Check {
    let at = path.display();
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let found = format!("a switch answers at {at}: a second one with this file is refused");
        return Check::warning("socket", found, format!("tally-switch --stats {at}"));
    }
    let folder = folder_of(path);
    written("socket", &folder.join(".tally-check"))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => ".".into(),
    }
}

/// Whether a file could be made there.
fn written(check: &str, path: &Path) -> Check {
    let folder = folder_of(path);
    let shown = folder.display();
    match tally_config::try_write(path) {
        Ok(()) => Check::good(check, format!("files can be made in {shown}")),
        Err(error) if folder.is_dir() => {
            let found = format!("{}: {error}", path.display());
            Check::bad(
                check,
                found,
                format!("ls -ld {shown}; run as a user that may write there"),
            )
        }
        Err(error) => {
            let found = format!("{shown}: {error}");
            Check::bad(
                check,
                found,
                format!("mkdir -p {shown} (RuntimeDirectory= of the unit)"),
            )
        }
    }
}

#[cfg(test)]
mod tests;
