//! What a reload applies, and what it says needs a restart.

use super::super::{
    AddressConfig, FabricSection, IdRange, LinkSection, NetreduceSection, PortSection,
};
use super::*;
use tally_wire::{Key, Mac};

fn key(byte: u8) -> Key {
    Key::new(&[byte; 16]).unwrap()
}

fn config() -> Config {
    let address = AddressConfig::new(Mac([2, 0, 0, 0, 0, 1]), [10, 0, 0, 254].into());
    let mut config = Config::new(address, vec![PortSection::new("net_null0")]);
    config.jobs = vec![JobSection::new(7, key(7), 2), JobSection::new(8, key(8), 2)];
    config
}

fn tenant() -> TenantSection {
    TenantSection {
        name: "lab".into(),
        key: key(9),
        previous_key: None,
        jobs: vec![IdRange {
            first: 100,
            last: 199,
        }],
        max_jobs: 2,
        max_workers: 8,
        max_slots: None,
    }
}

#[test]
fn what_is_alike_does_not_differ() {
    let changes = Config::diff(&config(), &config());
    assert_eq!(changes, Changes::default());
    assert!(changes.is_empty());
}

#[test]
fn rings_are_applied_and_told() {
    let ring = |id, byte| RingSection::new(id, key(byte), vec![[10, 0, 0, 1].into(); 2]);
    let with = |rings: Vec<RingSection>| {
        let mut config = config();
        config.netreduce = Some(NetreduceSection {
            rings,
            ..NetreduceSection::default()
        });
        config
    };
    let before = with(vec![ring(1, 1), ring(2, 2)]);
    let mut other = ring(2, 3);
    other.window_messages = 4;
    let after = with(vec![other, ring(3, 3)]);
    let changes = Config::diff(&before, &after);
    let lines = [
        "ring 1: removed",
        "ring 2: begins anew: key replaced, window_messages 2 to 4",
        "ring 3: added, 2 members",
    ];
    assert_eq!(changes.lines(), lines);
    assert_eq!(changes.restart, []);
    assert_eq!(before.with(&changes), after);

    let changes = Config::diff(&config(), &after);
    assert!(changes.is_empty());
    assert_eq!(changes.restart[0].key, "netreduce");
}

#[test]
fn jobs_and_tenants_are_applied_and_told() {
    let mut after = config();
    after.jobs.remove(0);
    after.jobs[0].previous_key = Some(std::mem::replace(&mut after.jobs[0].key, key(0x18)));
    after.jobs[0].workers = 4;
    after.jobs[0].max_slots = Some(64);
    after.jobs.push(JobSection::new(9, key(0x19), 3));
    after.tenants.push(tenant());
    after.member_timeout_ms = 2000;
    let changes = Config::diff(&config(), &after);
    let lines = [
        "job 7: removed",
        "job 8: key rotated, the one before stays valid, workers 2 to 4, max_slots none to 64",
        "job 9: added, 3 workers",
        "tenant lab: added",
        "member_timeout_ms: set to 2000",
    ];
    assert_eq!(changes.lines(), lines);
    assert_eq!(changes.restart, []);
    assert_eq!(config().with(&changes), after);
    // Back again, and no key in any line.
    let back = Config::diff(&after, &config());
    // But for their order.
    assert_eq!(
        Config::diff(&after.with(&back), &config()),
        Changes::default()
    );
    let text = format!("{:?}{:?}", changes.lines(), back.lines());
    assert!(!text.contains("0808") && !text.contains("1818"), "{text}");
}

#[test]
fn a_retired_key_and_a_replaced_one_are_told_apart() {
    let line = |before: (u8, Option<u8>), after: (u8, Option<u8>)| {
        let of = |(now, previous): (u8, Option<u8>)| {
            let mut config = config();
            config.jobs[0].key = key(now);
            config.jobs[0].previous_key = previous.map(key);
            config
        };
        Config::diff(&of(before), &of(after)).lines().concat()
    };
    assert!(line((1, None), (2, Some(1))).contains("key rotated"));
    assert!(line((1, Some(3)), (1, None)).contains("previous key retired"));
    assert!(line((1, None), (2, None)).contains("key replaced"));
    assert!(line((1, None), (1, Some(3))).contains("previous key set"));
}

#[test]
fn all_else_needs_a_restart_and_is_named() {
    let mut after = config();
    after.window = 64;
    after.pool.slots = Some(128);
    after.ports[0].mtu = 9000;
    let changes = Config::diff(&config(), &after);
    assert!(changes.is_empty());
    let lines: Vec<_> = changes.restart.iter().map(ToString::to_string).collect();
    let expected = [
        "pool.slots: running with the default, found 128",
        "ports[0].mtu: running with 1500, found 9000",
        "window: running with 256, found 64",
    ];
    assert_eq!(lines, expected);
    assert_eq!(config().with(&changes), config(), "it is not applied");
    // A port more.
    let mut after = config();
    after.ports.push(PortSection::new("net_null1"));
    let changes = Config::diff(&config(), &after);
    assert_eq!(changes.restart[0].key, "ports");
}

#[test]
fn a_tenant_beside_jobs_is_checked() {
    let check = |edit: fn(&mut Config)| {
        let mut config = config();
        config.tenants.push(tenant());
        edit(&mut config);
        config
            .check(Path::new("f"))
            .map_err(|error| error.to_string())
    };
    use std::path::Path;
    assert_eq!(check(|_| {}), Ok(()));
    let refused = |edit: fn(&mut Config), words: &str| {
        let error = check(edit).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    refused(|c| c.tenants[0].jobs[0].first = 8, "tenants[0].jobs");
    refused(|c| c.tenants.push(tenant()), "a name of its own");
    refused(|c| c.tenants[0].max_jobs = 0, "tenants[0].max_jobs");
    refused(|c| c.tenants[0].previous_key = Some(key(9)), "previous_key");
    refused(|c| c.pool.max_jobs = Some(3), "pool.max_jobs");
    refused(|c| c.tenants[0].max_jobs = 254, "at most 255");
    refused(
        |c| {
            let mut other = tenant();
            other.name = "other".into();
            other.jobs = vec![IdRange {
                first: 150,
                last: 250,
            }];
            c.tenants.push(other);
        },
        "meets 100-199",
    );
}

#[test]
fn memory_is_measured_for_jobs_that_come_later() {
    let before = config();
    assert_eq!(before.places(), 2 + 4);
    let mut with_tenant = config();
    with_tenant.tenants.push(tenant());
    assert_eq!(with_tenant.places(), 2 + 2 + 4);
    // What was measured stays when jobs go.
    let mut measured = with_tenant.measured();
    let (held, slots) = (measured.held(), measured.slots());
    measured.jobs.clear();
    measured.tenants.clear();
    assert_eq!(
        (measured.held(), measured.slots(), measured.places()),
        (held, slots, 8)
    );
}

#[test]
fn a_fabric_needs_a_restart_and_its_key_is_not_shown() {
    let before = config();
    let mut after = config();
    let link = LinkSection::new("net_null0", "spine1", true);
    after.fabric = Some(FabricSection::new(key(0x5a), vec![link]));
    let lines = |before: &Config, after: &Config| {
        let restart = Config::diff(before, after).restart;
        let lines: Vec<_> = restart.iter().map(ToString::to_string).collect();
        assert!(!lines.concat().contains("5a5a"), "{lines:?}");
        lines
    };
    let [added] = &lines(&before, &after)[..] else {
        panic!("one key");
    };
    assert!(
        added.starts_with("fabric: running with the default, found {"),
        "{added}"
    );
    assert_eq!(lines(&after, &before).len(), 1);
    let mut other = after.clone();
    if let Some(fabric) = &mut other.fabric {
        fabric.key = key(0x6b);
        fabric.previous_key = Some(key(0x5a));
    }
    let found = lines(&after, &other);
    assert_eq!(
        found,
        [
            "fabric.key: running with another one, found another one",
            "fabric.previous_key: running with the default, found another one"
        ]
    );
}
