//! A dialect is a folder and a row: `echo.rs`, and its row in the list below. No other file
//! changes.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod echo;

use common::plain::{host, secret};
use common::platform::Memory;
use common::switch::{ADDRESS, Switch, forwarding, frame, native, pool, to_switch};
use std::sync::Arc;
use std::time::Duration;
use tally_engine::dialect::DialectSet;
use tally_engine::native::{self, Native};
use tally_engine::{Command, PortId, Roster};
use tally_wire::{
    AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Kind, Mac, Rank, Time,
};

tally_engine::dialects! {
    /// Tally's own protocol and the echo.
    pub struct Dialects<P>,
    /// A command to one of them.
    DialectCommand,
    /// What they did.
    #[derive(Clone, Debug)]
    DialectMetrics {
        /// Tally's own protocol.
        Native, NATIVE, native: Native<P>, native::Command, native::Metrics;
        /// The echo.
        Echo, ECHO, echo: echo::Echo<P::Frame>, echo::Command, echo::Metrics;
    }
}

const JOB: JobId = JobId(7);
const PORTS: u16 = 4;
const MS: Duration = Duration::from_millis(1);

/// A switch of one core, whose job has workers 1 and 2.
fn switch() -> Switch<Dialects<Memory>> {
    let config = forwarding(ADDRESS, PORTS);
    let mut switch = Switch::new(ADDRESS, 1, &config, Memory::new(256), |_| Dialects {
        native: native(pool(1, 0, [JOB]), PORTS),
        echo: echo::Echo::default(),
    });
    let workers = vec![host(1), host(2)];
    let secret = secret(JOB, Epoch(1));
    let roster = Arc::new(Roster::new(JOB, Epoch(1), secret, 1, workers, host(3)));
    switch.command(|| Command::Bind(Arc::clone(&roster)));
    switch
}

/// A worker's contribution.
fn data(worker: u16, fragment: u32) -> Vec<u8> {
    let rank = Rank(worker as u8 - 1);
    let header = Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 0,
        element: Element::I32,
        job: JOB,
        epoch: Epoch(1),
        fragment: FragmentId(fragment),
        rank,
        units: 1,
        bitmap: rank.bit(),
        tag: AuthTag::NONE,
    };
    frame(&to_switch(&host(worker), ADDRESS.base_port), &header, 1)
}

/// A frame of the toy's ethertype, and what comes back.
fn ping(from: Mac, number: u8) -> (Vec<u8>, Vec<u8>) {
    let of = |to: Mac, from: Mac| {
        let mut frame = [to.0, from.0].concat();
        frame.extend(echo::ETHERTYPE.to_be_bytes());
        frame.resize(60, number);
        frame
    };
    (of(Mac::BROADCAST, from), of(from, ADDRESS.mac))
}

#[test]
fn it_runs_beside_native_frames() {
    let mut switch = switch();
    for fragment in 0..3 {
        let (ping, echo) = ping(host(1).mac, fragment as u8);
        let memory = &switch.memory;
        let burst = [data(1, 2 * fragment), ping, data(1, 2 * fragment + 1)];
        let burst = burst.iter().map(|frame| memory.packet(frame)).collect();
        switch.receive_burst(PortId(1), burst);
        assert_eq!(switch.take(), [(PortId(1), echo)]);
        let second = [data(2, 2 * fragment), data(2, 2 * fragment + 1)];
        let second = second.iter().map(|frame| switch.memory.packet(frame));
        switch.receive_burst(PortId(2), second.collect());
        assert_eq!(switch.take().len(), 4, "two results for two workers");
    }
    let report = switch.cores[0].report();
    assert_eq!(report.dialects.native.counters.results, 6);
    assert_eq!(report.dialects.echo.echoed, 3);
    assert_eq!(switch.drops(), []);
    switch.command(|| Command::Unbind(JOB));
    assert_eq!(switch.memory.alive(), 0);
}

#[test]
fn its_frames_are_claimed_before_addresses_are_learnt() {
    let mut switch = switch();
    let stranger = Mac([2, 0, 0, 0, 9, 9]);
    let (mut frame, _) = ping(stranger, 0);
    let receive = |switch: &mut Switch<_>, port, frame: &[u8]| {
        let packet = switch.memory.packet(frame);
        switch.receive(PortId(port), packet);
        switch.take().len()
    };
    assert_eq!(receive(&mut switch, 3, &frame), 1);
    let mut to_stranger = ping(host(9).mac, 0).0;
    to_stranger[..6].copy_from_slice(&stranger.0);
    to_stranger[12] = 0x77;
    assert_eq!(receive(&mut switch, 0, &to_stranger), 3, "flooded");
    // Another ethertype is an ordinary frame, which teaches its address.
    frame[12] = 0x77;
    assert_eq!(receive(&mut switch, 3, &frame), 3);
    assert_eq!(receive(&mut switch, 0, &to_stranger), 1);
}

#[test]
fn its_command_and_its_timer_work() {
    let mut switch = switch();
    assert_eq!(switch.cores[0].poll_timeout(), None);
    switch.command(|| Command::Dialect(DialectCommand::Echo(echo::Command::Delay(5 * MS))));
    let start = switch.now;
    for number in 0..2 {
        switch.now = start.after(u32::from(number) * 2 * MS);
        let packet = switch.memory.packet(&ping(host(1).mac, number).0);
        switch.receive(PortId(1), packet);
    }
    assert_eq!(switch.take(), []);
    assert_eq!(switch.cores[0].report().dialects.echo.waiting, 2);
    for number in 0..2 {
        let due = start.after((u32::from(number) * 2 + 5) * MS);
        assert_eq!(switch.cores[0].poll_timeout(), Some(due));
        let (before, echo) = (due.0 - 1, ping(host(1).mac, number).1);
        for (now, expected) in [(before, vec![]), (due.0, vec![(PortId(1), echo)])] {
            let driver = &mut switch.drivers[0];
            let core = &mut switch.cores[0];
            // The timer alone, without the rest of a poll iteration.
            core.begin(Time(now));
            core.dialects.handle_timeout(&mut core.context);
            core.transmit(driver);
            assert_eq!(switch.take(), expected);
        }
    }
    assert_eq!(switch.cores[0].poll_timeout(), None);
    assert_eq!(switch.cores[0].report().dialects.echo.timeouts, 2);
    assert_eq!(switch.memory.alive(), 0);
}
