//! Frames lost and sent again in a run of Tally, counted at the links.

use anyhow::{Context, Result};
use serde::Serialize;
use tally_schema::agent::report::{Losses, PsReport, Report as WorkerReport, Traffic};
use tally_schema::switch::report::{PortReport, Report as SwitchReport};
use tally_testkit::cluster::{LostFrames, WireLosses};

/// Frames with payload beyond one contribution and one result for each worker and fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resent {
    /// From workers.
    pub contributions: u64,
    /// To workers.
    pub results: u64,
    /// On the PS's link, both ways.
    pub ps: u64,
}

impl Resent {
    /// All of them.
    pub fn sum(self) -> u64 {
        self.contributions + self.results + self.ps
    }
}

/// Frames lost and sent again on all links of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// With payload, lost by injectors and wires.
    pub lost: u64,
    /// Other frames lost by them.
    pub lost_control: u64,
    /// Lost at any other place: a full ring, socket or queue; also after the end.
    pub lost_elsewhere: i64,
    pub again: Resent,
}

impl Counted {
    /// Counts from the reports of all programs and from the wires, if any: the workers' wires in
    /// rank order, then the PS's.
    ///
    /// # Errors
    /// If a worker or the PS has not counted its frames.
    pub fn of(
        workers: &[WorkerReport],
        ps: &PsReport,
        wires: &[WireLosses],
        switch: &SwitchReport,
    ) -> Result<Self> {
        let injected = |loss: &Option<Losses>| loss.clone().context("frames are not counted");
        let of_workers = workers.iter().map(|report| injected(&report.loss));
        let of_workers: Vec<Losses> = of_workers.collect::<Result<_>>()?;
        let of_ps = injected(&ps.loss)?;

        let mut elements = Traffic::default();
        for injector in &of_workers {
            elements += injector.elements;
        }
        let (wires_of_workers, wires_of_ps) = wires.split_at(workers.len().min(wires.len()));
        let [to_workers, to_ps] = [wires_of_workers, wires_of_ps].map(|wires| both(wires).to_host);
        let WireLosses { to_switch, to_host } = both(wires);
        let on_wires = [to_switch, to_host];

        let lost = elements.lost() + of_ps.elements.lost() + sum(&on_wires, |way| way.long);
        let injectors = || of_workers.iter().chain([&of_ps]);
        let lost_by_injectors: u64 = injectors().map(|it| it.sent + it.received).sum();
        let lost_in_all = lost_by_injectors + sum(&on_wires, |way| way.long + way.short);

        let datagrams = |of: fn(&Traffic) -> u64| -> u64 {
            let traffic = injectors().flat_map(|injector| injector.by_kind.values());
            traffic.map(of).sum()
        };
        let [rx, tx] = port_frames(switch);
        let sent = datagrams(|traffic| traffic.sent) + tx;
        let arrived = datagrams(|traffic| traffic.received - traffic.received_lost) + rx;
        let fragments: u64 = workers.iter().map(|report| report.fragments).sum();
        Ok(Self {
            lost,
            lost_control: lost_in_all - lost,
            lost_elsewhere: sent as i64 - arrived as i64 - lost_in_all as i64,
            again: Resent {
                contributions: elements.sent.saturating_sub(fragments),
                results: (elements.received + to_workers.long).saturating_sub(fragments),
                ps: of_ps.elements.sent + of_ps.elements.received + to_ps.long,
            },
        })
    }
}

fn sum(ways: &[LostFrames], of: fn(&LostFrames) -> u64) -> u64 {
    ways.iter().map(of).sum()
}

/// The losses of several wires together.
pub fn both(wires: &[WireLosses]) -> WireLosses {
    let mut sum = WireLosses::default();
    for wire in wires {
        sum.to_switch += wire.to_switch;
        sum.to_host += wire.to_host;
    }
    sum
}

/// Frames that the switch received and sent.
pub fn port_frames(switch: &SwitchReport) -> [u64; 2] {
    let sum = |of: fn(&PortReport) -> u64| switch.ports.iter().map(of).sum();
    [
        sum(|port| port.counters.rx_frames),
        sum(|port| port.counters.tx_frames),
    ]
}
