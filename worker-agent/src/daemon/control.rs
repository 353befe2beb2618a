//! The agent's control socket: the calls of [`proto`](crate::control::proto) on a thread of their
//! own.
//!
//! The handlers decide nothing. Each puts an order into a bounded queue of the agent's thread, and
//! waits for what comes of it. Who may call is decided twice: by the mode of the socket file, and
//! by the user whom the kernel names for the connection.

use super::live::{Change, Refusal};
use super::orders::{Answer, Asked, Order, OrderError};
use crate::config::{AgentConfig, AgentJob, RANKS_PER_HOST_MAX};
use crate::control::proto::agent_server::{Agent, AgentServer};
use crate::control::proto::{
    AddJobRequest, Changed, DrainReply, DrainRequest, Job, JobLine, ListJobsReply, ListJobsRequest,
    ReloadRequest, RemoveJobRequest, SetJobRequest, UpgradeReply, UpgradeRequest,
};
use crate::error::AgentError;
use crate::log::Log;
use crossbeam_channel::{Receiver, Sender, bounded};
use nix::unistd::{Gid, Group, Uid, User, geteuid, getgrouplist};
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tally_local::LocalError;
use tally_wire::MAX_TREE_WORKERS;
use tokio::net::unix::UCred;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

/// Orders that may wait.
const ORDERS_MAX: usize = 64;
/// Calls of one connection at a time.
const CALLS_MAX: u32 = 16;
/// Bytes of the longest message.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Silence after which a connection is pinged, and after which again it is closed.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The control socket, whose file goes with it.
pub(super) struct ControlSocket {
    path: PathBuf,
    /// Of the file, which a successor might have put in place of ours.
    file: (u64, u64),
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at `path`, in place of an agent that ended or has retired. Only the agent that holds
    /// the lock of its socket calls this. The orders come from the receiver.
    ///
    /// # Errors
    /// If the socket cannot be used, or there is no such group.
    pub(super) fn open(
        path: PathBuf,
        config: &AgentConfig,
        log: Log,
    ) -> Result<(Self, Receiver<Asked>), AgentError> {
        let group = config.control.group.as_deref().map(group_of).transpose()?;
        let failed = |why: io::Error| LocalError::Listen {
            path: path.clone(),
            problem: why.to_string(),
        };
        let (listener, file) = listen(&path, group).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (orders, queue) = bounded(ORDERS_MAX);
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            let desk = AgentServer::new(Desk { orders, group })
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            Server::builder()
                .max_concurrent_streams(Some(CALLS_MAX))
                .http2_keepalive_interval(Some(KEEPALIVE))
                .http2_keepalive_timeout(Some(KEEPALIVE))
                .serve_with_incoming_shutdown(desk, UnixListenerStream::new(listener), async {
                    // Also if the sender is gone.
                    let _ = stopped.await;
                })
                .await
                .map_err(io::Error::other)
        };
        let run = move || {
            if let Err(error) = runtime.block_on(serve) {
                log.error(format_args!("the control socket: {error}"));
            }
        };
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(run)
            .map_err(failed)?;
        let socket = Self {
            path: path.clone(),
            file,
            stop: Some(stop),
            thread: Some(thread),
        };
        Ok((socket, queue))
    }
}

impl ControlSocket {
    /// Takes no new connections. The thread ends when calls that wait have their answers.
    pub(super) fn close(mut self) -> Option<JoinHandle<()>> {
        self.thread.take()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if is_ours {
            // It may have ended since.
            let _ = fs::remove_file(&self.path);
        }
        if let Some(stop) = self.stop.take() {
            // It may have failed.
            let _ = stop.send(());
        }
    }
}

fn group_of(name: &str) -> Result<Gid, AgentError> {
    let found = Group::from_name(name).ok().flatten();
    found.map(|it| it.gid).ok_or_else(|| {
        AgentError::Options(format!(
            "control.group: there is no group `{name}` on this host (groupadd)"
        ))
    })
}

/// A socket at `path` that has its mode before it has its name.
fn listen(path: &Path, group: Option<Gid>) -> io::Result<(UnixListener, (u64, u64))> {
    if let Ok(found) = fs::symlink_metadata(path)
        && !found.file_type().is_socket()
    {
        return Err(io::Error::other(
            "there is a file that is no socket; remove it, or choose another `control.socket`",
        ));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    // Of a process of our number that was killed.
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    let named = || {
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(&new, Permissions::from_mode(mode))?;
        if let Some(group) = group {
            std::os::unix::fs::chown(&new, None, Some(group.as_raw()))?;
        }
        listener.set_nonblocking(true)?;
        let found = fs::symlink_metadata(&new)?;
        fs::rename(&new, path)?;
        Ok((found.dev(), found.ino()))
    };
    match named() {
        Ok(file) => Ok((listener, file)),
        Err(error) => {
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

/// Whether a peer may call: root, the agent's user, and members of the group.
fn may_call(peer: Option<&UCred>, group: Option<Gid>) -> bool {
    let Some(peer) = peer else {
        return false;
    };
    let uid = Uid::from_raw(peer.uid());
    if uid.is_root() || uid == geteuid() {
        return true;
    }
    let Some(group) = group else {
        return false;
    };
    let gid = Gid::from_raw(peer.gid());
    let is_member = || {
        let user = User::from_uid(uid).ok().flatten()?;
        let name = CString::new(user.name).ok()?;
        Some(getgrouplist(&name, gid).ok()?.contains(&group))
    };
    gid == group || is_member().unwrap_or(false)
}

/// The one that answers.
struct Desk {
    orders: Sender<Asked>,
    group: Option<Gid>,
}

impl Desk {
    /// What the agent's thread makes of an order of someone who may give it.
    async fn ask<T>(
        &self,
        request: &Request<T>,
        order: Order,
        expected: Option<u64>,
    ) -> Result<Answer, Status> {
        let peer = request.extensions().get::<UdsConnectInfo>();
        let peer = peer.and_then(|it| it.peer_cred.as_ref());
        if !may_call(peer, self.group) {
            return Err(Status::permission_denied(format!(
                "user {} may not change this agent; call it as root or user {}, or be in the group `control.group` \
                 of its configuration",
                peer.map_or("unknown".into(), |it| it.uid().to_string()),
                geteuid()
            )));
        }
        let (sender, answer) = oneshot::channel();
        let reply = move |outcome| {
            // The caller may have gone.
            let _ = sender.send(outcome);
        };
        let asked = Asked {
            order,
            expected,
            reply: Box::new(reply),
        };
        self.orders.try_send(asked).map_err(|why| {
            if why.is_full() {
                Status::resource_exhausted("the agent has too many requests; try again")
            } else {
                Status::unavailable("the agent ends")
            }
        })?;
        match answer.await {
            Ok(outcome) => outcome.map_err(status),
            Err(_) => Err(Status::unavailable("the agent has ended")),
        }
    }
}

fn status(error: OrderError) -> Status {
    let text = error.to_string();
    match error {
        OrderError::Refused(Refusal::Config(_)) => Status::invalid_argument(text),
        OrderError::Refused(Refusal::Version { .. }) => Status::aborted(text),
        OrderError::Refused(Refusal::Differs { .. }) => Status::already_exists(text),
        OrderError::Refused(Refusal::NoJob { .. }) => Status::not_found(text),
        OrderError::Upgrading(_) | OrderError::OnePort | OrderError::Upgrade(_) => {
            Status::failed_precondition(text)
        }
    }
}

fn changed(answer: Answer) -> Response<Changed> {
    Response::new(Changed {
        version: answer.version,
        changes: answer.changes.applied,
        needs_restart: answer.changes.needs_restart,
    })
}

/// A job that a call names, as the configuration has it.
fn job_of(job: Option<Job>) -> Result<AgentJob, Status> {
    let job = job.ok_or_else(|| Status::invalid_argument("job: missing"))?;
    let number = |key: &str, found: u32, most: u32| {
        Status::invalid_argument(format!("{key}: found {found}, expected 0 to {most}"))
    };
    let id = id_of(job.id)?;
    let workers = u16::try_from(job.workers);
    let most = u32::from(MAX_TREE_WORKERS);
    let workers = workers.map_err(|_| number("job.workers", job.workers, most))?;
    let priority = match job.priority.map(|it| (it, u8::try_from(it))) {
        None => None,
        Some((_, Ok(priority))) => Some(priority),
        Some((found, Err(_))) => return Err(number("job.priority", found, 255)),
    };
    let each = job.ranks_per_host.unwrap_or(1);
    let ranks_per_host = u16::try_from(each)
        .map_err(|_| number("job.ranks_per_host", each, RANKS_PER_HOST_MAX.into()))?;
    // The key's error names no digit of it.
    let key = job.key.parse();
    let key = key.map_err(|why| Status::invalid_argument(format!("job.key: {why}")))?;
    Ok(AgentJob {
        ranks_per_host,
        priority,
        ..AgentJob::new(id, key, workers)
    })
}

fn id_of(id: u32) -> Result<u16, Status> {
    u16::try_from(id).map_err(|_| {
        Status::invalid_argument(format!("job.id: found {id}, expected 0 to {}", u16::MAX))
    })
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[tonic::async_trait]
impl Agent for Desk {
    async fn list_jobs(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsReply>, Status> {
        let answer = self.ask(&request, Order::List, None).await?;
        let jobs = answer.jobs.iter().map(|it| JobLine {
            id: it.id.into(),
            workers: it.workers.into(),
            priority: it.priority.map(u32::from),
            processes: count(it.processes),
            ranks_per_host: it.ranks_per_host.into(),
        });
        Ok(Response::new(ListJobsReply {
            version: answer.version,
            jobs: jobs.collect(),
        }))
    }

    async fn add_job(&self, request: Request<AddJobRequest>) -> Result<Response<Changed>, Status> {
        let job = job_of(request.get_ref().job.clone())?;
        let expected = request.get_ref().expected_version;
        let order = Order::Change(Change::Add(job));
        Ok(changed(self.ask(&request, order, expected).await?))
    }

    async fn set_job(&self, request: Request<SetJobRequest>) -> Result<Response<Changed>, Status> {
        let job = job_of(request.get_ref().job.clone())?;
        let expected = request.get_ref().expected_version;
        let order = Order::Change(Change::Set(job));
        Ok(changed(self.ask(&request, order, expected).await?))
    }

    async fn remove_job(
        &self,
        request: Request<RemoveJobRequest>,
    ) -> Result<Response<Changed>, Status> {
        let RemoveJobRequest {
            id,
            expected_version,
        } = *request.get_ref();
        let order = Order::Change(Change::Remove(id_of(id)?));
        Ok(changed(self.ask(&request, order, expected_version).await?))
    }

    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<Changed>, Status> {
        let expected = request.get_ref().expected_version;
        Ok(changed(self.ask(&request, Order::Reload, expected).await?))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainReply>, Status> {
        let order = Order::Drain(!request.get_ref().cancel);
        let answer = self.ask(&request, order, None).await?;
        Ok(Response::new(DrainReply {
            version: answer.version,
            draining: answer.is_draining,
            processes: count(answer.processes),
            processes_before: count(answer.processes_before),
        }))
    }

    async fn upgrade(
        &self,
        request: Request<UpgradeRequest>,
    ) -> Result<Response<UpgradeReply>, Status> {
        let answer = self.ask(&request, Order::Upgrade, None).await?;
        Ok(Response::new(UpgradeReply {
            pid: answer.successor.unwrap_or_default(),
            processes: count(answer.processes),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_calls_are_checked_and_keys_are_not_told() {
        let job = |id, key: &str, workers, priority| {
            let key = key.to_owned();
            job_of(Some(Job {
                id,
                key,
                workers,
                priority,
                ranks_per_host: None,
            }))
            .map_err(|it| it.message().to_owned())
        };
        const KEY: &str = "8182838485868788898a8b8c8d8e8f90";
        assert_eq!(job(7, KEY, 4, Some(255)).unwrap().priority, Some(255));
        for (given, want) in [
            (
                job(65536, KEY, 4, None),
                "job.id: found 65536, expected 0 to 65535",
            ),
            (
                job(7, KEY, 65536, None),
                "job.workers: found 65536, expected 0 to 4096",
            ),
            (
                job(7, KEY, 4, Some(256)),
                "job.priority: found 256, expected 0 to 255",
            ),
        ] {
            assert_eq!(given.unwrap_err(), want);
        }
        for bad in ["", "81", "zz82838485868788898a8b8c8d8e8f90"] {
            let error = job(7, bad, 4, None).unwrap_err();
            assert!(error.starts_with("job.key: "), "{error}");
            assert!(bad.len() < 4 || !error.contains(&bad[2..]), "{error}");
        }
        assert!(job_of(None).is_err());
    }
}
