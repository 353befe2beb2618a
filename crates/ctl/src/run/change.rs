//! Commands that change the switch.

use super::print;
use crate::args::{
    Command, Expect, Job, Key, Limit, Port, Ring, TargetArguments, Tenant, TenantLimits, Tree,
};
use crate::session::{Failure, Session};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tally_api::proto::{
    AddJobRequest, AddPortRequest, AddRingRequest, Changed, Child, DrainJobRequest,
    Job as JobMessage, JobRequest, Port as PortMessage, ReloadRequest, RemoveRingRequest,
    Ring as RingMessage, RingLeaf, RingTree, RotateKeyRequest, RotateTenantKeyRequest,
    SetJobRequest, SetPortRequest, Tenant as TenantMessage, TenantNameRequest, TenantRequest,
    Tree as TreeMessage,
};
use tally_program::table::plain;
use tonic::{Response, Status};

/// Bytes of the longest file of a key: 128 digits, and lines around them.
const KEY_FILE_MAX: u64 = 1024;

/// Makes one change, and says what the switch made of it.
pub(super) async fn change(at: &TargetArguments, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Job(job) => self::job(at, job).await,
        Command::Key(key) => self::key(at, key).await,
        Command::Port(port) => self::port(at, port).await,
        Command::Ring(ring) => self::ring(at, ring).await,
        Command::Tenant(tenant) => self::tenant(at, tenant).await,
        Command::Reload { expect } => {
            let mut session = Session::open(at).await?;
            let request = ReloadRequest {
                expected_version: expect.expect,
            };
            let answer = session.client.control.reload(request).await;
            session.print_change(answer, expect.json)
        }
        // The others are no changes.
        _ => Ok(()),
    }
}

async fn job(at: &TargetArguments, job: &Job) -> Result<(), Failure> {
    match job {
        Job::Add {
            id,
            workers,
            key_file,
            min_slots,
            max_slots,
            parameter_servers,
            tree,
            expect,
        } => {
            let job = JobMessage {
                id: (*id).into(),
                key: read_key(key_file)?,
                workers: (*workers).into(),
                min_slots: *min_slots,
                max_slots: *max_slots,
                parameter_servers: parameter_servers.map(Into::into),
                tree: tree_message(tree),
            };
            let mut session = Session::open(at).await?;
            let request = AddJobRequest {
                job: Some(job),
                expected_version: expect.expect,
            };
            let answer = session.client.control.add_job(request).await;
            session.print_change(answer, expect.json)
        }
        Job::Set {
            id,
            workers,
            min_slots,
            max_slots,
            expect,
        } => {
            let mut session = Session::open(at).await?;
            let request = SetJobRequest {
                id: (*id).into(),
                workers: workers.map(Into::into),
                min_slots: min_slots.and_then(Limit::number),
                max_slots: max_slots.and_then(Limit::number),
                default_min_slots: *min_slots == Some(Limit::Default),
                default_max_slots: *max_slots == Some(Limit::Default),
                expected_version: expect.expect,
            };
            let answer = session.client.control.set_job(request).await;
            session.print_change(answer, expect.json)
        }
        Job::Remove { id, expect } => {
            let mut session = Session::open(at).await?;
            let answer = session.client.control.remove_job(named(*id, expect)).await;
            session.print_change(answer, expect.json)
        }
        Job::Drain { id, undo, expect } => {
            let mut session = Session::open(at).await?;
            let request = DrainJobRequest {
                id: (*id).into(),
                undo: *undo,
                expected_version: expect.expect,
            };
            let answer = session.client.control.drain_job(request).await;
            session.print_change(answer, expect.json)
        }
    }
}

/// The place of the switch in the job's tree, if it has one.
fn tree_message(tree: &Tree) -> Option<TreeMessage> {
    let children = tree.child.iter().map(|(switch, ranks)| Child {
        switch: switch.clone(),
        ranks: (*ranks).into(),
    });
    Some(TreeMessage {
        total: tree.total?.into(),
        first: tree.first.into(),
        parent: tree.parent.clone(),
        rank: tree.rank.map(Into::into),
        children: children.collect(),
    })
}

async fn key(at: &TargetArguments, key: &Key) -> Result<(), Failure> {
    match key {
        Key::Rotate {
            id,
            key_file,
            expect,
        } => {
            let key = read_key(key_file)?;
            let mut session = Session::open(at).await?;
            let request = RotateKeyRequest {
                id: (*id).into(),
                key,
                expected_version: expect.expect,
            };
            let answer = session.client.control.rotate_key(request).await;
            session.print_change(answer, expect.json)
        }
        Key::Retire { id, expect } => {
            let mut session = Session::open(at).await?;
            let answer = session.client.control.retire_key(named(*id, expect)).await;
            session.print_change(answer, expect.json)
        }
    }
}

async fn port(at: &TargetArguments, port: &Port) -> Result<(), Failure> {
    let (name, up, expect) = match port {
        Port::Add {
            name,
            device,
            mtu,
            descriptors,
            core,
            expect,
        } => {
            let request = AddPortRequest {
                port: Some(PortMessage {
                    name: Some(name.clone()),
                    device: device.clone(),
                    mtu: mtu.map(Into::into),
                    descriptors: descriptors.map(Into::into),
                    core: core.map(Into::into),
                }),
                expected_version: expect.expect,
            };
            let mut session = Session::open(at).await?;
            let answer = session.client.control.add_port(request).await;
            return session.print_change(answer, expect.json);
        }
        Port::Up { name, expect } => (name, true, expect),
        Port::Down { name, expect } => (name, false, expect),
    };
    let request = SetPortRequest {
        name: name.clone(),
        up,
        expected_version: expect.expect,
    };
    let mut session = Session::open(at).await?;
    let answer = session.client.control.set_port(request).await;
    session.print_change(answer, expect.json)
}

async fn ring(at: &TargetArguments, ring: &Ring) -> Result<(), Failure> {
    match ring {
        Ring::Add {
            id,
            members,
            key_file,
            window_messages,
            message_packets,
            root,
            leaves,
            expect,
        } => {
            let leaf = |(switch, members): &(String, u8)| RingLeaf {
                switch: switch.clone(),
                members: (*members).into(),
            };
            let tree = root.as_ref().map(|root| RingTree {
                root: root.clone(),
                leaves: leaves.iter().map(leaf).collect(),
            });
            let request = AddRingRequest {
                ring: Some(RingMessage {
                    id: *id,
                    key: read_key(key_file)?,
                    members: members.iter().map(ToString::to_string).collect(),
                    window_messages: window_messages.map(Into::into),
                    message_packets: message_packets.map(Into::into),
                    tree,
                }),
                expected_version: expect.expect,
            };
            let mut session = Session::open(at).await?;
            let answer = session.client.control.add_ring(request).await;
            session.print_change(answer, expect.json)
        }
        Ring::Remove { id, expect } => {
            let request = RemoveRingRequest {
                id: *id,
                expected_version: expect.expect,
            };
            let mut session = Session::open(at).await?;
            let answer = session.client.control.remove_ring(request).await;
            session.print_change(answer, expect.json)
        }
    }
}

async fn tenant(at: &TargetArguments, tenant: &Tenant) -> Result<(), Failure> {
    match tenant {
        Tenant::Add {
            name,
            key_file,
            limits,
            expect,
        } => {
            let request = tenant_request(name, read_key(key_file)?, limits, expect);
            let mut session = Session::open(at).await?;
            let answer = session.client.control.add_tenant(request).await;
            session.print_change(answer, expect.json)
        }
        Tenant::Set {
            name,
            limits,
            expect,
        } => {
            let request = tenant_request(name, String::new(), limits, expect);
            let mut session = Session::open(at).await?;
            let answer = session.client.control.set_tenant(request).await;
            session.print_change(answer, expect.json)
        }
        Tenant::Remove { name, expect } => {
            let mut session = Session::open(at).await?;
            let request = tenant_named(name, expect);
            let answer = session.client.control.remove_tenant(request).await;
            session.print_change(answer, expect.json)
        }
        Tenant::Rotate {
            name,
            key_file,
            expect,
        } => {
            let request = RotateTenantKeyRequest {
                name: name.clone(),
                key: read_key(key_file)?,
                expected_version: expect.expect,
            };
            let mut session = Session::open(at).await?;
            let answer = session.client.control.rotate_tenant_key(request).await;
            session.print_change(answer, expect.json)
        }
        Tenant::Retire { name, expect } => {
            let mut session = Session::open(at).await?;
            let request = tenant_named(name, expect);
            let answer = session.client.control.retire_tenant_key(request).await;
            session.print_change(answer, expect.json)
        }
    }
}

fn tenant_request(
    name: &str,
    key: String,
    limits: &TenantLimits,
    expect: &Expect,
) -> TenantRequest {
    TenantRequest {
        tenant: Some(TenantMessage {
            name: name.to_owned(),
            key,
            jobs: limits.jobs.clone(),
            max_jobs: limits.max_jobs.map(Into::into),
            max_workers: limits.max_workers.map(Into::into),
            max_slots: limits.max_slots,
        }),
        expected_version: expect.expect,
    }
}

fn tenant_named(name: &str, expect: &Expect) -> TenantNameRequest {
    TenantNameRequest {
        name: name.to_owned(),
        expected_version: expect.expect,
    }
}

fn named(id: u16, expect: &Expect) -> JobRequest {
    JobRequest {
        id: id.into(),
        expected_version: expect.expect,
    }
}

impl Session {
    /// Prints what a change came to.
    fn print_change(
        &self,
        answer: Result<Response<Changed>, Status>,
        as_json: bool,
    ) -> Result<(), Failure> {
        let changed = answer.map_err(self.failed())?.into_inner();
        let text = if as_json {
            json(&changed)
        } else {
            lines(&changed)
        };
        print(&text).map(drop)
    }
}

/// What a change came to, for people.
fn lines(changed: &Changed) -> String {
    let version = changed.version;
    let mut text = String::new();
    for line in &changed.changes {
        text += &format!("{}\n", plain(line));
    }
    text += &if changed.changed {
        format!("configuration version {version}\n")
    } else {
        format!("nothing to change, configuration version {version}\n")
    };
    for line in &changed.needs_restart {
        text += &format!("needs a restart: {}\n", plain(line));
    }
    text
}

/// The same as one line of JSON.
fn json(changed: &Changed) -> String {
    #[derive(serde::Serialize)]
    struct Line<'a> {
        version: u64,
        changed: bool,
        changes: &'a [String],
        needs_restart: &'a [String],
    }
    let line = Line {
        version: changed.version,
        changed: changed.changed,
        changes: &changed.changes,
        needs_restart: &changed.needs_restart,
    };
    // Strings, numbers and lists: nothing that JSON cannot say.
    simd_json::to_string(&line).unwrap_or_default() + "\n"
}

/// A key from a file that others cannot read, or from standard input. It never is in an error.
fn read_key(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let failed = |error: io::Error| Failure::Usage(format!("{name}: {error}"));
    let mut text = String::new();
    if path == Path::new("-") {
        let mut input = io::stdin().take(KEY_FILE_MAX);
        input.read_to_string(&mut text).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let mode = found.permissions().mode() & 0o7777;
        // A pipe of the shell's is no file.
        if found.is_file() && mode & 0o077 != 0 {
            return Err(Failure::Usage(format!(
                "{name}: mode {mode:04o} lets other users read the key, expected 0600 (chmod 600 {name})"
            )));
        }
        file.take(KEY_FILE_MAX)
            .read_to_string(&mut text)
            .map_err(failed)?;
    }
    let key = text.trim();
    if key.is_empty() {
        let text = format!("{name}: empty, expected a key of 32 to 128 hexadecimal digits");
        return Err(Failure::Usage(text));
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests;
