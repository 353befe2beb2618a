//! A card with jobs on it, and the frames of their members.

use super::{Counted, WIRE_BYTES};
use crate::Model;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tally_bridge::{Card, CardError, Own, Window, tags};
use tally_engine::{Member, PortId, Roster};
use tally_wire::frame::emit;
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, HEADERS_BYTES, Header,
    JobId, Kind, Mac, Rank,
};

/// Of all jobs. The card has no secrets: the switch in front of it checks and writes tags.
const SECRET: EpochSecret = EpochSecret::new([0; 16]);
/// Workers of the job that most traffic is of.
pub const WORKERS: u8 = 8;
/// A register takes so long at most; a batch of frames, too.
const CYCLES_MAX: u64 = 10_000_000;

const OWN: Own = Own {
    mac: Mac([0x02, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
    ip: Ipv4Addr::new(10, 0, 0, 254),
    base_port: 31249,
    shards: 1,
};

/// The model, which its registers and its streams share.
#[derive(Clone)]
struct Shared(Arc<Mutex<Model>>);

impl Shared {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: crate::BusError) -> CardError {
    CardError::Io(std::io::Error::other(error))
}

impl Window for Shared {
    fn read(&mut self, address: u16) -> Result<u32, CardError> {
        let mut model = self.model();
        // The end of a command is found by polling.
        model.run(CYCLES_MAX);
        model.read(address).map_err(failed)
    }

    fn write(&mut self, address: u16, value: u32) -> Result<(), CardError> {
        self.model().write(address, value).map_err(failed)
    }
}

/// The jobs: `many` of eight workers, `two` of two, and `other` of two, whose payloads may be of
/// another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Many,
    Two,
    Other,
}

pub struct Bench {
    shared: Shared,
    jobs: [Roster; 3],
    pub slots: u32,
    pub ring: u32,
    random: u64,
}

fn member(n: u16) -> Member {
    let [_, low] = n.to_be_bytes();
    Member {
        port: PortId(n & 15),
        mac: Mac([2, 0, 0, 0, 1, low]),
        ip: Ipv4Addr::new(10, 0, 1, low),
        udp_port: 40_000 + n,
    }
}

/// Where its fragment 0 falls.
fn hash_of(roster: &Roster) -> u32 {
    u32::from(roster.job.0).wrapping_mul(0x9e37_79b9) >> 7
}

impl Bench {
    /// With payloads of so many units, and jobs loaded.
    pub fn new(units: u8) -> Result<Self, String> {
        let shared = Shared(Arc::new(Mutex::new(Model::new())));
        shared.model().run(CYCLES_MAX);
        let roster = |job: u16, workers: u16| {
            let first = job * 16;
            let members = (first..first + workers).map(member).collect();
            Roster::new(
                JobId(job),
                Epoch(1),
                SECRET,
                units,
                members,
                member(first + 15),
            )
        };
        let jobs = [roster(1, WORKERS.into()), roster(2, 2), roster(3, 2)];
        let (slots, ring) = {
            let parameters = shared.model().parameters();
            (parameters.slots, parameters.ring)
        };
        let mut bench = Self {
            shared,
            jobs,
            slots,
            ring,
            random: 1,
        };
        bench.load().map_err(|error| error.to_string())?;
        Ok(bench)
    }

    /// Its job `other` has payloads of so many units, and is loaded anew.
    pub fn set_other_units(&mut self, units: u8) -> Result<(), String> {
        self.jobs[2].units = units;
        self.load().map_err(|error| error.to_string())
    }

    fn load(&mut self) -> Result<(), CardError> {
        let mut card = Card::open(self.shared.clone())?;
        card.set_own(&OWN)?;
        for roster in &self.jobs {
            card.load(roster)?;
        }
        Ok(())
    }

    pub fn roster(&self, which: Which) -> &Roster {
        &self.jobs[which as usize]
    }

    /// The fragment of a job whose slot has this number, `round` times around the pool.
    pub fn fragment_at(&self, which: Which, slot: u32, round: u32) -> u32 {
        let hash = hash_of(self.roster(which));
        (slot.wrapping_sub(hash) & (self.slots - 1)) + round * self.slots
    }

    /// The slot of a job's fragment.
    pub fn slot_of(&self, which: Which, fragment: u32) -> u32 {
        hash_of(self.roster(which)).wrapping_add(fragment) & (self.slots - 1)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * u64::from(n)) >> 32) as u32
    }

    /// A contribution of i32.
    pub fn data(&self, which: Which, fragment: u32, rank: u8, priority: u8) -> Header {
        let roster = self.roster(which);
        Header {
            kind: Kind::Data,
            flags: Flags::NONE,
            priority,
            element: Element::I32,
            job: roster.job,
            epoch: roster.epoch,
            fragment: FragmentId(fragment),
            rank: Rank(rank),
            units: roster.units,
            bitmap: 1 << rank,
            tag: AuthTag::NONE,
        }
    }

    /// As it comes from the member that may say so.
    pub fn frame(&self, header: &Header) -> Vec<u8> {
        let roster = self.jobs.iter().find(|roster| roster.job == header.job);
        let roster = roster.unwrap_or(&self.jobs[0]);
        let sender = match header.kind {
            Kind::Remind | Kind::Nack => Rank::PS,
            _ => header.rank,
        };
        let from = roster.member(sender).unwrap_or(&roster.servers[0]);
        let addresses = Addresses {
            src_mac: from.mac,
            dst_mac: tags::port_mac(from.port),
            src_ip: from.ip,
            dst_ip: OWN.ip,
            src_port: from.udp_port,
            dst_port: OWN.base_port,
        };
        let mut frame = vec![1; HEADERS_BYTES + header.payload_bytes()];
        emit(&mut frame, &addresses, header);
        frame
    }

    /// What goes before, and is not counted.
    pub fn prepare(&mut self, headers: impl IntoIterator<Item = Header>) -> Result<(), String> {
        let frames: Vec<_> = headers.into_iter().map(|h| self.frame(&h)).collect();
        let mut model = self.shared.model();
        for frame in frames {
            model.offer(&frame, false);
        }
        if model.run(CYCLES_MAX) >= CYCLES_MAX {
            return Err("the model hangs".into());
        }
        while model.take().is_some() {}
        model.fault().map_or(Ok(()), Err)
    }

    /// Plays the frames.
    pub fn count(&mut self, frames: &[Vec<u8>]) -> Result<Counted, String> {
        let mut model = self.shared.model();
        for frame in frames {
            model.offer(frame, false);
        }
        let before = model.statistics();
        let count = frames.len() as u64;
        let warm = (count / 10).max(128).min(count / 2);
        model.run_until_in(before.frames_in + warm, CYCLES_MAX);
        let from = model.statistics();
        model.run_until_in(before.frames_in + count, CYCLES_MAX);
        let to = model.statistics();
        model.run(CYCLES_MAX);
        if let Some(fault) = model.fault() {
            return Err(fault);
        }
        if to.frames_in < before.frames_in + count || model.is_busy() {
            return Err("the model hangs".into());
        }
        let bytes = |frames: &mut dyn Iterator<Item = usize>| -> u64 {
            frames.map(|bytes| bytes as u64 + WIRE_BYTES).sum()
        };
        let bytes_in = bytes(&mut frames.iter().map(Vec::len));
        let beats = frames.iter().map(|frame| frame.len().div_ceil(64) as u64);
        let out: Vec<_> = std::iter::from_fn(|| model.take()).collect();
        let each = |sum: u64| sum as f64 / count as f64;
        Ok(Counted {
            frames: to.frames_in - from.frames_in,
            cycles: to.last_in - from.last_in,
            bytes_in: each(bytes_in),
            beats_in: each(beats.sum()),
            bytes_out: each(bytes(&mut out.iter().map(Vec::len))),
            frames_out: each(out.len() as u64),
        })
    }
}
