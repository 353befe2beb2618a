//! A daemon's end: sockets, callers, limits, and the thread that serves them.
//!
//! [`Listener`]s are bound first, so that a path that cannot be is an error of the start. [`start`]
//! then serves them on one thread with a runtime of its own. The daemon's handler implements
//! `View` and `Control`; each of its calls gets the [`Caller`] with the request.
//! [`start_fleet`] does the same for a controller and `Fleet`.
//!
//! A client that hangs costs a place among its user's connections until HTTP/2's pings find it
//! silent, and nothing else: [`Limits`] bound connections, calls, and the time to the first call.

mod incoming;
mod socket;

pub use socket::{ListenError, Listener, Tls, UnixSocket};

use crate::proto::control_server::{Control, ControlServer};
use crate::proto::fleet::fleet_server::{Fleet, FleetServer};
use crate::proto::view_server::{View, ViewServer};
use crate::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX};
use incoming::{Gate, Incoming};
use rustls_pki_types::ServerName;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::NamedService;
use tonic::transport::server::{Server, TlsConnectInfo};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tonic::{Request, Status};
use tower_service::Service;
use webpki::EndEntityCert;

/// Who may make which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Those of `View`.
    View,
    /// All.
    Control,
}

/// What one user, or one host, may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of one user or host to a listener.
    pub connections_of_peer: usize,
    /// Connections to a listener.
    pub connections: usize,
    /// Calls that wait on one connection.
    pub calls: u32,
    /// A connection must have made a call by then.
    pub first_call: Duration,
    /// Silence after which a connection is pinged, and after which again it is closed.
    pub keepalive: Duration,
    /// Longest time of a call.
    pub call: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_of_peer: 16,
            connections: 64,
            calls: 8,
            first_call: Duration::from_secs(5),
            keepalive: Duration::from_secs(10),
            call: Duration::from_secs(30),
        }
    }
}

/// The process or host at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Caller {
    rights: Rights,
    name: Arc<str>,
    has_called: Arc<AtomicBool>,
    /// Who may make changes, for refusals.
    allowed: Arc<str>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Caller {
    /// The caller of a request.
    ///
    /// # Errors
    /// If the request came without a connection, which is a bug.
    pub fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let caller = request.extensions().get::<Self>().cloned();
        caller.ok_or_else(|| Status::internal("a call without a connection"))
    }

    /// The caller of a request that changes something.
    ///
    /// # Errors
    /// If the caller may only look.
    pub fn with_control<T>(request: &Request<T>) -> Result<Self, Status> {
        let caller = Self::of(request)?;
        if caller.rights == Rights::Control {
            return Ok(caller);
        }
        let (name, allowed) = (&caller.name, &caller.allowed);
        Err(Status::permission_denied(format!(
            "{name} may look and not change; changes are for {allowed}"
        )))
    }

    /// Whether the caller of a request has shown a certificate with this name.
    pub fn has_name<T>(request: &Request<T>, name: &str) -> bool {
        let tls = request.extensions().get::<TlsConnectInfo<Self>>();
        let shown = tls.and_then(TlsConnectInfo::peer_certs);
        // TLS has verified the first one with the others.
        let Some(own) = shown.as_ref().and_then(|it| it.first()) else {
            return false;
        };
        let Ok(name) = ServerName::try_from(name) else {
            return false;
        };
        let certificate = EndEntityCert::try_from(own);
        certificate.is_ok_and(|it| it.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

/// A running server. It ends when this is dropped, and its sockets are removed.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves a daemon's calls at all listeners, on a thread of this name.
///
/// # Errors
/// If there can be no thread or runtime, or TLS does not take a certificate.
pub fn start<H: View + Control>(
    name: &str,
    listeners: Vec<Listener>,
    handler: H,
    limits: Limits,
) -> io::Result<Running> {
    serve(name, listeners, Services::new(handler), limits)
}

/// Serves the calls of hosts at all listeners, on a thread of this name.
///
/// # Errors
/// As [`start`].
pub fn start_fleet<H: Fleet>(
    name: &str,
    listeners: Vec<Listener>,
    handler: H,
    limits: Limits,
) -> io::Result<Running> {
    let service = FleetServer::new(handler)
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX);
    serve(name, listeners, service, limits)
}

fn serve<S>(name: &str, listeners: Vec<Listener>, service: S, limits: Limits) -> io::Result<Running>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let service = Called(service);
    let entered = runtime.enter();
    let mut servers = Vec::new();
    let mut held = Vec::new();
    for listener in listeners {
        let (bound, allowed, tls) = listener.into_parts();
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(limits.keepalive))
            .http2_keepalive_timeout(Some(limits.keepalive))
            .max_concurrent_streams(Some(limits.calls))
            .timeout(limits.call);
        if let Some(tls) = tls {
            let tls = ServerTlsConfig::new()
                .identity(Identity::from_pem(tls.certificate, tls.key))
                .client_ca_root(Certificate::from_pem(tls.client_ca))
                .timeout(limits.first_call);
            server = server.tls_config(tls).map_err(io::Error::other)?;
        }
        let incoming = Incoming::new(bound.accept()?, Gate::new(limits, allowed));
        servers.push(server.serve_with_incoming(service.clone(), incoming));
        held.push(bound);
    }
    drop(entered);
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            for server in servers {
                runtime.spawn(server);
            }
            // The sender is dropped; it never sends. With the runtime, all connections end.
            let _ = runtime.block_on(stopped);
            drop(held);
        })?;
    Ok(Running {
        stop: Some(stop),
        thread: Some(thread),
    })
}

/// Notes that a connection has made a call.
#[derive(Clone)]
struct Called<S>(S);

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Called<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Some(caller) = request.extensions().get::<Caller>() {
            caller.has_called.store(true, Ordering::Relaxed);
        }
        self.0.call(request)
    }
}

/// Both services of a daemon.
struct Services<H> {
    view: ViewServer<H>,
    control: ControlServer<H>,
}

impl<H> Clone for Services<H> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            control: self.control.clone(),
        }
    }
}

impl<H: View + Control> Services<H> {
    fn new(handler: H) -> Self {
        let handler = Arc::new(handler);
        Self {
            view: ViewServer::from_arc(Arc::clone(&handler))
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(ANSWER_BYTES_MAX),
            control: ControlServer::from_arc(handler)
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(ANSWER_BYTES_MAX),
        }
    }
}

impl<H: View + Control> Service<http::Request<Body>> for Services<H> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // `/package.Service/Method`. What neither knows, each says to be unimplemented.
        let service = request.uri().path().split('/').nth(1);
        if service == Some(ControlServer::<H>::NAME) {
            self.control.call(request)
        } else {
            self.view.call(request)
        }
    }
}
