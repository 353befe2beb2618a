//! What the test plays frames to: the compiled RTL, or a stand-in for it.

use tally_bridge::registers::{self as reg, COUNTERS};
use tally_card::{Flaw, Gaps, Model, Size};
use tally_engine::{Member, Roster};
use tally_wire::{JobId, Mac};

/// The switch's address, as the card is told it.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub mac: Mac,
    pub ip: std::net::Ipv4Addr,
    pub base_port: u16,
    pub shards: u16,
}

/// How big the card is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub slots: u32,
    pub units: u8,
    pub jobs: u8,
    pub members: u8,
    pub ring: u32,
}

impl Shape {
    pub fn of(size: Size) -> Self {
        let parameters = Model::with(size, 0).parameters();
        Self {
            slots: parameters.slots,
            units: (parameters.payload_bytes / 64) as u8,
            jobs: parameters.jobs as u8,
            members: parameters.members as u8,
            ring: parameters.ring,
        }
    }

    /// Longest frame that is not cut off.
    pub fn frame_max(&self) -> usize {
        (64 + usize::from(self.units) * 64).max(1600)
    }
}

/// By the order of `registers::COUNTERS`.
pub type Counts = Vec<u64>;

/// A card under test. Errors end the script: the card hangs, or has found itself at fault.
pub trait Card {
    fn set_own(&mut self, own: &Own) -> Result<(), String>;
    /// Job and members into this place, which is free or has this epoch of the job.
    fn load(&mut self, place: u8, roster: &Roster) -> Result<(), String>;
    fn unload(&mut self, place: u8) -> Result<(), String>;
    fn offer(&mut self, frame: &[u8], flaw: Flaw);
    fn set_gaps(&mut self, gaps: Gaps, seed: u64);
    /// Until nothing is inside. What came out since the last time, in order.
    fn drain(&mut self) -> Result<Vec<Vec<u8>>, String>;
    fn counters(&mut self) -> Result<Counts, String>;
    fn cycles(&self) -> u64;
}

/// What the driver computes for `JOB_HASH`.
pub fn hash_of(job: JobId) -> u32 {
    u32::from(job.0).wrapping_mul(0x9e37_79b9) >> 7
}

/// Cycles in which a card that is not stuck gets everything done: all that a script offers between
/// two settlements, with the most gaps.
const SETTLE_CYCLES: u64 = 4_000_000;

fn failed(error: tally_card::BusError) -> String {
    format!("register access: {error}")
}

fn words(mac: Mac) -> (u32, u32) {
    let bits = mac.to_u64();
    ((bits >> 32) as u32, bits as u32)
}

/// The compiled RTL.
pub struct Rtl(pub Model);

impl Rtl {
    fn write(&mut self, address: u16, value: u32) -> Result<(), String> {
        self.0.write(address, value).map_err(failed)
    }

    fn store(&mut self, select: u32, member: &Member, is_child: bool) -> Result<(), String> {
        let (high, low) = words(member.mac);
        self.write(reg::MEMBER_SELECT, select)?;
        self.write(reg::MEMBER_MAC_HIGH, high)?;
        self.write(reg::MEMBER_MAC_LOW, low)?;
        self.write(reg::MEMBER_IP, member.ip.to_bits())?;
        self.write(reg::MEMBER_UDP_PORT, member.udp_port.into())?;
        self.write(reg::MEMBER_PORT, member.port.0.into())?;
        self.write(reg::MEMBER_CHILD, is_child.into())?;
        self.write(reg::MEMBER_COMMAND, reg::BIT_MEMBER_STORE)
    }

    /// A command may take a while.
    fn await_clear(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            let status = self.0.read(reg::STATUS).map_err(failed)?;
            if status & reg::BIT_CLEARING == 0 {
                return Ok(());
            }
        }
        Err("the card does not end to clear".into())
    }

    fn sound(&self) -> Result<(), String> {
        self.0.fault().map_or(Ok(()), Err)
    }
}

impl Card for Rtl {
    fn set_own(&mut self, own: &Own) -> Result<(), String> {
        self.await_clear()?;
        let (high, low) = words(own.mac);
        self.write(reg::OWN_MAC_HIGH, high)?;
        self.write(reg::OWN_MAC_LOW, low)?;
        self.write(reg::OWN_IP, own.ip.to_bits())?;
        self.write(reg::BASE_PORT, own.base_port.into())?;
        self.write(reg::SHARDS, own.shards.into())?;
        self.write(reg::CONTROL, reg::BIT_ENABLE)
    }

    fn load(&mut self, place: u8, roster: &Roster) -> Result<(), String> {
        let ports = roster.ports.iter().fold(0, |mask, port| mask | 1 << port.0);
        self.write(reg::JOB_SELECT, place.into())?;
        for (rank, member) in (0..).zip(&roster.workers) {
            self.store(rank, member, roster.switches >> rank & 1 != 0)?;
        }
        self.store(0xff, &roster.servers[0], false)?;
        self.write(reg::JOB_NUMBER, roster.job.0.into())?;
        self.write(reg::JOB_EPOCH, roster.epoch.0.into())?;
        self.write(reg::JOB_UNITS, roster.units.into())?;
        self.write(reg::JOB_WORKERS, roster.workers.len() as u32)?;
        self.write(reg::JOB_PORTS, ports)?;
        self.write(reg::JOB_HASH, hash_of(roster.job))?;
        self.write(reg::JOB_COMMAND, reg::BIT_JOB_LOAD)?;
        self.await_clear()
    }

    fn unload(&mut self, place: u8) -> Result<(), String> {
        self.write(reg::JOB_SELECT, place.into())?;
        self.write(reg::JOB_COMMAND, reg::BIT_JOB_UNLOAD)?;
        self.await_clear()
    }

    fn offer(&mut self, frame: &[u8], flaw: Flaw) {
        self.0.offer_flawed(frame, flaw);
    }

    fn set_gaps(&mut self, gaps: Gaps, seed: u64) {
        self.0.set_gaps(gaps, seed);
    }

    fn drain(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let cycles = self.0.run(SETTLE_CYCLES);
        self.sound()?;
        if cycles >= SETTLE_CYCLES {
            let waiting = self.0.pending();
            return Err(format!("stuck: {waiting} frames wait to go in"));
        }
        Ok(std::iter::from_fn(|| self.0.take()).collect())
    }

    fn counters(&mut self) -> Result<Counts, String> {
        self.write(reg::COUNTER_SNAPSHOT, reg::BIT_COUNTER_SNAPSHOT)?;
        let mut counts = Vec::with_capacity(COUNTERS.len());
        for at in 0..COUNTERS.len() as u16 {
            let address = reg::COUNTERS_AT + 8 * at;
            let low = self.0.read(address).map_err(failed)?;
            let high = self.0.read(address + 4).map_err(failed)?;
            counts.push(u64::from(high) << 32 | u64::from(low));
        }
        Ok(counts)
    }

    fn cycles(&self) -> u64 {
        self.0.cycles()
    }
}
