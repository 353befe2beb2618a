//! Results of one turn leave in the order of their fragments.

#![allow(clippy::unwrap_used)]

mod common;

use common::plain::{Ledger, Sent, Wire, host};
use tally_engine::{Aggregator, Batch, Contribution, PolicyName, PoolConfig, Roster};
use tally_kernels::Kernels;
use tally_wire::{Element, Epoch, Flags, FragmentId, Header, JobId, Kind, Rank, Time};

const JOB: JobId = JobId(7);

fn data(rank: u8, fragment: u32) -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 1,
        element: Element::I32,
        job: JOB,
        epoch: Epoch(1),
        fragment: FragmentId(fragment),
        rank: Rank(rank),
        units: 1,
        bitmap: 1 << rank,
    }
}

/// The ports are looked at one after the other, and each brings a train. The one of the worker that lags
/// behind comes last and begins with older fragments: their results must not follow those of the newer
/// ones, which would make all workers take them for lost.
#[test]
fn a_worker_that_lags_behind_does_not_turn_the_results_around() {
    // Also where the numbers wrap.
    for first in [100_u32, u32::MAX - 10] {
        let config = PoolConfig {
            slots: 64,
            ways: 8,
            held: 4,
            window: 64,
            shards: 1,
            shard: 0,
            jobs: 1,
            limits: Vec::new(),
            policy: PolicyName::Esa,
        };
        let (mut engine, mut wire) = (Aggregator::new(config, Kernels::best()), Wire::default());
        let workers = (0..2).map(host).collect();
        let roster = Roster::new(JOB, Epoch(1), 1, workers, host(9));
        assert!(engine.bind(roster, 0, &mut wire));
        let (mut batch, ledger) = (Batch::new(), Ledger::default());
        let mut turn = |trains: &[(u8, std::ops::Range<u32>)], wire: &mut Wire| {
            for (rank, fragments) in trains {
                for at in fragments.clone() {
                    let header = data(*rank, first.wrapping_add(at));
                    let admission = engine.admit(&host(u16::from(*rank)), &header).unwrap();
                    let contribution = Contribution::new(admission, &header).unwrap();
                    batch.push(contribution, ledger.frame([0; 64]));
                }
            }
            engine.handle_batch(Time(1), &mut batch, wire);
        };
        turn(&[(0, 0..16)], &mut wire);
        assert!(wire.sent.is_empty());
        turn(&[(0, 16..32), (1, 0..32)], &mut wire);
        let of = |sent: &Sent| match sent {
            Sent::Group(_, header, ..) => header.fragment.0.wrapping_sub(first),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            wire.sent.iter().map(of).collect::<Vec<_>>(),
            Vec::from_iter(0..32)
        );
    }
}
