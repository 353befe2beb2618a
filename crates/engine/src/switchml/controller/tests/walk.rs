//! A random walk: in any order of calls, every call hears something once, and what is bound is what
//! runs.

use super::*;
use proptest::prelude::*;

const HOSTS: u8 = 4;
const SESSIONS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Open {
        listen: usize,
    },
    Close {
        which: usize,
    },
    Abandon {
        which: usize,
    },
    Broadcast {
        which: usize,
        rank: u32,
        workers: u32,
    },
    Barrier {
        which: usize,
        workers: u32,
    },
    UdpSession {
        which: usize,
        id: u64,
        rank: u32,
        workers: u32,
        host: u8,
    },
    Frame {
        id: u64,
    },
    Pass {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..8_usize;
    let workers = 1..4_u32;
    prop_oneof![
        3 => (0..2_usize).prop_map(|listen| Step::Open { listen }),
        1 => which.clone().prop_map(|which| Step::Close { which }),
        1 => which.clone().prop_map(|which| Step::Abandon { which }),
        4 => (which.clone(), 0..3_u32, workers.clone())
            .prop_map(|(which, rank, workers)| Step::Broadcast { which, rank, workers }),
        4 => (which.clone(), workers.clone())
            .prop_map(|(which, workers)| Step::Barrier { which, workers }),
        6 => (which, 0..4_u64, 0..3_u32, workers, 0..HOSTS).prop_map(
            |(which, id, rank, workers, host)| Step::UdpSession { which, id, rank, workers, host }
        ),
        1 => (0..4_u64).prop_map(|id| Step::Frame { id }),
        1 => prop_oneof![0..20_u64, 0..400_u64].prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// What must hold after each step.
fn check(world: &World) {
    let controller = &world.controller;
    let running: BTreeSet<_> = controller
        .status()
        .filter(|s| s.running)
        .map(|s| s.id)
        .collect();
    let bound: BTreeSet<_> = controller.plane.bound.keys().copied().collect();
    assert_eq!(running, bound);
    assert!(controller.status().count() <= SESSIONS);
    let mut stations = BTreeSet::new();
    for session in controller.plane.bound.values() {
        for worker in &session.workers {
            assert!(stations.insert(worker.ip), "{} is in two places", worker.ip);
        }
    }
}

fn run(steps: Vec<Step>) {
    let mut world = World::new(SESSIONS);
    let mut open: Vec<ConnectionId> = Vec::new();
    // Calls and their connections; those that hear nothing are taken out.
    let mut calls: Vec<(CallId, ConnectionId)> = Vec::new();
    for step in steps {
        let connection = |which: usize| (!open.is_empty()).then(|| open[which % open.len()]);
        match step {
            Step::Open { listen } if open.len() < 8 => {
                let connection = world.connect(listen);
                open.push(connection);
            }
            Step::Open { .. } => {}
            Step::Close { which } => {
                if let Some(connection) = connection(which) {
                    open.retain(|&c| c != connection);
                    world.close(connection);
                    calls.retain(|&(call, of)| of != connection || world.answer(call).is_some());
                }
            }
            Step::Abandon { which } => {
                let waiting = |&&(call, _): &&(CallId, ConnectionId)| world.answer(call).is_none();
                let call = calls.iter().filter(waiting).nth(which).copied();
                if let Some((call, _)) = call {
                    world.abandon(call);
                    calls.retain(|&(c, _)| c != call);
                }
            }
            Step::Broadcast {
                which,
                rank,
                workers,
            } => {
                if let Some(connection) = connection(which) {
                    let request = Request::Broadcast {
                        value: u64::from(rank),
                        rank,
                        workers,
                        root: 0,
                    };
                    calls.push((world.call(connection, request), connection));
                }
            }
            Step::Barrier { which, workers } => {
                if let Some(connection) = connection(which) {
                    let call = world.call(connection, Request::Barrier { workers });
                    calls.push((call, connection));
                }
            }
            Step::UdpSession {
                which,
                id,
                rank,
                workers,
                host,
            } => {
                if let Some(connection) = connection(which) {
                    let client = Client {
                        connection,
                        rank,
                        workers,
                        host,
                    };
                    let call = world.udp_session(&client, id);
                    assert!(world.answer(call).is_some(), "UdpSession never waits");
                    if world.is_in(call, id) {
                        assert!(world.controller.status().any(|s| s.id.0 == id));
                    }
                }
            }
            Step::Frame { id } => {
                world
                    .controller
                    .plane
                    .frames
                    .insert(SessionId(id), world.now);
            }
            Step::Pass { seconds } => world.pass(Duration::from_secs(seconds)),
        }
        check(&world);
    }
    world.pass(SETUP);
    for &(call, _) in &calls {
        assert!(world.answer(call).is_some(), "{call:?} waits without limit");
    }
    // With the last connection, all goes.
    for connection in open {
        world.close(connection);
    }
    world.pass(IDLE.max(SETUP));
    check(&world);
    assert_eq!(world.controller.status().count(), 0);
    assert_eq!(world.controller.poll_timeout(), None);
    for rendezvous in &world.controller.rendezvous {
        assert!(rendezvous.is_empty(), "{rendezvous:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_calls(steps in prop::collection::vec(step(), 0..120)) {
        run(steps);
    }
}
