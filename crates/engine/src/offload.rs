//! An FPGA card behind a port as a dialect: it serves the jobs that are moved to it.
//!
//! It claims the card's port, and the frames of its jobs, which the native protocol passes on. A
//! frame for the card is a worker's or a PS's with another destination MAC, which says on which
//! port it arrived. What comes back says in its source MAC on which ports it is to leave
//! ([`tags`]).
//!
//! A card has no secrets: tags are checked before a frame goes to it, and written into what comes
//! back. A card may be wrong about anything: broken, or a simulated one that misbehaves. What it
//! sends leaves only if it may: of a job that the card has, in its epoch, to where that job's
//! frames go.

pub mod choice;
pub mod controller;
pub mod health;
pub mod tags;

use crate::context::{Context, SwitchAddress};
use crate::demux::{Arrival, Claim};
use crate::dialect::{Dialect, Next};
use crate::frame::{Frame, Platform};
use crate::metrics;
use crate::queue::class_of_header;
use crate::{DropReason, Member, PortId, Roster};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tally_wire::frame::{ETHERNET_BYTES, emit, group_of};
use tally_wire::{Addresses, Flags, HEADERS_BYTES, Header, JobId, Kind, Mac, Rank, UdpFrame};

/// The class of probes: the highest, so that they say how the card is and not how long its queue
/// is.
const PROBE_CLASS: usize = 7;

/// A frame that the card sends back as it is.
pub type Probe = [u8; 60];

/// Frames that came from the card on all cores: its heartbeat.
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

metrics! {
    /// Frames between one core and the card.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct CardTraffic, labels [] {
        /// Frames given to the card.
        pub given: u64 = counter "card_given_frames" in Frames;
        /// The card's results to groups, and to workers that lost one.
        pub results: u64 = counter "card_results";
        /// Results of parameter servers that the card passed on.
        pub results_from_ps: u64 = counter "card_results_from_ps";
        /// Other frames of the card, each to one member.
        pub others: u64 = counter "card_other_frames" in Frames;
        /// Probes of the data path that came back.
        pub probes: u64 = counter "card_probes";
    }
}

/// What control asks.
pub enum Command {
    /// Send this to the card.
    Probe(Box<Probe>),
}

/// A job that the card has.
struct Job {
    roster: Arc<Roster>,
    /// Its contributions that went to the card.
    arrivals: u64,
}

/// The card, on one core.
pub struct Offload {
    card: PortId,
    jobs: BTreeMap<JobId, Job>,
    traffic: CardTraffic,
    /// Shared by all cores.
    pulse: Arc<Pulse>,
    /// Told the number of each probe that comes back.
    on_probe: Box<dyn FnMut(u16) + Send>,
}

impl Offload {
    /// A card behind this port, which has no jobs.
    #[must_use]
    pub fn new(card: PortId, pulse: Arc<Pulse>, on_probe: Box<dyn FnMut(u16) + Send>) -> Self {
        Self {
            card,
            jobs: BTreeMap::new(),
            traffic: CardTraffic::default(),
            pulse,
            on_probe,
        }
    }

    /// Sends a frame of one of its jobs to the card.
    #[cold]
    #[inline(never)]
    fn give<P: Platform>(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<(), DropReason> {
        let Some(udp) = &arrival.udp else {
            return Err(DropReason::UdpPort);
        };
        // No member is behind a port that a card does not know.
        if arrival.port.0 >= tags::PORTS {
            return Err(DropReason::NotMember);
        }
        let header = Header::parse(udp.datagram(frame.data()))?.received_with(udp.ecn);
        let mut frame = context.exclusive(frame)?;
        let job = self.jobs.get_mut(&header.job);
        let job = job.ok_or(DropReason::UnknownJob)?;
        // Frames of other epochs are the card's to drop.
        if job.roster.epoch == header.epoch && !job.roster.secret.verifies(&header) {
            return Err(DropReason::AuthTag);
        }
        // Padding is not sent twice.
        if !frame.set_len(HEADERS_BYTES + header.payload_bytes()) {
            return Err(DropReason::Length);
        }
        if let Some(bytes) = frame.data_mut() {
            bytes[..6].copy_from_slice(&tags::port_mac(arrival.port).0);
        }
        self.traffic.given += 1;
        job.arrivals += u64::from(header.kind == Kind::Data);
        context
            .ports
            .forward(self.card, class_of_header(&header), frame);
        Ok(())
    }

    /// Sends what came from the card on to members.
    fn take<P: Platform>(
        &mut self,
        context: &mut Context<P>,
        frame: P::Frame,
    ) -> Result<(), DropReason> {
        self.pulse.add(1);
        let mut frame = context.exclusive(frame)?;
        if frame.has_bad_checksum() {
            return Err(DropReason::Checksum);
        }
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) =
            frame.data().first_chunk::<ETHERNET_BYTES>()
        else {
            return Err(DropReason::CardFrame);
        };
        let destination = Mac([d0, d1, d2, d3, d4, d5]);
        let Some(mask) = tags::mask_of(Mac([s0, s1, s2, s3, s4, s5])) else {
            if let Some(number) = tags::probe_of(destination)
                && u16::from_be_bytes([t0, t1]) == tags::PROBE_ETHERTYPE
            {
                self.traffic.probes += 1;
                (self.on_probe)(number);
                context.ports.recycle(frame);
                return Ok(());
            }
            return Err(match tags::port_of(destination) {
                Some(_) => DropReason::CardReturned,
                None => DropReason::CardFrame,
            });
        };
        let udp = UdpFrame::parse(frame.data()).map_err(|_| DropReason::CardFrame)?;
        let header = Header::parse_untagged(udp.datagram(frame.data()))
            .map_err(|_| DropReason::CardFrame)?;
        let SwitchAddress { mac, ip, base_port } = context.address;
        if udp.addresses.src_ip != ip || udp.addresses.src_port != base_port {
            return Err(DropReason::CardFrame);
        }
        let header = self.validate(mask, base_port, &udp.addresses, &header)?;
        let addresses = Addresses {
            src_mac: mac,
            ..udp.addresses
        };
        let payload_end = HEADERS_BYTES + header.payload_bytes();
        if !frame.set_len(payload_end + header.kind.trailer_bytes()) {
            return Err(DropReason::NoBuffer);
        }
        let bytes = frame.data_mut().ok_or(DropReason::NoBuffer)?;
        emit(bytes, &addresses, &header);
        header.emit_trailer(&mut bytes[payload_end..]);
        send_on(context, mask, class_of_header(&header), frame);
        Ok(())
    }

    /// The header with its tag, of a frame of the card's to these addresses on these ports, if it
    /// is one that the card may send. Groups listen on `base_port`.
    fn validate(
        &mut self,
        mask: u16,
        base_port: u16,
        to: &Addresses,
        header: &Header,
    ) -> Result<Header, DropReason> {
        let of_it = |job: &&Job| job.roster.epoch == header.epoch;
        let Some(job) = self.jobs.get(&header.job).filter(of_it) else {
            return Err(DropReason::CardStray);
        };
        let roster = &*job.roster;
        let is_member = |member: &Member| {
            (to.dst_mac, to.dst_ip, to.dst_port) == (member.mac, member.ip, member.udp_port)
                && mask == bit(member.port)
        };
        let group = group_of(header.job);
        let is_group =
            (to.dst_mac, to.dst_ip, to.dst_port) == (Mac::of_group(group), group, base_port);
        // A member behind a port that a card does not know has no bit.
        let is_right = mask != 0
            && match (header.kind, header.rank) {
                (Kind::Result, Rank::SWITCH) => {
                    let all = roster.ports.iter().fold(0, |all, &port| all | bit(port));
                    mask & !all == 0 && is_group
                }
                (Kind::Partial | Kind::NotHere, Rank::SWITCH) | (Kind::Probe, _) => {
                    is_member(roster.server_of(header.fragment))
                }
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

impl<P: Platform> Dialect<P> for Offload {
    type Command = Command;
    type Metrics = CardTraffic;

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Port(self.card), Claim::Jobs]
    }

    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        if arrival.port == self.card {
            self.take(context, frame)?;
        } else {
            self.give(context, arrival, frame)?;
        }
        Ok(Next::Done)
    }

    fn command(&mut self, context: &mut Context<P>, command: Command) {
        let Command::Probe(probe) = command;
        let Some(mut frame) = context.platform.alloc() else {
            return context.count_drop(DropReason::NoBuffer);
        };
        match frame.append(probe.len()) {
            Some(bytes) => {
                bytes.copy_from_slice(&*probe);
                context.ports.send(self.card, PROBE_CLASS, frame);
            }
            None => context.count_drop(DropReason::NoBuffer),
        }
    }

    fn metrics(&self, _: &Context<P>) -> CardTraffic {
        self.traffic
    }

    fn bind(&mut self, _: &mut Context<P>, roster: &Arc<Roster>) {
        let job = self.jobs.get_mut(&roster.job);
        if let Some(job) = job
            && job.roster.epoch == roster.epoch
        {
            job.roster = Arc::clone(roster);
            return;
        }
        let job = Job {
            roster: Arc::clone(roster),
            arrivals: 0,
        };
        self.jobs.insert(roster.job, job);
    }

    fn release(&mut self, _: &mut Context<P>, job: JobId) {
        self.jobs.remove(&job);
    }

    fn unbind(&mut self, _: &mut Context<P>, job: JobId) {
        self.jobs.remove(&job);
    }

    fn arrivals(&self, job: JobId) -> u64 {
        self.jobs.get(&job).map_or(0, |job| job.arrivals)
    }

    fn give_up(&mut self, context: &mut Context<P>) {
        context.ports.purge(self.card);
    }
}

/// Sends a frame on the ports of a mask, marked as a result of the switch's own would be.
fn send_on<P: Platform>(context: &mut Context<P>, mask: u16, class: usize, frame: P::Frame) {
    let mut ports = [PortId(0); tags::PORTS as usize];
    let mut len = 0;
    let known = context.ports.len();
    for port in (0..tags::PORTS).filter(|&port| mask & 1 << port != 0) {
        if usize::from(port) < known {
            ports[len] = PortId(port);
            len += 1;
        }
    }
    match &ports[..len] {
        &[port] => context.ports.send(port, class, frame),
        ports => {
            let rest = context.ports.multicast(ports, class, frame);
            context.ports.recycle(rest);
        }
    }
}

/// The bit of a port in a mask; none of one that a card does not know.
fn bit(port: PortId) -> u16 {
    1_u16.checked_shl(port.0.into()).unwrap_or(0)
}
