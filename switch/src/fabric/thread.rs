//! The thread that listens to other switches, and says to the cores where frames go.
//!
//! It is apart from the one that looks after the ports: opening a device takes seconds, in which no
//! hello would be sent, and all links would die. Whether a port has a carrier it reads on the
//! [`Board`].

use super::{FabricBoard, FabricFacts};
use crate::board::Board;
use crate::bus::Bus;
use crate::log;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_engine::fabric::{Fabric, FabricAction, FabricEvent};
use tally_engine::{Command, Forwarding, PortId};
use tally_schema::switch::report::PortState;
use tally_wire::Time;

/// How often neighbours are listened to.
const TICK: Duration = Duration::from_millis(20);
/// How often what is known is put on the board, if there is no news.
const FACTS_EVERY: Duration = Duration::from_millis(250);
/// Addresses told to switches above at most.
const TOLD_MAX: usize = 1 << 16;

/// The thread, before it runs.
pub struct FabricThread {
    /// What it decides by.
    pub fabric: Fabric,
    /// What the data cores share.
    pub forwarding: Forwarding,
    /// To the data cores.
    pub bus: Bus,
    /// What is known of the ports.
    pub ports: Board,
    /// Where it says what it knows.
    pub board: FabricBoard,
    /// When the switch started.
    pub epoch: Instant,
    /// Set when the switch is to stop.
    pub stop: Arc<AtomicBool>,
}

impl FabricThread {
    /// Starts it.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn start(self) -> std::io::Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("fabric".into());
        thread.spawn(move || self.run())
    }

    fn run(mut self) {
        let mut next_facts = Time(0);
        while !self.stop.load(Ordering::Relaxed) {
            let now = Time(self.epoch.elapsed().as_nanos() as u64);
            let is_news = self.look(now);
            if is_news || now >= next_facts {
                next_facts = now.after(FACTS_EVERY);
                self.board.set(FabricFacts {
                    links: self.fabric.link_status(now),
                    neighbours: self.fabric.neighbour_status(),
                });
            }
            std::thread::sleep(TICK);
        }
    }

    /// Receives and sends hellos; says whether any link changed.
    fn look(&mut self, now: Time) -> bool {
        for (at, facts) in self.ports.lock().iter().enumerate() {
            let is_up = facts.state == PortState::Up;
            self.fabric.set_carrier(now, PortId(at as u16), is_up);
        }
        for (port, frame) in self.forwarding.ports().take_fabric() {
            self.fabric.receive(now, port, &frame);
        }
        let actions = self.fabric.poll(now);
        let is_change = |action: &FabricAction| {
            matches!(action, FabricAction::Say(_) | FabricAction::Forward(_))
        };
        let is_news = actions.iter().any(is_change);
        for action in actions {
            self.carry_out(now, action);
        }
        let changes = self.forwarding.macs().changes();
        if self.fabric.announces(now, changes) {
            let now_s = (now.0 / 1_000_000_000) as u32;
            let entries = self.forwarding.macs().entries(now_s, TOLD_MAX);
            self.fabric.announce(now, changes, &entries);
        }
        is_news
    }

    fn carry_out(&mut self, now: Time, action: FabricAction) {
        match action {
            FabricAction::Send(port, frame) => {
                let command: Command<_, _> = Command::SendFrame(port, frame);
                self.bus.send_first(command);
            }
            FabricAction::Forward(table) => {
                self.forwarding.set_fabric(Arc::clone(&table));
                self.bus.send(|| {
                    let command: Command<_, _> = Command::Fabric(Arc::clone(&table));
                    command
                });
            }
            FabricAction::Forget(place) => self.forwarding.forget(place),
            FabricAction::Learn(place, mac, age_s) => {
                self.forwarding.learn_told(now, place, mac, age_s);
            }
            FabricAction::Say(event) => {
                let ports = self.ports.lock();
                let name = |port: PortId| {
                    let port = ports.get(usize::from(port.0));
                    port.map_or("", |port| &port.shape.name)
                };
                let text = text(&event, name);
                drop(ports);
                log::line("fabric", text);
            }
        }
    }
}

fn text<'a>(event: &FabricEvent, name: impl Fn(PortId) -> &'a str) -> String {
    match event {
        FabricEvent::Alive(port, switch) => {
            format!("port {}: link to switch {switch} is alive", name(*port))
        }
        FabricEvent::Dead(port, switch, lived, by_carrier) => {
            let why = match by_carrier {
                true => "its interface is down",
                false => "no hello came",
            };
            format!(
                "port {}: link to switch {switch} is dead after {:.1} s: {why}",
                name(*port),
                lived.as_secs_f64()
            )
        }
        FabricEvent::Wrong(port, switch, problem) => format!(
            "port {}: expected switch {switch}, found {problem}",
            name(*port)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_engine::fabric::Problem;

    #[test]
    fn events_name_port_and_both_switches() {
        let name = |_| "up1";
        let lived = Duration::from_millis(1250);
        let event = FabricEvent::Dead(PortId(0), "spine1".into(), lived, false);
        let dead = "port up1: link to switch spine1 is dead after 1.2 s: no hello came";
        assert_eq!(text(&event, name), dead);
        let problem = Problem::Name("spine2".into());
        let event = FabricEvent::Wrong(PortId(0), "spine1".into(), problem);
        assert_eq!(
            text(&event, name),
            "port up1: expected switch spine1, found switch `spine2`; look at the cable and `fabric.links`"
        );
    }
}
