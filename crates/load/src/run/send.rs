//! Contributions that are due, and PROBEs and contributions for fragments that are overdue.

use super::{LOST_AFTER_NS, Peer, Run};
use std::ops::Range;
use tally_endpoint::Transmit;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Element, Flags, Header, Kind, Rank};

impl Run<'_> {
    /// Makes the contributions that are due. Says whether there were any.
    pub(super) fn generate(&mut self, job: usize) -> bool {
        let run = &mut self.jobs[job];
        let Some(flow) = &mut run.flow else {
            return false;
        };
        let workers = &run.plan.workers;
        if flow.is_sent() || !workers.iter().all(|host| self.wire.has_room(host.port)) {
            return false;
        }
        let batch = flow.take(self.clock.ns());
        if batch.is_empty() {
            return false;
        }
        let bytes = run.plan.frame_bytes();
        let priorities = &run.plan.priorities;
        for (rank, host) in workers.iter().enumerate() {
            let Range { start, end } = flow.of_rank(&batch, rank as u8);
            if start == end {
                continue;
            }
            let template = &run.templates[rank];
            let count = (end - start) as usize;
            self.wire
                .contribute(host.port, count, bytes, &mut self.faults, |at, frame| {
                    let seq = start + at as u64;
                    let (_, priority) = priorities.of(seq);
                    template.write(frame, flow.fragment(seq), priority, 0);
                });
        }
        run.counts.frames_sent += batch.end - batch.start;
        true
    }

    /// Probes overdue fragments, and gives up those in flight for too long.
    pub(super) fn probe_overdue(&mut self, now: u64) {
        for job in 0..self.jobs.len() {
            let run = &mut self.jobs[job];
            let Some(flow) = &mut run.flow else { continue };
            run.counts.lost += flow.give_up(now, now.saturating_sub(LOST_AFTER_NS));
            if self.peer == Peer::Macswap || run.is_seeking {
                continue;
            }
            let mut overdue = std::mem::take(&mut self.overdue);
            flow.overdue(now, |seq, ranks| overdue.push((seq, ranks)));
            for (seq, ranks) in overdue.drain(..) {
                self.probe(job, seq, ranks);
            }
            self.overdue = overdue;
        }
    }

    /// Sends PROBEs of some ranks for a fragment.
    fn probe(&mut self, job: usize, seq: u64, ranks: u64) {
        let run = &self.jobs[job];
        let Some(flow) = &run.flow else { return };
        let fragment = flow.fragment(seq);
        let switch = &self.plan.switch;
        let port = switch.base_port + (fragment.0 & u32::from(switch.shards - 1)) as u16;
        let hosts = run.plan.workers.iter().zip(0..);
        for (host, rank) in hosts.filter(|(_, rank)| ranks >> rank & 1 == 1) {
            let probe = run.sealed(Header {
                fragment,
                units: 0,
                element: Element::None,
                ..run.header(Kind::Probe, Rank(rank), 0)
            });
            self.wire.send(switch, host, &mut self.faults, &mut |out| {
                probe.emit(out);
                let len = HEADER_BYTES;
                Some(Transmit { len, port })
            });
        }
    }

    /// Retransmits the contributions of some ranks to a fragment.
    pub(super) fn resend(&mut self, job: usize, seq: u64, ranks: u64) {
        let run = &mut self.jobs[job];
        let Some(flow) = &run.flow else { return };
        let fragment = flow.fragment(seq);
        let (_, priority) = run.plan.priorities.of(seq);
        let bytes = run.plan.frame_bytes();
        let hosts = run.plan.workers.iter().enumerate();
        for (rank, host) in hosts.filter(|(rank, _)| ranks >> rank & 1 == 1) {
            // A full port takes no more; the timeout will expire again.
            if !self.wire.has_room(host.port) {
                continue;
            }
            let template = &run.templates[rank];
            let made = self
                .wire
                .contribute(host.port, 1, bytes, &mut self.faults, |_, frame| {
                    template.write(frame, fragment, priority, Flags::RESEND.0);
                });
            run.counts.frames_again += made as u64;
        }
    }
}
