//! A card in a world: how it fails, and what must hold of it.
//!
//! Every frame that comes from its port is counted, or dropped with a reason. What it sends of a
//! job that it does not have, and what a hostile card devises, reaches no host
//! ([`look_at_claims`](super::claims::look_at_claims)). When all jobs have ended it holds nothing.

use super::data::Contributor;
use super::findings::{Checker, Findings};
use super::options::Options;
use super::options::card::CardIncident;
use super::options::fabric::NEAR;
use super::setup::job_id;
use crate::address::SwitchId;
use crate::link::{Faults, LinkConfig};
use crate::switch::{CardPort, CardSetup};
use crate::world::World;
use tally_engine::offload::controller::Jobs;

/// The switch that it is at.
const SWITCH: SwitchId = NEAR;

/// Connects the card to the first switch's next port, if the world has one.
pub fn connect(world: &mut World<Contributor>, options: &Options, link: LinkConfig) {
    let Some(card) = &options.card else { return };
    let listed = card.listed.as_ref().map(|listed| {
        let listed = listed.iter().enumerate().filter(|(_, is)| **is);
        listed.map(|(job, _)| job_id(job)).collect()
    });
    let jobs = options.jobs.iter().enumerate();
    let eligible = jobs.filter(|(n, job)| job.workers > 1 && options.switch_of(*n) == SWITCH);
    let setup = CardSetup {
        card: card.config,
        jobs: listed.map_or(Jobs::Auto, Jobs::List),
        eligible: eligible.map(|(job, _)| job_id(job)).collect(),
        command_delay: card.command_delay,
    };
    let faults = card.faults;
    world.add_card(SWITCH, setup, LinkConfig { faults, ..link });
}

/// The card of a world.
fn port(world: &mut World<Contributor>) -> Option<&mut CardPort> {
    world.switches[0].card.as_mut()
}

/// Lets something go wrong with the card.
pub fn fail(world: &mut World<Contributor>, incident: CardIncident) {
    world.note(|| format!("card: {incident:?}"));
    let now = world.now;
    match incident {
        CardIncident::Dies(lasting) => with_card(world, |card| {
            card.reset();
            card.dead_until = now.after(lasting);
        }),
        CardIncident::Resets => with_card(world, crate::switch::Card::reset),
        CardIncident::Hangs(lasting) => with_card(world, |card| {
            card.silent_until = now.after(lasting);
        }),
        CardIncident::Blind(lasting) => with_card(world, |card| {
            card.registers_fail_until = now.after(lasting);
        }),
        CardIncident::Cut(lasting) => with_links(world, |link| {
            link.cut_until = now.after(lasting);
        }),
        CardIncident::Late(lasting, delay) => with_links(world, |link| {
            link.slow_until = now.after(lasting);
            link.spike = delay;
        }),
    }
}

fn with_card(world: &mut World<Contributor>, act: impl FnOnce(&mut crate::switch::Card)) {
    if let Some(port) = port(world) {
        act(&mut port.card.borrow_mut());
    }
}

fn with_links(world: &mut World<Contributor>, act: impl Fn(&mut crate::link::Link)) {
    let Some(port) = port(world) else { return };
    act(&mut port.link);
    let number = usize::from(port.port.0);
    act(&mut world.switches[0].ports[number].link);
}

/// Nothing goes wrong on the card's cable any more.
pub fn faults_end(world: &mut World<Contributor>) {
    with_links(world, |link| {
        link.config.faults = Faults::NONE;
        link.config.backlog_bytes = link.config.backlog_bytes.max(1_000_000);
    });
}

/// What must hold when all jobs have ended.
pub fn look_at_end(world: &World<Contributor>, findings: &Findings) {
    let switch = &world.switches[0];
    let Some(port) = &switch.card else { return };
    let (came, counted) = switch.card_frames();
    findings.require(came == counted, Checker::Leak, || {
        format!("{came} frames came from the card, of which {counted} are counted")
    });
    let card = port.card.borrow();
    findings.require(card.lost() == 0, Checker::Leak, || {
        format!("{} buffers disappeared in the card", card.lost())
    });
    // A card that does not work is cleared before it does.
    let held = card.in_use();
    findings.require(!switch.card_works() || held == 0, Checker::Leak, || {
        format!("the card has {held} slots and buffers after all jobs")
    });
}
