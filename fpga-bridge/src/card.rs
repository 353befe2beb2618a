//! The driver of a card.
//!
//! # How it works
//!
//! A card has places for jobs. The driver remembers which job is where, and what it told the card.
//! Members are written first, then the job, then the command that makes it live. All that is
//! written and can be read is read back.
//!
//! # The catches
//!
//! - The card knows of epochs only what it is told: another epoch of a job begins in a place that
//!   was cleared.
//! - After an error that [is a failure](CardError::is_failure) nothing is known of the card any
//!   more.

use crate::counters::CardCounters;
use crate::error::{CardError, Unfit};
use crate::registers::{self as at, COUNTERS};
use crate::tags::PORTS;
use crate::window::{Window, name_of};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tally_engine::{Member, PolicyName, PoolConfig, Roster};
use tally_wire::{Epoch, JobId, Mac, Rank, UNIT_BYTES};

/// How long a card may clear a place. It takes some thousand cycles.
const CLEARING: Duration = Duration::from_millis(500);
/// How long its time may stand still. A machine that simulates it may have other things to do
/// meanwhile.
const STILL: Duration = Duration::from_millis(250);
/// Between two looks at what it does.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// What a card has, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Slots of its pool.
    pub slots: u32,
    /// Longest payload, in bytes.
    pub payload_bytes: u32,
    /// Places for jobs.
    pub jobs: u32,
    /// Workers of a job at most.
    pub members: u32,
    /// Results kept of each job.
    pub ring: u32,
    /// Whether it sums f32.
    pub f32: bool,
    /// Its clock.
    pub clock_khz: u32,
}

impl Capabilities {
    /// The largest window of a worker, in fragments, that its ring of results allows (W-4).
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.ring / 2
    }
}

/// The switch's own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// UDP port of shard 0.
    pub base_port: u16,
    /// Shards; a power of two.
    pub shards: u16,
}

/// Where a job is on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub u8);

/// A card, driven through its registers.
pub struct Card<W> {
    window: W,
    capabilities: Capabilities,
    own: Option<Own>,
    /// By place.
    jobs: Vec<Option<(JobId, Epoch)>>,
    /// When its time was last seen to move, and what it was.
    moved: Option<(Instant, u32)>,
    /// What was read last.
    values: Vec<u32>,
}

impl<W: Window> Card<W> {
    /// Makes sure that a card is behind the window, and empties it: no job is on it, and every
    /// frame passes through.
    ///
    /// # Errors
    /// What the window says; another device, another register map, capabilities that cannot be.
    pub fn open(window: W) -> Result<Self, CardError> {
        let mut card = Self {
            window,
            capabilities: Capabilities {
                slots: 0,
                payload_bytes: 0,
                jobs: 0,
                members: 0,
                ring: 0,
                f32: false,
                clock_khz: 0,
            },
            own: None,
            jobs: Vec::new(),
            moved: None,
            values: Vec::new(),
        };
        // First of all, and each by itself: another device may not like to be asked more.
        let found = card.window.read(at::ID)?;
        if found != at::ID_VALUE {
            return Err(CardError::NotACard { found });
        }
        let found = card.window.read(at::INTERFACE)?;
        if found != at::INTERFACE_VALUE {
            return Err(CardError::Interface {
                found,
                known: at::INTERFACE_VALUE,
            });
        }
        card.capabilities = card.ask_capabilities()?;
        card.jobs = vec![None; card.capabilities.jobs as usize];
        card.clear()?;
        Ok(card)
    }

    /// What the card has.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The jobs on it.
    pub fn loaded(&self) -> impl Iterator<Item = (JobId, Epoch)> + '_ {
        self.jobs.iter().copied().flatten()
    }

    /// Where the job is, if it is on the card.
    #[must_use]
    pub fn place_of(&self, job: JobId) -> Option<Place> {
        let is_it = |place: &Option<(JobId, Epoch)>| place.is_some_and(|(id, _)| id == job);
        self.jobs.iter().position(is_it).map(|at| Place(at as u8))
    }

    /// Tells the card who the switch is, and lets it begin: frames of jobs that are loaded are its
    /// own from now on.
    ///
    /// # Errors
    /// A card that fails.
    pub fn set_own(&mut self, own: &Own) -> Result<(), CardError> {
        self.own = Some(*own);
        let mut writes = own_registers(own).to_vec();
        writes.push((at::CONTROL, at::BIT_ENABLE));
        self.window.write_all(&writes)?;
        self.check(&writes)
    }

    /// Whether the job can be on this card, if there is a place for it.
    ///
    /// # Errors
    /// Why not.
    pub fn fits(&self, roster: &Roster) -> Result<(), Unfit> {
        let job = roster.job;
        let workers = roster.workers.len();
        if roster.uplink.is_some() {
            return Err(Unfit::Parent(job));
        }
        if workers < 2 {
            return Err(Unfit::OneWorker(job));
        }
        let max = self.capabilities.members;
        if workers > max as usize {
            return Err(Unfit::Workers { job, workers, max });
        }
        let bytes = usize::from(roster.units) * UNIT_BYTES;
        let max = self.capabilities.payload_bytes;
        if bytes > max as usize {
            return Err(Unfit::Payload { job, bytes, max });
        }
        let ports = roster.workers.iter().map(|worker| worker.port);
        match ports
            .chain([roster.servers[0].port])
            .find(|port| port.0 >= PORTS)
        {
            Some(port) => Err(Unfit::Port { job, port }),
            None => Ok(()),
        }
    }

    /// Puts a job onto the card. One that is there in the same epoch keeps all that it has, and
    /// only its members' addresses are replaced; of another epoch, all is cleared first.
    ///
    /// # Errors
    /// A job that does not [fit](Self::fits), or for which there is no place; a card that fails.
    pub fn load(&mut self, roster: &Roster) -> Result<Place, CardError> {
        self.fits(roster)?;
        let key = (roster.job, roster.epoch);
        let place = match self.place_of(roster.job) {
            Some(place) if self.jobs[usize::from(place.0)] == Some(key) => place,
            Some(place) => {
                self.unload(roster.job)?;
                place
            }
            None => {
                let free = self.jobs.iter().position(Option::is_none);
                let free = free.ok_or(Unfit::Full {
                    job: roster.job,
                    places: self.capabilities.jobs,
                })?;
                Place(free as u8)
            }
        };
        self.wait_until_clear()?;
        let description = self.description(roster, place);
        let mut writes = vec![(at::JOB_SELECT, u32::from(place.0))];
        for (rank, member) in (0..).map(Rank).zip(&roster.workers) {
            let is_child = roster.switches & rank.bit() != 0;
            writes.extend(member_registers(rank, member, is_child));
        }
        writes.extend(member_registers(Rank::PS, &roster.servers[0], false));
        writes.extend(description);
        self.window.write_all(&writes)?;
        // Before the card is made to go by it.
        self.check(&description)?;
        self.window.write(at::JOB_COMMAND, at::BIT_JOB_LOAD)?;
        self.wait_until_clear()?;
        self.jobs[usize::from(place.0)] = Some(key);
        Ok(place)
    }

    /// Takes a job off the card, with all that is held of it; nothing, if it is not on it.
    ///
    /// # Errors
    /// A card that fails.
    pub fn unload(&mut self, job: JobId) -> Result<(), CardError> {
        let Some(place) = self.place_of(job) else {
            return Ok(());
        };
        self.wait_until_clear()?;
        let select = (at::JOB_SELECT, u32::from(place.0));
        self.window.write_all(&[select])?;
        self.check(&[select])?;
        self.window.write(at::JOB_COMMAND, at::BIT_JOB_UNLOAD)?;
        self.wait_until_clear()?;
        self.jobs[usize::from(place.0)] = None;
        Ok(())
    }

    /// Takes all jobs off the card.
    ///
    /// # Errors
    /// A card that fails.
    pub fn unload_all(&mut self) -> Result<(), CardError> {
        let own = self.own;
        self.clear()?;
        own.map_or(Ok(()), |own| self.set_own(&own))
    }

    /// What it counted since its reset.
    ///
    /// # Errors
    /// A card that fails.
    pub fn counters(&mut self) -> Result<CardCounters, CardError> {
        self.window
            .write(at::COUNTER_SNAPSHOT, at::BIT_COUNTER_SNAPSHOT)?;
        let words = (0..2 * COUNTERS.len() as u16).map(|word| at::COUNTERS_AT + 4 * word);
        let addresses: Vec<_> = words.collect();
        self.read_all(&addresses)?;
        let mut values = [0; COUNTERS.len()];
        for (value, &[low, high]) in values.iter_mut().zip(self.values.as_chunks().0) {
            *value = u64::from(high) << 32 | u64::from(low);
        }
        Ok(CardCounters::new(values))
    }

    /// Whether the card lives: its time moves, it finds no fault with itself, and it remembers who
    /// the switch is. May be asked at any rate.
    ///
    /// # Errors
    /// Why it is to be taken for failed.
    pub fn alive(&mut self) -> Result<(), CardError> {
        self.read_all(&[at::ID, at::UPTIME, at::STATUS, at::CONTROL])?;
        let &[id, uptime, status, _control] = self.values.as_slice() else {
            return Err(CardError::Closed);
        };
        if id != at::ID_VALUE {
            return Err(CardError::NotACard { found: id });
        }
        look_at_status(status)?;
        let now = Instant::now();
        match self.moved {
            Some((since, before)) if before == uptime => {
                let after = now - since;
                if after >= STILL {
                    return Err(CardError::Stopped { after });
                }
            }
            // It is 32 bits of milliseconds, and wraps in 49 days.
            Some((_, before)) if uptime.wrapping_sub(before).cast_signed() < 0 => {
                return Err(CardError::Reset {
                    before,
                    now: uptime,
                });
            }
            _ => self.moved = Some((now, uptime)),
        }
        let Some(own) = self.own else { return Ok(()) };
        let [.., base_port, shards] = own_registers(&own);
        let mac = own_registers(&own)[1];
        self.check(&[mac, base_port, shards, (at::CONTROL, at::BIT_ENABLE)])
    }

    fn ask_capabilities(&mut self) -> Result<Capabilities, CardError> {
        self.read_all(&[
            at::SLOTS,
            at::PAYLOAD_BYTES,
            at::JOBS,
            at::MEMBERS,
            at::RING,
            at::FEATURES,
            at::CLOCK_KHZ,
        ])?;
        let &[
            slots,
            payload_bytes,
            jobs,
            members,
            ring,
            features,
            clock_khz,
        ] = self.values.as_slice()
        else {
            return Err(CardError::Closed);
        };
        let sane = |ok: bool, what, found, allowed| match ok {
            true => Ok(()),
            false => Err(CardError::Nonsense {
                what,
                found,
                allowed,
            }),
        };
        let is_power = |n: u32, max: u32| n.is_power_of_two() && n <= max;
        sane(
            is_power(slots, 1 << 24),
            "SLOTS",
            slots,
            "a power of two up to 2^24",
        )?;
        let units = payload_bytes / 64;
        let is_payload = payload_bytes.is_multiple_of(64) && (1..=128).contains(&units);
        sane(
            is_payload,
            "PAYLOAD_BYTES",
            payload_bytes,
            "multiples of 64 up to 8192",
        )?;
        sane((1..=32).contains(&jobs), "JOBS", jobs, "1 to 32")?;
        sane((2..=64).contains(&members), "MEMBERS", members, "2 to 64")?;
        sane(
            is_power(ring, 1 << 16) && ring > 1,
            "RING",
            ring,
            "a power of two, 2 to 2^16",
        )?;
        sane(features & !at::BIT_F32 == 0, "FEATURES", features, "bit 0")?;
        let is_clock = (1_000..=10_000_000).contains(&clock_khz);
        sane(is_clock, "CLOCK_KHZ", clock_khz, "1,000 to 10,000,000")?;
        Ok(Capabilities {
            slots,
            payload_bytes,
            jobs,
            members,
            ring,
            f32: features & at::BIT_F32 != 0,
            clock_khz,
        })
    }

    /// Nothing is on it any more, and frames pass through.
    fn clear(&mut self) -> Result<(), CardError> {
        self.own = None;
        self.wait_until_clear()?;
        self.window.write(at::CONTROL, at::BIT_CLEAR_ALL)?;
        self.wait_until_clear()?;
        self.check(&[(at::CONTROL, 0)])?;
        self.jobs.fill(None);
        Ok(())
    }

    fn description(&self, roster: &Roster, place: Place) -> [(u16, u32); 7] {
        let ports = roster.ports.iter().fold(0, |mask, port| mask | 1 << port.0);
        // The same as in software, so that the same fragments meet.
        let pool = PoolConfig {
            slots: self.capabilities.slots,
            ways: 1,
            held: 0,
            window: self.capabilities.window() as u16,
            shards: 1,
            shard: 0,
            jobs: Vec::new(),
            policy: PolicyName::Esa,
            places: 0,
        };
        let placement = pool.policy.policy().placement(roster.job, 0, &pool);
        [
            (at::JOB_SELECT, u32::from(place.0)),
            (at::JOB_NUMBER, u32::from(roster.job.0)),
            (at::JOB_EPOCH, u32::from(roster.epoch.0)),
            (at::JOB_UNITS, u32::from(roster.units)),
            (at::JOB_WORKERS, roster.workers.len() as u32),
            (at::JOB_PORTS, ports),
            (at::JOB_HASH, placement.hash),
        ]
    }

    /// The registers have these values.
    fn check(&mut self, registers: &[(u16, u32)]) -> Result<(), CardError> {
        let addresses: Vec<_> = registers.iter().map(|&(address, _)| address).collect();
        self.read_all(&addresses)?;
        for (&(address, expected), &found) in registers.iter().zip(&self.values) {
            if found != expected {
                return Err(CardError::Forgot {
                    what: name_of(address),
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    fn read_all(&mut self, addresses: &[u16]) -> Result<(), CardError> {
        self.values.clear();
        self.window.read_all(addresses, &mut self.values)
    }

    fn wait_until_clear(&mut self) -> Result<(), CardError> {
        let since = Instant::now();
        loop {
            let status = self.window.read(at::STATUS)?;
            look_at_status(status)?;
            if status & at::BIT_CLEARING == 0 {
                return Ok(());
            }
            let after = since.elapsed();
            if after >= CLEARING {
                return Err(CardError::Clearing { after });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

fn look_at_status(status: u32) -> Result<(), CardError> {
    if status & !(at::BIT_CLEARING | at::BIT_FAULT) != 0 {
        return Err(CardError::Nonsense {
            what: "STATUS",
            found: status,
            allowed: "bits 0 and 1",
        });
    }
    if status & at::BIT_FAULT != 0 {
        return Err(CardError::Fault);
    }
    Ok(())
}

fn halves(mac: Mac) -> (u32, u32) {
    let mac = mac.to_u64();
    ((mac >> 32) as u32, mac as u32)
}

fn own_registers(own: &Own) -> [(u16, u32); 5] {
    let (high, low) = halves(own.mac);
    [
        (at::OWN_MAC_HIGH, high),
        (at::OWN_MAC_LOW, low),
        (at::OWN_IP, own.ip.to_bits()),
        (at::BASE_PORT, u32::from(own.base_port)),
        (at::SHARDS, u32::from(own.shards)),
    ]
}

fn member_registers(rank: Rank, member: &Member, is_child: bool) -> [(u16, u32); 8] {
    let (high, low) = halves(member.mac);
    [
        (at::MEMBER_SELECT, u32::from(rank.0)),
        (at::MEMBER_MAC_HIGH, high),
        (at::MEMBER_MAC_LOW, low),
        (at::MEMBER_IP, member.ip.to_bits()),
        (at::MEMBER_UDP_PORT, u32::from(member.udp_port)),
        (at::MEMBER_PORT, u32::from(member.port.0)),
        (at::MEMBER_CHILD, u32::from(is_child)),
        (at::MEMBER_COMMAND, at::BIT_MEMBER_STORE),
    ]
}

#[cfg(test)]
mod tests;
