//! Which jobs a card has, on one data core: what goes to it, and what comes back from it.
//!
//! A frame for the card is a worker's or a PS's frame with another destination MAC, which says on which port it
//! arrived; what comes back says in its source MAC on which ports it is to leave ([`tags`]). The card does
//! what the engine would do, so a job is bound either here or there, and nothing else of the switch knows the
//! difference.
//!
//! A card may be wrong about anything: it may be broken, or be a simulated one that was told to misbehave. What it
//! sends leaves only as what it may be: of a job that it has, in its epoch, to where that job's frames go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tally_bridge::tags;
use tally_engine::{DropReason, Member, PortId, Roster};
use tally_wire::frame::group_of;
use tally_wire::{Addresses, Epoch, Flags, Header, JobId, Kind, Rank};

/// Frames that came from the card, whatever they were: for whoever wants to know whether it lives.
#[derive(Debug, Default)]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// So many frames have come.
    #[inline]
    pub fn add(&self, frames: u64) {
        self.0.fetch_add(frames, Ordering::Relaxed);
    }

    /// How many have come so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Frames between one data core and the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardTraffic {
    /// Given to it.
    pub given: u64,
    /// Its results to groups, and to workers that lost one.
    pub results: u64,
    /// Results of PSs that it passed on.
    pub results_from_ps: u64,
    /// What else it sent to members.
    pub others: u64,
    /// Probes that came back.
    pub probes: u64,
}

impl CardTraffic {
    /// Adds another core's counts.
    pub fn add(&mut self, other: &Self) {
        self.given += other.given;
        self.results += other.results;
        self.results_from_ps += other.results_from_ps;
        self.others += other.others;
        self.probes += other.probes;
    }
}

/// A running job.
struct Job {
    roster: Arc<Roster>,
    /// Its place in the configuration.
    index: usize,
    is_on_card: bool,
    /// Its contributions before the engine counted anew, and those that went to the card.
    arrivals: u64,
}

/// What one data core knows of the card.
pub struct Steering {
    card: PortId,
    /// Whether the card has the job, by number.
    on_card: Box<[bool]>,
    jobs: BTreeMap<JobId, Job>,
    /// What went to and fro.
    pub traffic: CardTraffic,
    /// Shared by all.
    pub pulse: Arc<Pulse>,
}

impl Steering {
    /// Of a card behind this port, which has no jobs.
    #[must_use]
    pub fn new(card: PortId, pulse: Arc<Pulse>) -> Self {
        Self {
            card,
            on_card: vec![false; 1 << 16].into_boxed_slice(),
            jobs: BTreeMap::new(),
            traffic: CardTraffic::default(),
            pulse,
        }
    }

    /// The card's port.
    #[inline]
    #[must_use]
    pub fn card(&self) -> PortId {
        self.card
    }

    /// Whether the card has the job.
    #[inline]
    #[must_use]
    pub fn has(&self, job: JobId) -> bool {
        self.on_card[usize::from(job.0)]
    }

    /// A frame of such a job goes to it.
    #[inline]
    pub fn count(&mut self, header: &Header) {
        self.traffic.given += 1;
        if header.kind == Kind::Data
            && let Some(job) = self.jobs.get_mut(&header.job)
        {
            job.arrivals += 1;
        }
    }

    /// An epoch begins, or has other addresses. Says whether it is to be bound here: not if the card has it.
    pub fn bind(&mut self, roster: &Arc<Roster>, index: usize) -> bool {
        let id = roster.job;
        let same = |job: &&mut Job| job.roster.epoch == roster.epoch;
        if let Some(job) = self.jobs.get_mut(&id).filter(same) {
            job.roster = Arc::clone(roster);
            return !job.is_on_card;
        }
        self.on_card[usize::from(id.0)] = false;
        let job = Job {
            roster: Arc::clone(roster),
            index,
            is_on_card: false,
            arrivals: 0,
        };
        self.jobs.insert(id, job);
        true
    }

    /// A job has ended.
    pub fn unbind(&mut self, id: JobId) {
        self.on_card[usize::from(id.0)] = false;
        self.jobs.remove(&id);
    }

    /// From now on the card has the job, which came to so many contributions here. Says `false`, and nothing has
    /// changed, if that epoch is over.
    pub fn give(&mut self, id: JobId, epoch: Epoch, arrivals: u64) -> bool {
        let here = |job: &&mut Job| job.roster.epoch == epoch && !job.is_on_card;
        let Some(job) = self.jobs.get_mut(&id).filter(here) else {
            return false;
        };
        job.is_on_card = true;
        job.arrivals += arrivals;
        self.on_card[usize::from(id.0)] = true;
        true
    }

    /// The card has the job no longer: what is to be bound here, and its place in the configuration.
    pub fn take_back(&mut self, id: JobId) -> Option<(Arc<Roster>, usize)> {
        let job = self.jobs.get_mut(&id).filter(|job| job.is_on_card)?;
        job.is_on_card = false;
        self.on_card[usize::from(id.0)] = false;
        Some((Arc::clone(&job.roster), job.index))
    }

    /// The jobs that the card has.
    #[must_use]
    pub fn given(&self) -> Vec<JobId> {
        let on_card = self.jobs.iter().filter(|(_, job)| job.is_on_card);
        on_card.map(|(&id, _)| id).collect()
    }

    /// Contributions by job, with those that the engine says.
    #[must_use]
    pub fn arrivals(&self, here: impl Iterator<Item = (JobId, u64)>) -> Vec<(JobId, u64)> {
        let here: BTreeMap<_, _> = here.collect();
        let of = |(id, job): (&JobId, &Job)| (*id, job.arrivals + here.get(id).unwrap_or(&0));
        self.jobs.iter().map(of).collect()
    }

    /// Whether a frame to the card has the tag of its job's epoch, if its type has one. Frames of other epochs are
    /// the card's to drop.
    #[must_use]
    pub fn verifies(&self, header: &Header) -> bool {
        let job = self.jobs.get(&header.job);
        job.is_some_and(|job| {
            job.roster.epoch != header.epoch || job.roster.secret.verifies(header)
        })
    }

    /// The header with its tag of a frame of the card's, from the switch to these addresses and on these ports, if it
    /// is one that it may send.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn judge(
        &mut self,
        mask: u16,
        to: &Addresses,
        header: &Header,
    ) -> Result<Header, DropReason> {
        let of_it = |job: &&Job| job.is_on_card && job.roster.epoch == header.epoch;
        let Some(job) = self.jobs.get(&header.job).filter(of_it) else {
            return Err(DropReason::CardStray);
        };
        let roster = &*job.roster;
        let is_member = |member: &Member| {
            (to.dst_mac, to.dst_ip, to.dst_port) == (member.mac, member.ip, member.udp_port)
                && mask == bit(member.port)
        };
        let is_right = match (header.kind, header.rank) {
            (Kind::Result, Rank::SWITCH) => {
                let all = roster.ports.iter().fold(0, |all, &port| all | bit(port));
                mask != 0 && mask & !all == 0 && to.dst_ip == group_of(header.job)
            }
            (Kind::Partial | Kind::NotHere, Rank::SWITCH) => is_member(&roster.ps),
            (Kind::Probe, _) => is_member(&roster.ps),
            (Kind::Nack, rank) => roster.member(rank).is_some_and(is_member),
            _ => false,
        };
        if !is_right {
            return Err(DropReason::CardFrame);
        }
        let is_to_group = header.kind == Kind::Result && header.rank == Rank::SWITCH;
        let is_of_ps = is_to_group && header.flags.has(Flags::FROM_PS);
        self.traffic.results += u64::from(is_to_group && !is_of_ps);
        self.traffic.results_from_ps += u64::from(is_of_ps);
        self.traffic.others += u64::from(!is_to_group);
        Ok(roster.secret.seal(*header))
    }
}

/// The bit of a port in a mask; none of one that a card does not know.
fn bit(port: PortId) -> u16 {
    1_u16.checked_shl(port.0.into()).unwrap_or(0)
}

/// The ports of a mask.
pub fn ports_of(mask: u16) -> impl Iterator<Item = PortId> {
    (0..tags::PORTS)
        .filter(move |port| mask & 1 << port != 0)
        .map(PortId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tally_wire::{AuthTag, Element, EpochSecret, Flags, FragmentId, Mac};

    const JOB: JobId = JobId(7);

    fn member(host: u8) -> Member {
        Member {
            port: PortId(host.into()),
            mac: Mac([2, 0, 0, 0, 0, host]),
            ip: Ipv4Addr::new(10, 84, 0, host),
            udp_port: 40_000,
        }
    }

    fn roster(epoch: u16, ps: u8) -> Arc<Roster> {
        let workers = vec![member(1), member(2)];
        let secret = EpochSecret::new([1; 16]);
        Arc::new(Roster::new(
            JOB,
            Epoch(epoch),
            secret,
            1,
            workers,
            member(ps),
        ))
    }

    fn steering() -> Steering {
        Steering::new(PortId(0), Arc::default())
    }

    #[test]
    fn a_job_is_bound_here_or_is_on_the_card() {
        let mut s = steering();
        assert!(!s.give(JOB, Epoch(1), 0), "it does not run");
        assert!(s.bind(&roster(1, 3), 4));
        assert!(!s.give(JOB, Epoch(2), 0), "not this epoch");
        assert!(!s.has(JOB));
        assert!(s.give(JOB, Epoch(1), 0));
        assert!(!s.give(JOB, Epoch(1), 0), "it is there");
        assert!(s.has(JOB) && s.given() == [JOB]);
        // The PS came back somewhere else: the card hears of it, and the engine has no business with it.
        assert!(!s.bind(&roster(1, 9), 4));
        assert!(s.has(JOB));
        let (bound, index) = s.take_back(JOB).unwrap();
        assert_eq!((bound.ps, index), (member(9), 4));
        assert!(s.take_back(JOB).is_none() && !s.has(JOB));
    }

    #[test]
    fn another_epoch_begins_here_and_the_end_is_the_end() {
        let mut s = steering();
        s.bind(&roster(1, 3), 0);
        s.give(JOB, Epoch(1), 0);
        assert!(s.bind(&roster(2, 3), 0) && !s.has(JOB));
        s.give(JOB, Epoch(2), 0);
        s.unbind(JOB);
        assert!(!s.has(JOB) && s.take_back(JOB).is_none() && s.given().is_empty());
    }

    #[test]
    fn contributions_are_counted_on_both_sides() {
        let mut s = steering();
        s.bind(&roster(1, 3), 0);
        assert_eq!(s.arrivals([(JOB, 5)].into_iter()), [(JOB, 5)]);
        s.give(JOB, Epoch(1), 5);
        let data = Header {
            kind: Kind::Data,
            flags: Flags::NONE,
            priority: 0,
            element: Element::I32,
            job: JOB,
            epoch: Epoch(1),
            fragment: FragmentId(0),
            rank: Rank(0),
            units: 1,
            bitmap: 1,
            tag: AuthTag::NONE,
        };
        s.count(&data);
        s.count(&Header {
            kind: Kind::Remind,
            ..data
        });
        assert_eq!(s.traffic.given, 2);
        assert_eq!(s.arrivals(std::iter::empty()), [(JOB, 6)]);
        s.take_back(JOB);
        assert_eq!(s.arrivals([(JOB, 3)].into_iter()), [(JOB, 9)]);
    }

    #[test]
    fn ports_beyond_those_of_a_card_have_no_bit() {
        assert_eq!(
            ports_of(0x8001).collect::<Vec<_>>(),
            [PortId(0), PortId(15)]
        );
        assert_eq!(
            (bit(PortId(15)), bit(PortId(16)), bit(PortId(300))),
            (0x8000, 0, 0)
        );
    }
}
