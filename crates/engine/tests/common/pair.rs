//! A shard of SwitchML's dialect beside the model of it: every frame goes to both, and they must
//! agree.

use super::plain::{Ledger, Plain, Reply, Wire};
use super::table::{Table, Verdict};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::DropReason;
use tally_engine::switchml::{
    Arrival, HostAddress, Route, Session, SessionId, SessionStatus, Switchml, SwitchmlConfig,
};
use tally_kernels::Kernels;
use tally_wire::switchml::{Header, Size};
use tally_wire::{Mac, Time};

/// The `n`-th station.
pub fn station(n: u8) -> HostAddress {
    HostAddress {
        mac: Mac([2, 0, 0, 0, 1, n]),
        ip: Ipv4Addr::new(10, 0, 1, n),
    }
}

/// The switch's address that a station was told.
pub fn told(station: HostAddress) -> Mac {
    let [_, rest @ ..] = station.mac.0;
    let [a, b, c, d, e] = rest;
    Mac([6, a, b, c, d, e])
}

/// A session of these stations.
pub fn session(id: u64, size: Size, workers: impl Iterator<Item = u8>) -> Session {
    let workers: Vec<HostAddress> = workers.map(station).collect();
    Session {
        id: SessionId(id),
        size,
        switch_macs: workers.iter().copied().map(told).collect(),
        workers,
    }
}

/// A shard, and what it should be.
pub struct Pair {
    pub config: SwitchmlConfig,
    pub shard: Switchml<Plain>,
    pub table: Table,
    pub ledger: Ledger,
    pub wire: Wire,
    pub now: Time,
}

impl Pair {
    pub fn new(config: SwitchmlConfig, kernels: Kernels) -> Self {
        Self {
            config,
            shard: Switchml::new(config, kernels),
            table: Table::new(config),
            ledger: Ledger::default(),
            wire: Wire::default(),
            now: Time(0),
        }
    }

    pub fn bind(&mut self, session: &Session) -> bool {
        let bound = self.table.bind(session.clone());
        let session = Arc::new(session.clone());
        assert_eq!(self.shard.bind(session, &mut self.wire), bound);
        self.check();
        bound
    }

    pub fn unbind(&mut self, id: u64) {
        self.table.unbind(id);
        self.shard.unbind(SessionId(id), &mut self.wire);
        self.check();
    }

    /// A frame to both; says what it led to.
    pub fn arrive(
        &mut self,
        route: &Route,
        arrival: &Arrival,
        header: &Header,
        payload: &[u8],
    ) -> Verdict {
        let before = *self.shard.counters();
        let admitted = self.shard.admit(route, header);
        match (admitted, self.table.other_port(route, arrival.port)) {
            // As the dialect does.
            (Ok(admission), Some(known)) => {
                self.shard.note_conflict(admission, [known, arrival.port]);
                self.shard.count_drop(DropReason::SwitchmlPort);
            }
            (Ok(admission), None) => {
                let buffer = self.ledger.frame(payload);
                self.shard
                    .handle(self.now, admission, arrival, header, buffer, &mut self.wire);
            }
            (Err(reason), _) => self.shard.count_drop(reason),
        }
        let verdict = self.table.arrive(route, arrival, header, payload);
        let replies = std::mem::take(&mut self.wire.replies);
        let mut expected = before;
        match &verdict {
            Verdict::Dropped(reason) => {
                expected.drop(*reason);
                assert_eq!(replies, [], "{header:?}");
            }
            Verdict::Added => {
                expected.contributions += 1;
                assert_eq!(replies, [], "{header:?}");
            }
            Verdict::Sent(to, header, sum) => {
                let expected: Vec<_> = to
                    .iter()
                    .map(|to| Reply {
                        to: *to,
                        header: *header,
                        tos: arrival.tos,
                        sum: sum.clone(),
                    })
                    .collect();
                assert_eq!(replies, expected);
            }
        }
        let after = *self.shard.counters();
        if matches!(verdict, Verdict::Sent(..)) {
            let is_result = after.results > before.results;
            expected.results += u64::from(is_result);
            expected.contributions += u64::from(is_result);
            expected.answered += u64::from(!is_result);
        }
        assert_eq!(after, expected, "{header:?} {verdict:?}");
        self.check();
        verdict
    }

    pub fn check(&self) {
        let kept = self.table.kept();
        assert_eq!(self.shard.held_in_use(), kept);
        assert_eq!(
            (self.ledger.live(), self.ledger.lost()),
            (kept as usize, 0),
            "buffers"
        );
        assert!(kept <= self.config.held);
    }

    pub fn status(&self) -> Vec<SessionStatus> {
        let statuses = self.shard.sessions(self.now, Some(Duration::ZERO));
        for status in &statuses {
            let lacking: Vec<_> = status
                .ranks
                .iter()
                .map(|rank| rank.counters.behind)
                .collect();
            assert_eq!(lacking, self.table.lacking(status.id.0));
        }
        statuses
    }
}
