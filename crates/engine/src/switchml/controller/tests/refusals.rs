//! What is refused, and in which words; and that it changes nothing.

use super::*;

fn refused(world: &mut World, connection: ConnectionId, request: Request, code: Code, text: &str) {
    let before: Vec<_> = world.controller.status().collect();
    let call = world.call(connection, request);
    assert_eq!(world.text(call), text);
    assert_eq!(world.refusal(call).code(), code);
    let after: Vec<_> = world.controller.status().collect();
    assert_eq!(before, after);
}

#[test]
fn numbers_that_make_no_sense() {
    let mut world = World::new(1);
    let connection = world.connect(0);
    let mut check = |request, text| {
        refused(&mut world, connection, request, Code::InvalidArgument, text);
    };
    let broadcast = |rank, workers, root| Request::Broadcast {
        value: 1,
        rank,
        workers,
        root,
    };
    check(broadcast(0, 0, 0), "num_workers is 0; allowed are 1 to 64");
    check(
        broadcast(0, 65, 0),
        "num_workers is 65; allowed are 1 to 64",
    );
    check(
        broadcast(2, 2, 0),
        "rank is 2; allowed are 0 to 1, as num_workers is 2",
    );
    check(
        broadcast(1, 2, 2),
        "root is 2; allowed are 0 to 1, as num_workers is 2",
    );
    check(
        Request::Barrier { workers: 0 },
        "num_workers is 0; allowed are 1 to 64",
    );
    check(
        Request::Barrier { workers: u32::MAX },
        "num_workers is 4294967295; allowed are 1 to 64",
    );
    assert_eq!(world.controller.poll_timeout(), None);
}

#[test]
fn sessions_that_make_no_sense() {
    let mut world = World::new(1);
    let client = world.job(0, 2, 1)[0];
    let good = client.session(1);
    let own = SWITCH.0.to_u64();
    let sizes = "allowed are 0 (128 bytes) to 6 (8192 bytes)";
    let mac =
        "allowed is the address of one station, its first byte the most significant of 48 bits";
    let ip = "allowed is the address of one host, as an integer in host order";
    let with_mac = |mac| UdpSession { mac, ..good };
    let with_ip = |a, b, c, d| UdpSession {
        ip: Ipv4Addr::new(a, b, c, d),
        ..good
    };
    let with_size = |packet_size| UdpSession {
        packet_size,
        ..good
    };
    let cases = [
        (
            UdpSession { workers: 0, ..good },
            "num_workers is 0; allowed are 1 to 64".to_owned(),
        ),
        (
            UdpSession { rank: 2, ..good },
            "rank is 2; allowed are 0 to 1, as num_workers is 2".to_owned(),
        ),
        (with_size(7), format!("packet_size is 7; {sizes}")),
        (with_size(-1), format!("packet_size is -1; {sizes}")),
        (with_size(257), format!("packet_size is 257; {sizes}")),
        (
            with_size(4),
            "packets of 2048 bytes are too large: the switch's ports carry up to 1024".to_owned(),
        ),
        (with_mac(0), format!("mac is 0x0; {mac}")),
        (
            with_mac(1 << 48 | 2),
            format!("mac is 0x1000000000002; {mac}"),
        ),
        (
            with_mac(0x0100_5e00_0001),
            format!("mac is 0x1005e000001; {mac}"),
        ),
        (
            with_mac(0xffff_ffff_ffff),
            format!("mac is 0xffffffffffff; {mac}"),
        ),
        (with_ip(0, 0, 0, 0), format!("ipv4 is 0.0.0.0 (0x0); {ip}")),
        (
            with_ip(127, 0, 0, 1),
            format!("ipv4 is 127.0.0.1 (0x7f000001); {ip}"),
        ),
        (
            with_ip(239, 1, 1, 1),
            format!("ipv4 is 239.1.1.1 (0xef010101); {ip}"),
        ),
        (
            with_ip(255, 255, 255, 255),
            format!("ipv4 is 255.255.255.255 (0xffffffff); {ip}"),
        ),
        (
            with_mac(own),
            "02:54:00:00:00:01 10.84.0.1 is, or is half of, the switch's own address".to_owned(),
        ),
        (
            UdpSession {
                ip: SWITCH.1,
                ..good
            },
            "02:00:00:00:00:01 10.84.0.254 is, or is half of, the switch's own address".to_owned(),
        ),
    ];
    for (request, text) in cases {
        let request = Request::UdpSession(request);
        refused(
            &mut world,
            client.connection,
            request,
            Code::InvalidArgument,
            &text,
        );
    }
    let call = world.udp_session(&client, 1);
    assert!(world.is_in(call, 1));
}

#[test]
fn ranks_that_contradict_each_other() {
    let mut world = World::new(2);
    let job = world.job(0, 3, 1);
    world.udp_session(&job[0], 1);
    let request = |client: Client| Request::UdpSession(client.session(1));
    let connection = job[1].connection;
    let mut check = |request, code, text| refused(&mut world, connection, request, code, text);
    check(
        request(Client {
            workers: 4,
            ..job[1]
        }),
        Code::InvalidArgument,
        "num_workers is 4; in session 0x1 it is 3",
    );
    check(
        Request::UdpSession(UdpSession {
            packet_size: 3,
            ..job[1].session(1)
        }),
        Code::InvalidArgument,
        "packet_size is 3; in session 0x1 it is 1",
    );
    check(
        request(Client { rank: 0, ..job[1] }),
        Code::AlreadyExists,
        "rank 0 of session 0x1 is 02:00:00:00:00:01 10.84.0.1, and cannot be 02:00:00:00:00:02 10.84.0.2 too",
    );
    check(
        request(Client { host: 1, ..job[1] }),
        Code::AlreadyExists,
        "02:00:00:00:00:01 10.84.0.1 is rank 0 of session 0x1, and cannot be rank 1 too",
    );
    // The same once more is no contradiction, on whichever connection.
    for connection in [job[0].connection, world.connect(0)] {
        let call = world.udp_session(
            &Client {
                connection,
                ..job[0]
            },
            1,
        );
        assert!(world.is_in(call, 1));
    }
    for client in &job[1..] {
        let call = world.udp_session(client, 1);
        assert!(world.is_in(call, 1));
    }
    assert_eq!(world.controller.plane.log, ["bind 0x1"]);
    // It runs: the same rules.
    let other = Client { host: 9, ..job[1] };
    let call = world.udp_session(&other, 1);
    assert_eq!(world.refusal(call).code(), Code::AlreadyExists);
    assert_eq!(world.controller.plane.log, ["bind 0x1"]);
}

#[test]
fn a_session_is_as_large_as_its_broadcast_said() {
    let mut world = World::new(1);
    let job = world.job(0, 2, 1);
    for client in &job {
        world.broadcast(client, 1);
    }
    let three = Client {
        workers: 3,
        ..job[0]
    };
    let request = Request::UdpSession(three.session(1));
    let text = "num_workers is 3; in session 0x1 it is 2";
    refused(
        &mut world,
        three.connection,
        request,
        Code::InvalidArgument,
        text,
    );
}

#[test]
fn more_sessions_than_there_are() {
    let mut world = World::new(1);
    let one = world.job(0, 2, 1);
    world.set_up(&one, 1);
    let two = world.job(1, 2, 11);
    let text = "all 1 sessions that the switch is configured for (switchml.sessions) are in use";
    let request = Request::UdpSession(two[0].session(2));
    refused(
        &mut world,
        two[0].connection,
        request,
        Code::ResourceExhausted,
        text,
    );
    assert!(world.is_bound(1));
}

#[test]
fn a_data_path_that_refuses() {
    let mut world = World::new(1);
    world.controller.plane.refuses = Some("no memory for its slots".to_owned());
    let job = world.job(0, 2, 1);
    for client in &job {
        world.broadcast(client, 1);
    }
    world.udp_session(&job[0], 1);
    let waits = world.barrier(&job[0]);
    let last = world.udp_session(&job[1], 1);
    assert_eq!(world.refusal(last).code(), Code::Internal);
    assert_eq!(
        world.text(last),
        "the switch cannot begin session 0x1: no memory for its slots"
    );
    assert_eq!(
        world.text(waits),
        "session 0x1 has ended: no memory for its slots"
    );
    assert_eq!(world.controller.status().count(), 0);
}

#[test]
fn a_call_on_a_closed_connection_is_nobodys() {
    let mut world = World::new(1);
    let client = world.job(0, 1, 1)[0];
    world.close(client.connection);
    let call = world.udp_session(&client, 1);
    assert_eq!(world.answer(call), None);
    assert_eq!(world.controller.status().count(), 0);
}
