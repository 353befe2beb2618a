//! Ports that are added, taken down and up while the switch runs.

use super::super::lock::{self, Lock};
use super::super::{Device, Made, closed_tx, make, owner};
use super::{Keeper, LivePort};
use crate::board::PortFacts;
use crate::config::{Config, PortSection};
use crate::log;
use crate::messages::OldQueues;
use crate::queues::{Rx, Tx};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::path::Path;
use tally_engine::{PortId, Reply};

/// Requests that wait at most.
const WAITING_MAX: usize = 16;
/// Frames that had waited in a device while its port was disabled, discarded at most.
const STALE_MAX: usize = 1 << 14;

/// What is to change.
#[derive(Clone, Debug, PartialEq)]
pub enum PortChange {
    /// Add ports, all or none. One that is there alike is no change.
    Add(Vec<PortSection>),
    /// Let the port of this name take part again.
    Up(String),
    /// Have the port of this name take no part: nothing is received from it or sent to it.
    Down(String),
}

/// A change, and where its answer goes.
pub(super) struct PortRequest {
    change: PortChange,
    reply: Reply<Result<bool, String>>,
}

/// The way to the thread.
#[derive(Clone)]
pub struct PortsHandle(Sender<PortRequest>);

impl PortsHandle {
    pub(super) fn channel() -> (Self, Receiver<PortRequest>) {
        let (send, receive) = bounded(WAITING_MAX);
        (Self(send), receive)
    }

    /// Asks for a change without waiting for it. The answer says whether anything changed, or why
    /// not.
    pub fn send(&self, change: PortChange, reply: Reply<Result<bool, String>>) {
        if let Err(unsent) = self.0.try_send(PortRequest { change, reply }) {
            let why = format!("{WAITING_MAX} changes of ports wait, or the switch ends");
            (unsent.into_inner().reply)(Err(why));
        }
    }
}

impl Keeper {
    pub(super) fn carry_out(&mut self, request: PortRequest) {
        let done = match &request.change {
            PortChange::Add(sections) => self.add(sections),
            PortChange::Up(name) => self.find(name).and_then(|at| self.enable(at)),
            PortChange::Down(name) => self.find(name).and_then(|at| self.disable(at)),
        };
        (request.reply)(done);
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        let mut ports = self.ports.iter();
        let found = ports.position(|port| port.section.label() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.ports.iter().map(|port| port.section.label()).collect();
            let name = name.escape_default();
            format!("no port `{name}`; there are {}", names.join(", "))
        })
    }

    /// Adds all of them, or none.
    fn add(&mut self, sections: &[PortSection]) -> Result<bool, String> {
        let is_new =
            |section: &&PortSection| !self.ports.iter().any(|port| port.section == **section);
        let mut config = self.with.config.clone();
        let mut made = Vec::new();
        for section in sections.iter().filter(is_new) {
            let at = config.ports.len();
            config = self.check(config, section)?;
            let owner = owner(&config, section, at);
            let name = section.label();
            let lock = lock::take(section).map_err(|why| format!("port {name}: {why}"))?;
            let one = make(&self.with.eal, &config, &self.with.pools, section, owner);
            let one = one.map_err(|why| format!("port {name} ({}): {why:#}", section.device))?;
            made.push((section.clone(), owner, lock, one));
        }
        let is_changed = !made.is_empty();
        self.with.config = config;
        for (section, owner, lock, made) in made {
            self.serve(section, owner, lock, made);
        }
        Ok(is_changed)
    }

    /// Gives a port's queues to the cores.
    fn serve(&mut self, section: PortSection, owner: usize, lock: Option<Lock>, made: Made) {
        let at = self.ports.len();
        let name = section.label().to_owned();
        let text = format!(
            "port {name}: added on {}, served by data core {owner}",
            section.device
        );
        self.ports.push(LivePort {
            owner,
            _lock: lock,
            ..LivePort::new(section, made.device)
        });
        self.with.board.lock().push(PortFacts {
            shape: made.shape,
            ..PortFacts::default()
        });
        let mut rx: Vec<Vec<Rx>> = made.tx.iter().map(|_| Vec::new()).collect();
        for (core, queue) in made.rx {
            rx[core].push(queue);
        }
        for (core, (rx, tx)) in rx.into_iter().zip(made.tx).enumerate() {
            let failed = match self.swap(at, core, rx, tx) {
                Ok(old) => old.failed,
                Err(why) => Some(why),
            };
            if let Some(why) = failed {
                log::line(
                    "port",
                    format!("port {name}: not served by data core {core}: {why}"),
                );
            }
        }
        self.begin(at);
        log::line("port", text);
    }

    /// The configuration with a port more, if it can be.
    fn check(&self, mut with: Config, section: &PortSection) -> Result<Config, String> {
        let config = &self.with.config;
        if with.ports.len() == config.ports_max() {
            return Err(format!(
                "port {}: no room for it: `max_ports` is {}, which a restart changes",
                section.label(),
                config.ports_max()
            ));
        }
        with.ports.push(section.clone());
        let checked = with.check(Path::new("the running configuration with that port"));
        checked.map_err(|why| why.to_string())?;
        if with.frame_bytes_max() > config.frame_bytes_max() {
            let found = with.frame_bytes_max();
            let most = config.frame_bytes_max();
            return Err(format!(
                "port {}: its frames need buffers of {found} bytes, and the switch was started with {most}",
                section.label()
            ));
        }
        if with.units() < config.units() {
            return Err(format!(
                "port {}: `mtu` {} is smaller than that of the ports the switch was started with, on which the \
                 payload of jobs depends",
                section.label(),
                section.mtu
            ));
        }
        Ok(with)
    }

    fn disable(&mut self, at: usize) -> Result<bool, String> {
        if !self.ports[at].is_enabled {
            return Ok(false);
        }
        let name = self.ports[at].section.label().to_owned();
        self.ports[at].is_enabled = false;
        self.ports[at].is_up = false;
        let now = self.now();
        if let Some(action) = self.guard.watch(now, PortId(at as u16), false) {
            self.guard_did(action);
        }
        // Before its queues are gone, so that nothing is sent to them.
        self.show(at);
        self.with.forwarding.forget(PortId(at as u16));
        match self.ports[at].device {
            Device::Kernel(_) => self.close_interface(at),
            Device::Dpdk(_) => {
                let owner = self.ports[at].owner;
                let closed = closed_tx(&self.with.config, owner);
                for (core, tx) in closed.into_iter().enumerate() {
                    // What does not answer keeps its queues; frames of a closed port are dropped.
                    let old = self.swap(at, core, Vec::new(), tx);
                    self.ports[at].parked.push(old.ok());
                }
            }
        }
        log::line("port", format!("port {name}: taken down"));
        Ok(true)
    }

    fn enable(&mut self, at: usize) -> Result<bool, String> {
        if self.ports[at].is_enabled {
            return Ok(false);
        }
        let name = self.ports[at].section.label().to_owned();
        let owner = self.ports[at].owner;
        let parked = std::mem::take(&mut self.ports[at].parked);
        let share = self.with.config.queue_share(
            parked
                .iter()
                .flatten()
                .filter(|old| old.tx.is_some())
                .count()
                .max(1) as u16,
        );
        for (core, old) in parked.into_iter().enumerate() {
            let Some(OldQueues { mut rx, tx, .. }) = old else {
                return Err(format!(
                    "port {name}: data core {core} lost its queues; restart the switch"
                ));
            };
            rx.iter_mut().for_each(discard);
            let tx = tx.filter(|tx| !matches!(tx, Tx::Closed(_)));
            self.swap(at, core, rx, tx.map(|tx| (tx, share)).ok_or(owner))?;
        }
        self.ports[at].is_enabled = true;
        self.look_at(at);
        self.show(at);
        log::line("port", format!("port {name}: taken up"));
        Ok(true)
    }
}

/// Discards what a device has kept since its port was disabled.
fn discard(rx: &mut Rx) {
    let mut frames = Vec::with_capacity(32);
    let mut discarded = 0;
    while discarded < STALE_MAX {
        let n = rx.burst(&mut frames, 32);
        frames.clear();
        if n == 0 {
            return;
        }
        discarded += n;
    }
}
