//! Metrics, the report and the page over HTTP, for clients that may be slow, many or hostile.
//!
//! One thread serves all. A connection has one request, and `CONNECTION_MAX` for it; beyond
//! `CLIENTS_MAX` connections new ones are closed. All clients of `FRESH` share one snapshot, so
//! any number of them costs the data cores one report in that time. Nothing can be changed: the
//! methods are GET and HEAD.
//!
//! # The catches
//!
//! * Each client that reaches the listener may read everything. The default in the documentation is
//!   a loopback address; other addresses need a firewall or a proxy with authentication.
//! * A page of another origin can make a browser send requests here, but reads no answer. One whose
//!   own name is made to resolve to this address could (DNS rebinding): so the `Host` header must
//!   be an IP address, `localhost`, or one of `metrics.hosts`.

use crate::exposition::{openmetrics, prometheus};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tally_schema::event::MetricsSection;
use tally_schema::metrics::Family;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

/// Connections at a time.
const CLIENTS_MAX: usize = 64;
/// For a client to send its request's headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);
/// For the whole of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// How long one snapshot serves.
const FRESH: Duration = Duration::from_millis(500);
/// After an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between two tries to take an address that is in use.
const BIND_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a request's headers.
const HEADERS_MAX: usize = 16 << 10;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// In the page, where the nonce of its script and style is to be.
const NONCE: &str = "NONCE";

/// What a daemon has to show.
pub trait Source: Send + Sync + 'static {
    /// How it is now; may wait for other threads. `None` if they do not answer.
    fn snapshot(&self) -> Option<Snapshot>;

    /// Its page for people, if it has one.
    fn page(&self) -> Option<&'static str> {
        None
    }
}

/// How a daemon is at one moment.
pub struct Snapshot {
    /// Its metrics.
    pub families: Vec<Family>,
    /// Its report or status, JSON.
    pub json: String,
}

/// An address that is taken, before there is anything to show.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    hosts: Vec<String>,
}

impl Listener {
    /// Takes the address.
    ///
    /// # Errors
    /// If it cannot.
    pub fn bind(section: &MetricsSection) -> io::Result<Self> {
        let listener = TcpListener::bind(section.listen)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            hosts: section.hosts.clone(),
        })
    }
}

/// A listener that ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _stop: oneshot::Sender<Infallible>,
}

impl Server {
    /// Serves `source` on a thread of its own.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(listener: Listener, source: impl Source) -> io::Result<Self> {
        let Listener {
            listener,
            address,
            hosts,
        } = listener;
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::new(Shared {
            source: Arc::new(source),
            hosts,
            latest: Mutex::new(None),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .build()?;
        let serve = move || {
            runtime.block_on(async {
                drop(tokio::spawn(accept(listener, shared)));
                let _ = stopped.await;
            });
            // A snapshot may still wait for a thread that has ended.
            runtime.shutdown_background();
        };
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(serve)?;
        Ok(Self {
            address,
            _stop: stop,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves `source` for as long as the process runs, once the address is free: while an agent is
/// upgraded, its predecessor has it.
pub fn keep_serving(section: MetricsSection, source: impl Source) {
    let serve = move || {
        let mut is_told = false;
        let listener = loop {
            match Listener::bind(&section) {
                Ok(listener) => break listener,
                Err(error) if !is_told => {
                    is_told = true;
                    let listen = section.listen;
                    warn!(
                        kind = "metrics",
                        "metrics.listen {listen}: {error}; trying again each second"
                    );
                }
                Err(_) => {}
            }
            std::thread::sleep(BIND_EVERY);
        };
        match Server::start(listener, source) {
            Ok(server) => {
                let address = server.address();
                info!(kind = "metrics", "metrics at http://{address}/metrics");
                std::mem::forget(server);
            }
            Err(error) => warn!(kind = "metrics", "no metrics: {error}"),
        }
    };
    // Without a thread there are no metrics, and the program keeps running.
    let _ = std::thread::Builder::new()
        .name("metrics".into())
        .spawn(serve);
}

struct Shared {
    source: Arc<dyn Source>,
    hosts: Vec<String>,
    latest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Without a place it is closed here.
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let _ = timeout(CONNECTION_MAX, serve(stream, shared)).await;
                drop(place);
            });
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let answer = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.answer(&request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    // A client that went away, or spoke no HTTP, has no one to hear of it.
    let _ = served.await;
}

type Answer = Response<Full<Bytes>>;

impl Shared {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
            let allow = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(header::ALLOW, allow);
            return answer;
        }
        if !is_our_host(request.version(), request.headers(), &self.hosts) {
            let why =
                "the Host header is neither an IP address, nor localhost, nor in metrics.hosts\n";
            return plain(StatusCode::MISDIRECTED_REQUEST, why);
        }
        let is_json = match request.uri().path() {
            "/" => {
                return match self.source.page() {
                    Some(page) => with_nonce(page),
                    None => plain(StatusCode::OK, "/metrics\n/report.json\n"),
                };
            }
            "/metrics" => false,
            "/report.json" => true,
            _ => return plain(StatusCode::NOT_FOUND, "/metrics, /report.json or /\n"),
        };
        let Some(snapshot) = self.snapshot().await else {
            let why = "the program's threads did not answer in time\n";
            return plain(StatusCode::SERVICE_UNAVAILABLE, why);
        };
        if is_json {
            return answer(StatusCode::OK, "application/json", snapshot.json.clone());
        }
        let mut families = snapshot.families.clone();
        families.extend(crate::families());
        let text = openmetrics(families);
        if accepts_openmetrics(request.headers()) {
            answer(StatusCode::OK, OPENMETRICS, text)
        } else {
            answer(StatusCode::OK, PROMETHEUS, prometheus(&text))
        }
    }

    /// The latest one, or a new one; clients that come meanwhile wait for the same.
    async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let mut latest = self.latest.lock().await;
        if let Some((at, snapshot)) = &*latest
            && at.elapsed() < FRESH
        {
            return Some(Arc::clone(snapshot));
        }
        let source = Arc::clone(&self.source);
        let snapshot = tokio::task::spawn_blocking(move || source.snapshot()).await;
        let snapshot = Arc::new(snapshot.ok()??);
        *latest = Some((Instant::now(), Arc::clone(&snapshot)));
        Some(snapshot)
    }
}

/// Whether the client asked for an address that is no one's name, or for a name of ours.
fn is_our_host(version: Version, headers: &HeaderMap, hosts: &[String]) -> bool {
    let mut all = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (all.next(), all.next()) else {
        // Browsers send one.
        return version < Version::HTTP_11 && headers.get(header::HOST).is_none();
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if bracketed.is_some_and(|host| host.parse::<IpAddr>().is_ok()) {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|ours| ours.eq_ignore_ascii_case(name))
}

fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(header::ACCEPT).iter();
    let mut accept = accept.filter_map(|value| value.to_str().ok());
    accept.any(|value| value.contains("application/openmetrics-text"))
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.to_owned())
}

fn answer(status: StatusCode, content: &'static str, body: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let fixed: [(HeaderName, &'static str); 7] = [
        (header::CONTENT_TYPE, content),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
    ];
    for (name, value) in fixed {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// The page, whose one script and one style are the only ones that a browser runs.
fn with_nonce(page: &'static str) -> Answer {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "no random numbers\n");
    }
    let nonce: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = page.replace(NONCE, &nonce);
    let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", page);
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

#[cfg(test)]
mod tests;
