//! A simulated card: the switch's core with one pool, behind the port tags of cards.
//!
//! It differs from a switch as a card does (docs/FPGA.md): MACs name ports, tags of the protocol
//! are the switch's, all shards are one pool, and frames that the card does not serve come back.
//! Registers and data path fail apart from each other, or together when it dies. A hostile card
//! also sends copies of its frames that it may not send; checkers know them by their [`Origin`].

use super::Memory;
use crate::address::SwitchId;
use crate::frame::{Frame, Origin};
use crate::rng::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tally_engine::native::Native;
use tally_engine::offload::controller::Registers;
use tally_engine::offload::tags::{self, mask_mac, port_of, probe_of};
use tally_engine::queue::QueueConfig;
use tally_engine::{
    Aggregator, Command, Context, Core, Dialects, DropReason, Forwarding, ForwardingConfig,
    Handover, PolicyName, PoolConfig, PoolJob, PortId, Ports, Roster, SwitchAddress, Transmit,
};
use tally_kernels::Kernels;
use tally_wire::frame::{UDP_END, internet_checksum};
use tally_wire::{Addresses, AuthTag, HEADERS_BYTES, Header, JobId, Mac, Time};

/// How big a card is, and how it behaves.
#[derive(Clone, Copy, Debug)]
pub struct CardConfig {
    /// Slots of its pool.
    pub slots: u32,
    /// Results that it keeps of each job.
    pub ring: u32,
    /// Jobs at a time.
    pub places: usize,
    /// Frames of its own devising, for each million that it sends.
    pub hostile_ppm: u32,
}

/// Ports whose frames a card can send: those that tags know.
const PORTS: u16 = tags::PORTS;
const IP_BYTES_AT: usize = 16;
const CHECKSUM_AT: usize = 24;
const UDP_PORT_AT: usize = 36;
const UDP_BYTES_AT: usize = 38;

type CardCore = Core<Memory, Dialects<Memory>>;

/// What the card's core sends.
#[derive(Default)]
struct Sent(Vec<(PortId, Frame)>);

impl Transmit<Frame> for Sent {
    fn room(&self, _: PortId) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, port: PortId, frames: &mut Vec<Frame>) -> usize {
        let sent = frames.len();
        self.0.extend(frames.drain(..).map(|frame| (port, frame)));
        sent
    }

    fn hand_over(&mut self, _: usize, frames: &mut Vec<Handover<Frame>>) -> u64 {
        frames.drain(..).count() as u64
    }
}

/// A card that has been opened.
struct Opened {
    core: CardCore,
    memory: Memory,
    jobs: BTreeMap<JobId, Arc<Roster>>,
}

/// The card.
pub struct Card {
    config: CardConfig,
    /// Jobs that it may be given.
    jobs: Vec<PoolJob>,
    switch: SwitchId,
    room: usize,
    opened: Option<Opened>,
    /// Resets so far: a driver of an earlier one is told nothing.
    resets: u64,
    /// The time, for registers.
    pub(super) now: Time,
    /// Until then neither registers nor data path answer; it begins anew afterwards.
    pub dead_until: Time,
    /// Until then the registers fail, and the data path works.
    pub registers_fail_until: Time,
    /// Until then the data path is silent, and the registers work.
    pub silent_until: Time,
    /// Frames of its own devising.
    pub hostile: u64,
}

impl Card {
    pub(super) fn new(
        config: CardConfig,
        jobs: Vec<PoolJob>,
        switch: SwitchId,
        room: usize,
    ) -> Self {
        Self {
            config,
            jobs,
            switch,
            room,
            opened: None,
            resets: 0,
            now: Time(0),
            dead_until: Time(0),
            registers_fail_until: Time(0),
            silent_until: Time(0),
            hostile: 0,
        }
    }

    /// Loses all that it has.
    pub fn reset(&mut self) {
        self.resets += 1;
        if let Some(opened) = self.opened.take() {
            opened.memory.forget();
        }
    }

    /// Slots, contributions and frames that it has.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.opened.as_ref().map_or(0, |opened| {
            let shard = opened.core.dialects.native.aggregator();
            let live = opened.memory.ledger().live();
            shard.slots_in_use() as u64 + u64::from(shard.held_in_use()) + live
        })
    }

    /// Frames that its core has lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let opened = self.opened.as_ref();
        opened.map_or(0, |opened| opened.memory.ledger().lost())
    }

    fn registers_answer(&self) -> Result<(), String> {
        if self.now < self.dead_until.max(self.registers_fail_until) {
            return Err("its registers do not answer".into());
        }
        Ok(())
    }

    /// Clears it, and tells it the switch's address.
    fn open(&mut self, address: SwitchAddress) -> Result<(), String> {
        self.registers_answer()?;
        self.reset();
        let memory = Memory::new(self.switch, self.room);
        let ports = usize::from(PORTS);
        let pool = PoolConfig {
            slots: self.config.slots,
            ways: 1,
            held: 0,
            window: (self.config.ring / 2) as u16,
            shards: 1,
            shard: 0,
            jobs: self.jobs.clone(),
            policy: PolicyName::Esa,
            places: 0,
        };
        let aggregator = Aggregator::new(pool, Kernels::best());
        let dialects = Dialects {
            native: Native::new(aggregator, address.base_port, 1, ports),
            switchml: None,
            netreduce: None,
            offload: None,
        };
        let forwarding = Forwarding::new(&ForwardingConfig {
            ports: PORTS,
            mac: address.mac,
            ip: address.ip,
            ..super::forwarding_config(0)
        });
        let queues = vec![Ok(QueueConfig::default()); ports];
        let out = Ports::new(queues, 1, 0);
        let context = Context::new(address, 0, 1, out, memory.clone(), forwarding);
        self.opened = Some(Opened {
            core: Core::new(context, dialects).expect("claims that do not overlap"),
            memory,
            jobs: BTreeMap::new(),
        });
        Ok(())
    }

    /// Takes a frame from the switch; what it sends because of it.
    pub(super) fn receive(&mut self, now: Time, frame: Frame, rng: &mut Rng) -> Vec<Frame> {
        if now < self.dead_until.max(self.silent_until) {
            return Vec::new();
        }
        let destination = frame.bytes().first_chunk().map(|bytes| Mac(*bytes));
        let Some(destination) = destination else {
            return Vec::new();
        };
        let port = port_of(destination).filter(|port| port.0 < PORTS);
        let (Some(port), Some(opened)) = (port, &mut self.opened) else {
            debug_assert!(port.is_some() || probe_of(destination).is_some());
            return vec![frame];
        };
        let Some(mut all) = opened.receive(now, port, &frame) else {
            return vec![frame];
        };
        let ppm = self.config.hostile_ppm;
        let spoil = |frame: &Frame| match rng.chance(ppm) {
            true => opened.spoil(frame, rng),
            false => None,
        };
        let hostile: Vec<_> = all.iter().filter_map(spoil).collect();
        self.hostile += hostile.len() as u64;
        all.extend(hostile);
        all
    }
}

impl Opened {
    /// What a frame of a worker or PS leads to; `None`, if its job is not here.
    fn receive(&mut self, now: Time, port: PortId, frame: &Frame) -> Option<Vec<Frame>> {
        let (udp, datagram) = frame.udp()?;
        let header = Header::parse(&frame.bytes()[datagram]).ok()?;
        let roster = self.jobs.get(&header.job)?;
        // The switch has verified the tag, if the epoch is the job's.
        let header = roster.secret.seal(header);
        let mut inner = frame.copied();
        let len = inner.bytes().len();
        let bytes = inner.fill(len);
        let SwitchAddress { mac, base_port, .. } = self.core.context.address;
        bytes[..6].copy_from_slice(&mac.0);
        bytes[UDP_PORT_AT..UDP_PORT_AT + 2].copy_from_slice(&base_port.to_be_bytes());
        header.emit(&mut bytes[UDP_END..]);
        debug_assert!(udp.addresses.dst_port >= base_port);
        self.core.begin(now);
        self.core.receive(port, &mut vec![inner]);
        self.core.aggregate();
        let mut sent = Sent::default();
        self.core.transmit(&mut sent);
        Some(as_card(sent.0))
    }

    /// A copy of a frame that a card may not send: each is to be dropped.
    fn spoil(&self, frame: &Frame, rng: &mut Rng) -> Option<Frame> {
        let (udp, datagram) = frame.udp()?;
        let header = Header::parse_untagged(&frame.bytes()[datagram]).ok()?;
        let roster = self.jobs.get(&header.job)?;
        let mut copy = frame.copied();
        copy.set_origin(Origin::Forger);
        let len = copy.bytes().len();
        let bytes = copy.fill(len);
        let set = |bytes: &mut [u8], at: usize, new: &[u8]| {
            bytes[at..at + new.len()].copy_from_slice(new);
        };
        match rng.below(9) {
            0 => {
                let all = roster
                    .ports
                    .iter()
                    .chain(roster.servers.iter().map(|it| &it.port));
                let known = all.fold(0_u16, |mask, port| mask | 1 << port.0);
                let foreign = (0..16).map(|bit| 1 << bit).filter(|bit| known & bit == 0);
                let foreign: Vec<u16> = foreign.collect();
                let mask = if foreign.is_empty() {
                    0
                } else {
                    rng.pick(&foreign)
                };
                set(bytes, 6, &mask_mac(mask).0);
            }
            1 => set(bytes, 6, &mask_mac(0).0),
            2 => {
                // To a host that it is not for, by the ports that it is for.
                let other = udp.addresses.dst_ip.to_bits() ^ (1 + rng.below(31) as u32);
                set(bytes, 30, &other.to_be_bytes());
            }
            3 => {
                let other = bytes[5] ^ (1 + rng.below(31) as u8);
                set(bytes, 5, &[other]);
            }
            4 => {
                let other = udp.addresses.dst_port ^ (1 << rng.below(16));
                set(bytes, UDP_PORT_AT, &other.to_be_bytes());
            }
            5 => {
                let foreign = (0..).map(JobId).find(|job| !self.jobs.contains_key(job))?;
                set(bytes, UDP_END + 4, &foreign.0.to_be_bytes());
            }
            6 => {
                let other = header.epoch.0.wrapping_add(1 + rng.below(3) as u16);
                set(bytes, UDP_END + 6, &other.to_be_bytes());
            }
            7 => set(bytes, 26 + rng.below(4) as usize, &[200]),
            _ => set(bytes, UDP_END, &[0x25]),
        }
        Some(copy)
    }
}

/// What the core sent, as a card sends it: once, with a mask of its ports, and without tags.
fn as_card(sent: Vec<(PortId, Frame)>) -> Vec<Frame> {
    let mut all: Vec<(Frame, u16)> = Vec::new();
    for (port, frame) in sent {
        match all
            .iter_mut()
            .find(|(other, _)| other.bytes() == frame.bytes())
        {
            Some((_, ports)) => *ports |= 1 << port.0,
            None => all.push((frame, 1 << port.0)),
        }
    }
    let untagged = |(frame, ports): (Frame, u16)| {
        let (udp, datagram) = frame.udp()?;
        let header = Header::parse(&frame.bytes()[datagram]).ok()?;
        let mut frame = frame.copied();
        let addresses = Addresses {
            src_mac: mask_mac(ports),
            ..udp.addresses
        };
        let bytes = frame.fill(HEADERS_BYTES + header.payload_bytes());
        write_headers(bytes, &addresses, &header);
        Some(frame)
    };
    all.into_iter().filter_map(untagged).collect()
}

/// Writes headers without a tag, and without room for one behind the payload.
fn write_headers(out: &mut [u8], addresses: &Addresses, header: &Header) {
    let tag = AuthTag::NONE;
    tally_wire::frame::emit(out, addresses, &Header { tag, ..*header });
    let trailer = header.kind.trailer_bytes() as u16;
    for at in [IP_BYTES_AT, UDP_BYTES_AT] {
        let bytes = u16::from_be_bytes([out[at], out[at + 1]]) - trailer;
        out[at..at + 2].copy_from_slice(&bytes.to_be_bytes());
    }
    out[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let checksum = internet_checksum(&out[14..34]);
    out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// A card's registers, from opening to reset.
pub(super) struct Window {
    card: Rc<RefCell<Card>>,
    resets: u64,
}

impl Window {
    /// Opens the card.
    pub(super) fn open(card: &Rc<RefCell<Card>>, address: SwitchAddress) -> Result<Self, String> {
        card.borrow_mut().open(address)?;
        Ok(Self {
            card: Rc::clone(card),
            resets: card.borrow().resets,
        })
    }

    fn ask<T>(&self, act: impl FnOnce(&mut Opened, &CardConfig) -> T) -> Result<T, String> {
        let card = &mut *self.card.borrow_mut();
        card.registers_answer()?;
        match &mut card.opened {
            Some(opened) if card.resets == self.resets => Ok(act(opened, &card.config)),
            _ => Err("it was reset".into()),
        }
    }
}

impl Registers for Window {
    fn places(&self) -> usize {
        self.card.borrow().config.places
    }

    fn ring(&self) -> u32 {
        self.card.borrow().config.ring
    }

    fn fits(&self, roster: &Roster) -> Result<(), String> {
        let mut ports = roster.workers.iter().chain(&roster.servers);
        match ports.find(|member| member.port.0 >= PORTS) {
            Some(member) => Err(format!("a member is behind port {}", member.port.0)),
            None => Ok(()),
        }
    }

    fn load(&mut self, roster: &Roster) -> Result<bool, String> {
        let roster = Arc::new(roster.clone());
        self.ask(|opened, config| {
            if !opened.jobs.contains_key(&roster.job) && opened.jobs.len() >= config.places {
                return false;
            }
            opened.jobs.insert(roster.job, Arc::clone(&roster));
            opened.core.command(Command::Bind(roster));
            true
        })
    }

    fn unload(&mut self, job: JobId) -> Result<(), String> {
        self.ask(|opened, _| {
            opened.jobs.remove(&job);
            opened.core.command(Command::Unbind(job));
        })
    }

    fn alive(&mut self) -> Result<(), String> {
        self.ask(|_, _| ())
    }

    fn count(&mut self) -> Result<(), String> {
        self.ask(|opened, _| {
            // It has no business of others.
            let strange = opened.core.context.drops()[DropReason::NotOurs];
            debug_assert_eq!(strange, 0);
        })
    }
}
