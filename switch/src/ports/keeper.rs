//! The thread that looks after the ports: links, what devices count, interfaces that come back,
//! storms, loops and LLDP.
//!
//! It looks at each port four times a second and asks devices for their counters once a second. So
//! no data core does. An interface of the kernel that was deleted is closed; one of the same name
//! that appears is opened, and the core that owns the port gets its queues between two poll
//! iterations ([`CoreCommand::Swap`]). What it knows is on the [`Board`].
//!
//! A port takes part in forwarding unless it is missing, disabled, or blocked by the
//! [loop guard](tally_engine::guard). The addresses learnt behind it are forgotten when its link
//! goes down, so that hosts that moved are found again.
//!
//! Links to switches of a fabric are not watched for loops: they are many by design. A probe that
//! comes back by one has crossed a cable between hosts' ports of two switches, and blocks the port
//! that sent it.
//!
//! The catch: a DPDK device that uses an interface of the kernel (`net_af_packet`) is not opened
//! again. `packet0,iface=…` is.

mod change;
mod neighbours;

pub use change::{PortChange, PortsHandle};

use super::lock::Lock;
use super::storm::{StormEvent, StormWatch};
use super::{Device, open_interface, owner};
use crate::board::Board;
use crate::bus::Bus;
use crate::config::{Config, PortSection};
use crate::log;
use crate::messages::{CoreCommand, OldQueues, PortQueues};
use crate::pools::Pools;
use crate::queues::{Rx, Tx};
use change::PortRequest;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use neighbours::Lldp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::Eal;
use tally_engine::forwarding::probe::Sighting;
use tally_engine::guard::{GuardAction, LoopGuard};
use tally_engine::queue::QueueConfig;
use tally_engine::{Command, Forwarding, PortId};
use tally_packet::{LinkState, Links};
use tally_schema::switch::report::PortState;
use tally_wire::{Time, neighbour};

/// How often the thread looks at its orders and whether the switch ends.
const TICK: Duration = Duration::from_millis(50);
/// How often it looks at links, and what came back to the loop guard.
const LOOK: Duration = Duration::from_millis(250);
/// How often it asks devices for their counters.
const COUNT: Duration = Duration::from_secs(1);
/// How often it asks for those of the drivers' own, which takes longer.
const COUNT_ALL: Duration = Duration::from_secs(5);
/// How long a data core may take to change its queues.
const PATIENCE: Duration = Duration::from_secs(2);
/// Counters of a driver's own that are kept at most.
const XSTATS_MAX: usize = 32;
/// What their names have in them.
const XSTATS: [&str; 6] = ["err", "drop", "discard", "miss", "pause", "fail"];
/// Those that DPDK makes of `rte_eth_stats`.
const XSTATS_KNOWN: [&str; 4] = [
    "rx_missed_errors",
    "rx_errors",
    "tx_errors",
    "rx_mbuf_allocation_errors",
];

/// What the thread is made from.
pub struct Keeping {
    /// For devices that are added.
    pub eal: Eal,
    /// The ports, as the switch started.
    pub config: Config,
    /// What each port is opened on.
    pub devices: Vec<Device>,
    /// Their locks.
    pub locks: Vec<Lock>,
    /// For interfaces that are opened later.
    pub pools: Pools,
    /// To the data cores.
    pub bus: Bus,
    /// What they share.
    pub forwarding: Forwarding,
    /// Where it says what it knows.
    pub board: Board,
    /// When the switch started.
    pub epoch: Instant,
    /// Set when the switch is to stop.
    pub stop: Arc<AtomicBool>,
    /// Random numbers, unpredictable for hosts.
    pub random: fn() -> u64,
}

/// One port.
struct LivePort {
    section: PortSection,
    owner: usize,
    device: Device,
    is_enabled: bool,
    is_up: bool,
    /// Whether its interface is missing.
    is_missing: bool,
    /// Why its interface was not opened, as it was said.
    refused: Option<String>,
    storms: StormWatch,
    /// Of a DPDK port that is disabled: what each core had of it.
    parked: Vec<Option<OldQueues>>,
    _lock: Option<Lock>,
}

/// The thread, before it runs.
pub struct Keeper {
    with: Keeping,
    ports: Vec<LivePort>,
    requests: Receiver<PortRequest>,
    links: Option<Links>,
    guard: LoopGuard,
    lldp: Lldp,
    /// Ports that lead to other switches.
    links_to_switches: Vec<PortId>,
    next_look: Time,
    next_count: Time,
    next_count_all: Time,
}

impl Keeper {
    /// Looks at each port once: those that are missing take no part when the cores start.
    #[must_use]
    pub fn new(mut with: Keeping) -> (Self, PortsHandle) {
        let (handle, requests) = PortsHandle::channel();
        let links = match Links::new() {
            Ok(links) => Some(links),
            Err(why) => {
                log::line("ports", format!("links are not watched: {why}"));
                None
            }
        };
        let devices = std::mem::take(&mut with.devices);
        let kept = |(at, (section, device)): (usize, (&PortSection, Device))| LivePort {
            owner: owner(&with.config, section, at),
            ..LivePort::new(section.clone(), device)
        };
        let ports = with.config.ports.iter().zip(devices).enumerate();
        let ports: Vec<_> = ports.map(kept).collect();
        let states = with.forwarding.ports();
        for spare in ports.len()..with.config.ports_max() {
            states.set_closed(PortId(spare as u16), true);
        }
        if with.config.loop_guard {
            states.probes.set_instance((with.random)());
        }
        let mut keeper = Self {
            guard: LoopGuard::new(with.config.ports_max() as u16),
            lldp: Lldp::new(&with.config),
            links_to_switches: with.config.fabric_links().map(|(port, _)| port).collect(),
            ports,
            requests,
            links,
            next_look: Time(0),
            next_count: Time(0),
            next_count_all: Time(0),
            with,
        };
        for at in 0..keeper.ports.len() {
            keeper.begin(at);
        }
        (keeper, handle)
    }

    /// Runs until the switch stops, and closes the ports.
    pub fn run(mut self) {
        while !self.with.stop.load(Ordering::Relaxed) {
            match self.requests.recv_timeout(TICK) {
                Ok(request) => self.carry_out(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            let now = self.now();
            if now >= self.next_look {
                self.next_look = now.after(LOOK);
                self.look(now);
            }
            if now >= self.next_count {
                self.next_count = now.after(COUNT);
                self.count(now);
            }
        }
        self.count(self.now());
    }

    fn now(&self) -> Time {
        Time(self.with.epoch.elapsed().as_nanos() as u64)
    }

    /// A port's link as it is when the port begins: only what is wrong is said.
    fn begin(&mut self, at: usize) {
        let (is_missing, is_up) = self.link_of(at);
        let port = &mut self.ports[at];
        port.is_missing = is_missing;
        port.is_up = is_up;
        let name = port.section.label().to_owned();
        let interface = port.section.interface().unwrap_or_default().to_owned();
        if is_missing {
            log::line(
                "link",
                format!("port {name}: no interface {interface} yet; it is opened when it is there"),
            );
        } else if !is_up && port.section.is_wired() {
            log::line("link", format!("port {name}: link is down"));
        }
        self.show(at);
    }

    /// Whether the port's interface is missing, and whether its link is up.
    fn link_of(&self, at: usize) -> (bool, bool) {
        let port = &self.ports[at];
        let interface = port.section.kernel_interface();
        let state = |name| self.links.as_ref().and_then(|links| links.state(name));
        let is_up = |state: LinkState| state.is_up && state.has_carrier;
        match &port.device {
            Device::Kernel(monitor) => match interface.and_then(state) {
                Some(state) => {
                    let opened = monitor.as_ref().map(tally_packet::Monitor::interface_index);
                    (opened != Some(state.index), is_up(state))
                }
                None => (self.links.is_some() || monitor.is_none(), false),
            },
            Device::Dpdk(device) => {
                // A device that cannot say is taken to be linked.
                let is_linked = device.link().map_or(true, |link| link.up);
                let carries = interface.and_then(state).is_none_or(is_up);
                (false, is_linked && carries)
            }
        }
    }

    /// Looks at links, and decides on loops and LLDP.
    fn look(&mut self, now: Time) {
        for at in 0..self.ports.len() {
            if self.ports[at].is_enabled {
                self.look_at(at);
            }
            let port = &self.ports[at];
            let is_watched = self.with.config.loop_guard && port.is_active() && self.is_guarded(at);
            let released = self.guard.watch(now, PortId(at as u16), is_watched);
            if let Some(action) = released {
                self.guard_did(action);
            }
        }
        let far = self.probed_through_fabric();
        let probes = &self.with.forwarding.ports().probes;
        let seen = |port| {
            let seen = probes.take(port);
            Sighting {
                own: seen.own || far.contains(&port),
                ..seen
            }
        };
        for action in self.guard.poll(now, seen) {
            self.guard_did(action);
        }
        self.announce(now);
    }

    /// The card's port has no hosts, and what is at its other end sends back what it does not know.
    fn is_announced(&self, at: usize) -> bool {
        let is_card = self.with.config.card_port() == Some(PortId(at as u16));
        self.ports[at].section.is_wired() && !is_card
    }

    fn is_guarded(&self, at: usize) -> bool {
        self.is_announced(at) && !self.leads_to_switch(at)
    }

    /// Whether a switch of the fabric is at the other end of a port.
    fn leads_to_switch(&self, at: usize) -> bool {
        self.links_to_switches.contains(&PortId(at as u16))
    }

    /// Ports whose probes came back by a link to a switch: a loop joins them with a port of another
    /// switch.
    fn probed_through_fabric(&self) -> Vec<PortId> {
        let probes = &self.with.forwarding.ports().probes;
        let links = self.links_to_switches.iter();
        links.filter_map(|&port| probes.take(port).from).collect()
    }

    /// Forgets the hosts behind a port. Those behind other switches are reached by other links.
    fn forget(&self, at: usize) {
        if !self.leads_to_switch(at) {
            self.with.forwarding.forget(PortId(at as u16));
        }
    }

    fn look_at(&mut self, at: usize) {
        let (is_missing, is_up) = self.link_of(at);
        let port = &mut self.ports[at];
        let (was_missing, was_up) = (port.is_missing, port.is_up);
        let name = port.section.label().to_owned();
        let interface = port.section.interface().unwrap_or_default().to_owned();
        if is_missing {
            if !was_missing && matches!(port.device, Device::Kernel(Some(_))) {
                let text = format!(
                    "port {name}: interface {interface} was deleted; it is opened again when it is there"
                );
                log::line("link", text);
                self.close_interface(at);
            }
            if self.ports[at].section.interface().is_some() {
                self.open_again(at);
            }
        }
        let (is_missing, is_up) = if is_missing {
            self.link_of(at)
        } else {
            (is_missing, is_up)
        };
        let port = &mut self.ports[at];
        port.is_missing = is_missing;
        port.is_up = is_up && !is_missing;
        if port.is_up != was_up {
            if !is_missing {
                let state = if port.is_up { "up" } else { "down" };
                log::line("link", format!("port {name}: link is {state}"));
            }
            if let Some(facts) = self.with.board.lock().get_mut(at) {
                facts.link.link_changes += 1;
            }
            if !self.ports[at].is_up {
                self.forget(at);
            }
        }
        if self.ports[at].is_up != was_up || is_missing != was_missing {
            self.show(at);
        }
    }

    /// Opens an interface that is there, and gives its queues to the core that owns the port.
    fn open_again(&mut self, at: usize) {
        let port = &self.ports[at];
        let Keeping { config, pools, .. } = &self.with;
        let opened = open_interface(config, pools, &port.section, port.owner);
        let name = port.section.label().to_owned();
        let interface = port.section.interface().unwrap_or_default().to_owned();
        let (monitor, rx, tx) = match opened {
            Ok(opened) => opened,
            Err(tally_packet::Error::NoInterface(_)) => return,
            Err(why) => {
                let why = why.to_string();
                let port = &mut self.ports[at];
                if port.refused.as_ref() != Some(&why) {
                    let text = format!("port {name}: cannot open {interface}: {why}; trying again");
                    log::line("link", text);
                    port.refused = Some(why);
                }
                return;
            }
        };
        self.ports[at].refused = None;
        if let Err(why) = self.swap_interface(at, vec![rx], tx) {
            log::line("link", format!("port {name}: {why}; trying again"));
            return;
        }
        self.ports[at].device = Device::Kernel(Some(monitor));
        if let Some(facts) = self.with.board.lock().get_mut(at) {
            facts.link.reopened += 1;
        }
        log::line(
            "link",
            format!("port {name}: interface {interface} is open"),
        );
    }

    /// Takes a port of the kernel from its core, and closes its socket.
    fn close_interface(&mut self, at: usize) {
        self.ports[at].device = Device::Kernel(None);
        self.ports[at].is_missing = true;
        self.forget(at);
        if let Err(why) = self.swap_interface(at, Vec::new(), Tx::Closed(0)) {
            let name = self.ports[at].section.label();
            log::line("link", format!("port {name}: {why}"));
        }
    }

    fn swap_interface(&self, at: usize, rx: Vec<Rx>, tx: Tx) -> Result<(), String> {
        let port = &self.ports[at];
        let share = self.with.config.queue_share(1);
        self.swap(at, port.owner, rx, Ok((tx, share)))
            .and_then(|old| old.failed.map_or(Ok(()), Err))
    }

    /// Gives queues to a core; what it had before.
    fn swap(
        &self,
        at: usize,
        core: usize,
        rx: Vec<Rx>,
        tx: Result<(Tx, QueueConfig), usize>,
    ) -> Result<OldQueues, String> {
        let queues = PortQueues {
            port: PortId(at as u16),
            rx,
            tx,
            longest_frame: self.ports[at].section.longest_frame(),
        };
        let command = |reply| CoreCommand::Swap(Box::new(queues), reply);
        let old = self.with.bus.ask_one(core, PATIENCE, command);
        old.ok_or_else(|| format!("data core {core} did not answer for {PATIENCE:?}"))
    }

    fn guard_did(&mut self, action: GuardAction) {
        let name = |port: PortId| {
            let port = self.ports.get(usize::from(port.0));
            port.map_or("", |port| port.section.label())
        };
        let port = match action {
            GuardAction::Probe(port) => {
                let frame = (self.with.forwarding.ports().probes).make(port, (self.with.random)());
                return self.send(port, &frame);
            }
            GuardAction::Block(port, origin) => {
                let text = if port == origin {
                    format!(
                        "port {}: blocked: a loop behind it returns what is sent there",
                        name(port)
                    )
                } else {
                    format!(
                        "port {}: blocked: a loop joins it with port {}; look for two cables between them or a \
                         switch behind both",
                        name(port),
                        name(origin)
                    )
                };
                log::line("loop", text);
                self.with.forwarding.forget(port);
                if port != origin {
                    // So that switches behind the loop find this one by the port that is left.
                    let address = &self.with.config.address;
                    let (mac, ip) = (address.mac, address.ip);
                    self.send(origin, &neighbour::arp_request(mac, ip, ip));
                }
                if let Some(facts) = self.with.board.lock().get_mut(usize::from(port.0)) {
                    facts.link.loop_blocks += 1;
                }
                port
            }
            GuardAction::Release(port, blocked) => {
                let seconds = blocked.as_secs_f64();
                let text = format!(
                    "port {}: no longer blocked after {seconds:.1} s: the loop is gone",
                    name(port)
                );
                log::line("loop", text);
                port
            }
        };
        self.show(usize::from(port.0));
    }

    fn send(&self, port: PortId, frame: &[u8]) {
        let command: Command<_, _> = Command::SendFrame(port, frame.into());
        self.with.bus.send_first(command);
    }

    /// Sends LLDP where it is due, and takes what neighbours said.
    fn announce(&mut self, now: Time) {
        for at in 0..self.ports.len() {
            let port = PortId(at as u16);
            let kept = &self.ports[at];
            let is_open = kept.is_active() && !self.guard.is_blocked(port);
            let sends = self.with.config.lldp && is_open && self.is_announced(at);
            if let Some(frame) = self.lldp.due(now, at, sends, kept.section.label()) {
                self.send(port, &frame);
            }
            let heard = self.with.forwarding.ports().take_heard(port);
            let neighbour = self.lldp.heard(now, at, heard.as_deref(), is_open);
            if let Some(facts) = self.with.board.lock().get_mut(at) {
                facts.neighbour = neighbour;
            }
        }
    }

    /// Whether a port takes part, and what it does: for the cores and for reports.
    fn show(&self, at: usize) {
        let (port, id) = (&self.ports[at], PortId(at as u16));
        let is_blocked = self.guard.is_blocked(id);
        let state = match () {
            () if !port.is_enabled => PortState::Disabled,
            () if port.is_missing => PortState::Missing,
            () if !port.is_up => PortState::Down,
            () if is_blocked => PortState::Blocked,
            () => PortState::Up,
        };
        let is_closed = !matches!(state, PortState::Up | PortState::Down);
        self.with.forwarding.ports().set_closed(id, is_closed);
        if let Some(facts) = self.with.board.lock().get_mut(at) {
            facts.state = state;
            facts.link.link_up = u8::from(port.is_up);
            facts.link.loop_blocked = u8::from(is_blocked);
        }
    }

    /// Asks devices for what they counted, and says what storms there are.
    fn count(&mut self, now: Time) {
        let with_own = now >= self.next_count_all;
        if with_own {
            self.next_count_all = now.after(COUNT_ALL);
        }
        for at in 0..self.ports.len() {
            let storms = self.with.forwarding.ports().storms(PortId(at as u16));
            self.say_storms(now, at, storms);
            let mut nic = match self.with.board.lock().get(at) {
                Some(facts) => facts.nic.clone(),
                None => continue,
            };
            let mut speed = None;
            match &self.ports[at].device {
                Device::Kernel(Some(monitor)) => nic.nic_rx_missed += monitor.take_dropped(),
                Device::Kernel(None) => {}
                Device::Dpdk(device) => {
                    if let Ok(stats) = device.stats() {
                        nic.nic_rx_missed = stats.rx_missed;
                        nic.nic_rx_errors = stats.rx_errors;
                        nic.nic_rx_no_buffer = stats.rx_no_buffer;
                        nic.nic_tx_errors = stats.tx_errors;
                    }
                    if with_own && let Ok(stats) = device.extended_stats() {
                        nic.nic_xstats = chosen(stats);
                    }
                    speed = device.link().ok().and_then(|link| link.speed_mbps);
                }
            }
            if let Some(facts) = self.with.board.lock().get_mut(at) {
                facts.nic = nic;
                facts.speed_mbps = speed;
                facts.link.storm_dropped = storms;
            }
        }
    }

    fn say_storms(&mut self, now: Time, at: usize, dropped: [u64; 3]) {
        let limits = match &self.with.config.fabric {
            Some(fabric) if self.leads_to_switch(at) => fabric.floods().0,
            _ => self.with.config.limits.floods().0,
        };
        let is_link = self.leads_to_switch(at);
        let port = &mut self.ports[at];
        for event in port.storms.look(now, dropped) {
            let name = port.section.label();
            let text = match event {
                StormEvent::Began(kind, frames) => {
                    let limit = limits[kind as usize];
                    let key = match kind.name() {
                        _ if is_link => "fabric.floods_per_s",
                        "broadcast" => "limits.broadcasts_per_s",
                        "multicast" => "limits.multicasts_per_s",
                        _ => "limits.unknown_per_s",
                    };
                    format!(
                        "port {name}: {} storm begins: {frames} frames dropped in a second; `{key}` is {limit}",
                        kind.name()
                    )
                }
                StormEvent::Ended(kind, lasted, frames) => format!(
                    "port {name}: {} storm is over after {:.0} s: {frames} frames dropped",
                    kind.name(),
                    lasted.as_secs_f64().max(1.0)
                ),
            };
            log::line("storm", text);
        }
    }
}

impl LivePort {
    fn new(section: PortSection, device: Device) -> Self {
        Self {
            section,
            owner: 0,
            device,
            is_enabled: true,
            is_up: false,
            is_missing: false,
            refused: None,
            storms: StormWatch::default(),
            parked: Vec::new(),
            _lock: None,
        }
    }

    /// Whether frames may pass, but for a loop.
    fn is_active(&self) -> bool {
        self.is_enabled && self.is_up && !self.is_missing
    }
}

/// Those of a driver's own counters that are shown.
fn chosen(stats: Vec<(String, u64)>) -> BTreeMap<String, u64> {
    let is_chosen =
        |name: &str| !XSTATS_KNOWN.contains(&name) && XSTATS.iter().any(|part| name.contains(part));
    let stats = stats.into_iter();
    let stats = stats.filter(|(name, n)| *n > 0 && is_chosen(name));
    stats.take(XSTATS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_drops_and_pauses_are_chosen_of_a_driver_s_counters() {
        let stats = [
            ("rx_good_packets", 5),
            ("rx_missed_errors", 6),
            ("rx_crc_errors", 7),
            ("tx_pause_frames", 8),
            ("rx_q0_drop", 0),
            ("rx_out_of_buffer_discards", 9),
        ];
        let stats = stats.map(|(name, n)| (name.to_owned(), n)).to_vec();
        let found: Vec<_> = chosen(stats).into_iter().collect();
        let expected = [
            ("rx_crc_errors", 7),
            ("rx_out_of_buffer_discards", 9),
            ("tx_pause_frames", 8),
        ];
        assert_eq!(found, expected.map(|(name, n)| (name.to_owned(), n)));
        let many = (0..100).map(|n| (format!("rx_err_{n}"), 1)).collect();
        assert_eq!(chosen(many).len(), XSTATS_MAX);
    }
}
