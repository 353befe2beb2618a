//! The rendezvous of a ring's members over loopback, without a RoCE device.

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;
use tally_verbs::rendezvous::{
    Call, Client, Coordinator, Hello, Limits, RendezvousError, RingConfig, Welcome,
};
use tally_verbs::{Element, RingEpoch, RingId, Stop};
use tally_wire::roce::{Psn, QueuePair};

const KEY: &str = "000102030405060708090a0b0c0d0e0f";
/// Until all members have come, where they do.
const LONG: Duration = Duration::from_secs(30);
/// Until all have come to an all-reduce.
const STALL: Duration = Duration::from_secs(2);
const CALL: Call = Call::AllReduce {
    element: Element::F32,
    bytes: 4096,
};

fn ring(members: u8) -> RingConfig {
    RingConfig {
        ring: RingId(7),
        key: KEY.parse().unwrap(),
        members,
    }
}

fn hello(rank: u8) -> Hello {
    let number = u32::from(rank);
    Hello {
        rank,
        address: Ipv4Addr::new(10, 0, 0, rank + 1),
        to: QueuePair(100 + number),
        from: QueuePair(200 + number),
        psn: Psn::new(1000 * number),
        mtu: 1024,
        packets: 170,
        window: 2,
        last_epoch: None,
    }
}

/// A coordinator of a ring of this many.
fn coordinator(members: u8, join: Duration) -> (Coordinator, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        join,
        hello: Duration::from_millis(500),
        strangers: 4,
        stall: Some(STALL),
    };
    let coordinator = Coordinator::start(listener, ring(members), limits).unwrap();
    (coordinator, address)
}

type Joined = Result<(Client, Welcome), RendezvousError>;

fn join(address: SocketAddr, ring: RingConfig, hello: Hello) -> JoinHandle<Joined> {
    std::thread::spawn(move || Client::join(address, &ring, &hello, LONG, &Stop::default()))
}

/// The members of a ring that has formed.
fn formed(members: u8) -> (Coordinator, Vec<(Client, Welcome)>) {
    let (coordinator, address) = coordinator(members, LONG);
    let joining: Vec<_> = (0..members)
        .map(|rank| join(address, ring(members), hello(rank)))
        .collect();
    let joined = joining.into_iter().map(|it| it.join().unwrap().unwrap());
    (coordinator, joined.collect())
}

/// What all members get for their calls, made at the same time.
fn enter(members: &[(Client, Welcome)], calls: &[Call]) -> Vec<Result<(), String>> {
    std::thread::scope(|scope| {
        let entering: Vec<_> = members
            .iter()
            .zip(calls)
            .map(|((client, _), call)| scope.spawn(|| client.enter(*call)))
            .collect();
        let results = entering.into_iter().map(|it| it.join().unwrap());
        results
            .map(|it| it.map_err(|error| error.to_string()))
            .collect()
    })
}

#[test]
fn members_learn_their_neighbours_and_meet_in_barriers() {
    let (coordinator, members) = formed(3);
    let epoch = members[0].1.epoch;
    for (rank, (_, welcome)) in members.iter().enumerate() {
        let [next, last] = [(rank + 1) % 3, (rank + 2) % 3].map(|it| hello(it as u8));
        assert_eq!(welcome.epoch, epoch);
        assert_eq!(welcome.successor.address, next.address);
        assert_eq!(welcome.successor.qp, next.from);
        assert_eq!(welcome.successor.psn, hello(rank as u8).psn);
        assert_eq!(welcome.predecessor.address, last.address);
        assert_eq!(welcome.predecessor.qp, last.to);
        assert_eq!(welcome.predecessor.psn, last.psn);
    }
    for _ in 0..100 {
        assert_eq!(enter(&members, &[CALL; 3]), [Ok(()), Ok(()), Ok(())]);
    }
    assert_eq!(enter(&members, &[Call::Leave; 3]), [Ok(()), Ok(()), Ok(())]);
    coordinator.join();
}

#[test]
fn the_epoch_is_after_the_last_one_of_any_member_and_the_mtu_the_least() {
    let (_coordinator, address) = coordinator(2, LONG);
    // An hour ahead of the clock.
    let (_first, members) = formed(2);
    let last = RingEpoch(members[0].1.epoch.0.wrapping_add(16 * 3600));
    let [a, b] = [(0, 4096, None), (1, 1024, Some(last))].map(|(rank, mtu, last_epoch)| {
        let hello = Hello {
            mtu,
            last_epoch,
            ..hello(rank)
        };
        join(address, ring(2), hello)
    });
    for joined in [a, b] {
        let (_, welcome) = joined.join().unwrap().unwrap();
        assert_eq!(welcome.epoch, RingEpoch(last.0.wrapping_add(1)));
        assert_eq!(welcome.mtu, 1024);
    }
}

#[test]
fn a_ring_that_forms_again_at_once_has_a_later_epoch() {
    let mut last: Option<RingEpoch> = None;
    for _ in 0..5 {
        let (coordinator, members) = formed(2);
        let epoch = members[0].1.epoch;
        let is_later = last.is_none_or(|last| epoch.is_after(last));
        assert!(is_later, "{epoch:?} after {last:?}");
        last = Some(epoch);
        drop(members);
        coordinator.join();
    }
}

#[test]
fn the_port_is_free_when_a_coordinator_has_failed_or_is_dropped() {
    for is_dropped in [false, true] {
        let (coordinator, address) = coordinator(2, LONG);
        let joining = [0, 1].map(|rank| join(address, ring(2), hello(rank)));
        let [first, other] = joining.map(|it| it.join().unwrap().unwrap().0);
        if is_dropped {
            drop(coordinator);
        } else {
            first.fail("no memory");
            coordinator.join();
        }
        TcpListener::bind(address).unwrap();
        let said = if is_dropped {
            "it has ended the epoch"
        } else {
            "no memory"
        };
        assert_eq!(other.failure().to_string(), format!("rank 0: {said}"));
    }
    // Members are missing.
    let (coordinator, address) = coordinator(2, LONG);
    drop(coordinator);
    TcpListener::bind(address).unwrap();
}

#[test]
fn a_barrier_waits_for_the_last_member() {
    let (_coordinator, members) = formed(2);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| members[0].0.enter(CALL));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!first.is_finished());
        members[1].0.enter(CALL).unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn members_with_different_calls_learn_who_differs() {
    let (_coordinator, members) = formed(3);
    let other = Call::AllReduce {
        element: Element::I32,
        bytes: 64,
    };
    let said = enter(&members, &[CALL, CALL, other]);
    let why = "rank 0 sums 4096 bytes of F32, rank 2 64 bytes of I32";
    assert!(
        said.iter().all(|it| it.as_ref().unwrap_err() == why),
        "{said:?}"
    );
}

#[test]
fn a_death_and_a_failure_are_told_with_their_rank() {
    let (_coordinator, mut members) = formed(3);
    drop(members.remove(1));
    let said = members[0].0.enter(CALL).unwrap_err().to_string();
    assert_eq!(said, "rank 1 has died");
    assert_eq!(members[1].0.failure().to_string(), said);

    let (_coordinator, members) = formed(3);
    members[2].0.fail("the NIC caught fire");
    for (client, _) in &members[..2] {
        let said = client.enter(CALL).unwrap_err().to_string();
        assert_eq!(said, "rank 2: the NIC caught fire");
    }
}

#[test]
fn who_has_another_key_ring_or_size_is_refused_and_the_ring_forms() {
    let (_coordinator, address) = coordinator(2, LONG);
    let others = [
        RingConfig {
            key: "ff0102030405060708090a0b0c0d0e0f".parse().unwrap(),
            ..ring(2)
        },
        RingConfig {
            ring: RingId(8),
            ..ring(2)
        },
        ring(3),
    ];
    for other in others {
        let refused = join(address, other, hello(1)).join().unwrap();
        let Err(RendezvousError::Failed(why)) = refused else {
            panic!("joined");
        };
        assert_eq!(why, "wrong key, ring, or number of members");
    }
    let first = join(address, ring(2), hello(0));
    std::thread::sleep(Duration::from_millis(200));
    let second = join(address, ring(2), hello(0)).join().unwrap();
    let Err(RendezvousError::Failed(why)) = second else {
        panic!("joined");
    };
    assert_eq!(why, "rank 0 is taken");
    // The refused connection has ended, and the rank is still the first one's.
    let last = join(address, ring(2), hello(1)).join().unwrap();
    assert!(last.is_ok() && first.join().unwrap().is_ok());
}

#[test]
fn a_coordinator_without_the_key_is_not_believed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let joining = join(address, ring(2), hello(0));
    let (mut stream, _) = listener.accept().unwrap();
    // A challenge, and a welcome of the right length without its HMAC.
    stream.write_all(&[0, 16, 1]).unwrap();
    stream.write_all(&[0; 16]).unwrap();
    let mut hello = [0; 3];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(&[0, 46, 3]).unwrap();
    stream.write_all(&[0; 46]).unwrap();
    let error = joining.join().unwrap().err().unwrap();
    assert!(matches!(error, RendezvousError::Unauthenticated), "{error}");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let (coordinator, address) = coordinator(4, Duration::from_secs(1));
    let [a, b] = [0, 2].map(|rank| join(address, ring(4), hello(rank)));
    for joining in [a, b] {
        let error = joining.join().unwrap().err().unwrap();
        assert_eq!(error.to_string(), "ranks missing after 1 s: 1, 3");
    }
    coordinator.join();
}

#[test]
fn silent_connections_do_not_keep_members_out() {
    let (_coordinator, address) = coordinator(2, LONG);
    let silent: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let joining = [0, 1].map(|rank| join(address, ring(2), hello(rank)));
    for joining in joining {
        joining.join().unwrap().unwrap();
    }
    drop(silent);
}

#[test]
fn windows_that_differ_are_an_error_of_both() {
    let (_coordinator, address) = coordinator(2, LONG);
    let first = join(address, ring(2), hello(0));
    std::thread::sleep(Duration::from_millis(200));
    let other = Hello {
        window: 4,
        ..hello(1)
    };
    let why = "rank 1 has a window of 4 messages of 170 packets, rank 0 of 2 of 170";
    for joining in [first, join(address, ring(2), other)] {
        assert_eq!(joining.join().unwrap().err().unwrap().to_string(), why);
    }
}

#[test]
fn calls_of_different_names_are_different() {
    let (_coordinator, members) = formed(2);
    let said = std::thread::scope(|scope| {
        let names = ["mean of \"w\"", "sum of \"w\""];
        let entering = members.iter().zip(names);
        let entering = entering.map(|((it, _), name)| scope.spawn(|| it.enter_as(CALL, name)));
        let entering: Vec<_> = entering.collect();
        let ends = entering.into_iter().map(|it| it.join().unwrap());
        ends.map(|it| it.unwrap_err().to_string())
            .collect::<Vec<_>>()
    });
    let expected =
        "rank 0 sums 4096 bytes of F32 (mean of \"w\"), rank 1 4096 bytes of F32 (sum of \"w\")";
    assert_eq!(said, [expected, expected]);
}

#[test]
fn a_straggler_is_named_and_one_that_leaves_may_wait() {
    let (coordinator, members) = formed(3);
    // Longer than a straggler may take.
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| members[0].0.enter(Call::Leave));
        std::thread::sleep(STALL + Duration::from_millis(500));
        assert!(!leaving.is_finished());
        let others = members[1..].iter();
        let others = others.map(|(it, _)| scope.spawn(|| it.enter(Call::Leave)));
        for it in others.collect::<Vec<_>>() {
            it.join().unwrap().unwrap();
        }
        leaving.join().unwrap().unwrap();
    });
    coordinator.join();
    let (_coordinator, members) = formed(3);
    let said = members[1].0.enter_as(CALL, "w").unwrap_err().to_string();
    let what = "4096 bytes of F32 (w) within 2s";
    assert_eq!(said, format!("ranks that did not come to {what}: 0, 2"));
}

#[test]
fn a_member_is_stopped_while_it_waits() {
    // No program listens there.
    let absent: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let (_coordinator, alone) = coordinator(2, LONG);
    for (address, name) in [(absent, "without a coordinator"), (alone, "for others")] {
        let stop = Stop::default();
        let joining = {
            let stop = stop.clone();
            std::thread::spawn(move || Client::join(address, &ring(2), &hello(1), LONG, &stop))
        };
        std::thread::sleep(Duration::from_millis(300));
        assert!(!joining.is_finished(), "{name}");
        stop.set();
        let stopped = joining.join().unwrap();
        assert!(matches!(stopped, Err(RendezvousError::Stopped)), "{name}");
    }
    // In a barrier, and before one.
    let (_coordinator, address) = coordinator(2, LONG);
    let stop = Stop::default();
    let other = join(address, ring(2), hello(0));
    let (member, _) = Client::join(address, &ring(2), &hello(1), LONG, &stop).unwrap();
    let (other, _) = other.join().unwrap().unwrap();
    std::thread::scope(|scope| {
        let entering = scope.spawn(|| member.enter(CALL));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!entering.is_finished());
        stop.set();
        let stopped = entering.join().unwrap();
        assert!(matches!(stopped, Err(RendezvousError::Stopped)));
    });
    assert!(matches!(member.enter(CALL), Err(RendezvousError::Stopped)));
    let said = other.enter(CALL).unwrap_err().to_string();
    assert_eq!(said, "rank 1 has died");
}
