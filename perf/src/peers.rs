//! What Tally is compared with: PyTorch's Gloo and Open MPI, as real processes.
//!
//! Each host runs one process of a small program (`perf/peers/`) in its own namespace. Without
//! namespaces all run on this host, over their fastest transport: the loopback interface for Gloo,
//! shared memory for Open MPI. The programs time themselves, check every element of their sums, and
//! report both in JSON.

use anyhow::{Context, Result, anyhow, ensure};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tally_testkit::cluster::{Namespaces, Program, host_address, prefixed};

/// The distribution's own Python: it is the one that has the distribution's packages.
const PYTHON: &str = "/usr/bin/python3";
const GLOO: &str = include_str!("../peers/gloo.py");
const MPI: &str = include_str!("../peers/mpi.py");

/// A program to be compared with, in one of its ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Gloo's ring.
    GlooRing,
    /// Rings in groups of so many ranks, and across groups, over Gloo's point-to-point messages.
    GlooHierarchy(u8),
    /// A parameter server over Gloo's point-to-point messages.
    GlooServer,
    /// Open MPI's all-reduce as it chooses it.
    OpenMpi,
}

/// Where a peer is installed.
#[derive(Clone, Debug)]
pub struct Installed {
    python: PathBuf,
    /// The version of torch, or of mpi4py.
    pub version: String,
}

/// A host of a peer's process: a network namespace.
#[derive(Clone, Debug)]
pub struct PeerHost {
    /// Name of the namespace.
    pub name: String,
    /// Address.
    pub ip: Ipv4Addr,
}

impl PeerHost {
    /// The hosts of a cluster's network, in their order.
    #[must_use]
    pub fn all(hosts: &Namespaces) -> Vec<Self> {
        let hosts = hosts.names()[1..].iter().enumerate();
        hosts
            .map(|(host, name)| Self {
                name: name.clone(),
                ip: host_address(host),
            })
            .collect()
    }
}

/// One all-reduce after the other.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Workers.
    pub workers: u8,
    /// Elements of the vector, f32.
    pub elements: u64,
    /// How often.
    pub rounds: u32,
}

/// What one process says at its end.
#[derive(serde::Deserialize)]
struct Said {
    seconds: Vec<f64>,
    exact: bool,
}

impl Peer {
    /// Hosts that it needs for so many workers.
    #[must_use]
    pub fn hosts(self, workers: u8) -> usize {
        usize::from(workers) + usize::from(self == Self::GlooServer)
    }

    /// The Python that has what it needs: that of the package tally, or else the distribution's.
    ///
    /// # Errors
    /// What to install, for people.
    pub fn find(self) -> Result<Installed, String> {
        let (module, how) = match self {
            Self::GlooRing | Self::GlooHierarchy(_) | Self::GlooServer => (
                "torch",
                "apt-get install python3-torch, or worker-agent/python/setup",
            ),
            Self::OpenMpi => ("mpi4py", "apt-get install openmpi-bin python3-mpi4py"),
        };
        let installed = pythons().into_iter().find_map(|python| {
            let version = version(&python, module)?;
            Some(Installed { python, version })
        });
        installed.ok_or_else(|| format!("not installed: {how}"))
    }

    /// Runs it, the process of rank r on `hosts[r]`; without hosts on this one. Returns the seconds
    /// of each round, of the slowest process.
    ///
    /// # Errors
    /// If it is not installed, a process fails, or a sum is wrong.
    pub fn run(
        self,
        hosts: &[PeerHost],
        folder: &Path,
        work: Work,
        patience: Duration,
    ) -> Result<Vec<f64>> {
        let installed = self.find().map_err(|why| anyhow!(why))?;
        let processes = match self {
            Self::GlooRing | Self::GlooHierarchy(_) | Self::GlooServer => {
                self.start_gloo(&installed.python, hosts, folder, work)?
            }
            Self::OpenMpi => vec![start_mpi(&installed.python, hosts, folder, work)?],
        };
        let mut said = Vec::new();
        for process in processes {
            let log = process.wait_ok(patience)?;
            for line in log.lines().filter(|line| line.starts_with('{')) {
                let mut line = line.as_bytes().to_vec();
                said.push(simd_json::from_slice::<Said>(&mut line).context("a peer's report")?);
            }
        }
        ensure!(
            said.len() == self.hosts(work.workers),
            "{} processes of {self:?} reported, expected {}",
            said.len(),
            self.hosts(work.workers)
        );
        ensure!(said.iter().all(|one| one.exact), "{self:?}: a wrong sum");
        let slowest = |round| {
            let times = said.iter().filter_map(|one| one.seconds.get(round));
            times.copied().fold(0.0, f64::max)
        };
        Ok((0..work.rounds as usize).map(slowest).collect())
    }

    fn start_gloo(
        self,
        python: &Path,
        hosts: &[PeerHost],
        folder: &Path,
        work: Work,
    ) -> Result<Vec<Program>> {
        let script = write(folder, "gloo.py", GLOO)?;
        let mode = match self {
            Self::GlooServer => "server".to_owned(),
            Self::GlooHierarchy(group) => format!("hierarchy:{group}"),
            _ => "ring".to_owned(),
        };
        let (address, interface) = match hosts.first() {
            Some(host) => (host.ip.to_string(), "eth0"),
            None => ("127.0.0.1".to_owned(), "lo"),
        };
        let start = |rank| {
            let mut command = on_host(hosts, rank, python);
            command.arg(&script).args([&mode, &rank.to_string()]);
            command.args([&work.workers.to_string(), &address, interface]);
            command.args([&work.elements.to_string(), &work.rounds.to_string()]);
            let name = format!("gloo{rank}");
            Program::start(&name, command, &folder.join(format!("{name}.log")))
        };
        (0..self.hosts(work.workers)).map(start).collect()
    }
}

/// `mpirun`, which starts the processes. In namespaces it runs on the first host and reaches the
/// others through a script in place of a remote shell. Each host has a name and a folder for
/// temporary files of its own, so that processes do not find each other's shared memory.
fn start_mpi(python: &Path, hosts: &[PeerHost], folder: &Path, work: Work) -> Result<Program> {
    let script = write(folder, "mpi.py", MPI)?;
    let workers = work.workers.to_string();
    let mut command = on_host(hosts, 0, Path::new("mpirun"));
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
    ]);
    command.env("TMPDIR", folder);
    let mut mca = |name: &str, value: &str| {
        command.args(["--mca", name, value]);
    };
    match hosts {
        [] => mca("btl", "vader,self"),
        hosts => {
            let shell = remote_shell(hosts, folder)?;
            let all: Vec<_> = hosts.iter().map(|host| host.ip.to_string()).collect();
            mca("plm_rsh_agent", &shell.display().to_string());
            mca("plm_rsh_no_tree_spawn", "1");
            mca("routed", "direct");
            mca("btl", "tcp,self");
            mca("btl_tcp_if_include", "eth0");
            mca("oob_tcp_if_include", "eth0");
            command.args(["--map-by", "node", "-H", &all.join(",")]);
        }
    }
    command.args(["-n", &workers]).arg(python).arg(&script);
    command.args([&work.elements.to_string(), &work.rounds.to_string()]);
    Program::start("mpirun", command, &folder.join("mpirun.log"))
}

fn remote_shell(hosts: &[PeerHost], folder: &Path) -> Result<PathBuf> {
    let mut text = "#!/bin/sh\nhost=$1\nshift\ncase $host in\n".to_owned();
    for (rank, PeerHost { name, ip }) in hosts.iter().enumerate() {
        let own = folder.join(format!("host{rank}"));
        std::fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        text += &format!("{ip}) name={name} folder={} ;;\n", own.display());
    }
    text += "esac\nexport TMPDIR=$folder\n\
             exec ip netns exec $name unshare --uts sh -c \"hostname $name; $*\"\n";
    let script = write(folder, "remote-shell", &text)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700))?;
    Ok(script)
}

fn on_host(hosts: &[PeerHost], rank: usize, program: &Path) -> Command {
    let enter = |host: &PeerHost| {
        ["ip", "netns", "exec", &host.name]
            .map(str::to_owned)
            .to_vec()
    };
    prefixed(&hosts.get(rank).map(enter).unwrap_or_default(), program)
}

/// Where a peer's modules may be: the environment of the package tally, and the distribution.
fn pythons() -> [PathBuf; 2] {
    [python_tally(), PYTHON.into()]
}

/// The Python that `worker-agent/python/setup` makes, where this program is in `target/release`.
pub fn python_tally() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let target = own.parent().and_then(Path::parent);
    let target = target.unwrap_or_else(|| Path::new("target"));
    target.join("python-venv/bin/python")
}

/// A module's version, without an import of it, which takes seconds.
fn version(python: &Path, module: &str) -> Option<String> {
    let code = format!("import importlib.metadata as m; print(m.version('{module}'))");
    let output = Command::new(python).args(["-c", &code]).output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    (output.status.success()).then(|| version.trim().to_owned())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(path)
}
