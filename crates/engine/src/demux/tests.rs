use super::*;

const IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 9);
const A: DialectId = DialectId(0);
const B: DialectId = DialectId(1);

fn local(ports: RangeInclusive<u16>, any_mac: bool) -> Claim {
    Claim::Local { ports, any_mac }
}

fn transit(ports: RangeInclusive<u16>) -> Claim {
    Claim::Transit { ports }
}

fn table(claims: &[(DialectId, Claim)]) -> Demux {
    Demux::new(IP, claims.to_vec()).unwrap()
}

/// Headers of a datagram to this address.
fn datagram(ip: Ipv4Addr, udp_port: u16) -> Vec<u8> {
    let mut frame = vec![0; UDP_END];
    (frame[12], frame[14], frame[23]) = (8, 0x45, PROTOCOL_UDP);
    frame[30..34].copy_from_slice(&ip.octets());
    frame[36..38].copy_from_slice(&udp_port.to_be_bytes());
    frame
}

#[test]
fn a_local_claim_is_a_range_of_ports() {
    let table = table(&[(A, local(100..=101, false)), (B, local(200..=200, true))]);
    let found: Vec<_> = [99, 100, 101, 102, 200]
        .map(|port| table.local(port))
        .into();
    assert_eq!(
        found,
        [
            None,
            Some((A, false)),
            Some((A, false)),
            None,
            Some((B, true))
        ]
    );
    // At any MAC only where the claim says so.
    assert_eq!(table.transit(&datagram(IP, 100)), None);
    assert_eq!(table.transit(&datagram(IP, 200)), Some(B));
    assert_eq!(
        table.transit(&datagram(OTHER, 200)),
        None,
        "another host's port"
    );
}

#[test]
fn a_transit_claim_is_of_datagrams_to_other_hosts() {
    let table = table(&[(A, local(100..=100, true)), (B, transit(100..=101))]);
    assert_eq!(table.transit(&datagram(OTHER, 100)), Some(B));
    assert_eq!(table.transit(&datagram(OTHER, 101)), Some(B));
    assert_eq!(table.transit(&datagram(OTHER, 102)), None);
    assert_eq!(table.transit(&datagram(IP, 100)), Some(A));
    assert_eq!(table.transit(&datagram(IP, 101)), None);
    assert_eq!(table.local(101), None);
    for (at, other) in [(12, 6), (23, 6)] {
        let mut frame = datagram(OTHER, 100);
        frame[at] = other;
        assert_eq!(table.transit(&frame), None, "byte {at}: not UDP");
    }
    assert_eq!(table.transit(&datagram(OTHER, 100)[..UDP_END - 1]), None);
}

#[test]
fn an_ethertype_a_port_and_jobs_may_be_claimed() {
    let table = table(&[
        (A, Claim::Ethertype(0x88b5)),
        (B, Claim::Port(PortId(3))),
        (B, Claim::Jobs),
    ]);
    let mut frame = vec![0; ETHERNET_BYTES];
    frame[12..].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(table.ethertype(&frame), Some(A));
    assert_eq!(table.ethertype(&frame[..13]), None);
    frame[13] += 1;
    assert_eq!(table.ethertype(&frame), None);
    assert_eq!(
        (table.port(PortId(3)), table.port(PortId(2))),
        (Some(B), None)
    );
    assert_eq!(table.jobs(), Some(B));
}

#[test]
fn without_claims_nothing_is_claimed() {
    let table = table(&[]);
    assert_eq!((table.port(PortId(0)), table.jobs()), (None, None));
    assert_eq!(
        (table.local(100), table.transit(&datagram(IP, 100))),
        (None, None)
    );
    assert_eq!(table.ethertype(&datagram(IP, 100)), None);
}

#[test]
fn overlaps_are_errors() {
    let meet = |a: Claim, b: Claim| {
        let found = Demux::new(IP, vec![(A, a.clone()), (B, b.clone())]);
        found
            .err()
            .inspect(|found| assert_eq!(*found, Overlap(a, b)))
            .is_some()
    };
    assert!(meet(local(1..=5, false), local(5..=9, true)));
    assert!(meet(local(5..=9, false), local(1..=5, false)));
    assert!(meet(local(1..=9, false), local(4..=5, false)));
    assert!(!meet(local(1..=5, false), local(6..=9, false)));
    assert!(meet(transit(1..=5), transit(3..=3)));
    assert!(!meet(transit(1..=5), local(1..=5, true)), "other frames");
    assert!(meet(Claim::Ethertype(5), Claim::Ethertype(5)));
    assert!(!meet(Claim::Ethertype(5), Claim::Ethertype(6)));
    assert!(meet(Claim::Ethertype(0x0800), local(1..=5, false)));
    assert!(meet(transit(1..=5), Claim::Ethertype(0x0800)));
    assert!(!meet(Claim::Ethertype(0x0801), local(1..=5, false)));
    assert!(meet(Claim::Port(PortId(1)), Claim::Port(PortId(1))));
    assert!(!meet(Claim::Port(PortId(1)), Claim::Port(PortId(2))));
    assert!(meet(Claim::Jobs, Claim::Jobs));
}

/// One dialect may not claim frames twice either, and each claim is compared with all before it.
#[test]
fn any_two_claims_may_overlap() {
    let claims = [1..=2, 3..=4, 4..=6].map(|ports| (A, local(ports, false)));
    assert_eq!(
        Demux::new(IP, claims.into()).unwrap_err(),
        Overlap(local(3..=4, false), local(4..=6, false))
    );
}
