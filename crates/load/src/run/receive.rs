//! What arrives: results, requests of the parameter server, datagrams of sessions; on a port that
//! sends everything back, our own contributions.
//!
//! Every result is checked: its header, that all contributions were sent before, and its sum.

use super::{Peer, Run};
use crate::flow::{Asked, Taken};
use crate::rig::BURST;
use anyhow::{Result, bail, ensure};
use tally_dpdk::free_bulk;
use tally_endpoint::{Time, Transmit};
use tally_wire::frame::{UDP_END, group_of};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Flags, HEADERS_BYTES, Header, Kind, Rank, Train, UdpFrame};

impl Run<'_> {
    /// Takes what has arrived: how many frames, and whether there may be more.
    pub(super) fn receive(&mut self) -> Result<(usize, bool)> {
        let (mut arrived, mut is_behind) = (0, false);
        let mut burst = std::mem::take(&mut self.burst);
        let mut outcome = Ok(());
        for port in 0..self.wire.len() {
            let n = self.wire.receive(port, &mut burst);
            if n == 0 {
                continue;
            }
            arrived += n;
            is_behind |= n == BURST;
            for mbuf in &burst {
                mbuf.prefetch(0);
            }
            let now = self.clock.ns();
            for mbuf in &burst {
                if mbuf.is_contiguous() && !self.faults.loses_received() {
                    let taken = self.take(now, port, mbuf.data());
                    outcome = outcome.and(taken);
                }
            }
            free_bulk(&mut burst);
        }
        self.burst = burst;
        outcome.map(|()| (arrived, is_behind))
    }

    /// Takes one frame.
    #[inline]
    fn take(&mut self, now: u64, port: usize, frame: &[u8]) -> Result<()> {
        if let Some((train, job)) = &self.trains[port]
            && let Some(header) = train.header_of(frame)
        {
            return self.take_data(now, port, *job, &header, frame);
        }
        let Ok(udp) = UdpFrame::parse(frame) else {
            self.foreign += 1;
            return Ok(());
        };
        let datagram = udp.datagram(frame);
        let switch = &self.plan.switch;
        let job = Header::parse(datagram).ok().and_then(|header| {
            let job = self.jobs.iter().position(|job| job.plan.id == header.job)?;
            Some((header.received_with(udp.ecn), job))
        });
        // Only the switch has its MAC; of macswap it is what our own frames went to.
        let Some((header, job)) = job.filter(|_| udp.addresses.src_mac == switch.mac) else {
            self.foreign += 1;
            return Ok(());
        };
        let is_result = header.kind == Kind::Result && header.rank == Rank::SWITCH;
        match self.peer {
            Peer::Switch if is_result => {
                if udp.addresses.dst_ip != group_of(header.job) {
                    self.foreign += 1;
                    return Ok(());
                }
            }
            Peer::Macswap if header.kind == Kind::Data => {}
            Peer::Macswap => {
                self.foreign += 1;
                return Ok(());
            }
            Peer::Switch => {
                let run = &mut self.jobs[job];
                if header.kind == Kind::Nack {
                    self.answer(job, &header);
                } else {
                    run.members.take(Time(now), udp.ecn, &header, datagram);
                    self.serve_job(job, now)?;
                }
                return Ok(());
            }
        }
        self.trains[port] = frame
            .first_chunk()
            .map(|headers| (Train::new(headers, header), job));
        self.take_data(now, port, job, &header, frame)
    }

    /// A result, or a contribution that has come back.
    #[inline]
    fn take_data(
        &mut self,
        now: u64,
        port: usize,
        job: usize,
        header: &Header,
        frame: &[u8],
    ) -> Result<()> {
        let run = &mut self.jobs[job];
        let Some(flow) = &mut run.flow else {
            run.counts.unasked += 1;
            return Ok(());
        };
        if self.peer == Peer::Macswap {
            match flow.echo(now, header.fragment, header.rank.0) {
                Some(due) => {
                    run.counts.results += 1;
                    run.counts.fragments += u64::from(header.rank.0 == 0);
                    if now >= self.measured_from {
                        run.latencies.corrected[0]
                            .saturating_record(now.saturating_sub(due).max(1));
                    }
                }
                None => run.counts.unasked += 1,
            }
            return Ok(());
        }
        if header.epoch != run.epoch {
            run.counts.unasked += 1;
            return Ok(());
        }
        let id = run.plan.id.0;
        let fits = header.units == run.plan.units
            && header.element == run.plan.element
            && run.secret.is_some_and(|secret| secret.verifies(header));
        ensure!(
            fits,
            "job {id}: a result with the wrong shape or tag: {header:?}"
        );
        let times = match flow.result(now, header.fragment, run.ranks_at[port]) {
            Taken::New(times) => times,
            Taken::Duplicate => {
                run.counts.duplicates += 1;
                return Ok(());
            }
            Taken::Unasked => {
                run.counts.unasked += 1;
                return Ok(());
            }
            Taken::TooEarly => bail!(
                "job {id}: fragment {}: result before all of its contributions were sent",
                header.fragment.0
            ),
        };
        let payload = &frame[HEADERS_BYTES..][..header.payload_bytes()];
        if let Err(wrong) = run.sums.check(header.fragment, payload, self.limits.verify) {
            bail!(
                "job {id}: WRONG SUM of fragment {}: word {} is {}, expected {}",
                header.fragment.0,
                wrong.word,
                wrong.found,
                wrong.expected
            );
        }
        ensure!(
            !header.flags.has(Flags::OVERFLOW),
            "job {id}: fragment {}: the result has OVERFLOW, but its sum fits",
            header.fragment.0
        );
        run.count(header, &times);
        // By the time of sending: a load behind its schedule has latencies too.
        if times.sent >= self.measured_from {
            run.record(now, &times);
            if let Some(live) = &mut self.live {
                let nanos = now.saturating_sub(times.due_last).max(1);
                live.latency_ns.saturating_record(nanos);
            }
        }
        Ok(())
    }

    /// Answers a NACK of the parameter server for a worker.
    fn answer(&mut self, job: usize, header: &Header) {
        let run = &mut self.jobs[job];
        let rank = header.rank;
        if header.epoch != run.epoch || !run.secret.is_some_and(|secret| secret.verifies(header)) {
            return;
        }
        let asked = run.flow.as_mut();
        let asked = asked.and_then(|flow| flow.asked(header.fragment, rank.0));
        run.counts.nacks += 1;
        match asked {
            Some((seq, Asked::Data)) => self.resend(job, seq, rank.bit()),
            Some((seq, Asked::Result)) => {
                let run = &self.jobs[job];
                let fragment = header.fragment;
                let (_, priority) = run.plan.priorities.of(seq);
                let result = Header {
                    fragment,
                    priority,
                    ..run.header(Kind::Result, rank, 0)
                };
                let result = run.sealed(result);
                let switch = &self.plan.switch;
                let port = switch.base_port + (fragment.0 & u32::from(switch.shards - 1)) as u16;
                let len = HEADER_BYTES + result.payload_bytes();
                let host = &run.plan.workers[usize::from(rank.0)];
                self.wire.send(switch, host, &mut self.faults, &mut |out| {
                    result.emit(out);
                    run.sums.write(fragment, &mut out[HEADER_BYTES..len]);
                    Some(Transmit { len, port })
                });
            }
            Some((_, Asked::Nothing)) | None => {}
        }
    }
}

const _: () = assert!(UDP_END + HEADER_BYTES == HEADERS_BYTES);
