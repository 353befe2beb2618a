//! The table of addresses, under good and hostile senders.

use super::*;
use std::net::Ipv4Addr;

fn mac(n: u64) -> Mac {
    let b = n.to_be_bytes();
    Mac([2, b[3], b[4], b[5], b[6], b[7]])
}

/// Four ports of 100 addresses each.
fn config() -> ForwardingConfig {
    ForwardingConfig {
        mac: mac(0xfe),
        ip: Ipv4Addr::LOCALHOST,
        ports: 4,
        ageing_s: 1000,
        addresses: 100,
        floods_per_s: crate::forwarding::FloodLimits::each(0),
        answers_per_s: 0,
        seed: 0x1234_5678_9abc_def0,
    }
}

fn limited(ageing_s: u32) -> MacTable {
    MacTable::with_limit(&ForwardingConfig {
        ageing_s,
        ..config()
    })
}

fn of(table: &MacTable, port: u16) -> PortAddresses {
    table.by_port().nth(usize::from(port)).unwrap()
}

#[test]
fn learns_moves_and_forgets() {
    let t = MacTable::new(10);
    assert_eq!(t.port_of(mac(1), 0), None);
    t.learn(mac(1), PortId(3), 0);
    assert_eq!(t.port_of(mac(1), 10), Some(PortId(3)));
    assert_eq!(t.port_of(mac(1), 11), None, "aged");
    t.learn(mac(1), PortId(4), 11);
    assert_eq!(t.port_of(mac(1), 12), Some(PortId(4)), "moved");
    assert_eq!(t.len(12), 1);
    assert_eq!(t.port_of(mac(1), 100), None);
    assert_eq!(t.last_port_of(mac(1)), Some(PortId(4)));
    assert_eq!(t.last_port_of(mac(2)), None);
    assert_eq!(t.last_port_of(Mac::default()), None);
    let changes = t.changes();
    t.learn(mac(1), PortId(4), 100);
    assert_eq!(t.changes(), changes, "nothing new");
    t.learn(mac(1), PortId(5), 100);
    t.learn(mac(2), PortId(5), 100);
    assert_eq!(t.changes(), changes + 2);
}

#[test]
fn groups_and_zero_are_never_learned() {
    let t = MacTable::new(10);
    for m in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac::default()] {
        for port in [PortId(0), PortId(1)] {
            t.learn(m, port, 0);
            assert_eq!(t.port_of(m, 0), None);
        }
    }
    assert_eq!(t.len(0), 0);
}

#[test]
fn a_flood_of_addresses_from_one_port_evicts_no_address_of_another() {
    let t = limited(1000);
    let hosts = || (0..100).map(|n| mac(1 << 32 | n));
    hosts().for_each(|host| t.learn(host, PortId(1), 0));
    assert_eq!(of(&t, 1).addresses_refused, 0);
    for n in 0..30_000 {
        t.learn(mac(n), PortId(2), 1);
    }
    assert!(hosts().all(|host| t.port_of(host, 1000) == Some(PortId(1))));
    let flooder = of(&t, 2);
    assert_eq!(flooder.addresses, 100);
    assert_eq!(flooder.addresses_refused, 29_900);
    // A port that comes later has all of its own.
    for n in 0..100 {
        t.learn(mac(1 << 33 | n), PortId(3), 2);
    }
    assert_eq!(
        of(&t, 3),
        PortAddresses {
            addresses: 100,
            addresses_refused: 0
        }
    );
}

#[test]
fn addresses_chosen_for_one_set_evict_no_other_port_s() {
    let t = MacTable::with_limit(&ForwardingConfig {
        seed: 1,
        addresses: 1000,
        ..config()
    });
    // With this multiplier the set is the high bits of the address, and all of these share one.
    t.learn(mac(1 << 20), PortId(1), 0);
    for n in 0..1000 {
        t.learn(mac(n), PortId(2), 1);
    }
    assert_eq!(t.port_of(mac(1 << 20), 5), Some(PortId(1)));
    assert_eq!(of(&t, 2).addresses, WAYS as u32 - 1);
    // Its own addresses take the places of its own: the latest is known.
    assert_eq!(t.port_of(mac(999), 5), Some(PortId(2)));
}

#[test]
fn a_port_at_its_limit_gives_up_what_is_stale() {
    let t = limited(10);
    for n in 0..100 {
        t.learn(mac(n), PortId(2), if n < 50 { 0 } else { 9 });
    }
    t.learn(mac(200), PortId(2), 10);
    assert_eq!(t.port_of(mac(200), 10), None, "all are fresh");
    t.learn(mac(200), PortId(2), 11);
    assert_eq!(t.port_of(mac(200), 11), Some(PortId(2)));
    assert_eq!(
        of(&t, 2),
        PortAddresses {
            addresses: 51,
            addresses_refused: 1
        }
    );
    assert_eq!(t.last_port_of(mac(0)), None);
}

#[test]
fn an_address_that_moves_counts_at_its_new_port_only() {
    let t = limited(10);
    for n in 0..100 {
        t.learn(mac(n), PortId(1), 0);
    }
    t.learn(mac(0), PortId(2), 0);
    assert_eq!((of(&t, 1).addresses, of(&t, 2).addresses), (99, 1));
    t.learn(mac(100), PortId(1), 0);
    // Port 1 is full again, so what is at port 2 stays there.
    t.learn(mac(0), PortId(1), 0);
    assert_eq!(t.port_of(mac(0), 0), Some(PortId(2)));
    assert_eq!(
        of(&t, 1),
        PortAddresses {
            addresses: 100,
            addresses_refused: 1
        }
    );
}

#[test]
fn cores_that_learn_at_once_count_exactly() {
    let t = limited(1000);
    std::thread::scope(|scope| {
        for core in 0..4_u64 {
            let t = &t;
            scope.spawn(move || {
                for n in 0..20_000 {
                    t.learn(mac(n % 150), PortId(((n + core) % 4) as u16), 1);
                }
            });
        }
    });
    let learnt: u32 = t.by_port().map(|port| port.addresses).sum();
    assert_eq!(learnt as usize, t.len(1));
}

#[test]
fn the_clock_may_wrap() {
    let t = MacTable::new(10);
    t.learn(mac(1), PortId(1), u32::MAX - 2);
    assert_eq!(t.port_of(mac(1), 3), Some(PortId(1)));
    assert_eq!(t.port_of(mac(1), 9), None);
}

#[test]
fn known_addresses_are_listed_up_to_a_limit() {
    let t = limited(10);
    assert_eq!(t.entries(0, 10), []);
    for n in 1..=3 {
        t.learn(mac(n), PortId(n as u16), n as u32);
    }
    let mut all = t.entries(5, 10);
    all.sort_unstable_by_key(|&(mac, ..)| mac.0);
    let want = [1, 2, 3].map(|n| (mac(n), PortId(n as u16), 5 - n as u32));
    assert_eq!(all, want);
    assert_eq!(t.entries(5, 2).len(), 2);
    assert_eq!(t.entries(12, 10).len(), 2, "the first has aged");
}
