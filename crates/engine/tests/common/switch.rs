//! A switch in plain memory: cores that hand frames over to each other, and their drivers.

use super::platform::{Driver, Memory, Packet};
use std::net::Ipv4Addr;
use std::sync::mpsc;
use tally_engine::SwitchAddress;
use tally_engine::dialect::DialectSet;
use tally_engine::forwarding::FloodLimits;
use tally_engine::forwarding::fabric::Plan;
use tally_engine::native::Native;
use tally_engine::queue::QueueConfig;
use tally_engine::switchml::{Switchml, SwitchmlConfig, SwitchmlDialect};
use tally_engine::{
    Aggregator, Command, Context, Core, DropReason, Forwarding, ForwardingConfig, Member,
    PolicyName, PoolConfig, PoolJob, PortId, Ports, Reply,
};
use tally_kernels::Kernels;
use tally_wire::frame::{UDP_END, emit};
use tally_wire::{Addresses, HEADERS_BYTES, Header, JobId, Mac, Time};

/// The switch's own address.
pub const ADDRESS: SwitchAddress = SwitchAddress {
    mac: Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
    ip: Ipv4Addr::new(10, 0, 255, 254),
    base_port: 31249,
};

/// Frames that the stage of a port holds.
const STAGE_FRAMES: usize = 32;

/// A pool shard of these jobs.
pub fn pool(shards: u8, shard: u8, jobs: impl IntoIterator<Item = JobId>) -> PoolConfig {
    PoolConfig {
        slots: 16,
        ways: 1,
        held: 8,
        window: 8,
        shards,
        shard,
        jobs: jobs.into_iter().map(PoolJob::unlimited).collect(),
        policy: PolicyName::Esa,
        places: 0,
    }
}

/// The native protocol on one core of a switch with so many ports.
pub fn native(config: PoolConfig, ports: u16) -> Native<Memory> {
    let shards = u16::from(config.shards);
    let aggregator = Aggregator::new(config, Kernels::best());
    Native::new(aggregator, ADDRESS.base_port, shards, usize::from(ports))
}

/// SwitchML on one core, whose ports send frames of several segments.
pub fn switchml(config: SwitchmlConfig, ports: u16) -> Option<Box<SwitchmlDialect<Memory>>> {
    let pool = Switchml::new(config, Kernels::best());
    let chains = vec![true; usize::from(ports)];
    Some(Box::new(SwitchmlDialect::new(pool, chains)))
}

/// The addresses of a datagram from a member to the switch.
pub fn to_switch(from: &Member, udp_port: u16) -> Addresses {
    Addresses {
        src_mac: from.mac,
        dst_mac: ADDRESS.mac,
        src_ip: from.ip,
        dst_ip: ADDRESS.ip,
        src_port: from.udp_port,
        dst_port: udp_port,
    }
}

/// A frame with a Tally header and its payload, each byte of which is `fill`, and its trailer.
pub fn frame(addresses: &Addresses, header: &Header, fill: u8) -> Vec<u8> {
    let mut frame = vec![fill; UDP_END + header.datagram_bytes()];
    emit(&mut frame, addresses, header);
    header.emit_trailer(&mut frame[HEADERS_BYTES + header.payload_bytes()..]);
    frame
}

/// What a command answers.
pub fn ask<T: Send + 'static>(command: impl FnOnce(Reply<T>)) -> T {
    let (send, receive) = mpsc::channel();
    command(Box::new(move |answer| {
        send.send(answer).expect("the asker waits");
    }));
    receive.try_recv().expect("an answer")
}

/// Cores, each with its driver. Port p belongs to core p modulo their number.
pub struct Switch<D: DialectSet<Memory>> {
    pub memory: Memory,
    pub cores: Vec<Core<Memory, D>>,
    pub drivers: Vec<Driver>,
    pub now: Time,
}

/// An ordinary switch without limits on floods and answers.
pub fn forwarding(address: SwitchAddress, ports: u16) -> ForwardingConfig {
    ForwardingConfig {
        mac: address.mac,
        ip: address.ip,
        ports,
        ageing_s: 300,
        addresses: 1000,
        floods_per_s: FloodLimits::each(0),
        answers_per_s: 0,
        seed: 7,
    }
}

impl<D: DialectSet<Memory>> Switch<D> {
    /// As many cores as it says, with the dialects that `dialects` makes for each.
    ///
    /// # Panics
    /// If dialects claim the same frames.
    pub fn new(
        address: SwitchAddress,
        cores: u8,
        config: &ForwardingConfig,
        memory: Memory,
        dialects: impl FnMut(u8) -> D,
    ) -> Self {
        let forwarding = Forwarding::new(config);
        Self::with(address, cores, config, &forwarding, memory, dialects)
    }

    /// As [`new`](Self::new), a part of a fabric whose links are dead at first.
    ///
    /// # Panics
    /// As `new`.
    pub fn in_fabric(
        address: SwitchAddress,
        cores: u8,
        config: &ForwardingConfig,
        plan: &Plan,
        memory: Memory,
        dialects: impl FnMut(u8) -> D,
    ) -> Self {
        let forwarding = Forwarding::in_fabric(config, plan, FloodLimits::each(0));
        Self::with(address, cores, config, &forwarding, memory, dialects)
    }

    fn with(
        address: SwitchAddress,
        cores: u8,
        config: &ForwardingConfig,
        forwarding: &Forwarding,
        memory: Memory,
        mut dialects: impl FnMut(u8) -> D,
    ) -> Self {
        let all = usize::from(cores);
        let core = |core: u8| {
            let queues = (0..config.ports).map(|port| match usize::from(port) % all {
                owner if owner == usize::from(core) => Ok(QueueConfig::default()),
                owner => Err(owner),
            });
            let ports = Ports::new(queues.collect(), all, STAGE_FRAMES);
            let context = Context::new(
                address,
                usize::from(core),
                u16::from(cores),
                ports,
                memory.clone(),
                forwarding.clone(),
            );
            Core::new(context, dialects(core)).expect("claims that do not overlap")
        };
        let ports = usize::from(config.ports);
        Self {
            cores: (0..cores).map(core).collect(),
            drivers: (0..cores).map(|_| Driver::new(ports, all)).collect(),
            memory,
            now: Time(1_000_000_000),
        }
    }

    /// The core that a port's frames come in on.
    pub fn core_of(&self, port: PortId) -> usize {
        usize::from(port.0) % self.cores.len()
    }

    /// One frame, as far as it gets.
    pub fn receive(&mut self, port: PortId, packet: Packet) {
        self.receive_burst(port, vec![packet]);
    }

    /// Frames of one poll iteration, and all that they lead to on other cores.
    pub fn receive_burst(&mut self, port: PortId, mut packets: Vec<Packet>) {
        let at = self.core_of(port);
        self.cores[at].begin(self.now);
        self.cores[at].receive(port, &mut packets);
        self.finish(at);
        self.hand_over();
    }

    /// A poll iteration of all cores without frames of ports.
    pub fn poll(&mut self) {
        for at in 0..self.cores.len() {
            self.cores[at].begin(self.now);
            self.finish(at);
        }
        self.hand_over();
    }

    /// A command to all cores.
    pub fn command(&mut self, command: impl Fn() -> Command<D::Command, D::Metrics>) {
        self.cores
            .iter_mut()
            .for_each(|core| core.command(command()));
        self.poll();
    }

    /// Frames dropped outside of dialects, by reason, of those with any.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        let of = |reason: DropReason| {
            let cores = self.cores.iter();
            cores.map(|core| core.report().drops[reason]).sum()
        };
        let all = DropReason::ALL.iter().map(|&reason| (reason, of(reason)));
        all.filter(|&(_, count)| count > 0).collect()
    }

    /// What left since the last call.
    pub fn take(&mut self) -> Vec<(PortId, Vec<u8>)> {
        self.drivers.iter_mut().flat_map(Driver::take).collect()
    }

    fn finish(&mut self, at: usize) {
        self.cores[at].aggregate();
        self.cores[at].transmit(&mut self.drivers[at]);
    }

    /// Until no core has frames for another one.
    fn hand_over(&mut self) {
        let all = self.cores.len();
        loop {
            let waiting = |from: &Driver, to: usize| !from.handed[to].is_empty();
            let pairs = (0..all).flat_map(|from| (0..all).map(move |to| (from, to)));
            let mut pairs = pairs.filter(|&(from, to)| waiting(&self.drivers[from], to));
            let Some((from, to)) = pairs.next() else {
                return;
            };
            drop(pairs);
            let mut handed = std::mem::take(&mut self.drivers[from].handed[to]);
            self.cores[to].begin(self.now);
            self.cores[to].receive_handed_over(&mut handed);
            self.finish(to);
        }
    }
}
