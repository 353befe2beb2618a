//! The fabric's control: which links live, what is reached by them, and where frames go (control).
//!
//! Each link sends a [hello](tally_wire::fabric) every [`PERIOD`]. A link lives while hellos come
//! that a configured neighbour sealed, that name a recent hello of this switch, and that lead the
//! other way than this end: what one end calls up is down at the other. [`PATIENCE`] without one,
//! or an interface without a carrier, ends it.
//!
//! *Reach.* A hello up names the switches of the lowest tier at or below the sender. A hello down
//! names those that a flood from the receiver reaches by the sender. With them, `choice` decides
//! where floods go and which links up are equal; a [`Table`] says so to the cores.
//!
//! *Tiers.* A switch without links down is of tier 0, another is above the highest live one below
//! it. A link up lives only while the other end's tier is higher. Switches that are above each
//! other in a ring therefore never close it: some link of the ring does not climb.
//!
//! *Addresses.* A switch tells those above which hosts it has heard at and below it, so that they
//! need not see a frame of a host before they can send to it: frames of one host may take one way
//! up, and frames to it another way down.
//!
//! *Replay.* A hello counts if it is newer than the last one of its neighbour's run and names one
//! of this switch's last [`ECHOES`]. While a run of the neighbour is heard, no other run is.

mod choice;
mod link;
mod status;
#[cfg(test)]
mod tests;

pub use choice::{Choice, Neighbour, choose};
pub use link::Problem;
pub use status::{LinkStatus, NeighbourStatus};

use crate::PortId;
use crate::forwarding::fabric::{FloodSets, NeighbourState, Plan, Table};
use link::Link;
use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tally_wire::fabric::{
    self, ADDRESSES_MAX, FRAME_BYTES_MAX, FabricFrame, FabricKeys, Hello, REACH_MAX, SwitchId,
};
use tally_wire::{Mac, Time};

/// Time from one hello of a link to the next.
pub const PERIOD: Duration = Duration::from_millis(100);
/// How long no hello may come before a link is dead: three are missing.
pub const PATIENCE: Duration = Duration::from_millis(350);
/// Time between two hellos at least, when there is news.
pub const NEWS_EVERY: Duration = Duration::from_millis(20);
/// Last frames of this switch of which a neighbour may name one: more than it sends in a second.
pub const ECHOES: u64 = 1024;
/// How often addresses are told to switches above, if there is no news.
pub const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often they are told while there is news.
pub const TELL_NEWS_EVERY: Duration = Duration::from_millis(100);

/// Frames of addresses to one switch in one poll at most: its queue has room for more, and hellos
/// are not lost behind them.
const ANNOUNCED_MAX: usize = 16;

/// What the fabric is made from.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The switch's name.
    pub name: String,
    /// The switch's MAC.
    pub mac: Mac,
    /// The switch's IPv4 address.
    pub ip: Ipv4Addr,
    /// Its first UDP port.
    pub udp_port: u16,
    /// The fabric's keys.
    pub keys: FabricKeys,
    /// Its links.
    pub plan: Plan,
    /// A random number of this run, not 0.
    pub session: u64,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum FabricAction {
    /// Send a frame by a port.
    Send(PortId, Box<[u8]>),
    /// Forward by this table.
    Forward(Arc<Table>),
    /// Forget the addresses learnt at a place.
    Forget(PortId),
    /// A host is at a place, and was heard there so many seconds ago.
    Learn(PortId, Mac, u16),
    /// Say what happened.
    Say(FabricEvent),
}

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// It lives: port and neighbour.
    Alive(PortId, String),
    /// It died: port, neighbour, how long it had lived, and whether its interface went down.
    Dead(PortId, String, Duration, bool),
    /// What comes by it is not what is configured: port, neighbour, and what is wrong.
    Wrong(PortId, String, Problem),
}

/// What is known of a neighbour from its hellos.
#[derive(Clone, Debug, Default)]
struct Heard {
    mac: Option<Mac>,
    ip: Option<Ipv4Addr>,
    udp_port: u16,
    tier: u8,
    reach: BTreeSet<SwitchId>,
    /// All that it ever reached.
    reached: BTreeSet<SwitchId>,
}

/// The fabric as one switch sees it.
#[derive(Debug)]
pub struct Fabric {
    config: FabricConfig,
    id: SwitchId,
    /// By neighbour of the plan.
    heard: Vec<Heard>,
    links: Vec<Link>,
    choice: Choice,
    states: Vec<NeighbourState>,
    next_hello: Time,
    last_hello: Time,
    /// What `changes` of the table of addresses was when they were told.
    told: Option<u32>,
    told_at: Time,
    /// Addresses that are still to be told, from the last to the first.
    untold: Vec<(Mac, u16)>,
    actions: VecDeque<FabricAction>,
}

impl Fabric {
    /// All links are dead.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        let plan = &config.plan;
        let neighbours = plan.neighbours();
        let links = neighbours.iter().enumerate();
        let links =
            links.flat_map(|(at, it)| it.ports.iter().map(move |port| Link::new(*port, at)));
        Self {
            id: SwitchId::of(&config.name),
            heard: vec![Heard::default(); neighbours.len()],
            links: links.collect(),
            choice: Choice::default(),
            states: vec![NeighbourState::default(); neighbours.len()],
            next_hello: Time(0),
            last_hello: Time(0),
            told: None,
            told_at: Time(0),
            untold: Vec::new(),
            actions: VecDeque::new(),
            config,
        }
    }

    /// Whether a port leads to a switch.
    #[must_use]
    pub fn has(&self, port: PortId) -> bool {
        self.links.iter().any(|link| link.port == port)
    }

    /// Whether this switch has switches below.
    fn has_below(&self) -> bool {
        self.config.plan.neighbours().iter().any(|it| !it.is_up)
    }

    /// This switch's tier.
    #[must_use]
    pub fn tier(&self) -> u8 {
        if !self.has_below() {
            return 0;
        }
        let neighbours = self.config.plan.neighbours();
        let live = self.links.iter().filter(|it| it.is_live());
        let below = live.filter(|it| !neighbours[it.neighbour].is_up);
        let highest = below.map(|it| self.heard[it.neighbour].tier).max();
        highest.unwrap_or(0).saturating_add(1)
    }

    /// Takes note of a port's carrier.
    pub fn set_carrier(&mut self, now: Time, port: PortId, is_up: bool) {
        let Some(at) = self.links.iter().position(|it| it.port == port) else {
            return;
        };
        self.links[at].has_carrier = is_up;
        if !is_up && self.links[at].end() {
            self.died(now, at, true);
            self.update(now);
        }
    }

    /// Takes a frame of the fabric's own that came by a port.
    pub fn receive(&mut self, now: Time, port: PortId, frame: &[u8]) {
        let Some(at) = self.links.iter().position(|it| it.port == port) else {
            return;
        };
        match fabric::parse(frame, &self.config.keys) {
            None => self.wrong(at, Problem::Key),
            Some(FabricFrame::Hello(hello)) => self.receive_hello(now, at, &hello),
            Some(FabricFrame::Addresses(stamp, entries)) => {
                let link = &mut self.links[at];
                let neighbour = &self.config.plan.neighbours()[link.neighbour];
                if link.is_live() && !neighbour.is_up && link.accept(now, stamp) {
                    let place = neighbour.place;
                    let own = self.config.mac;
                    let entries = entries.iter().filter(|(mac, _)| *mac != own);
                    let learn = entries.map(|(mac, age_s)| FabricAction::Learn(place, mac, age_s));
                    self.actions.extend(learn);
                }
            }
        }
    }

    fn receive_hello(&mut self, now: Time, at: usize, hello: &Hello<'_>) {
        let tier = self.tier();
        let link = &mut self.links[at];
        let number = link.neighbour;
        let planned = &self.config.plan.neighbours()[number];
        if hello.name != planned.switch {
            return self.wrong(at, Problem::Name(hello.name.to_owned()));
        }
        if hello.is_up == planned.is_up {
            return self.wrong(at, Problem::Direction(hello.is_up));
        }
        if hello.mac == self.config.mac || hello.mac.is_group() {
            return self.wrong(at, Problem::Mac(hello.mac));
        }
        if !link.accept(now, hello.stamp) {
            return;
        }
        let heard = &mut self.heard[number];
        if planned.is_up && hello.tier <= tier {
            heard.tier = hello.tier;
            self.update(now);
            return self.wrong(at, Problem::Tier(hello.tier, tier));
        }
        if !link.is_echo(self.config.session, hello.heard) {
            return;
        }
        let is_new = link.confirm(now);
        let reach: BTreeSet<_> = hello.reach.iter().collect();
        // What was below by this neighbour, and is no more, may be below by another.
        let is_less = !planned.is_up && heard.reach.difference(&reach).next().is_some();
        let is_news = is_new
            || heard.reach != reach
            || heard.mac != Some(hello.mac)
            || heard.tier != hello.tier;
        let mut reached = std::mem::take(&mut heard.reached);
        reached.extend(&reach);
        *heard = Heard {
            mac: Some(hello.mac),
            ip: Some(hello.ip),
            udp_port: hello.udp_port,
            tier: hello.tier,
            reach,
            reached,
        };
        if is_new {
            let event = FabricEvent::Alive(self.links[at].port, planned.switch.clone());
            self.actions.push_back(FabricAction::Say(event));
        }
        if is_less {
            let place = planned.place;
            self.forget(place);
        }
        if is_news {
            self.update(now);
        }
    }

    /// Notes what is wrong, and says it once; a link that lives is not disturbed.
    fn wrong(&mut self, at: usize, problem: Problem) {
        let link = &mut self.links[at];
        link.wrong += 1;
        if link.is_live() || link.problem.as_ref() == Some(&problem) {
            return;
        }
        // A tier is not known before all below are heard: what is said is what stays so.
        let is_said = !matches!(problem, Problem::Tier(..));
        link.problem = Some(problem.clone());
        if is_said {
            let name = self.config.plan.neighbours()[link.neighbour].switch.clone();
            let event = FabricEvent::Wrong(link.port, name, problem);
            self.actions.push_back(FabricAction::Say(event));
        }
    }

    fn died(&mut self, now: Time, at: usize, by_carrier: bool) {
        let link = &mut self.links[at];
        let lived = link
            .since
            .take()
            .map_or(Duration::ZERO, |since| now.since(since));
        let (port, number) = (link.port, link.neighbour);
        let planned = &self.config.plan.neighbours()[number];
        let event = FabricEvent::Dead(port, planned.switch.clone(), lived, by_carrier);
        self.actions.push_back(FabricAction::Say(event));
        if !self
            .links
            .iter()
            .any(|it| it.neighbour == number && it.is_live())
        {
            self.heard[number].reach.clear();
            if !planned.is_up {
                let place = planned.place;
                self.forget(place);
            }
        }
    }

    /// Has the hosts at a place forgotten, and not told any more.
    fn forget(&mut self, place: PortId) {
        self.actions.push_back(FabricAction::Forget(place));
        self.untold.clear();
        self.told = None;
    }

    /// Ends links to switches above whose tier is not higher: at once, so that no ring closes.
    fn end_level(&mut self, now: Time) {
        let tier = self.tier();
        for at in 0..self.links.len() {
            let number = self.links[at].neighbour;
            let is_level = self.heard[number].tier <= tier;
            let is_up = self.config.plan.neighbours()[number].is_up;
            if is_up && is_level && self.links[at].end() {
                self.died(now, at, false);
            }
        }
    }

    /// Decides again where frames go.
    fn update(&mut self, now: Time) {
        self.end_level(now);
        let neighbours: Vec<_> = self.neighbours().collect();
        let choice = choose(&neighbours);
        let mut states = choice.states(&neighbours);
        for (at, state) in states.iter_mut().enumerate() {
            let links = self
                .links
                .iter()
                .filter(|it| it.neighbour == at && it.is_live());
            state.live = links.map(|it| it.port).collect();
            state.mac = self.heard[at].mac;
            state.ip = self.heard[at].ip;
        }
        if (&choice, &states) != (&self.choice, &self.states) {
            let sets = FloodSets {
                from_hosts: choice.from_hosts(),
                from_above: choice.family.clone(),
                from_below: (0..states.len())
                    .map(|at| choice.from_below(&neighbours, at))
                    .collect(),
            };
            let table = Table::new(&self.config.plan, &states, &sets, u64::from(self.id.0));
            self.actions
                .push_back(FabricAction::Forward(Arc::new(table)));
            (self.choice, self.states) = (choice, states);
            // A switch above may be new.
            self.told = None;
        }
        // Others want to know.
        let soon = self.last_hello.after(NEWS_EVERY).max(now);
        self.next_hello = self.next_hello.min(soon);
    }

    /// The neighbours as [`choose`] sees them: those without a live link are not there.
    fn neighbours(&self) -> impl Iterator<Item = Neighbour> + '_ {
        let planned = self.config.plan.neighbours().iter().zip(&self.heard);
        planned.enumerate().map(|(at, (planned, heard))| Neighbour {
            id: SwitchId::of(&planned.switch),
            is_up: planned.is_up,
            is_live: self
                .links
                .iter()
                .any(|it| it.neighbour == at && it.is_live()),
            reach: heard.reach.clone(),
            reached: heard.reached.clone(),
        })
    }

    /// What is to be done at this time, in order.
    pub fn poll(&mut self, now: Time) -> Vec<FabricAction> {
        let silent: Vec<_> = (0..self.links.len())
            .filter(|&at| self.links[at].is_silent(now))
            .collect();
        for &at in &silent {
            self.links[at].end();
            self.died(now, at, false);
        }
        if !silent.is_empty() {
            self.update(now);
        }
        if now >= self.next_hello {
            self.next_hello = now.after(PERIOD);
            self.last_hello = now;
            self.send_hellos();
        }
        self.send_addresses();
        self.actions.drain(..).collect()
    }

    /// When [`poll`](Self::poll) is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        let links = self.links.iter().filter_map(Link::dies_at);
        links
            .min()
            .map_or(self.next_hello, |at| at.min(self.next_hello))
    }

    fn send_hellos(&mut self) {
        let neighbours: Vec<_> = self.neighbours().collect();
        let own = (!self.has_below()).then_some(self.id);
        let tier = self.tier();
        let config = &self.config;
        for link in self.links.iter_mut().filter(|it| it.has_carrier) {
            let planned = &config.plan.neighbours()[link.neighbour];
            let mut reach = match planned.is_up {
                true => self.choice.below(&neighbours),
                false => self.choice.reached_from(&neighbours, link.neighbour),
            };
            reach.extend(own);
            let hello = Hello {
                mac: config.mac,
                ip: config.ip,
                udp_port: config.udp_port,
                name: &config.name,
                port: link.port.0,
                is_up: planned.is_up,
                tier,
                stamp: link.stamp(config.session),
                heard: link.heard(),
                reach: fabric::Reach::default(),
            };
            let mut buffer = [0; FRAME_BYTES_MAX];
            let reach = reach.into_iter().take(REACH_MAX);
            let bytes = fabric::emit_hello(&mut buffer, &hello, reach, &config.keys);
            let send = FabricAction::Send(link.port, buffer[..bytes].into());
            self.actions.push_back(send);
        }
    }

    /// Whether addresses are to be told now; `changes` counts those of the table. To be asked when
    /// what the last [`poll`](Self::poll) said is done: what was forgotten is not to be told.
    #[must_use]
    pub fn announces(&self, now: Time, changes: u32) -> bool {
        let every = match self.told == Some(changes) {
            true => TELL_EVERY,
            false => TELL_NEWS_EVERY,
        };
        let mut above = self.links.iter().filter(|it| it.is_live());
        let is_above = |it: &Link| self.config.plan.neighbours()[it.neighbour].is_up;
        self.untold.is_empty() && now >= self.told_at.after(every) && above.any(is_above)
    }

    /// Has the next polls tell each switch above the addresses at and below this one: those of
    /// `entries` that were not learnt above, each with its place and its age in seconds.
    pub fn announce(&mut self, now: Time, changes: u32, entries: &[(Mac, PortId, u32)]) {
        self.told = Some(changes);
        self.told_at = now;
        let neighbours = self.config.plan.neighbours();
        let above: BTreeSet<_> = neighbours
            .iter()
            .filter(|it| it.is_up)
            .map(|it| it.place)
            .collect();
        let own = entries
            .iter()
            .filter(|(_, place, _)| !above.contains(place));
        let own = own.map(|(mac, _, age_s)| (*mac, (*age_s).min(u32::from(u16::MAX)) as u16));
        self.untold = own.collect();
    }

    fn send_addresses(&mut self) {
        let kept = self
            .untold
            .len()
            .saturating_sub(ANNOUNCED_MAX * ADDRESSES_MAX);
        let own = self.untold.split_off(kept);
        let neighbours = self.config.plan.neighbours();
        for (number, _) in neighbours.iter().enumerate().filter(|(_, it)| it.is_up) {
            let live = |it: &&mut Link| it.neighbour == number && it.is_live();
            let Some(link) = self.links.iter_mut().find(live) else {
                continue;
            };
            for entries in own.chunks(ADDRESSES_MAX) {
                let stamp = link.stamp(self.config.session);
                let mut buffer = [0; FRAME_BYTES_MAX];
                let (mac, keys) = (self.config.mac, &self.config.keys);
                let bytes = fabric::emit_addresses(&mut buffer, mac, stamp, entries, keys);
                let send = FabricAction::Send(link.port, buffer[..bytes].into());
                self.actions.push_back(send);
            }
        }
    }

    /// Each link, in the order of the configuration's neighbours.
    #[must_use]
    pub fn link_status(&self, now: Time) -> Vec<LinkStatus> {
        let of = |link: &Link| {
            let planned = &self.config.plan.neighbours()[link.neighbour];
            LinkStatus {
                port: link.port,
                switch: planned.switch.clone(),
                is_up: planned.is_up,
                alive_for: link.since.map(|since| now.since(since)),
                frames_lost: link.lost,
                deaths: link.deaths,
                wrong: link.wrong,
                reach: self.heard[link.neighbour].reach.len(),
                problem: link.problem.clone().filter(|_| !link.is_live()),
            }
        };
        self.links.iter().map(of).collect()
    }

    /// The neighbours that are heard.
    #[must_use]
    pub fn neighbour_status(&self) -> Vec<NeighbourStatus> {
        let planned = self.config.plan.neighbours().iter().enumerate();
        let of = |(at, planned): (usize, &crate::forwarding::fabric::PlannedNeighbour)| {
            let heard = &self.heard[at];
            let links = self
                .links
                .iter()
                .filter(|it| it.neighbour == at && it.is_live());
            let links: Vec<_> = links.map(|it| it.port).collect();
            Some(NeighbourStatus {
                switch: planned.switch.clone(),
                is_up: planned.is_up,
                mac: heard.mac?,
                ip: heard.ip?,
                udp_port: heard.udp_port,
                links,
            })
        };
        let known = planned.filter_map(of);
        known.filter(|it| !it.links.is_empty()).collect()
    }
}
