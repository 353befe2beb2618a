use super::*;
use std::io::Write;

const PORTS: &str = r#"[
    { "name": "a", "device": "net_memif0,role=server,id=0,socket=/tmp/x.sock,bsize=2048" },
    { "name": "b", "device": "net_memif1,id=1,role=server,socket=/tmp/x.sock" }
]"#;
const KEY: &str = "00112233445566778899aabbccddeeff";
const OTHER_KEY: &str = "00112233445566778899aabbccdd0009";

fn plan_of(ports: &str, jobs: &str, wishes: &Wishes) -> Result<Plan> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(
        file,
        r#"{{ "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
             "ports": {ports}, "pool": {{ "slots": 512 }}, "jobs": {jobs} }}"#
    )
    .unwrap();
    Plan::new(file.path(), wishes)
}

fn jobs() -> String {
    format!(
        r#"[{{ "id": 7, "key": "{KEY}", "workers": 3 }}, {{ "id": 9, "key": "{OTHER_KEY}", "workers": 1 }}]"#
    )
}

#[track_caller]
fn refused(wishes: &Wishes, words: &[&str]) {
    let error = format!("{:#}", plan_of(PORTS, &jobs(), wishes).unwrap_err());
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

#[test]
fn memif_servers_are_met_by_clients_and_members_take_turns() {
    let plan = plan_of(PORTS, &jobs(), &Wishes::default()).unwrap();
    let devices: Vec<_> = plan.ports.iter().map(|port| port.device.as_str()).collect();
    assert_eq!(
        devices,
        [
            "net_memif0,role=client,id=0,socket=/tmp/x.sock,bsize=2048",
            "net_memif1,id=1,role=client,socket=/tmp/x.sock"
        ]
    );
    let ports = |job: usize| {
        let job = &plan.jobs[job];
        let hosts = job.workers.iter().chain(&job.ps);
        hosts.map(|host| host.port).collect::<Vec<_>>()
    };
    assert_eq!((ports(0), ports(1)), (vec![0, 1, 0, 1], vec![0, 1]));
    let mut hosts: Vec<_> = plan
        .jobs
        .iter()
        .flat_map(|job| job.workers.iter().chain(&job.ps))
        .collect();
    assert_eq!(hosts[0].ip, Ipv4Addr::new(10, 84, 128, 1));
    hosts.sort_by_key(|host| (host.ip, host.mac.0));
    hosts.dedup_by_key(|host| host.ip);
    assert_eq!(hosts.len(), 6, "each has an address of its own");
    assert_eq!((plan.jobs[0].units, plan.jobs[0].window), (16, 64));
}

#[test]
fn the_port_of_a_card_is_left_to_the_card() {
    let ports = PORTS.replacen(
        '[',
        r#"[{ "name": "card", "device": "net_memif2,role=server,id=2" },"#,
        1,
    );
    let card = r#""card": { "port": "card", "registers": { "socket": "/tmp/card.sock" } }"#;
    let with = |wishes: &[&str]| {
        let wishes = Wishes {
            ports: wishes.iter().map(|&port| port.to_owned()).collect(),
            ..Wishes::default()
        };
        plan_of(&ports, &format!("{}, {card}", jobs()), &wishes)
    };
    let names = |plan: Plan| {
        plan.ports
            .into_iter()
            .map(|port| port.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(with(&[]).unwrap()), ["a", "b"]);
    assert_eq!(names(with(&["net_null0"]).unwrap()), ["a"]);
    let error = with(&["card=net_null0"]).unwrap_err().to_string();
    assert!(error.contains("no port `card`"), "{error}");
}

#[test]
fn ports_have_names_or_the_order_of_the_configuration() {
    let with = |ports: &[&str]| {
        let ports = ports.iter().map(|&port| port.to_owned()).collect();
        let wishes = Wishes {
            ports,
            ..Wishes::default()
        };
        plan_of(PORTS, &jobs(), &wishes).map(|plan| plan.ports)
    };
    let named = with(&["b=net_af_packet0,iface=v1", "a=0000:01:00.0"]).unwrap();
    assert_eq!(
        (named[0].name.as_str(), named[1].device.as_str()),
        ("b", "0000:01:00.0")
    );
    assert_eq!(named[0].device, "net_af_packet0,iface=v1");
    let ordered = with(&["net_af_packet0,iface=v1"]).unwrap();
    assert_eq!((ordered.len(), ordered[0].name.as_str()), (1, "a"));
    for (ports, word) in [
        (&["c=net_null0"][..], "no port `c`"),
        (&["a=net_null0", "a=net_null1"], "second time"),
        (&["x0", "x1", "x2"], "2 ports"),
        (&["a="], "which device"),
    ] {
        let error = with(ports).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let nic = r#"[{ "device": "0000:41:00.0" }]"#;
    let error = plan_of(nic, &jobs(), &Wishes::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("--port") && error.contains("0000:41:00.0"),
        "{error}"
    );
}

#[test]
fn wishes_that_cannot_be_are_refused_with_what_can() {
    let wishes = Wishes::default;
    refused(
        &Wishes {
            jobs: vec![8],
            ..wishes()
        },
        &["--job 8", "7, 9"],
    );
    refused(
        &Wishes {
            jobs: vec![7, 7],
            ..wishes()
        },
        &["second time"],
    );
    for payload_bytes in [0, 63, 96, 2048] {
        let payload_bytes = Some(payload_bytes);
        refused(
            &Wishes {
                payload_bytes,
                ..wishes()
            },
            &["--payload", "1408"],
        );
    }
    for window in [0, 257] {
        let window = Some(window);
        refused(&Wishes { window, ..wishes() }, &["--window", "1 to 256"]);
    }
    let priorities = vec![(Some(3), Priorities::default())];
    refused(
        &Wishes {
            priorities,
            ..wishes()
        },
        &["--priorities 3"],
    );
    let first_host = Some(Ipv4Addr::new(239, 1, 1, 1));
    refused(
        &Wishes {
            first_host,
            ..wishes()
        },
        &["--first-host"],
    );
    let error = plan_of(PORTS, "[]", &wishes()).unwrap_err().to_string();
    assert!(error.contains("jobs"), "{error}");
}

#[test]
fn no_member_has_the_switchs_address() {
    let wishes = Wishes {
        first_host: Some(Ipv4Addr::new(10, 84, 0, 252)),
        ..Wishes::default()
    };
    let plan = plan_of(PORTS, &jobs(), &wishes).unwrap();
    let ips: Vec<_> = plan.jobs[0]
        .workers
        .iter()
        .map(|host| host.ip.octets()[3])
        .collect();
    assert_eq!(ips, [252, 253, 255]);
}

#[test]
fn fixed_members_sit_where_the_configuration_says() {
    let member = |port, host| {
        format!(
            r#"{{ "port": "{port}", "mac": "02:84:00:00:00:0{host}", "ip": "10.84.0.{host}", "udp_port": 4{host} }}"#
        )
    };
    let jobs = format!(
        r#"[{{ "id": 7, "key": "{KEY}", "workers": 1, "fixed": {{
             "payload_bytes": 256, "workers": [{}], "ps": {} }} }}]"#,
        member("b", 1),
        member("a", 2)
    );
    let plan = plan_of(PORTS, &jobs, &Wishes::default()).unwrap();
    let job = &plan.jobs[0];
    assert!(job.is_fixed);
    assert_eq!(
        (job.units, job.workers[0].port, job.workers[0].udp_port),
        (4, 1, 41)
    );
    assert_eq!(job.ps.map(|ps| ps.port), Some(0));
    let wishes = Wishes {
        ports: vec!["a=net_null0".to_owned()],
        ..Wishes::default()
    };
    let error = format!("{:#}", plan_of(PORTS, &jobs, &wishes).unwrap_err());
    assert!(
        error.contains("no --port") && error.contains("port b"),
        "{error}"
    );
    let wishes = Wishes {
        payload_bytes: Some(1024),
        ..Wishes::default()
    };
    assert!(plan_of(PORTS, &jobs, &wishes).is_err());
}

#[test]
fn rates_are_read_with_their_units() {
    let rate = |text: &str| text.parse::<Rate>();
    assert_eq!(rate("500kpps"), Ok(Rate::Frames(5e5)));
    assert_eq!(rate("2.5Mpps"), Ok(Rate::Frames(2.5e6)));
    assert_eq!(rate("10Gbps"), Ok(Rate::Bits(1e10)));
    assert_eq!(rate("1pps"), Ok(Rate::Frames(1.0)));
    for text in [
        "", "pps", "10", "10G", "0pps", "-1pps", "kpps", "1kkpps", "infpps", "NaNpps", "1e99pps",
    ] {
        assert!(rate(text).is_err(), "{text}");
    }
    let wishes = Wishes {
        rate: Some(Rate::Bits(8e9)),
        payload_bytes: Some(1216),
        ..Wishes::default()
    };
    let plan = plan_of(PORTS, &jobs(), &wishes).unwrap();
    assert_eq!(
        plan.jobs[0].pace,
        Pace::Open {
            interval_ns: 1280.0
        }
    );
}

#[test]
fn priorities_are_strewn_by_their_weights() {
    let mixed: Priorities = "0:3,200:1".parse().unwrap();
    let high = (0..10_000).filter(|&seq| mixed.of(seq) == (1, 200)).count();
    assert!((2400..2600).contains(&high), "{high}");
    assert_eq!("7".parse::<Priorities>().unwrap().of(123), (0, 7));
    for text in [
        "",
        "256:1",
        "1:0",
        "1:1,1:2",
        "1:1,",
        "a:1",
        "1:-1",
        "0,1,2,3,4,5,6,7,8",
    ] {
        assert!(text.parse::<Priorities>().is_err(), "{text}");
    }
}
