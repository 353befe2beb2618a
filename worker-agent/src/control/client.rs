//! Calls to the agent of this host.

use super::proto::agent_client::AgentClient;
use super::proto::{
    AddJobRequest, Changed, DrainReply, DrainRequest, Job, ListJobsReply, ListJobsRequest,
    ReloadRequest, RemoveJobRequest, SetJobRequest, UpgradeReply, UpgradeRequest,
};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

/// For the agent to answer. A successor may take ten seconds to get ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Why a call had no good answer.
#[derive(Debug, Error)]
pub enum ControlError {
    /// There is no agent, or no right to call it.
    #[error("cannot reach the agent at {}: {}", path.display(), Advice(source))]
    Connect {
        /// Path of the control socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The agent refuses, and says why. Nothing has changed.
    #[error("the agent refuses: {0}")]
    Refused(String),
    /// The caller may not change the agent.
    #[error("the agent refuses: {0}")]
    Denied(String),
    /// The connection broke.
    #[error("the agent at {} did not answer: {problem}", path.display())]
    Broken {
        /// Path of the control socket.
        path: PathBuf,
        /// What is known of it.
        problem: String,
    },
}

/// The system's reason, and what to do about it.
struct Advice<'a>(&'a io::Error);

impl std::fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.0.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "; is it running, and is this its control socket (`control.socket` in its configuration)?"
            }
            io::ErrorKind::PermissionDenied => {
                "; call it as root or the agent's user, or be in the group `control.group` of its configuration"
            }
            _ => "",
        };
        write!(f, "{}{what}", self.0)
    }
}

/// A connection to the agent of this host. Calls wait for their answers.
pub struct Client {
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
    calls: AgentClient<Channel>,
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// If there is no agent, or no right to call it.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Connect {
            path: path.to_owned(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let uri = format!("unix://{}", path.display());
        let endpoint = Endpoint::from_shared(uri).map_err(|why| failed(io::Error::other(why)))?;
        let channel = runtime.block_on(endpoint.timeout(ANSWER_WITHIN).connect());
        let channel = channel.map_err(|why| failed(cause(&why)))?;
        Ok(Self {
            path: path.to_owned(),
            runtime,
            calls: AgentClient::new(channel),
        })
    }

    /// The jobs that processes may take part in.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn list_jobs(&mut self) -> Result<ListJobsReply, ControlError> {
        let request = ListJobsRequest {};
        let answer = self.runtime.block_on(self.calls.list_jobs(request));
        self.answer(answer)
    }

    /// Adds a job.
    ///
    /// # Errors
    /// If the agent refuses: the values, the version, or because the job is another one.
    pub fn add_job(
        &mut self,
        job: Job,
        expected_version: Option<u64>,
    ) -> Result<Changed, ControlError> {
        let request = AddJobRequest {
            job: Some(job),
            expected_version,
        };
        let answer = self.runtime.block_on(self.calls.add_job(request));
        self.answer(answer)
    }

    /// Gives a job other values.
    ///
    /// # Errors
    /// If the agent refuses: the values, the version, or because there is no such job.
    pub fn set_job(
        &mut self,
        job: Job,
        expected_version: Option<u64>,
    ) -> Result<Changed, ControlError> {
        let request = SetJobRequest {
            job: Some(job),
            expected_version,
        };
        let answer = self.runtime.block_on(self.calls.set_job(request));
        self.answer(answer)
    }

    /// Removes a job.
    ///
    /// # Errors
    /// If the agent refuses the version.
    pub fn remove_job(
        &mut self,
        id: u16,
        expected_version: Option<u64>,
    ) -> Result<Changed, ControlError> {
        let request = RemoveJobRequest {
            id: id.into(),
            expected_version,
        };
        let answer = self.runtime.block_on(self.calls.remove_job(request));
        self.answer(answer)
    }

    /// Lets the agent read its file again.
    ///
    /// # Errors
    /// If the agent refuses the file or the version.
    pub fn reload(&mut self, expected_version: Option<u64>) -> Result<Changed, ControlError> {
        let request = ReloadRequest { expected_version };
        let answer = self.runtime.block_on(self.calls.reload(request));
        self.answer(answer)
    }

    /// Begins to drain the agent, or ends that.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn drain(&mut self, cancel: bool) -> Result<DrainReply, ControlError> {
        let request = DrainRequest { cancel };
        let answer = self.runtime.block_on(self.calls.drain(request));
        self.answer(answer)
    }

    /// Lets the program at the agent's path take its place.
    ///
    /// # Errors
    /// If it cannot. The agent continues then.
    pub fn upgrade(&mut self) -> Result<UpgradeReply, ControlError> {
        let request = UpgradeRequest {};
        let answer = self.runtime.block_on(self.calls.upgrade(request));
        self.answer(answer)
    }

    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, ControlError> {
        answer.map(Response::into_inner).map_err(|status| {
            let text = status.message().to_owned();
            match status.code() {
                Code::PermissionDenied => ControlError::Denied(text),
                Code::InvalidArgument
                | Code::Aborted
                | Code::AlreadyExists
                | Code::NotFound
                | Code::FailedPrecondition
                | Code::ResourceExhausted => ControlError::Refused(text),
                code => ControlError::Broken {
                    path: self.path.clone(),
                    problem: format!("{code:?}: {text}"),
                },
            }
        })
    }
}

/// The system's error below that of the transport.
fn cause(error: &(dyn Error + 'static)) -> io::Error {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return match found.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(found.kind(), found.to_string()),
            };
        }
        next = error.source();
    }
    io::Error::other(error.to_string())
}
