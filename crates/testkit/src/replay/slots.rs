//! What the workers of a SwitchML session send, as captures that can be replayed without end, and
//! a switch that sums them.
//!
//! # How it works
//!
//! A worker goes through its slots in one set and then in the other, so that is what a capture
//! holds: when it begins again, all workers have been in the second set, and the first is empty.
//! Nothing ever has to jump, as the fragments of the [native dialect](super::Captures) do. The
//! ports are polled in turn, so workers are apart by a burst, and slots are many more.
//!
//! The captures begin with the switch, before there is a session: until then, frames are dropped.
//! When it begins, a worker may miss slots that others have; one time round, all are in step.

use super::captures::folder;
use super::switch::{START_PATIENCE, STOP_PATIENCE, Switch, statistics};
use super::{CpuTime, Cpus, DESCRIPTORS, POOL_FRAMES, Rate, Replayed, WARM_UP, WORKERS, device};
use crate::switchml::control::{Control, Member};
use crate::switchml::link::Peer;
use anyhow::{Context, Result, ensure};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tally_engine::switchml::controller::switch_mac;
use tally_load::capture::{SWITCH_IP, SWITCH_MAC, Writer, mtu, worker};
use tally_schema::switch::config::{
    AddressConfig, Config, Idle, MemoryKind, PortSection, SwitchmlSection,
};
use tally_schema::switch::report::Report;
use tally_switch::datapath::BURST;
use tally_wire::Addresses;
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};

/// The published client's first source port.
const WORKER_PORT: u16 = 4000;
/// All bytes of what the switch makes its workers' addresses of: captures are written before it
/// tells them.
const SECRET: u8 = 7;
/// Times round the captures before it is measured.
const ROUNDS_BEFORE: u64 = 4;

/// Captures of [`WORKERS`] workers, each at a port of its own, in a folder that goes away with the
/// value.
#[derive(Debug)]
pub struct SlotCaptures {
    /// Elements of a packet.
    pub size: Size,
    /// Slots of each worker.
    pub slots: u16,
    files: Vec<Vec<PathBuf>>,
    folder: tempfile::TempDir,
}

impl Replayed for SlotCaptures {
    fn files(&self) -> &[Vec<PathBuf>] {
        &self.files
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn mtu(&self) -> u16 {
        mtu(self.frame_bytes())
    }
}

impl SlotCaptures {
    /// Writes them.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(size: Size, slots: u16) -> Result<Self> {
        let folder = folder()?;
        let write = |rank| {
            let path = folder.path().join(format!("port{rank}.pcap"));
            write_one(&path, size, slots, rank).with_context(|| path.display().to_string())?;
            Ok(vec![path])
        };
        let files = (0..WORKERS).map(write).collect::<Result<_>>()?;
        Ok(Self {
            size,
            slots,
            files,
            folder,
        })
    }

    /// Bytes of each frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADERS_BYTES + self.size.payload_bytes()
    }

    /// Frames of all workers.
    #[must_use]
    pub fn frames(&self) -> u64 {
        2 * u64::from(self.slots) * u64::from(WORKERS)
    }

    /// The configuration of a switch with one data core, to which they are replayed.
    fn config(&self, cpus: Cpus, memory: MemoryKind, listen: SocketAddr, socket: &Path) -> Config {
        let devices = self.files.iter().enumerate();
        let port = |(at, files): (usize, &Vec<PathBuf>)| PortSection {
            name: Some(format!("port{at}")),
            mtu: self.mtu(),
            descriptors: DESCRIPTORS,
            ..PortSection::new(device(at, files))
        };
        let address = AddressConfig::new(SWITCH_MAC, SWITCH_IP);
        let mut config = Config::new(address, devices.map(port).collect());
        config.eal.memory = memory;
        config.cores = vec![cpus.data];
        config.control_core = Some(cpus.control);
        config.switchml = Some(SwitchmlSection {
            slots: self.slots,
            // `net_pcap` keeps the captures in the pool of frames.
            held: POOL_FRAMES / 4,
            secret: Some([SECRET; 32]),
            ..SwitchmlSection::new(vec![listen.into()])
        });
        config.idle = Idle::Spin;
        config.stats_socket = Some(socket.to_owned());
        config
    }
}

fn write_one(path: &Path, size: Size, slots: u16, rank: u8) -> Result<()> {
    let mut file = Writer::create(path)?;
    let mut frame = vec![0; HEADERS_BYTES + size.payload_bytes()];
    let (src_mac, src_ip) = worker(rank);
    let addresses = Addresses {
        src_mac,
        dst_mac: switch_mac(&[SECRET; 32], u64::from(rank) + 1),
        src_ip,
        dst_ip: SWITCH_IP,
        src_port: WORKER_PORT,
        dst_port: FIRST_PORT,
    };
    let mut number: u32 = 0x9e37_79b9 ^ u32::from(rank);
    for packet in 0..2 * slots {
        let header = Header {
            size,
            job: 1,
            packet: u32::from(packet).to_ne_bytes(),
            slot: packet % slots,
            set: packet >= slots,
            exponents: [0; 2],
        };
        emit_request(&mut frame, &addresses, &header);
        for element in frame[HEADERS_BYTES..].chunks_exact_mut(4) {
            // Marsaglia's xorshift.
            number ^= number << 13;
            number ^= number >> 17;
            number ^= number << 5;
            element.copy_from_slice(&number.to_be_bytes());
        }
        file.add(&frame)?;
    }
    file.finish()
}

impl Switch {
    /// The rate at which it sums frames of SwitchML's, over that many seconds.
    ///
    /// # Errors
    /// If it does not run, or if any frame had another fate than to be summed and answered: then
    /// the number would mean something else.
    pub fn measure_slots(&self, captures: &SlotCaptures, cpus: Cpus, seconds: u32) -> Result<Rate> {
        let file = |name: &str| captures.folder().join(name);
        let (path, socket) = (file("switch.json"), file("switch.sock"));
        let listen = {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
            free.local_addr()?
        };
        let config = captures.config(cpus, self.memory().of_switch(), listen, &socket);
        tally_load::capture::config::write(&config, &path)?;
        let program = self.start(&path, &file("switch.log"))?;
        let control = Control::connect(&listen.to_string(), START_PATIENCE)?;
        for rank in 0..WORKERS {
            let (mac, ip) = worker(rank);
            let member = Member {
                rank,
                workers: WORKERS,
                station: Peer { mac, ip },
                size: captures.size,
            };
            let joined = control.udp_session(member.request(1));
            let joined =
                joined.map_err(|status| anyhow::anyhow!("UdpSession: {}", status.message()))?;
            let told = switch_mac(&[SECRET; 32], u64::from(rank) + 1);
            ensure!(
                joined.switch.mac == told,
                "rank {rank} was told {}, and its capture goes to {told}",
                joined.switch.mac
            );
        }
        std::thread::sleep(WARM_UP);
        let deadline = Instant::now() + START_PATIENCE;
        while Counted::of(&statistics(&socket)?).summed < ROUNDS_BEFORE * captures.frames() {
            ensure!(
                Instant::now() < deadline,
                "the switch: not {ROUNDS_BEFORE} times round within {START_PATIENCE:?}"
            );
            std::thread::sleep(WARM_UP / 10);
        }
        let cpu_before = CpuTime::of(program.id())?;
        let before = statistics(&socket)?;
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let cpu_after = CpuTime::of(program.id())?;
        let after = statistics(&socket)?;
        // A good end is one with all buffers back in their pool.
        program.stop(STOP_PATIENCE)?;
        let frames = check(&before, &after)?;
        let per_wall_s = frames as f64 / (after.gauges.seconds - before.gauges.seconds);
        Ok(Rate::new(per_wall_s, cpu_before.share_until(&cpu_after)))
    }
}

/// What a switch has counted.
struct Counted {
    received: u64,
    sent: u64,
    summed: u64,
    results: u64,
    answered: u64,
}

impl Counted {
    fn of(report: &Report) -> Self {
        let counters = report.switchml.as_ref().map(|switchml| &switchml.counters);
        let count = |name: &str| counters.and_then(|c| c.get(name)).copied().unwrap_or(0);
        Self {
            received: report
                .ports
                .iter()
                .map(|port| port.counters.rx_frames)
                .sum(),
            sent: report
                .ports
                .iter()
                .map(|port| port.counters.tx_frames)
                .sum(),
            summed: count("contributions"),
            results: count("results"),
            answered: count("answered"),
        }
    }
}

/// The frames that came in between two reports, every one of which was summed and answered.
fn check(before: &Report, after: &Report) -> Result<u64> {
    ensure!(
        after.drops == before.drops,
        "the switch dropped frames: {:?}, then {:?}",
        before.drops,
        after.drops
    );
    let (a, b) = (Counted::of(before), Counted::of(after));
    let [received, sent, summed, results, answered] = [
        b.received - a.received,
        b.sent - a.sent,
        b.summed - a.summed,
        b.results - a.results,
        b.answered - a.answered,
    ];
    let workers = u64::from(WORKERS);
    // What a turn has begun and not finished when a report is made.
    let turn = (BURST * usize::from(WORKERS)) as u64;
    ensure!(
        received > 0
            && answered == 0
            && summed == received
            && summed.abs_diff(results * workers) <= turn
            && sent.abs_diff(results * workers) <= turn,
        "of {received} frames the switch summed {summed}, to {results} results for {workers} workers and {answered} \
         answers to duplicates; {sent} frames left"
    );
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::UdpFrame;

    #[test]
    fn a_capture_goes_through_both_sets_of_all_slots() {
        let captures = SlotCaptures::write(Size::B128, 5).unwrap();
        assert_eq!(captures.frames(), 80);
        let file = std::fs::read(&captures.files()[3][0]).unwrap();
        let records = file[24..].chunks_exact(16 + captures.frame_bytes());
        assert_eq!((records.len(), records.remainder().len()), (10, 0));
        for (n, record) in (0_u16..).zip(records) {
            let frame = &record[16..];
            let udp = UdpFrame::parse(frame).unwrap();
            assert_eq!((udp.addresses.src_mac, udp.addresses.src_ip), worker(3));
            assert_eq!(udp.addresses.dst_port, FIRST_PORT);
            let header = Header::parse(udp.datagram(frame)).unwrap();
            assert_eq!((header.slot, header.set), (n % 5, n >= 5));
        }
    }
}
