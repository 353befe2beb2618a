#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn plans() {
    // A virtual device that has as many queues as it is asked for.
    let mut any = PortInfo::default();
    (any.rx_queues_max, any.tx_queues_max) = (64, 64);
    let refused = |steering, info: &PortInfo, cores| {
        Plan::new(steering, info.driver == "net_nic", info, cores).unwrap_err()
    };
    let plan = |steering, info: &PortInfo, cores| {
        let plan = Plan::new(steering, info.driver == "net_nic", info, cores).unwrap();
        let Plan {
            rx,
            tx,
            rss,
            rules,
            spread_by,
        } = plan;
        (rx, tx, rss, rules, spread_by)
    };
    use Steering::{Auto, Handover, Peer, Rss, Rules};
    let driver = |name: &str, change: fn(&mut PortInfo)| {
        let mut info = any.clone();
        name.clone_into(&mut info.driver);
        change(&mut info);
        info
    };
    let nic = driver("net_nic", |info| info.rss = true);
    let single = (1, 1, false, false, Spread::SingleCore);
    for steering in [Auto, Handover, Peer, Rules] {
        assert_eq!(plan(steering, &nic, 1), single, "{steering:?}");
    }
    let handed = (1, 4, false, false, Spread::HandOver);
    assert_eq!(plan(Auto, &nic, 4), (4, 4, true, true, Spread::Rss));
    assert_eq!(plan(Rules, &nic, 4), (4, 4, true, true, Spread::Rss));
    assert_eq!(plan(Rss, &nic, 4), (4, 4, true, false, Spread::Rss));
    assert_eq!(plan(Handover, &nic, 4), handed);

    // Rules are asked for on a NIC without RSS too.
    let plain = driver("net_nic", |_| ());
    assert_eq!(plan(Auto, &plain, 4), (4, 4, false, true, Spread::Device));
    assert!(refused(Rss, &plain, 4).contains("RSS"));

    // A NIC with few queues.
    let small = driver("net_nic", |info| {
        (info.rx_queues_max, info.tx_queues_max) = (2, 2);
    });
    let alone = (1, 1, false, false, Spread::HandOver);
    assert_eq!(plan(Auto, &small, 4), alone);
    assert!(refused(Rules, &small, 4).contains("has 2"));

    // A virtual device is left alone unless the operator knows its other end.
    assert_eq!(plan(Auto, &any, 4), handed);
    assert_eq!(plan(Peer, &any, 4), (4, 4, false, false, Spread::Peer));

    // Whose queues come in pairs.
    let paired = driver("net_memif", |info| info.queue_pairs = true);
    assert_eq!(plan(Auto, &paired, 2), alone);
    assert_eq!(plan(Peer, &paired, 2), (2, 2, false, false, Spread::Peer));

    // All queues that the arguments have made are received from, for any number of them.
    let fixed = |rx: u16, tx: u16| {
        let mut info = driver("net_pcap", |info| info.fixed_queues = true);
        (info.rx_queues_max, info.tx_queues_max) = (rx, tx);
        info
    };
    assert_eq!(
        plan(Auto, &fixed(2, 2), 2),
        (2, 2, false, false, Spread::Device)
    );
    assert_eq!(
        plan(Peer, &fixed(2, 2), 2),
        (2, 2, false, false, Spread::Peer)
    );
    assert_eq!(
        plan(Auto, &fixed(3, 1), 2),
        (3, 1, false, false, Spread::Device)
    );
    assert_eq!(
        plan(Handover, &fixed(3, 1), 1),
        (3, 1, false, false, Spread::Device)
    );
    assert!(refused(Peer, &fixed(1, 1), 2).contains("has 1"));
}
