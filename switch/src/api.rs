//! The request channel's thread: gRPC in front of the control thread.
//!
//! A handler decides nothing: it turns a call into a [`Request`], gives it to the control thread
//! and waits for the answer. So all changes, also those of SIGHUP, come one after the other there.
//! Sockets, rights and limits are those of [`tally_api::server`].
//!
//! A report costs each data core a command. Calls that come within `FRESH` share one, and at most
//! one is under way, so clients cannot load the cores by asking.

mod capture;
mod convert;

use crate::bus::Bus;
use crate::config::ControlSection;
use crate::control::error::ChangeError;
use crate::control::request::{Applied, ControlHandle, Request};
use crate::log;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tally_api::proto::control_server::Control;
use tally_api::proto::view_server::View;
use tally_api::proto::{
    AddJobRequest, AddPortRequest, AddRingRequest, CaptureRequest, Changed, ClearCountersRequest,
    DrainJobRequest, JobRequest, MacEntry, MacsReply, MacsRequest, ReloadRequest,
    RemoveRingRequest, ReportReply, ReportRequest, RotateKeyRequest, RotateTenantKeyRequest,
    SetJobRequest, SetPortRequest, TenantNameRequest, TenantRequest,
};
use tally_api::server::{
    Caller, Limits, ListenError, Listener, Rights, Running, Tls, UnixSocket, start,
};
use tally_engine::{Forwarding, Reply};
use tally_schema::switch::report::Report;
use tokio::sync::{Mutex, Semaphore, oneshot};
use tonic::{Response, Status};

use crate::control::change::Change;

/// A report that is younger is given to another caller.
const FRESH: Duration = Duration::from_millis(20);
/// How long the control thread may take.
const ANSWER: Duration = Duration::from_secs(6);
/// How long a change of ports may take: a NIC takes seconds to start.
const PORTS_ANSWER: Duration = Duration::from_secs(25);
/// MAC addresses in one answer.
const MACS_MAX: usize = 16_384;

type Answer<T> = Result<Response<T>, Status>;

/// Listens where the configuration says. The order is that of `places`.
///
/// # Errors
/// The first socket that cannot be.
pub fn listen(section: &ControlSection) -> Result<Vec<Listener>, ListenError> {
    let mut listeners = vec![Listener::unix(&UnixSocket {
        path: section.socket.clone(),
        mode: section.mode().0,
        group: section.group.clone(),
        rights: Rights::Control,
    })?];
    if let Some(path) = &section.read_socket {
        listeners.push(Listener::unix(&UnixSocket {
            path: path.clone(),
            mode: section.read_socket_mode.0,
            group: section.group.clone(),
            rights: Rights::View,
        })?);
    }
    if let Some(tcp) = &section.tcp {
        let tls = Tls {
            certificate: tcp.certificate.clone(),
            key: tcp.key.clone(),
            client_ca: tcp.client_ca.clone(),
        };
        listeners.push(Listener::tcp(tcp.listen, &tls)?);
    }
    Ok(listeners)
}

/// The channel of a switch. It ends when this is dropped.
pub struct Api {
    _running: Running,
    /// Where it listens.
    pub places: Vec<String>,
}

impl Api {
    /// Serves at the listeners.
    ///
    /// # Errors
    /// If there can be no thread, or a certificate cannot be used.
    pub fn start(
        listeners: Vec<Listener>,
        control: ControlHandle,
        bus: Bus,
        forwarding: Forwarding,
        epoch: Instant,
    ) -> std::io::Result<Self> {
        let handler = Handler {
            control,
            bus,
            captures: Arc::new(Semaphore::new(1)),
            forwarding,
            epoch,
            last: Mutex::default(),
            cleared: Mutex::default(),
        };
        let places = listeners.iter().map(Listener::place).collect();
        let _running = start("api", listeners, handler, Limits::default())?;
        Ok(Self { _running, places })
    }
}

/// A report, and when it was made.
type Dated = Option<(Instant, Arc<Report>)>;

struct Handler {
    control: ControlHandle,
    /// For captures, which change nothing.
    bus: Bus,
    captures: Arc<Semaphore>,
    /// Shares the table of MAC addresses with the data cores.
    forwarding: Forwarding,
    epoch: Instant,
    last: Mutex<Dated>,
    /// The report of the last ClearCounters.
    cleared: Mutex<Dated>,
}

impl Handler {
    /// Asks the control thread.
    async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, Status> {
        self.ask_within(ANSWER, request).await
    }

    async fn ask_within<T: Send + 'static>(
        &self,
        limit: Duration,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        let reply: Reply<T> = Box::new(move |value| {
            // The caller may have gone.
            let _ = answer.send(value);
        });
        self.control
            .send(request(reply))
            .map_err(|why| status(&why))?;
        match tokio::time::timeout(limit, answered).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(status(&ChangeError::Stopped)),
            Err(_) => Err(status(&ChangeError::Timeout)),
        }
    }

    async fn report(&self) -> Result<Arc<Report>, Status> {
        let mut last = self.last.lock().await;
        if let Some((at, report)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            let _ = at;
            return Ok(Arc::clone(report));
        }
        let report = Arc::new(self.ask(Request::Report).await?);
        *last = Some((Instant::now(), Arc::clone(&report)));
        Ok(report)
    }

    /// Makes a change for a caller who may.
    async fn apply(
        &self,
        caller: &Caller,
        expected: Option<u64>,
        change: Change,
    ) -> Answer<Changed> {
        let limit = match change {
            Change::AddPort(_) | Change::SetPort(..) => PORTS_ANSWER,
            _ => ANSWER,
        };
        let asked = self.ask_within(limit, |reply| Request::Apply {
            expected,
            change,
            reply,
        });
        answer(caller, asked.await?)
    }
}

/// The answer to a change. The control thread says in the log what has changed, this who asked.
fn answer(caller: &Caller, applied: Result<Applied, ChangeError>) -> Answer<Changed> {
    let Applied {
        version,
        changed,
        restart,
    } = applied.map_err(|why| status(&why))?;
    if !changed.is_empty() {
        log::line(
            "change",
            format!("change: version {version}: asked by {caller}"),
        );
    }
    Ok(Response::new(Changed {
        version,
        changed: !changed.is_empty(),
        changes: changed,
        needs_restart: restart,
    }))
}

fn status(why: &ChangeError) -> Status {
    let code = match why {
        ChangeError::Version { .. } => tonic::Code::Aborted,
        ChangeError::NotFound(_) => tonic::Code::NotFound,
        ChangeError::Conflict(_) => tonic::Code::AlreadyExists,
        ChangeError::Refused(_) | ChangeError::File(_) => tonic::Code::InvalidArgument,
        ChangeError::Busy => tonic::Code::ResourceExhausted,
        ChangeError::Stopped | ChangeError::Timeout => tonic::Code::Unavailable,
    };
    Status::new(code, why.to_string())
}

#[tonic::async_trait]
impl View for Handler {
    async fn report(&self, request: tonic::Request<ReportRequest>) -> Answer<ReportReply> {
        let report = Self::report(self).await?;
        let cleared = self.cleared.lock().await.clone();
        let json = match &cleared {
            Some((_, earlier)) if request.get_ref().since_clear => report.since(earlier).json(),
            _ => report.json(),
        };
        Ok(Response::new(ReportReply {
            version: report.config_version,
            json,
            cleared_s: cleared.map(|(at, _)| at.elapsed().as_secs_f64()),
        }))
    }

    async fn macs(&self, _: tonic::Request<MacsRequest>) -> Answer<MacsReply> {
        let now_s = self.epoch.elapsed().as_secs() as u32;
        let table = self.forwarding.macs();
        let mut entries = table.entries(now_s, MACS_MAX);
        entries.sort_unstable_by_key(|&(mac, port, _)| (port, mac.0));
        // Its ports are those that there are now.
        let report = Self::report(self).await?;
        let port = |at: u16| report.ports.get(usize::from(at));
        let macs = entries.iter().map(|&(mac, at, age_s)| MacEntry {
            mac: mac.to_string(),
            port: port(at.0).map_or_else(String::new, |port| port.name.clone()),
            age_s,
        });
        Ok(Response::new(MacsReply {
            version: report.config_version,
            left_out: table.len(now_s).saturating_sub(entries.len()) as u32,
            macs: macs.collect(),
        }))
    }
}

#[tonic::async_trait]
impl Control for Handler {
    async fn add_job(&self, request: tonic::Request<AddJobRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::AddJob(Box::new(convert::job(request.job)?));
        self.apply(&caller, request.expected_version, change).await
    }

    async fn set_job(&self, request: tonic::Request<SetJobRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::SetJob(convert::id(request.id)?, convert::patch(&request)?);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn remove_job(&self, request: tonic::Request<JobRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let JobRequest {
            id,
            expected_version,
        } = request.into_inner();
        let change = Change::RemoveJob(convert::id(id)?);
        self.apply(&caller, expected_version, change).await
    }

    async fn drain_job(&self, request: tonic::Request<DrainJobRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::DrainJob(convert::id(request.id)?, !request.undo);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn rotate_key(&self, request: tonic::Request<RotateKeyRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::RotateKey(convert::id(request.id)?, convert::key(&request.key)?);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn retire_key(&self, request: tonic::Request<JobRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let JobRequest {
            id,
            expected_version,
        } = request.into_inner();
        let change = Change::RetireKey(convert::id(id)?);
        self.apply(&caller, expected_version, change).await
    }

    async fn add_ring(&self, request: tonic::Request<AddRingRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::AddRing(Box::new(convert::ring(request.ring)?));
        self.apply(&caller, request.expected_version, change).await
    }

    async fn remove_ring(&self, request: tonic::Request<RemoveRingRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::RemoveRing(request.id);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn add_tenant(&self, request: tonic::Request<TenantRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::AddTenant(convert::tenant(request.tenant, None)?);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn set_tenant(&self, request: tonic::Request<TenantRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let running = self.ask(Request::Config).await?;
        let change = Change::SetTenant(convert::tenant(request.tenant, Some(&running.config))?);
        // The keys that stay are those of this version.
        let expected = request.expected_version.unwrap_or(running.version);
        self.apply(&caller, Some(expected), change).await
    }

    async fn remove_tenant(&self, request: tonic::Request<TenantNameRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::RemoveTenant(request.name);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn rotate_tenant_key(
        &self,
        request: tonic::Request<RotateTenantKeyRequest>,
    ) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::RotateTenantKey(request.name, convert::key(&request.key)?);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn retire_tenant_key(
        &self,
        request: tonic::Request<TenantNameRequest>,
    ) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::RetireTenantKey(request.name);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn add_port(&self, request: tonic::Request<AddPortRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::AddPort(Box::new(convert::port(request.port)?));
        self.apply(&caller, request.expected_version, change).await
    }

    async fn set_port(&self, request: tonic::Request<SetPortRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let request = request.into_inner();
        let change = Change::SetPort(request.name, request.up);
        self.apply(&caller, request.expected_version, change).await
    }

    async fn reload(&self, request: tonic::Request<ReloadRequest>) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let expected = request.into_inner().expected_version;
        let reload = |reply| Request::Reload { expected, reply };
        answer(&caller, self.ask(reload).await?)
    }

    type CaptureStream = capture::Frames;

    async fn capture(&self, request: tonic::Request<CaptureRequest>) -> Answer<capture::Frames> {
        let caller = Caller::with_control(&request)?;
        let ports = capture::port_names(&*Self::report(self).await?);
        let asked = capture::Asked::parse(request.get_ref(), &ports)?;
        let permit = Arc::clone(&self.captures).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Status::resource_exhausted("another capture runs; a switch has one at a time")
        })?;
        log::line("capture", format!("capture: asked by {caller}"));
        let bus = self.bus.clone();
        let frames = capture::start(&asked, ports, bus, self.epoch, permit);
        Ok(Response::new(frames))
    }

    async fn clear_counters(
        &self,
        request: tonic::Request<ClearCountersRequest>,
    ) -> Answer<Changed> {
        let caller = Caller::with_control(&request)?;
        let report = Self::report(self).await?;
        let version = report.config_version;
        *self.cleared.lock().await = Some((Instant::now(), report));
        log::line("change", format!("counters cleared: asked by {caller}"));
        Ok(Response::new(Changed {
            version,
            changed: true,
            changes: vec!["counters cleared".into()],
            needs_restart: Vec::new(),
        }))
    }
}
