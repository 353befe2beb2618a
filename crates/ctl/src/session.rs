//! A connection to a switch, and what may go wrong with it.

use crate::args::TargetArguments;
use crate::show::{Mac, Snapshot};
use std::io;
use std::path::PathBuf;
use tally_api::client::{Client, ConnectError, Target, TcpTarget, connect, reason};
use tally_api::proto::{MacsRequest, ReportRequest};
use tally_api::{CONTROL_SOCKET, VIEW_SOCKET};
use tally_program::Exit;
use tally_program::table::plain;
use thiserror::Error;
use tonic::{Code, Status};

/// What went wrong.
#[derive(Debug, Error)]
pub enum Failure {
    /// The switch cannot be reached.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The switch refuses, or its answer never came.
    #[error("{place}: {}", plain(&reason(status)))]
    Call {
        /// Which switch.
        place: String,
        /// What it said.
        status: Box<Status>,
    },
    /// The command line or a file of it.
    #[error("{0}")]
    Usage(String),
    /// The answer is another version's.
    #[error("{place}: the answer is not a report of this version of tallyctl: {why}")]
    Report {
        /// Which switch.
        place: String,
        /// What does not fit.
        why: String,
    },
    /// This machine.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not. Not a source of this error, or a report of the chain would name it twice.
        error: io::Error,
    },
}

impl Failure {
    /// The exit code of a process that ends by it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Call { status, .. } if status.code() == Code::InvalidArgument => Exit::Usage,
            Self::Call { .. } | Self::Report { .. } => Exit::Failure,
            Self::Connect(ConnectError::File { .. }) => Exit::File,
            Self::Connect(_) | Self::Io { .. } => Exit::System,
        }
    }
}

/// A switch that answers.
pub(crate) struct Session {
    pub(crate) client: Client,
    place: String,
}

impl Session {
    /// The socket that is asked for, or the switch's control socket by default. If that one is not
    /// for this user, the read-only one.
    pub(crate) async fn open(arguments: &TargetArguments) -> Result<Self, Failure> {
        let target = target(arguments)?;
        let error = match connect(&target).await {
            Ok(client) => {
                let place = target.to_string();
                return Ok(Self { client, place });
            }
            Err(error) => error,
        };
        let is_default = arguments.socket.is_none() && arguments.tcp.is_none();
        if !error.is_permission() || !is_default {
            return Err(error.into());
        }
        match connect(&Target::Unix(VIEW_SOCKET.into())).await {
            Ok(client) => Ok(Self {
                client,
                place: VIEW_SOCKET.into(),
            }),
            Err(_) => Err(error.into()),
        }
    }

    /// What a call that failed comes to.
    pub(crate) fn failed(&self) -> impl Fn(Status) -> Failure {
        let place = self.place.clone();
        move |status| Failure::Call {
            place: place.clone(),
            status: Box::new(status),
        }
    }

    /// What the switch does now; with MAC addresses, if they are asked for.
    pub(crate) async fn look(&mut self, total: bool, macs: bool) -> Result<Snapshot, Failure> {
        let request = ReportRequest {
            since_clear: !total,
        };
        let answer = self.client.view.report(request).await;
        let answer = answer.map_err(self.failed())?.into_inner();
        let report = simd_json::from_slice(&mut answer.json.into_bytes());
        let report = report.map_err(|error: simd_json::Error| Failure::Report {
            place: self.place.clone(),
            why: error.to_string(),
        })?;
        let mut snapshot = Snapshot {
            version: answer.version,
            report,
            cleared_s: answer.cleared_s.filter(|_| !total),
            macs: Vec::new(),
            macs_left_out: 0,
        };
        if macs {
            let answer = self.client.view.macs(MacsRequest {}).await;
            let answer = answer.map_err(self.failed())?.into_inner();
            snapshot.macs_left_out = answer.left_out;
            snapshot.macs = (answer.macs.into_iter())
                .map(|it| Mac {
                    mac: it.mac,
                    port: it.port,
                    age_s: it.age_s,
                })
                .collect();
        }
        Ok(snapshot)
    }
}

fn target(arguments: &TargetArguments) -> Result<Target, Failure> {
    if let Some(address) = &arguments.tcp {
        let file = |file: &Option<PathBuf>, name: &str| {
            let missing = || Failure::Usage(format!("--tcp {address}: needs --{name} FILE"));
            file.clone().ok_or_else(missing)
        };
        return Ok(Target::Tcp(TcpTarget {
            address: address.clone(),
            certificate: file(&arguments.certificate, "certificate")?,
            key: file(&arguments.key, "key")?,
            ca: file(&arguments.ca, "ca")?,
            name: arguments.server_name.clone(),
        }));
    }
    let socket = arguments.socket.clone();
    Ok(Target::Unix(
        socket.unwrap_or_else(|| CONTROL_SOCKET.into()),
    ))
}
