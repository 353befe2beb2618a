//! Virtual machines in the place of guests, with a kernel of their own: one whose network card
//! speaks RoCEv2 (`rdma_rxe`), which kernels of test machines often lack.
//!
//! A machine takes its guest's address and namespace: a bridge there joins its TAP interface and
//! the link to the switch. It runs on an emulated CPU, so it needs no KVM. It has the files of the
//! host, and keeps what it writes to itself; `/run` is empty at first. Commands go in and come out
//! by its second serial port (`guest/init`), its kernel's messages by the first.

use super::commands::{ip, prefixed};
use super::identity::{HostId, address, host_mac};
use super::network::Wires;
use super::{Cluster, Program};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// From power-on to its first command, on a machine with other work.
const BOOT: Duration = Duration::from_secs(180);
/// How often to look whether QEMU listens.
const POLL: Duration = Duration::from_millis(20);
const TAP: &str = "tap0";
const BRIDGE: &str = "bridge0";

/// A running virtual machine. It ends with the value.
pub struct Machine {
    name: String,
    program: Program,
    channel: BufReader<UnixStream>,
}

impl Cluster {
    /// Boots a virtual machine in the place of each guest and waits until all take commands.
    /// `image` is the folder that `guest/image` wrote; commands are looked for in `programs` first,
    /// folders separated by colons.
    ///
    /// # Errors
    /// If the network has no namespaces, or a machine does not boot; with the end of its log.
    pub fn boot_guests(&self, image: &Path, programs: &str) -> Result<Vec<Machine>> {
        let guests = 0..self.spec.guests;
        let boot = |guest| self.boot_guest(guest, image, programs);
        let mut machines = guests.map(boot).collect::<Result<Vec<_>>>()?;
        for machine in &mut machines {
            let ready = machine.line(Instant::now() + BOOT)?;
            ensure!(ready == "@ready", "{}: said {ready:?}", machine.name);
        }
        Ok(machines)
    }

    fn boot_guest(&self, guest: usize, image: &Path, programs: &str) -> Result<Machine> {
        let host = self.guest_host(guest);
        let Wires::Namespaces(wires) = &self.wires else {
            bail!("virtual machines need network namespaces");
        };
        let HostId(number) = host;
        let mtu = self.spec.links().mtu.to_string();
        bridge(wires.host_name(number), &mtu)?;
        let name = format!("machine{guest}");
        let socket = self.file(&format!("{name}.sock"));
        let mut command = prefixed(&wires.host_prefix(number), Path::new("qemu-system-x86_64"));
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args([
                "-display", "none", "-accel", "tcg", "-cpu", "max", "-m", "1024",
            ])
            .arg("-kernel")
            .arg(image.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.join("initrd"))
            .arg("-append")
            .arg(format!(
                "console=ttyS0 panic=-1 quiet ADDRESS={}/24 MTU={mtu} PROGRAMS=\"{programs}\"",
                address(host)
            ))
            .arg("-virtfs")
            .arg("local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
            .arg("-serial")
            .arg(format!(
                "file:{}",
                self.file(&format!("{name}.console")).display()
            ))
            .arg("-chardev")
            .arg(format!(
                "socket,id=commands,server=on,wait=on,path={}",
                socket.display()
            ))
            .args(["-serial", "chardev:commands", "-netdev"])
            .arg(format!(
                "tap,id=link,ifname={TAP},script=no,downscript=no,vnet_hdr=off"
            ))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=link,mac={}",
                host_mac(number)
            ));
        let log = self.file(&format!("{name}.log"));
        let mut program = Program::start(&name, command, &log)?;
        let deadline = Instant::now() + BOOT;
        let channel = loop {
            match UnixStream::connect(&socket) {
                Ok(channel) => break BufReader::new(channel),
                Err(error) => ensure!(
                    program.is_running()? && Instant::now() < deadline,
                    "{name}: its serial port: {error}:\n{}",
                    program.log()
                ),
            }
            std::thread::sleep(POLL);
        };
        Ok(Machine {
            name,
            program,
            channel,
        })
    }
}

/// Joins the link to the switch and a new TAP interface, and takes its address from the link.
fn bridge(namespace: &str, mtu: &str) -> Result<()> {
    let ip = |arguments: &str| {
        let words: Vec<_> = ["-n", namespace]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        ip(&words)
    };
    ip("address flush dev eth0")?;
    ip(&format!("tuntap add dev {TAP} mode tap"))?;
    ip(&format!("link add {BRIDGE} mtu {mtu} type bridge"))?;
    for device in ["eth0", TAP] {
        ip(&format!("link set {device} mtu {mtu} master {BRIDGE} up"))?;
    }
    ip(&format!("link set {BRIDGE} up"))
}

impl Machine {
    /// CPU time that the emulator has used.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.program.id()))?;
        // Behind the name, which may have spaces.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks = ticks.map(str::parse::<u64>).sum::<Result<u64, _>>();
        Ok(Duration::from_millis(10 * ticks.context("CPU time")?))
    }

    /// Runs a command of its shell and returns its output.
    ///
    /// # Errors
    /// If the command fails or takes longer than `patience`; with its output.
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<String> {
        self.start(command)?;
        self.end(patience)
            .with_context(|| format!("{}: {command}", self.name))
    }

    /// Starts a command of its shell, whose [`end`](Self::end) is to be waited for.
    ///
    /// # Errors
    /// If the machine has ended.
    pub fn start(&mut self, command: &str) -> Result<()> {
        writeln!(self.channel.get_mut(), "{command}")
            .with_context(|| format!("{}: its serial port", self.name))
    }

    /// Waits for the end of the started command and returns its output.
    ///
    /// # Errors
    /// If the command fails or takes longer than `patience`; with its output.
    pub fn end(&mut self, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        let mut output = String::new();
        loop {
            let line = self
                .line(deadline)
                .with_context(|| format!("after the output:\n{output}"))?;
            match line.strip_prefix("@end ") {
                None => output = output + &line + "\n",
                Some("0") => return Ok(output),
                Some(status) => bail!("exit status {status}:\n{output}"),
            }
        }
    }

    fn line(&mut self, deadline: Instant) -> Result<String> {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "{}: timeout", self.name);
        self.channel.get_ref().set_read_timeout(Some(left))?;
        let mut line = Vec::new();
        let read = self.channel.read_until(b'\n', &mut line);
        ensure!(
            read.with_context(|| format!("{}: no line came", self.name))? > 0,
            "{}: has ended",
            self.name
        );
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}
