use super::*;
use crate::golden::{round_trip, write};
use std::net::SocketAddr;
use tally_engine::PolicyName;
use tally_wire::JobId;

const GOOD: &str = r#"{
  "address": { "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" },
  "ports": [ { "name": "a", "device": "net_null0" }, { "device": "net_null1,size=64" } ],
  "jobs": [ { "id": 7, "key": "00112233445566778899aabbccddeeff", "workers": 4 } ]
}"#;

fn parse(text: &str) -> Result<Config, String> {
    let path = Path::new("switch.json");
    let config: Config = tally_config::parse(path, text.as_bytes()).map_err(|e| e.to_string())?;
    config.check(path).map_err(|e| e.to_string())?;
    Ok(config)
}

/// `GOOD` with one piece of text replaced, and what the error must name.
#[track_caller]
fn refused(from: &str, to: &str, names: &[&str]) {
    assert!(GOOD.contains(from), "`{from}` is not in the example");
    let error = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
    for name in names.iter().chain(&["switch.json"]) {
        assert!(error.contains(name), "`{error}` does not name `{name}`");
    }
}

#[test]
fn defaults_are_those_documented() {
    let c = parse(GOOD).unwrap();
    assert_eq!(c.cores, [0]);
    assert_eq!(
        (c.window, c.member_timeout_ms, c.mac_ageing_s),
        (256, 5000, 300)
    );
    assert_eq!(c.address.udp_port, 31249);
    assert_eq!(c.idle, Idle::Backoff);
    assert_eq!(c.pool.policy, PolicyName::Esa);
    assert_eq!(c.ways(), 8);
    let with = |pool: &str| {
        let pool = format!("\"pool\": {{{pool}}}, \"jobs\"");
        parse(&GOOD.replacen("\"jobs\"", &pool, 1)).unwrap()
    };
    for policy in ["fcfs", "static", "none"] {
        let pool = with(&format!("\"policy\": \"{policy}\""));
        assert_eq!(pool.ways(), 1, "{policy}: as the papers");
    }
    let small = with("\"slots\": 2");
    assert_eq!((small.slots(), small.ways()), (2, 2));
    assert_eq!(c.ports[1].label(), "net_null1");
    assert_eq!(c.ports[1].device_arguments(), "size=64");
    assert_eq!(c.units(), 22, "1408 bytes fit 1500");
    assert!(c.slots().is_power_of_two());
    assert_eq!(c.queue(), QueueConfig::default());
    let QueueConfig {
        frames,
        mark_frames,
        guard,
    } = c.queue();
    assert_eq!((frames, mark_frames, guard), (512, 64, 31));
    assert!(c.ports.iter().all(|port| port.steering == Steering::Auto));
}

#[test]
fn each_core_has_its_part_of_what_waits_for_a_port() {
    let with = |frames: u32, mark_frames: u32| {
        let queue =
            format!("\"queue\": {{\"frames\": {frames}, \"mark_frames\": {mark_frames}}}, ");
        let c = parse(&GOOD.replacen("\"ports\"", &format!("{queue}\"ports\""), 1)).unwrap();
        move |cores| {
            let share = c.queue_share(cores);
            (share.frames, share.mark_frames, share.guard)
        }
    };
    let default = with(512, 64);
    assert_eq!(default(1), (512, 64, 31));
    assert_eq!(default(2), (256, 64, 31), "two bursts are no long queue");
    assert_eq!(default(64), (128, 64, 31));
    assert_eq!(with(8001, 1000)(4), (2001, 250, 31), "none is lost");
    assert_eq!(with(32, 1)(4), (32, 1, 31), "what is asked for, not more");
}

#[test]
fn steering_is_one_of_five() {
    let with = |steering: &str| {
        let to = format!("\"device\": \"net_null0\", \"steering\": \"{steering}\"");
        GOOD.replacen("\"device\": \"net_null0\"", &to, 1)
    };
    for (name, steering) in [
        ("auto", Steering::Auto),
        ("rules", Steering::Rules),
        ("rss", Steering::Rss),
        ("peer", Steering::Peer),
        ("handover", Steering::Handover),
    ] {
        assert_eq!(parse(&with(name)).unwrap().ports[0].steering, steering);
    }
    let error = parse(&with("magic")).unwrap_err();
    assert!(
        error.contains("steering") && error.contains("peer"),
        "{error}"
    );
}

#[test]
fn every_mistake_names_the_key_what_was_found_and_what_is_allowed() {
    refused("\"ip\"", "\"ipp\"", &["address", "ipp", "expected"]);
    refused(
        "\"workers\": 4",
        "\"workers\": \"4\"",
        &["jobs[0].workers", "\"4\""],
    );
    refused(
        "\"workers\": 4",
        "\"workers\": 0",
        &["jobs[0].workers", "found 0", "1 to 64"],
    );
    refused(
        "\"workers\": 4",
        "\"workers\": 65",
        &["jobs[0].workers", "found 65", "1 to 64", "docs/FABRIC.md"],
    );
    refused(
        "\"workers\": 4",
        "\"workers\": 300",
        &[
            "jobs[0].workers",
            "found 300",
            "1 to 64",
            "tree of switches",
        ],
    );
    refused("0011223344", "00112233zz", &["jobs[0].key", "hexadecimal"]);
    refused(
        "02:54",
        "03:54",
        &["address.mac", "03:54:41:4c:4c:59", "one station"],
    );
    refused(
        "02:54:41:4c:4c:59",
        "nonsense",
        &["address.mac", "Ethernet address"],
    );
    refused("10.84.0.254", "239.1.2.3", &["address.ip", "239.1.2.3"]);
    refused("10.84.0.254", "10.84.0.256", &["address.ip"]);
    refused("net_null0", "null0", &["ports[0].device", "null0", "net_"]);
    refused(
        "net_null0",
        "net_null1",
        &["ports[1].device", "second time"],
    );
    refused(
        "\"name\": \"a\"",
        "\"name\": \"a\", \"mtu\": 100",
        &["ports[0].mtu", "100", "576"],
    );
    refused(
        "\"name\": \"a\"",
        "\"name\": \"a\", \"core\": 1",
        &["ports[0].core", "1", "0 to 0"],
    );
    refused(
        "\"name\": \"a\"",
        "\"name\": \"net_null1\"",
        &["ports[1].name", "second time"],
    );
    let more = |key: &str| format!("{key}, \"ports\"");
    for (key, names) in [
        ("\"cores\": [0, 1, 2]", ["cores", "3 cores", "1, 2, 4"]),
        ("\"cores\": []", ["cores", "0 cores", "1, 2, 4"]),
        ("\"cores\": [1, 1]", ["cores", "[1, 1]", "once"]),
        (
            "\"queue\": {\"frames\": 16}",
            ["queue.frames", "found 16", "32 to 65536"],
        ),
        (
            "\"queue\": {\"frames\": 32, \"mark_frames\": 257}",
            [
                "queue.mark_frames",
                "found 257",
                "1 to 8 × queue.frames, 256",
            ],
        ),
        (
            "\"queue\": {\"mark_frames\": 0}",
            ["queue.mark_frames", "found 0", "never reached"],
        ),
        (
            "\"queue\": {\"guard\": 0}",
            ["queue.guard", "found 0", "1 to 65535"],
        ),
        ("\"queue\": {\"gard\": 1}", ["queue", "gard", "expected"]),
        ("\"window\": 0", ["window", "found 0", "1 to 16384"]),
        (
            "\"member_timeout_ms\": 10",
            ["member_timeout_ms", "10", "1000"],
        ),
        ("\"mac_ageing_s\": 0", ["mac_ageing_s", "0", "1 or more"]),
        ("\"kernel\": \"sse9\"", ["kernel", "sse9", "scalar"]),
        ("\"idle\": \"sleep\"", ["idle", "sleep", "backoff"]),
        (
            "\"pool\": {\"slots\": 100}",
            ["pool.slots", "100", "power of two"],
        ),
        (
            "\"pool\": {\"slots\": 64, \"bytes\": 65536}",
            ["pool.bytes", "65536", "not both"],
        ),
        (
            "\"pool\": {\"bytes\": 100}",
            ["pool.bytes", "100", "at least 1472"],
        ),
        (
            "\"pool\": {\"slots\": 64, \"ways\": 3}",
            ["pool.ways", "3", "1, 2, 4 or 8"],
        ),
        (
            "\"pool\": {\"slots\": 2, \"ways\": 4}",
            ["pool.ways", "4", "the 2 slots of a core"],
        ),
        (
            "\"pool\": {\"policy\": \"best\"}",
            ["pool.policy", "best", "esa, fcfs, static, none"],
        ),
        (
            "\"eal\": {\"memory\": \"big\"}",
            ["eal.memory", "big", "no-huge"],
        ),
    ] {
        refused("\"ports\"", &more(key), &names);
    }
    refused("\"id\": 7", "\"id\": 70000", &["jobs[0].id", "70000"]);
    refused("}", "", &["not valid JSON"]);
    let ports = GOOD.find("\"ports\"").unwrap();
    let end = GOOD[ports..].find(']').unwrap() + ports + 2;
    let without = format!("{}{}", &GOOD[..ports], &GOOD[end..]);
    assert!(parse(&without).unwrap_err().contains("ports"));
}

#[test]
fn fixed_members_must_be_complete_and_on_ports_that_exist() {
    let member = |port: &str| {
        format!(r#"{{"port":"{port}","mac":"02:00:00:00:00:01","ip":"10.84.0.1","udp_port":9}}"#)
    };
    let fixed = |n: usize, bytes: u32, port: &str| {
        let workers = vec![member(port); n].join(",");
        let fixed = format!(
            r#""workers": 4, "fixed": {{"payload_bytes":{bytes},"workers":[{workers}],"ps":{}}}"#,
            member("a")
        );
        parse(&GOOD.replacen("\"workers\": 4", &fixed, 1))
    };
    assert!(fixed(4, 1024, "a").is_ok());
    assert!(
        fixed(3, 1024, "a")
            .unwrap_err()
            .contains("jobs[0].fixed.workers")
    );
    assert!(
        fixed(4, 1000, "a")
            .unwrap_err()
            .contains("multiple of 64 up to 1408")
    );
    assert!(
        fixed(4, 1472, "a")
            .unwrap_err()
            .contains("multiple of 64 up to 1408")
    );
    let error = fixed(4, 1024, "z").unwrap_err();
    assert!(
        error.contains("fixed.workers[0].port") && error.contains("a, net_null1"),
        "{error}"
    );
}

#[test]
fn a_port_may_be_an_interface_of_the_kernel() {
    let with = |device: &str| parse(&GOOD.replacen("net_null0", device, 1));
    let interface = |device: &str| {
        with(device).unwrap().ports[0]
            .interface()
            .map(str::to_owned)
    };
    assert_eq!(interface("packet0,iface=eth1"), Some("eth1".to_owned()));
    assert_eq!(interface("packet,iface=eth1"), Some("eth1".to_owned()));
    assert_eq!(interface("net_af_packet0,iface=eth1"), None);
    for bad in [
        "packet0",
        "packet0,iface=",
        "packet0,eth1",
        "packets,iface=eth1",
        "eth1",
    ] {
        let error = with(bad).unwrap_err();
        assert!(error.contains("packet0,iface=eth1"), "{bad}: {error}");
    }
}

#[test]
fn buffers_hold_what_the_drivers_arguments_ask_for() {
    let bytes = |device: &str| {
        let config = parse(&GOOD.replacen("net_null0", device, 1));
        config.unwrap().frame_bytes_max()
    };
    assert_eq!(bytes("net_null0"), 2048);
    assert_eq!(bytes("net_memif0,role=server,bsize=9216,rsize=10"), 9216);
    assert_eq!(
        bytes("net_af_packet0,iface=a,blocksz=16384,framesz=16384"),
        16384
    );
}

#[test]
fn no_window_is_served_beyond_a_jobs_slots() {
    let jobs = r#""jobs": [ {"id":1,"key":"00112233445566778899aabbccdd0001","workers":2}, "#;
    let text = GOOD.replacen("\"jobs\": [", jobs, 1).replacen(
        "\"ports\"",
        "\"pool\": {\"policy\":\"static\",\"slots\":64}, \"ports\"",
        1,
    );
    assert_eq!(parse(&text).unwrap().served_window(), 32);
    assert_eq!(
        parse(&text.replace("static", "esa"))
            .unwrap()
            .served_window(),
        64
    );
}

/// A switch of two jobs and 64 slots on two cores, with limits.
fn limited(pool: &str, first: &str, second: &str) -> Result<Config, String> {
    let job = |id: u16, limits: &str| {
        format!(r#"{{"id":{id},"key":"00112233445566778899aabbccdd{id:04x}","workers":2{limits}}}"#)
    };
    let start = GOOD.find("\"jobs\"").unwrap();
    let jobs = [job(1, first), job(2, second)].join(",");
    let pool = format!(r#""cores":[0,1],"pool":{{"slots":64{pool}}},"#);
    parse(&format!("{}{pool}\"jobs\":[{jobs}]}}", &GOOD[..start]))
}

#[test]
fn limits_are_divided_among_cores_and_each_job_has_a_little_for_certain() {
    let limits = |pool: &str, first: &str, second: &str| {
        let config = limited(pool, first, second).unwrap();
        let jobs = config.pool(1).jobs;
        [1, 2].map(|id| {
            let job = jobs.iter().find(|job| job.id == JobId(id)).unwrap();
            (job.limits.min_slots, job.limits.max_slots)
        })
    };
    let all = u32::MAX;
    // An eighth of 64 slots for two jobs on two cores.
    assert_eq!(limits("", "", ""), [(2, all), (2, all)]);
    for policy in ["fcfs", "static", "none"] {
        let pool = format!(r#","policy":"{policy}""#);
        assert_eq!(limits(&pool, "", ""), [(0, all), (0, all)]);
        assert_eq!(limits(&pool, r#","max_slots":8"#, ""), [(0, 4), (0, all)]);
    }
    let given = r#","min_slots":9,"max_slots":20"#;
    assert_eq!(limits("", given, r#","min_slots":0"#), [(4, 10), (0, all)]);
    // At least 1 a core, and no default above a maximum or where all is given.
    assert_eq!(limits("", r#","min_slots":1"#, ""), [(1, all), (2, all)]);
    assert_eq!(limits("", r#","max_slots":2"#, ""), [(1, 1), (2, all)]);
    assert_eq!(limits("", r#","min_slots":64"#, ""), [(32, all), (0, all)]);
}

#[test]
fn contributions_that_each_job_may_hold_follow_from_its_slots_or_the_window() {
    let held = |pool: &str, first: &str, second: &str| {
        let config = limited(pool, first, second).unwrap();
        let jobs = config.pool(1).jobs;
        [1, 2].map(|id| {
            let job = jobs.iter().find(|job| job.id == JobId(id)).unwrap();
            job.limits.min_held
        })
    };
    // 2 workers, and 64 slots are the window, on two cores: 32 of each job.
    assert_eq!(held("", "", ""), [32, 32], "a whole window");
    assert_eq!(held(r#","held":128"#, "", ""), [32, 32]);
    assert_eq!(held(r#","held":126"#, "", ""), [15, 15], "half of 63");
    assert_eq!(held(r#","held":0"#, "", ""), [0, 0]);
    let static_pool = r#","held":1024,"policy":"static""#;
    assert_eq!(held(static_pool, "", ""), [16, 16], "their own slots");
    // What is configured comes first.
    let tight = r#","held":48"#;
    assert_eq!(held(tight, r#","min_slots":40"#, ""), [20, 2], "half of 4");
    assert_eq!(held(tight, r#","min_slots":0"#, ""), [0, 12]);
    assert_eq!(
        held(tight, r#","min_slots":32"#, r#","min_slots":32"#),
        [12, 12]
    );
    assert_eq!(held("", r#","min_slots":2"#, r#","max_slots":6"#), [1, 3]);
}

#[test]
fn limits_that_cannot_be_kept_are_refused() {
    let refused = |pool: &str, first: &str, second: &str, names: [&str; 3]| {
        let error = limited(pool, first, second).unwrap_err();
        for name in names {
            assert!(error.contains(name), "`{error}` does not name `{name}`");
        }
    };
    let names = ["jobs[0].min_slots", "found 9", "max_slots, 8"];
    refused("", r#","min_slots":9,"max_slots":8"#, "", names);
    let names = ["jobs[1].min_slots", "found 2", "fcfs"];
    refused(r#","policy":"fcfs""#, "", r#","min_slots":2"#, names);
    let names = ["jobs[].min_slots", "72 slots", "64"];
    refused("", r#","min_slots":40"#, r#","min_slots":32"#, names);
    let names = ["jobs[0].max_slots", "found 0", "leave it out"];
    refused("", r#","max_slots":0"#, "", names);
}

#[test]
fn a_pool_is_given_in_slots_or_in_bytes() {
    let pool = |pool: &str| {
        let text = format!("\"pool\": {{{pool}}}, \"ports\"");
        let config = parse(&GOOD.replacen("\"ports\"", &text, 1)).unwrap();
        (config.slots(), config.pool_bytes(), config.pool_warning())
    };
    // A frame of 22 units has 1472 bytes.
    assert_eq!(pool("\"slots\": 64"), (64, 64 * 1472, None));
    assert_eq!(pool("\"bytes\": 94208"), (64, 64 * 1472, None));
    assert_eq!(pool("\"bytes\": 94207"), (32, 32 * 1472, None));
    assert_eq!(pool("\"bytes\": 188415"), (64, 64 * 1472, None));
}

#[test]
fn a_machine_that_does_not_report_its_cache_is_talked_about() {
    let mut config = parse(GOOD).unwrap();
    config.cores = vec![1 << 40];
    // Half of 512 KiB holds 178 frames of 1472 bytes.
    assert_eq!(config.slots(), 128);
    let warning = config.pool_warning().unwrap();
    assert!(
        warning.contains("128 slots") && warning.contains("pool.slots"),
        "{warning}"
    );
    config.pool.slots = Some(64);
    assert_eq!(config.pool_warning(), None);
}

#[test]
fn limits_of_a_port_have_defaults_and_bounds() {
    let with = |section: &str| {
        let text = format!("\"limits\": {section}, \"jobs\"");
        parse(&GOOD.replacen("\"jobs\"", &text, 1))
    };
    let LimitsSection {
        addresses,
        floods_per_s,
        answers_per_s,
        ..
    } = with("{}").unwrap().limits;
    let found = (addresses, floods_per_s, answers_per_s);
    assert_eq!(found, (1024, 10_000, 10_000));
    let off = with(r#"{"addresses": 0, "floods_per_s": 0, "answers_per_s": 0}"#);
    assert_eq!(off.unwrap().limits.addresses, 0);
    assert!(with(r#"{"addresses": 8192}"#).is_ok());
    let error = with(r#"{"addresses": 8193}"#).unwrap_err().to_string();
    for part in ["limits.addresses", "8193", "0 to 8192"] {
        assert!(error.contains(part), "`{error}` has no `{part}`");
    }
}

#[test]
fn every_example_is_good_and_survives_being_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("switch") && name.ends_with(".json") {
            let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parse(&write(&config)).unwrap(), config, "{name}");
            checked += 1;
        }
    }
    assert!(checked >= 3);
}

/// `GOOD` with a section for SwitchML.
fn with_switchml(section: &str) -> String {
    GOOD.replacen("\"jobs\"", &format!("\"switchml\": {section}, \"jobs\""), 1)
}

#[test]
fn switchml_is_off_unless_it_listens_somewhere() {
    assert!(parse(GOOD).unwrap().switchml.is_none());
    let c = parse(&with_switchml("{\"listen\": [\"0.0.0.0:50099\"]}")).unwrap();
    let section = c.switchml.as_ref().unwrap();
    let listen = Listen {
        address: "0.0.0.0:50099".parse().unwrap(),
        workers: Vec::new(),
    };
    assert_eq!(section.listen, [listen]);
    assert!(section.allow.is_empty());
    assert_eq!(
        (section.sessions, section.slots, section.held),
        (8, 8192, 4096)
    );
    assert_eq!(
        (section.setup_timeout_s, section.idle_timeout_s),
        (300, 300)
    );
    assert_eq!(parse(GOOD).unwrap().switchml_frames(), 0);
    assert!(c.switchml_frames() > 4096);
    assert!(c.switchml_quiet().all(|quiet| !quiet));
    let quiet = "{\"listen\": [\"0.0.0.0:50099\"], \"quiet_ports\": [\"net_null1\"]}";
    let quiet = parse(&with_switchml(quiet)).unwrap();
    assert!(quiet.switchml_quiet().eq([false, true]));
    let many = "{\"listen\": [\"0.0.0.0:50099\"], \"held\": 1000000}";
    assert!(parse(&with_switchml(many)).unwrap().switchml_frames() > 1_000_000);
}

#[test]
fn the_longest_packet_of_switchml_is_what_all_ports_carry() {
    use tally_wire::switchml::Size;
    let with = |mtu: u16| {
        let to = format!("\"device\": \"net_null0\", \"mtu\": {mtu}");
        let other = "\"device\": \"net_null1,size=64\", \"mtu\": 9000";
        let text = GOOD.replacen("\"device\": \"net_null0\"", &to, 1);
        let text = text.replacen("\"device\": \"net_null1,size=64\"", other, 1);
        parse(&text).unwrap().switchml_size()
    };
    assert_eq!(with(576), Size::B512);
    assert_eq!(with(1500), Size::B1024);
    assert_eq!(with(2085), Size::B1024);
    assert_eq!(with(2086), Size::B2048);
    assert_eq!(with(9000), Size::B8192);
}

#[test]
fn every_mistake_in_switchml_is_named() {
    #[track_caller]
    fn refused(section: &str, names: &[&str]) {
        let error = parse(&with_switchml(section)).expect_err(section);
        for name in names {
            assert!(error.contains(name), "`{error}` does not name `{name}`");
        }
    }
    let with = |more: &str| format!("{{\"listen\": [\"0.0.0.0:50099\"], {more}}}");
    refused("{}", &["listen"]);
    refused(
        "{\"listen\": []}",
        &["switchml.listen", "none", "0.0.0.0:50099"],
    );
    refused(
        "{\"listen\": [\"here\"]}",
        &["switchml.listen", "found `here`", "0.0.0.0:50099"],
    );
    refused(
        "{\"listen\": [\"[::]:1\", \"[::]:1\"]}",
        &["switchml.listen[1]", "[::]:1 a second time"],
    );
    refused(&with("\"port\": 1"), &["switchml", "port"]);
    refused(
        &with("\"quiet_ports\": [\"net_null1\", \"z\"]"),
        &["switchml.quiet_ports[1]", "found `z`", "a, net_null1"],
    );
    refused(
        &with("\"sessions\": 0"),
        &["switchml.sessions", "found 0", "1 to 256"],
    );
    refused(&with("\"sessions\": 257"), &["switchml.sessions", "257"]);
    refused(
        &with("\"slots\": 16385"),
        &["switchml.slots", "16385", "1 (one for each core) to 16384"],
    );
    refused(&with("\"slots\": 0"), &["switchml.slots", "found 0"]);
    refused(
        &with("\"held\": 0"),
        &["switchml.held", "found 0", "frames"],
    );
    refused(
        &with("\"setup_timeout_s\": 0"),
        &["switchml.setup_timeout_s", "1 to 86400 seconds"],
    );
    refused(
        &with("\"idle_timeout_s\": 86401"),
        &["switchml.idle_timeout_s"],
    );
    let at = |port: u16| {
        let to = format!("\"ip\": \"10.84.0.254\", \"udp_port\": {port}");
        with_switchml("{\"listen\": [\"0.0.0.0:50099\"]}").replacen(
            "\"ip\": \"10.84.0.254\"",
            &to,
            1,
        )
    };
    for port in [48864, 48879] {
        let error = parse(&at(port)).expect_err("SwitchML's own");
        assert!(error.contains("address.udp_port"), "{error}");
        assert!(error.contains("48864 to 48879"), "{error}");
    }
    assert!(parse(&at(48863)).is_ok() && parse(&at(48880)).is_ok());
}

#[test]
fn what_is_left_out_is_as_in_a_value_made_here() {
    let mut of_file = parse(GOOD).unwrap();
    let address = AddressConfig::new(of_file.address.mac, of_file.address.ip);
    let mut named = PortSection::new("net_null0");
    named.name = Some("a".into());
    let mut made = Config::new(address, vec![named, PortSection::new("net_null1,size=64")]);
    let key = "00112233445566778899aabbccddeeff".parse().unwrap();
    made.jobs.push(JobSection::new(7, key, 4));
    assert_eq!(of_file, made);
    of_file = parse(&with_switchml(r#"{"listen": ["0.0.0.0:50099"]}"#)).unwrap();
    let listen = Listen::from("0.0.0.0:50099".parse::<SocketAddr>().unwrap());
    made.switchml = Some(SwitchmlSection::new(vec![listen]));
    assert_eq!(of_file, made);
}

/// Every key, none with its default.
const ALL: &str = r#"{
  "name": "rack7",
  "address": { "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254", "udp_port": 4000 },
  "eal": { "memory": "in-memory", "megabytes": 512, "log": "debug" },
  "cores": [2, 3],
  "control_core": 1,
  "ports": [
    { "name": "a", "device": "net_null0", "mtu": 9000, "descriptors": 512, "core": 1, "steering": "peer" },
    { "name": "card", "device": "net_null1", "mtu": 9000, "descriptors": 256, "core": 0, "steering": "handover" },
    { "name": "late", "device": "packet0,iface=eth9", "mtu": 9000, "descriptors": 256, "core": 0, "steering": "auto", "optional": true }
  ],
  "max_ports": 8,
  "lldp": false,
  "loop_guard": false,
  "pool": { "policy": "esa", "slots": 64, "ways": 4, "held": 128 },
  "queue": { "frames": 1024, "mark_frames": 128, "guard": 15 },
  "jobs": [
    {
      "id": 7, "key": "00112233445566778899aabbccddeeff", "workers": 2, "min_slots": 4, "max_slots": 8,
      "fixed": {
        "payload_bytes": 1024,
        "workers": [
          { "port": "a", "mac": "02:00:00:00:00:01", "ip": "10.84.0.1", "udp_port": 9 },
          { "port": "a", "mac": "02:00:00:00:00:02", "ip": "10.84.0.2", "udp_port": 9 }
        ],
        "ps": { "port": "a", "mac": "02:00:00:00:00:03", "ip": "10.84.0.3", "udp_port": 9 }
      }
    },
    { "id": 8, "key": "00112233445566778899aabbccdd0008", "workers": 4 }
  ],
  "switchml": {
    "listen": ["0.0.0.0:50099", { "address": "[::1]:50100", "workers": ["10.1.0.1", "10.2.0.9"] }],
    "allow": ["10.1.0.0/24", "10.2.0.9"],
    "sessions": 4, "slots": 1024, "held": 2048,
    "secret": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff",
    "quiet_ports": ["a"], "setup_timeout_s": 30, "idle_timeout_s": 60
  },
  "card": {
    "port": "card", "registers": { "bar": { "device": "0000:01:00.0", "resource": 2, "offset": 4096 } },
    "jobs": [8]
  },
  "window": 128,
  "member_timeout_ms": 2000,
  "limits": {
    "addresses": 64, "floods_per_s": 100, "broadcasts_per_s": 50, "multicasts_per_s": 60, "unknown_per_s": 70,
    "answers_per_s": 10
  },
  "mac_ageing_s": 60,
  "kernel": "scalar",
  "idle": "spin",
  "stats_socket": "/run/tally/switch/stats.sock",
  "stats_access": { "mode": "0600", "group": "tally" },
  "control": {
    "socket": "/run/tally/c.sock", "socket_mode": "0640", "group": "tally",
    "read_socket": "/run/tally/view.sock", "read_socket_mode": "0660",
    "tcp": {
      "listen": "10.84.1.1:31300", "certificate": "/etc/tally/switch.crt", "key": "/etc/tally/switch.key",
      "client_ca": "/etc/tally/ca.crt"
    }
  }
}"#;

#[test]
fn a_configuration_is_written_as_it_was_read() {
    parse(ALL).unwrap();
    round_trip::<Config>(ALL);
    let bytes = ALL.replace(r#""slots": 64, "ways""#, r#""bytes": 200000, "ways""#);
    let socket = bytes.replace(
        r#""bar": { "device": "0000:01:00.0", "resource": 2, "offset": 4096 }"#,
        r#""socket": "/run/card.sock""#,
    );
    let auto = socket.replace(r#""jobs": [8]"#, r#""jobs": "auto""#);
    let auto = auto.replace(r#""kernel": "scalar""#, r#""kernel": "auto""#);
    parse(&auto).unwrap();
    round_trip::<Config>(&auto);
}

#[test]
fn the_request_channel_is_closed_unless_it_is_asked_for() {
    assert_eq!(parse(GOOD).unwrap().control, None);
    let with = |control: &str| {
        let control = format!("\"control\": {control}, \"jobs\"");
        parse(&GOOD.replacen("\"jobs\"", &control, 1))
    };
    let control = with("{}").unwrap().control.unwrap();
    assert_eq!(control, ControlSection::default());
    assert_eq!(control.socket, Path::new("/run/tally/switch/control.sock"));
    assert_eq!(control.mode().0, 0o600, "root and the switch's user");
    let group = with(r#"{"group": "tally"}"#).unwrap().control.unwrap();
    assert_eq!(group.mode().0, 0o660);
    for (text, names) in [
        (r#"{"socket": "/"}"#, ["control.socket", "`/`"]),
        (r#"{"group": ""}"#, ["control.group", "name of a group"]),
        (
            r#"{"socket": "/a", "read_socket": "/a"}"#,
            ["control.read_socket", "a second time"],
        ),
        (
            r#"{"socket_mode": "rw"}"#,
            ["control.socket_mode", "\"0660\""],
        ),
        (
            r#"{"tcp": {"listen": "10.0.0.1:1"}}"#,
            ["control.tcp", "certificate"],
        ),
    ] {
        let error = with(text).expect_err(text);
        for name in names {
            assert!(
                error.contains(name),
                "{text}: `{error}` does not name `{name}`"
            );
        }
    }
}

#[test]
fn a_job_has_a_power_of_two_of_parameter_servers() {
    let with = |count: u8| {
        let job = format!(r#""workers": 4, "parameter_servers": {count}"#);
        parse(&GOOD.replace(r#""workers": 4"#, &job)).map(|config| config.jobs[0].clone())
    };
    assert_eq!(parse(GOOD).unwrap().jobs[0].parameter_servers, 1);
    for good in [1, 2, 4, 8, 16] {
        let job = with(good).unwrap();
        assert_eq!(job.parameter_servers, good);
        assert_eq!(job.may_be_on_card(), good == 1);
    }
    for bad in [0, 3, 17, 32] {
        let error = with(bad).unwrap_err();
        assert!(error.contains("jobs[0].parameter_servers"), "{error}");
        assert!(error.contains("1, 2, 4, 8 or 16"), "{error}");
    }
}

/// `GOOD` with a section of rings.
fn with_netreduce(section: &str) -> String {
    GOOD.replacen(
        "\"jobs\"",
        &format!("\"netreduce\": {section}, \"jobs\""),
        1,
    )
}

#[test]
fn rings_have_a_window_and_the_memory_for_it() {
    let key = "00112233445566778899aabbccddeeff";
    let ring = format!(r#"{{"id": 7, "key": "{key}", "members": ["10.0.0.1", "10.0.0.2"]}}"#);
    assert!(parse(GOOD).unwrap().rings().is_empty());
    assert_eq!(parse(GOOD).unwrap().netreduce_frames(), 0);
    let c = parse(&with_netreduce(&format!(r#"{{"rings": [{ring}]}}"#))).unwrap();
    let section = c.netreduce.as_ref().unwrap();
    assert_eq!((section.dscp, section.held), (28, 16384));
    assert_eq!(c.netreduce_frames(), 16384);
    let window = (c.rings()[0].window_messages, c.rings()[0].message_packets);
    assert_eq!(window, (2, 170));
    assert_eq!(c.rings()[0].ring(None).held_max(), 4 * 170 * 2);
}

#[test]
fn every_mistake_in_a_ring_is_named() {
    #[track_caller]
    fn refused(section: &str, names: &[&str]) {
        let error = parse(&with_netreduce(section)).expect_err(section);
        for name in names {
            assert!(error.contains(name), "`{error}` does not name `{name}`");
        }
    }
    let ring = |id: u32, rest: &str| {
        format!(r#"{{"id": {id}, "key": "00112233445566778899aabbccddeeff", {rest}}}"#)
    };
    let two = r#""members": ["10.0.0.1", "10.0.0.2"]"#;
    let rings = |rings: &[String]| format!(r#"{{"rings": [{}]}}"#, rings.join(", "));
    let with = |rest: &str| rings(&[ring(7, &format!("{two}, {rest}"))]);
    refused(
        r#"{"dscp": 64}"#,
        &["netreduce.dscp", "found 64", "0 to 63"],
    );
    refused(r#"{"held": 0}"#, &["netreduce.held", "found 0"]);
    refused(
        &rings(&[ring(7, two), ring(7, two)]),
        &["netreduce.rings[1].id", "7 a second time"],
    );
    refused(
        &rings(&[ring(7, r#""members": ["10.0.0.1"]"#)]),
        &["netreduce.rings[0].members", "1 members", "2 to 64"],
    );
    refused(
        &rings(&[ring(7, r#""members": ["10.0.0.1", "10.0.0.1"]"#)]),
        &["netreduce.rings[0].members", "10.0.0.1 a second time"],
    );
    refused(
        &with(r#""window_messages": 17"#),
        &["rings[0].window_messages", "found 17", "1 to 16"],
    );
    refused(
        &with(r#""message_packets": 0"#),
        &["rings[0].message_packets", "found 0", "1 to 4096"],
    );
    refused(
        &with(r#""message_packets": 4096"#),
        &["netreduce.held", "ring 7", "32768 frames"],
    );
    refused(&with(r#""window": 2"#), &["window"]);
}
