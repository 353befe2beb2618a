//! From messages to the configuration's types. What is wrong is refused by its key in the
//! configuration; a key is in no text.

use crate::config::{
    ChildSection, Config, JobSection, PortSection, RingLeafSection, RingSection, RingTreeSection,
    TenantSection, TreeSection,
};
use crate::control::change::JobPatch;
use std::fmt::Display;
use tally_api::proto::{Job, Port, Ring, RingLeaf, SetJobRequest, Tenant, Tree};
use tally_wire::Key;
use tonic::Status;

fn wrong(what: &str, found: impl Display, allowed: &str) -> Status {
    Status::invalid_argument(format!("{what}: found {found}, expected {allowed}"))
}

/// A job's number.
pub(super) fn id(id: u32) -> Result<u16, Status> {
    u16::try_from(id).map_err(|_| wrong("job", id, "0 to 65535"))
}

fn workers(workers: u32) -> Result<u8, Status> {
    u8::try_from(workers).map_err(|_| wrong("workers", workers, "1 to 64"))
}

/// A key in hexadecimal digits.
pub(super) fn key(digits: &str) -> Result<Key, Status> {
    let found = format!("{} characters that are no key", digits.chars().count());
    let allowed = "32 to 128 hexadecimal digits (openssl rand -hex 16)";
    digits.parse().map_err(|_| wrong("key", found, allowed))
}

/// A job of its own.
pub(super) fn job(job: Option<Job>) -> Result<JobSection, Status> {
    let job = job.ok_or_else(|| wrong("job", "none", "one"))?;
    let servers = job.parameter_servers.unwrap_or(1);
    let is_no_count = |_| wrong("parameter_servers", servers, "1, 2, 4, 8 or 16");
    Ok(JobSection {
        parameter_servers: u8::try_from(servers).map_err(is_no_count)?,
        tree: job.tree.map(tree).transpose()?,
        min_slots: job.min_slots,
        max_slots: job.max_slots,
        ..JobSection::new(id(job.id)?, key(&job.key)?, workers(job.workers)?)
    })
}

/// The place of this switch in the tree of a job.
fn tree(tree: Tree) -> Result<TreeSection, Status> {
    let number =
        |what: &str, found: u32| u16::try_from(found).map_err(|_| wrong(what, found, "0 to 65535"));
    let children = tree.children.into_iter().map(|child| {
        Ok::<_, Status>(ChildSection {
            ranks: number("tree.children.ranks", child.ranks)?,
            switch: child.switch,
        })
    });
    let rank = |rank| u8::try_from(rank).map_err(|_| wrong("tree.rank", rank, "0 to 63"));
    Ok(TreeSection {
        total: number("tree.total", tree.total)?,
        first: number("tree.first", tree.first)?,
        parent: tree.parent,
        children: children.collect::<Result<_, _>>()?,
        rank: tree.rank.map(rank).transpose()?,
    })
}

/// What of a job is set.
pub(super) fn patch(request: &SetJobRequest) -> Result<JobPatch, Status> {
    let limit = |slots: Option<u32>, is_default: bool| match (slots, is_default) {
        (None, false) => None,
        (slots, _) => Some(slots),
    };
    Ok(JobPatch {
        workers: request.workers.map(workers).transpose()?,
        min_slots: limit(request.min_slots, request.default_min_slots),
        max_slots: limit(request.max_slots, request.default_max_slots),
    })
}

/// A tenant; without a key in the message, with those that it has now.
pub(super) fn tenant(
    tenant: Option<Tenant>,
    running: Option<&Config>,
) -> Result<TenantSection, Status> {
    let tenant = tenant.ok_or_else(|| wrong("tenant", "none", "one"))?;
    let known = running.map(|config| {
        let known = config.tenants.iter().find(|it| it.name == tenant.name);
        let missing = || Status::not_found(format!("tenant {}: not there", tenant.name));
        known.ok_or_else(missing)
    });
    let known = known.transpose()?;
    let (key, previous_key) = match known {
        Some(known) if tenant.key.is_empty() => (known.key.clone(), known.previous_key.clone()),
        _ => (key(&tenant.key)?, None),
    };
    let jobs = tenant.jobs.iter().map(|range| {
        let range = range.parse();
        range.map_err(|why| Status::invalid_argument(format!("jobs: {why}")))
    });
    let of = |name: &str, number: Option<u32>, default: u16| match number {
        None => Ok(default),
        Some(n) => u16::try_from(n).map_err(|_| wrong(name, n, "0 to 65535")),
    };
    let mut section = TenantSection::new(&tenant.name, key, jobs.collect::<Result<_, _>>()?);
    section.previous_key = previous_key;
    // What is left out stays, or is as by default.
    let before = known.unwrap_or(&section);
    let (jobs, workers) = (before.max_jobs, before.max_workers);
    let slots = tenant.max_slots.or(before.max_slots);
    section.max_jobs = of("max_jobs", tenant.max_jobs, jobs)?;
    section.max_workers = of("max_workers", tenant.max_workers, workers)?;
    section.max_slots = slots;
    Ok(section)
}

/// A ring, as an entry of `netreduce.rings`.
pub(super) fn ring(ring: Option<Ring>) -> Result<RingSection, Status> {
    let ring = ring.ok_or_else(|| wrong("ring", "none", "one"))?;
    let member = |text: &String| {
        let parsed = text.parse();
        parsed.map_err(|_| wrong("members", format!("`{text}`"), "IPv4 addresses"))
    };
    let members = ring.members.iter().map(member).collect::<Result<_, _>>()?;
    let mut section = RingSection::new(ring.id, key(&ring.key)?, members);
    if let Some(messages) = ring.window_messages {
        let is_no_count = |_| wrong("window_messages", messages, "1 to 16");
        section.window_messages = u8::try_from(messages).map_err(is_no_count)?;
    }
    if let Some(packets) = ring.message_packets {
        let is_no_count = |_| wrong("message_packets", packets, "1 to 4096");
        section.message_packets = u16::try_from(packets).map_err(is_no_count)?;
    }
    if let Some(tree) = ring.tree {
        let leaf = |leaf: RingLeaf| {
            let is_no_count = |_| wrong("tree.leaves.members", leaf.members, "1 to 64");
            let members = u8::try_from(leaf.members).map_err(is_no_count)?;
            let switch = leaf.switch;
            Ok(RingLeafSection { switch, members })
        };
        let leaves = tree.leaves.into_iter().map(leaf);
        section.tree = Some(RingTreeSection {
            root: tree.root,
            leaves: leaves.collect::<Result<_, Status>>()?,
        });
    }
    Ok(section)
}

/// A port, as an entry of `ports`.
pub(super) fn port(port: Option<Port>) -> Result<PortSection, Status> {
    let port = port.ok_or_else(|| wrong("port", "none", "one"))?;
    let mut section = PortSection::new(port.device);
    section.name = port.name;
    let of = |name: &str, number: Option<u32>, default: u16| match number {
        None => Ok(default),
        Some(n) => u16::try_from(n).map_err(|_| wrong(name, n, "0 to 65535")),
    };
    section.mtu = of("mtu", port.mtu, section.mtu)?;
    section.descriptors = of("descriptors", port.descriptors, section.descriptors)?;
    section.core = port.core.map(|core| core as usize);
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn a_key_that_is_none_is_in_no_text() {
        let why = key("c0ffee-secret").unwrap_err();
        assert!(!why.message().contains("c0ffee"), "{why}");
        assert!(why.message().contains("13 characters"), "{why}");
        assert!(key(KEY).is_ok());
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_by_name() {
        let of = |id, workers| Job {
            id,
            workers,
            key: KEY.into(),
            ..Job::default()
        };
        assert!(
            job(Some(of(70_000, 2)))
                .unwrap_err()
                .message()
                .starts_with("job: found 70000")
        );
        assert!(
            job(Some(of(7, 300)))
                .unwrap_err()
                .message()
                .starts_with("workers: found 300")
        );
        assert!(job(None).is_err());
        assert_eq!(
            job(Some(of(7, 2))).unwrap(),
            JobSection::new(7, KEY.parse().unwrap(), 2)
        );
    }

    #[test]
    fn a_limit_is_left_set_or_as_by_default() {
        let request = SetJobRequest {
            min_slots: Some(4),
            default_max_slots: true,
            ..SetJobRequest::default()
        };
        let patch = patch(&request).unwrap();
        assert_eq!(
            (patch.min_slots, patch.max_slots),
            (Some(Some(4)), Some(None))
        );
        assert_eq!(patch.workers, None);
    }
}
