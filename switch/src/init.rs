//! `tally-switch init`: configurations of switch, parameter server, agents and workers that fit.
//!
//! A file has only what differs from the defaults, with a new random key. All are read again as
//! their programs would before one is written, and no file that exists is overwritten.

use crate::config::Config;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_schema::agent::config::{AgentConfig, PsConfig, WorkerConfig};
use thiserror::Error;

/// Bytes of a key.
const KEY_BYTES: usize = 16;
/// The MTU without jumbo frames, for which programs have their defaults.
const MTU_ORDINARY: u16 = 1500;

/// Why there are no files.
#[derive(Debug, Error)]
pub enum InitError {
    /// The options make no configuration.
    #[error("{0}")]
    Options(String),
    /// A file would not be read by its program.
    #[error("the options make no configuration that fits: {0}")]
    Config(#[from] ConfigError),
    /// A file exists, or cannot be made.
    #[error("{}: {error}; nothing was written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The system gives no random numbers.
    #[error("no random number for a key: {0}")]
    Random(getrandom::Error),
}

/// What the files are to say.
#[derive(Clone, Debug)]
pub struct Init {
    /// Devices: interfaces, PCI addresses, or DPDK's virtual devices with arguments.
    pub ports: Vec<String>,
    /// Addresses of the training hosts, one for each worker.
    pub hosts: Vec<Ipv4Addr>,
    /// Address of the switch.
    pub address: Ipv4Addr,
    /// Address of the parameter server; by default the first host's.
    pub ps: Option<Ipv4Addr>,
    /// Number of the job.
    pub job: u16,
    /// MTU of all ports.
    pub mtu: u16,
    /// CPU of the data core.
    pub cpu: usize,
    /// Whether all programs run on one machine, so that their sockets need different names.
    pub is_one_machine: bool,
}

/// A file to be written.
pub struct NewFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl Init {
    /// The files, each as its program would read it.
    ///
    /// # Errors
    /// What does not fit.
    pub fn files(&self) -> Result<Vec<NewFile>, InitError> {
        self.check()?;
        let (mut key, mut mac) = ([0; KEY_BYTES], [0; 5]);
        getrandom::fill(&mut key).map_err(InitError::Random)?;
        getrandom::fill(&mut mac).map_err(InitError::Random)?;
        let key = hex(&key, "");
        let file = |name: &str, text: String| NewFile {
            name: name.to_owned(),
            text,
        };
        let mut files = vec![
            file("switch.json", self.switch(&key, &hex(&mac, ":"))),
            file("ps.json", self.ps(&key)),
        ];
        for (rank, &host) in self.hosts.iter().enumerate() {
            let n = rank + 1;
            files.push(file(&format!("agent-{n}.json"), self.agent(&key, n, host)));
            files.push(file(
                &format!("worker-{n}.json"),
                self.worker(&key, rank, host),
            ));
        }
        for NewFile { name, text } in &files {
            let (path, text) = (Path::new(name), text.as_bytes());
            match name.split(['-', '.']).next() {
                Some("switch") => {
                    let config: Config = tally_config::parse(path, text)?;
                    config.check(path)?;
                }
                Some("ps") => tally_config::parse::<PsConfig>(path, text)?.check(path)?,
                Some("agent") => tally_config::parse::<AgentConfig>(path, text)?.check(path)?,
                _ => tally_config::parse::<WorkerConfig>(path, text)?.check(path)?,
            }
        }
        Ok(files)
    }

    fn check(&self) -> Result<(), InitError> {
        let bad = |why: String| Err(InitError::Options(why));
        let mut seen = vec![self.address];
        for host in &self.hosts {
            if seen.contains(host) {
                return bad(format!(
                    "--host: found {host} a second time, expected an address of its own"
                ));
            }
            seen.push(*host);
        }
        if let Some(ps) = self.ps.filter(|ps| *ps == self.address) {
            return bad(format!(
                "--ps: found {ps}, the switch's, expected a host's address"
            ));
        }
        for port in &self.ports {
            let plain = |c: char| c.is_ascii_graphic() && !"\"\\".contains(c);
            if port.is_empty() || !port.chars().all(plain) {
                return bad(format!(
                    "--port: found `{port}`, expected an interface, a PCI address or a net_… device"
                ));
            }
        }
        Ok(())
    }

    fn switch(&self, key: &str, mac: &str) -> String {
        let mut ports = String::new();
        for (i, port) in self.ports.iter().enumerate() {
            let is_device = port.contains(':') || port.starts_with("net_");
            let (name, device) = if is_device {
                (format!("port{}", i + 1), port.clone())
            } else {
                (port.clone(), format!("packet{i},iface={port}"))
            };
            let comma = if i + 1 < self.ports.len() { "," } else { "" };
            let mtu = self.mtu_member();
            // Formatting into a string does not fail.
            let _ = write!(
                ports,
                "\n    {{ \"name\": \"{name}\", \"device\": \"{device}\"{mtu} }}{comma}"
            );
        }
        let needs_hugepages = self.ports.iter().any(|port| tally_dpdk::is_pci(port));
        let eal = match needs_hugepages {
            true => "\n  \"eal\": { \"memory\": \"in-memory\" },",
            false => "",
        };
        format!(
            r#"{{
  "address": {{ "mac": "02:{mac}", "ip": "{}" }},{eal}
  "cores": [{}],
  "ports": [{ports}
  ],
  "jobs": [{{ "id": {}, "key": "{key}", "workers": {} }}],
  "stats_socket": "/run/tally/switch/stats.sock",
  "control": {{}}
}}
"#,
            self.address,
            self.cpu,
            self.job,
            self.hosts.len()
        )
    }

    fn mtu_member(&self) -> String {
        match self.mtu {
            MTU_ORDINARY => String::new(),
            mtu => format!(", \"mtu\": {mtu}"),
        }
    }

    fn ps(&self, key: &str) -> String {
        let at = self.ps.or_else(|| self.hosts.first().copied());
        format!(
            r#"{{
  "switch": {{ "address": "{}" }},
  "jobs": [{{ "id": {}, "key": "{key}" }}],
  "transport": {{ "type": "udp", "bind": "{}:0" }}
}}
"#,
            self.address,
            self.job,
            at.unwrap_or(Ipv4Addr::UNSPECIFIED)
        )
    }

    fn agent(&self, key: &str, n: usize, host: Ipv4Addr) -> String {
        let socket = match self.is_one_machine {
            true => format!("\n  \"socket\": \"/run/tally/agent/agent-{n}.sock\","),
            false => String::new(),
        };
        format!(
            r#"{{{socket}
  "switch": {{ "address": "{}" }},
  "transport": {{ "type": "udp", "bind": "{host}" }},
  "jobs": [{{ "id": {}, "key": "{key}", "workers": {} }}]{}
}}
"#,
            self.address,
            self.job,
            self.hosts.len(),
            self.payload_member()
        )
    }

    fn worker(&self, key: &str, rank: usize, host: Ipv4Addr) -> String {
        format!(
            r#"{{
  "switch": {{ "address": "{}" }},
  "job": {{ "id": {}, "key": "{key}", "workers": {}, "rank": {rank} }},
  "transport": {{ "type": "udp", "bind": "{host}:0" }}{}
}}
"#,
            self.address,
            self.job,
            self.hosts.len(),
            self.payload_member()
        )
    }

    /// The longest payload that the MTU carries, where that is not the default.
    fn payload_member(&self) -> String {
        if self.mtu == MTU_ORDINARY {
            return String::new();
        }
        let config = format!(
            r#"{{"address": {{"mac": "02:00:00:00:00:01", "ip": "10.0.0.1"}},
                "ports": [{{"device": "net_null0", "mtu": {}}}]}}"#,
            self.mtu
        );
        let config: Result<Config, _> = tally_config::parse("mtu", config.as_bytes());
        let units = config.map_or(0, |config| config.units());
        format!(",\n  \"payload_bytes\": {}", u32::from(units) * 64)
    }
}

/// Writes the files into an existing folder, readable by their owner alone: all of them or none.
///
/// # Errors
/// The first one that exists or cannot be made.
pub fn write(folder: &Path, files: &[NewFile]) -> Result<(), InitError> {
    let mut made: Vec<PathBuf> = Vec::new();
    for NewFile { name, text } in files {
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let written = options.open(&path).and_then(|mut file| {
            made.push(path.clone());
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        if let Err(error) = written {
            for path in &made {
                // Ours, a moment ago.
                let _ = std::fs::remove_file(path);
            }
            return Err(InitError::File { path, error });
        }
    }
    Ok(())
}

fn hex(bytes: &[u8], between: &str) -> String {
    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn init() -> Init {
        Init {
            ports: vec!["eth1".into(), "eth2".into()],
            hosts: ["10.84.0.1", "10.84.0.2"]
                .map(|it| it.parse().unwrap())
                .into(),
            address: "10.84.0.254".parse().unwrap(),
            ps: None,
            job: 7,
            mtu: 1500,
            cpu: 0,
            is_one_machine: false,
        }
    }

    fn read(folder: &Path) -> (Config, PsConfig, AgentConfig, WorkerConfig) {
        let at = |name: &str| folder.join(name);
        (
            Config::load(&at("switch.json")).unwrap(),
            PsConfig::load(at("ps.json")).unwrap(),
            AgentConfig::load(at("agent-2.json")).unwrap(),
            WorkerConfig::load(at("worker-2.json")).unwrap(),
        )
    }

    #[test]
    fn the_files_fit_and_are_their_owner_s_alone() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &init().files().unwrap()).unwrap();
        let (switch, ps, agent, worker) = read(folder.path());
        for entry in folder.path().read_dir().unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        }
        let key = &switch.jobs[0].key;
        assert_eq!(
            (&ps.jobs[0].key, &agent.jobs[0].key, &worker.job.key),
            (key, key, key)
        );
        assert_eq!((switch.jobs[0].workers, agent.jobs[0].workers), (2, 2));
        assert_eq!((worker.job.workers, worker.job.rank), (2, Some(1)));
        assert_eq!(switch.address.ip, agent.switch.address);
        assert_eq!(switch.ports[1].interface(), Some("eth2"));
        // Another key each time.
        let again = tempfile::tempdir().unwrap();
        write(again.path(), &init().files().unwrap()).unwrap();
        assert_ne!(read(again.path()).0.jobs[0].key, switch.jobs[0].key);
    }

    #[test]
    fn no_file_is_overwritten_and_none_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("agent-2.json");
        std::fs::write(&mine, "mine").unwrap();
        let error = write(folder.path(), &init().files().unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("agent-2.json: File exists"),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert!(write(Path::new("/nowhere"), &init().files().unwrap()).is_err());
    }

    #[test]
    fn a_nic_has_hugepages_and_a_long_mtu_long_payloads() {
        let folder = tempfile::tempdir().unwrap();
        let init = Init {
            ports: vec!["0000:41:00.0".into(), "net_null1".into()],
            mtu: 9000,
            is_one_machine: true,
            ..init()
        };
        write(folder.path(), &init.files().unwrap()).unwrap();
        let (switch, _, agent, worker) = read(folder.path());
        assert_eq!(switch.eal.memory, crate::config::MemoryKind::InMemory);
        assert_eq!(
            (switch.ports[0].mtu, switch.ports[0].label()),
            (9000, "port1")
        );
        assert_eq!((agent.payload_bytes, worker.payload_bytes), (8192, 8192));
        assert!(agent.socket.ends_with("agent-2.sock"));
    }

    #[test]
    fn options_that_make_no_sense_are_named() {
        let with = |change: fn(&mut Init)| {
            let mut init = init();
            change(&mut init);
            let error = init.files().err().unwrap();
            error.to_string()
        };
        for (change, words) in [
            (
                (|it| it.hosts[1] = it.hosts[0]) as fn(&mut Init),
                "--host: found 10.84.0.1 a second time",
            ),
            (|it| it.ps = Some(it.address), "--ps: found 10.84.0.254"),
            (|it| it.ports[0] = "a\"b".into(), "--port: found `a\"b`"),
            (|it| it.ports.clear(), "ports: found none"),
            (|it| it.hosts.clear(), "workers: found 0"),
            (|it| it.mtu = 100, "mtu: found 100"),
        ] {
            let error = with(change);
            assert!(error.contains(words), "{error}");
        }
    }
}
