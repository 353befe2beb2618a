//! A client's end: where a switch is, and connecting to it.
//!
//! Errors say what an operator does about them. A Unix socket is connected to by hand before it is
//! given to tonic, whose own error is `transport error` for all causes.

use crate::ANSWER_BYTES_MAX;
use crate::proto::control_client::ControlClient;
use crate::proto::fleet::fleet_client::FleetClient;
use crate::proto::view_client::ViewClient;
use hyper_util::rt::TokioIo;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::codegen::BoxFuture;
use tonic::codegen::http::Uri;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tower_service::Service;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for an answer. The switch's own limit is shorter.
const ANSWER: Duration = Duration::from_secs(35);

/// Where a switch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// At a Unix socket.
    Unix(PathBuf),
    /// At a TCP port.
    Tcp(TcpTarget),
}

/// A switch or controller at a TCP port, and what it and its caller show each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpTarget {
    /// Host and port.
    pub address: String,
    /// The caller's certificate, PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, PEM.
    pub key: PathBuf,
    /// The authority of its certificate, PEM.
    pub ca: PathBuf,
    /// Name in its certificate; by default the address's host.
    pub name: Option<String>,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(target) => target.address.fmt(f),
        }
    }
}

/// A switch that cannot be reached.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nothing is at the path.
    #[error("{}: no switch there: the socket does not exist (is the switch running, and does its configuration have \
             `control`?)", .0.display())]
    NotFound(PathBuf),
    /// The path is no socket.
    #[error("{}: not a socket", .0.display())]
    NotSocket(PathBuf),
    /// No process listens.
    #[error("{}: no switch answers: the socket is left from one that has ended", .0.display())]
    Refused(PathBuf),
    /// The mode of the socket or of a folder lets this user not in.
    #[error("{}: permission denied for this user: {who}", path.display())]
    Permission {
        /// The path.
        path: PathBuf,
        /// Who may connect.
        who: String,
    },
    /// All places for clients are taken, or the switch hangs.
    #[error("{0}: the switch takes no connection: it hangs, or has too many clients")]
    Busy(String),
    /// A file of the client's own.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// TLS or TCP fails.
    #[error("{place}: {why}")]
    Transport {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
}

impl ConnectError {
    /// Whether another user could connect.
    #[must_use]
    pub const fn is_permission(&self) -> bool {
        matches!(self, Self::Permission { .. })
    }
}

/// The calls of a switch that has been reached.
#[derive(Clone, Debug)]
pub struct Client {
    /// What changes nothing.
    pub view: ViewClient<Channel>,
    /// Changes.
    pub control: ControlClient<Channel>,
}

/// Connects to a switch.
///
/// # Errors
/// Why it cannot be reached.
pub async fn connect(target: &Target) -> Result<Client, ConnectError> {
    let channel = match target {
        Target::Unix(path) => connect_unix(path).await?,
        Target::Tcp(target) => connect_tcp(target).await?,
    };
    Ok(Client {
        view: ViewClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
        control: ControlClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
    })
}

/// Connects to a controller.
///
/// # Errors
/// Why it cannot be reached.
pub async fn connect_controller(target: &TcpTarget) -> Result<FleetClient<Channel>, ConnectError> {
    let channel = connect_tcp(target).await?;
    Ok(FleetClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// Why a call failed: what the switch said, or why it said nothing.
#[must_use]
pub fn reason(status: &Status) -> String {
    let said = status.message();
    match status.code() {
        Code::Unimplemented => {
            "the switch does not know this request: it is older than this program".into()
        }
        Code::Unknown | Code::Cancelled | Code::Internal if said.is_empty() => "no answer".into(),
        Code::Unknown => format!(
            "the switch ended the connection without an answer (it stopped, or this user has too many clients): {said}"
        ),
        _ => said.to_owned(),
    }
}

fn ready(endpoint: Endpoint) -> Endpoint {
    endpoint.connect_timeout(CONNECT).timeout(ANSWER)
}

/// An error with all its causes: tonic's own text is only the first.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

async fn connect_unix(path: &Path) -> Result<Channel, ConnectError> {
    let place = || path.display().to_string();
    let tried = tokio::time::timeout(CONNECT, UnixStream::connect(path)).await;
    let first = match tried {
        Err(_) => return Err(ConnectError::Busy(place())),
        Ok(Err(error)) => return Err(unix_error(path, &error)),
        Ok(Ok(stream)) => Some(stream),
    };
    let connector = UnixConnector {
        path: path.to_owned(),
        first,
    };
    // The name is only for HTTP.
    let endpoint = ready(Endpoint::from_static("http://switch"));
    let channel = endpoint.connect_with_connector(connector).await;
    channel.map_err(|error| ConnectError::Transport {
        place: place(),
        why: causes(&error),
    })
}

/// Gives the connection that was made by hand, and later, if that has ended, others.
struct UnixConnector {
    path: PathBuf,
    first: Option<UnixStream>,
}

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (path, first) = (self.path.clone(), self.first.take());
        Box::pin(async move {
            let stream = match first {
                Some(stream) => stream,
                None => UnixStream::connect(path).await?,
            };
            Ok(TokioIo::new(stream))
        })
    }
}

fn unix_error(path: &Path, error: &io::Error) -> ConnectError {
    let path = path.to_owned();
    let found = std::fs::symlink_metadata(&path);
    let is_socket = found.as_ref().map(|found| found.file_type().is_socket());
    match error.kind() {
        ErrorKind::NotFound => ConnectError::NotFound(path),
        ErrorKind::PermissionDenied => ConnectError::Permission {
            who: match found {
                Ok(found) => format!(
                    "the socket is of user {}, group {}, mode {:04o} (run as root, or join that group)",
                    found.uid(),
                    found.gid(),
                    found.mode() & 0o777
                ),
                Err(_) => "its folder is closed (run as root)".into(),
            },
            path,
        },
        ErrorKind::ConnectionRefused if is_socket.unwrap_or(true) => ConnectError::Refused(path),
        ErrorKind::ConnectionRefused => ConnectError::NotSocket(path),
        ErrorKind::WouldBlock => ConnectError::Busy(path.display().to_string()),
        _ => ConnectError::Transport {
            place: path.display().to_string(),
            why: error.to_string(),
        },
    }
}

async fn connect_tcp(target: &TcpTarget) -> Result<Channel, ConnectError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| ConnectError::File {
            path: path.to_owned(),
            error,
        })
    };
    let place = target.address.clone();
    let transport = |error: tonic::transport::Error| ConnectError::Transport {
        place: place.clone(),
        why: causes(&error),
    };
    let identity = Identity::from_pem(read(&target.certificate)?, read(&target.key)?);
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(&target.ca)?))
        .identity(identity);
    if let Some(name) = &target.name {
        tls = tls.domain_name(name);
    }
    let endpoint = Endpoint::from_shared(format!("https://{place}")).map_err(transport)?;
    let endpoint = endpoint.tls_config(tls).map_err(transport)?;
    ready(endpoint).connect().await.map_err(transport)
}
