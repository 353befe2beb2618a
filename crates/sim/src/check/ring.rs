//! Rings of RoCE hosts beside the jobs: every all-reduce is the exact fold, and a ring that fails
//! begins another epoch.
//!
//! A ring whose connections have ended waits until all members that retransmit have noticed, and
//! then makes new ones, as the rendezvous of its hosts would. It resumes with the first all-reduce
//! that a member lacks. Contributions of epochs differ, so that one that was taken for another's
//! shows.

use super::data::Contributor;
use super::findings::{Checker, Findings};
use super::options::ring::{RingIncident, RingOptions, RingsOptions};
use crate::address::{Address, HostId, SessionId, SwitchId};
use crate::link::LinkConfig;
use crate::ring::{Member, Plan};
use crate::rng::Rng;
use crate::world::World;
use crate::{fabric, frame};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tally_engine::netreduce::{RingConfig, RingRole};
use tally_wire::netreduce::{RingEpoch, RingId};
use tally_wire::{Key, Time};

/// UDP source port of all members.
const MEMBER_PORT: u16 = 49_152;
/// The longest time for which a host neither runs nor is reached, twice, and what is lost then.
const SLACK: Duration = Duration::from_secs(3);
/// Events of a ring in an epoch, and in each second, at most.
const EVENTS: u64 = 500_000;

/// A ring over all its epochs.
struct Ring {
    options: RingOptions,
    config: RingConfig,
    /// Its switches, and the part of each. The first has members.
    roles: Vec<(SwitchId, RingRole)>,
    members: Vec<Address>,
    epoch: RingEpoch,
    /// By rank, in this epoch.
    sessions: Vec<SessionId>,
    /// By rank, all-reduces done.
    done: Vec<usize>,
    /// The switch serves it.
    is_served: bool,
    /// Packets that its members have received in this epoch, and when that changed.
    progress: (u64, Time),
    /// When the first member was seen to have failed in this epoch.
    failed_at: Option<Time>,
}

impl Ring {
    /// Until when all members notice that one is gone.
    fn bound(&self) -> Duration {
        let work = &self.options.work;
        2 * work.timeout * (work.retries + 1) + SLACK
    }

    fn members<'a>(
        &'a self,
        world: &'a World<Contributor>,
    ) -> impl Iterator<Item = (usize, Option<&'a Member>)> {
        let sessions = self.sessions.iter().enumerate();
        sessions.map(|(rank, &session)| (rank, world.member(session)))
    }

    fn is_done(&self) -> bool {
        let all = self.options.work.all_reduces.len();
        self.done.iter().all(|&done| done == all)
    }

    /// Ranks at each leaf; none without a tree.
    fn leaves(&self) -> Vec<Range<u8>> {
        let ranks = |role: &RingRole| match role {
            RingRole::Leaf { ranks, .. } => Some(ranks.clone()),
            RingRole::Alone | RingRole::Root { .. } => None,
        };
        let roles = self.roles.iter();
        roles.filter_map(|(_, role)| ranks(role)).collect()
    }

    /// The ring, as each of its switches has it.
    fn configs(&self) -> Vec<(SwitchId, RingConfig)> {
        let config = |role: &RingRole| RingConfig {
            role: role.clone(),
            ..self.config.clone()
        };
        let roles = self.roles.iter();
        roles.map(|(at, role)| (*at, config(role))).collect()
    }

    fn bind(&self, world: &mut World<Contributor>) {
        for (switch, config) in self.configs() {
            world.bind_ring(switch, config);
        }
    }

    /// Packets that a switch may hold for it.
    fn held_max(&self, switch: SwitchId) -> u64 {
        let configs = self.configs().into_iter();
        let mut own = configs.filter(|(at, _)| *at == switch);
        own.next().map_or(0, |(_, config)| config.held_max())
    }

    /// Packets that its switches hold for it; `None` where it is not served.
    fn held(&self, world: &World<Contributor>) -> Vec<Option<u64>> {
        let of = |(switch, _): &(SwitchId, RingRole)| {
            let rings = world.switches[usize::from(switch.0)].rings();
            let mut own = rings.into_iter().filter(|it| it.id == self.config.id);
            own.next().map(|it| it.counters.held)
        };
        self.roles.iter().map(of).collect()
    }

    /// Takes note of what members have done.
    fn note(&mut self, world: &World<Contributor>) {
        for (rank, &session) in self.sessions.iter().enumerate() {
            if let Some(member) = world.member(session) {
                self.done[rank] = member.done;
            }
        }
    }

    /// Makes new connections.
    fn begin(&mut self, world: &mut World<Contributor>, rng: &mut Rng) {
        self.note(world);
        for session in self.sessions.drain(..) {
            world.kill(session);
        }
        let first = self.done.iter().copied().min().unwrap_or(0);
        self.done.fill(first);
        self.epoch = RingEpoch(self.epoch.0.wrapping_add(1));
        let (id, epoch) = (self.config.id, self.epoch.0);
        world.note(|| format!("ring {id}: epoch {epoch} from all-reduce {first} on"));
        let plan = Plan::new(
            self.roles[0].0,
            &self.config,
            &self.members,
            self.epoch,
            &self.options.work,
            first,
            rng,
        );
        let plan = Rc::new(plan.over(self.leaves()));
        let ranks = 0..self.members.len();
        self.sessions = ranks.map(|rank| world.start_member(&plan, rank)).collect();
        self.progress = (0, world.now);
        self.failed_at = None;
    }

    /// Looks at the members. Says whether the ring needs another epoch.
    fn look(&mut self, world: &World<Contributor>, findings: &Findings) -> bool {
        self.note(world);
        let id = self.config.id;
        let (mut received, mut failed, mut open) = (0, false, Vec::new());
        for (rank, member) in self.members(world) {
            let Some(member) = member else {
                failed = true;
                continue;
            };
            if let Some(wrong) = &member.wrong {
                findings.report(Checker::ExactSum, || format!("ring {id}: {wrong}"));
            }
            received += member.received();
            failed |= member.failure.is_some();
            if member.is_retransmitting() {
                open.push(rank);
            }
        }
        let now = world.now;
        if received != self.progress.0 || self.is_done() || !self.is_served {
            self.progress = (received, now);
        }
        if self.is_done() || !failed {
            let since = self.progress.1;
            findings.require(
                now.since(since) <= self.bound(),
                Checker::Starvation,
                || {
                    format!(
                        "ring {id} has neither moved nor failed since {} ns",
                        since.0
                    )
                },
            );
            return false;
        }
        let since = *self.failed_at.get_or_insert(now);
        findings.require(now.since(since) <= self.bound(), Checker::Outcome, || {
            let since = since.0;
            format!("ring {id} failed at {since} ns, which ranks {open:?} have not noticed")
        });
        open.is_empty() && self.is_served
    }
}

/// The parts of switches in a ring whose members are at these, by rank.
fn roles(at: impl Iterator<Item = SwitchId>, root: SwitchId) -> Vec<(SwitchId, RingRole)> {
    let mut leaves: Vec<(SwitchId, Range<u8>)> = Vec::new();
    for (rank, switch) in at.enumerate() {
        let rank = rank as u8;
        match leaves.last_mut() {
            Some((last, ranks)) if *last == switch => ranks.end = rank + 1,
            _ => leaves.push((switch, rank..rank + 1)),
        }
    }
    if let [(switch, _)] = leaves[..] {
        return vec![(switch, RingRole::Alone)];
    }
    let names = leaves.iter().map(|(switch, _)| fabric::name(*switch));
    let of_root = RingRole::Root {
        leaves: names.collect(),
    };
    let leaf = |(number, (switch, ranks)): (usize, &(SwitchId, Range<u8>))| {
        let role = RingRole::Leaf {
            number: number as u8,
            ranks: ranks.clone(),
            root: fabric::name(root),
        };
        (*switch, role)
    };
    let mut all: Vec<_> = leaves.iter().enumerate().map(leaf).collect();
    all.push((root, of_root));
    all
}

/// The rings of a world.
pub struct Rings {
    options: RingsOptions,
    hosts: Vec<HostId>,
    rings: Vec<Ring>,
    rng: Rng,
    /// Epochs begun.
    epochs: u64,
}

impl Rings {
    /// Connects the hosts, each to a switch. `root` is above these, if they are several.
    #[must_use]
    pub fn new(
        world: &mut World<Contributor>,
        options: &RingsOptions,
        link: LinkConfig,
        (at, root): (&[SwitchId], SwitchId),
        mut rng: Rng,
    ) -> Self {
        let hosts = at.iter();
        let hosts = hosts.map(|&switch| world.add_host(switch, link, link, Duration::ZERO));
        let hosts: Vec<_> = hosts.collect();
        let rings = options.rings.iter().enumerate().map(|(n, of)| {
            let id = RingId(n as u32 + 1);
            let key = Key::new(&[rng.next() as u8; 32]).expect("32 bytes make a key");
            // The ranks of a leaf are behind each other.
            let mut ranked = of.members.clone();
            ranked.sort_by_key(|&host| at[host]);
            let roles = roles(ranked.iter().map(|&host| at[host]), root);
            let members = ranked.iter().map(|&host| Address {
                host: hosts[host],
                udp_port: MEMBER_PORT,
            });
            let members: Vec<_> = members.collect();
            Ring {
                config: RingConfig {
                    id,
                    secret: key.ring_secret(id),
                    members: members.iter().map(|member| member.ip()).collect(),
                    window_messages: of.window,
                    message_packets: of.packets,
                    role: RingRole::Alone,
                },
                done: vec![0; members.len()],
                members,
                epoch: RingEpoch(of.epoch),
                sessions: Vec::new(),
                is_served: true,
                progress: (0, Time(0)),
                failed_at: None,
                options: RingOptions {
                    members: ranked,
                    ..of.clone()
                },
                roles,
            }
        });
        let rings = rings.collect();
        Self {
            options: options.clone(),
            hosts,
            rings,
            rng,
            epochs: 0,
        }
    }

    /// Has the switch serve the rings, and begins their first epochs.
    pub fn begin(&mut self, world: &mut World<Contributor>) {
        for ring in &mut self.rings {
            ring.bind(world);
            ring.begin(world, &mut self.rng);
            self.epochs += 1;
        }
    }

    /// When incidents happen, by number.
    pub fn troubles(&self, now: Time) -> Vec<Time> {
        let incidents = self.options.incidents.iter();
        incidents.map(|(at, _)| now.after(*at)).collect()
    }

    /// Has an incident happen. Says which ring is to be added again, and when.
    pub fn trouble(
        &mut self,
        world: &mut World<Contributor>,
        findings: &Findings,
        n: usize,
    ) -> Option<(usize, Time)> {
        let incident = self.options.incidents[n].1;
        world.note(|| format!("{incident:?}"));
        let now = world.now;
        match incident {
            RingIncident::Death { ring, rank } => {
                self.rings[ring].note(world);
                world.kill(self.rings[ring].sessions[rank]);
            }
            RingIncident::Straggler { host, lasting } => {
                world.put_to_sleep(self.hosts[host], now.after(lasting));
            }
            RingIncident::Partition { host, lasting } => {
                let until = now.after(lasting);
                world.change_cables(self.hosts[host], |link| link.cut_until = until);
            }
            RingIncident::NakStorm {
                ring,
                rank,
                lasting,
            } => world.storm(self.rings[ring].sessions[rank], now.after(lasting)),
            RingIncident::Removed { ring, down } => {
                self.remove(world, findings, ring);
                return Some((ring, now.after(down)));
            }
        }
        None
    }

    /// Ends a ring at the switch. What it held is free.
    fn remove(&mut self, world: &mut World<Contributor>, findings: &Findings, n: usize) {
        let ring = &mut self.rings[n];
        if !std::mem::replace(&mut ring.is_served, false) {
            return;
        }
        let id = ring.config.id;
        let (held, frames_before) = (ring.held(world), frame::live());
        for (switch, _) in &ring.roles {
            world.unbind_ring(*switch, id);
        }
        let freed = frames_before - frame::live();
        let still = ring.held(world);
        findings.require(still.iter().all(Option::is_none), Checker::Leak, || {
            format!("a switch still has ring {id}, which was removed")
        });
        let all: u64 = held.iter().flatten().sum();
        findings.require(freed == all, Checker::Leak, || {
            format!("ring {id} held {held:?} packets and freed {freed}")
        });
    }

    /// Adds a ring again.
    pub fn add(&mut self, world: &mut World<Contributor>, n: usize) {
        let ring = &mut self.rings[n];
        if !std::mem::replace(&mut ring.is_served, true) {
            ring.bind(world);
            ring.progress.1 = world.now;
        }
    }

    /// Looks at results, at what the switch holds, and for members that notice nothing.
    pub fn look(&mut self, world: &mut World<Contributor>, findings: &Findings) {
        for (at, switch) in world.switches.iter().enumerate() {
            for status in switch.rings() {
                let ring = self.rings.iter().find(|ring| ring.config.id == status.id);
                let most = ring.map_or(0, |ring| ring.held_max(SwitchId(at as u16)));
                findings.require(status.counters.held <= most, Checker::Memory, || {
                    format!(
                        "ring {} holds {} packets of {most} at switch {at}",
                        status.id, status.counters.held
                    )
                });
            }
        }
        for ring in &mut self.rings {
            if ring.look(world, findings) {
                ring.begin(world, &mut self.rng);
                self.epochs += 1;
            }
        }
    }

    /// Whether all members of all rings have all their results.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rings.iter().all(Ring::is_done)
    }

    /// Ends all rings, after everything.
    pub fn end(&mut self, world: &mut World<Contributor>, findings: &Findings) {
        for n in 0..self.rings.len() {
            self.remove(world, findings, n);
        }
    }

    /// All-reduces done, over all ranks.
    #[must_use]
    pub fn all_reduces(&self) -> u64 {
        let done = self.rings.iter().flat_map(|ring| &ring.done);
        done.map(|&done| done as u64).sum()
    }

    /// Rings over several switches.
    #[must_use]
    pub fn trees(&self) -> u64 {
        self.rings
            .iter()
            .filter(|ring| ring.roles.len() > 1)
            .count() as u64
    }

    /// Epochs begun.
    #[must_use]
    pub const fn epochs(&self) -> u64 {
        self.epochs
    }

    /// Events that they may cause, at most.
    #[must_use]
    pub fn events_max(&self, seconds: u64) -> u64 {
        (self.epochs + seconds * self.rings.len() as u64) * EVENTS
    }
}
