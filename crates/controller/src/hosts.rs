//! What hosts are told that ask for their place in a job.
//!
//! The loop of the controller that works writes [`Answers`] each time it has looked at all switches
//! (`daemon.rs`); calls of hosts read them on a thread of their own. An answer is given only for a
//! job whose tree switches have reported, so a host that has it can join at once.

use crate::apply::digits;
use crate::args::ListenArguments;
use crate::fleet;
use crate::roles::{self, JobTree};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tally_api::proto::fleet::fleet_server::Fleet;
use tally_api::proto::fleet::{JoinReply, JoinRequest};
use tally_api::server::{self, Caller, Limits, ListenError, Listener, Running, Tls};
use tonic::{Request, Response, Status};

/// What is known of jobs: shared by the loop and the calls.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<Mutex<Known>>);

#[derive(Debug)]
enum Known {
    /// Nothing, and why.
    Nothing(String),
    /// Of each job of the fleet, by its name.
    Jobs(BTreeMap<String, JobAnswers>),
}

impl Default for Known {
    fn default() -> Self {
        Self::Nothing("the controller begins".to_owned())
    }
}

/// The places of a job's hosts, by their names; or why there are none yet.
pub type JobAnswers = Result<BTreeMap<String, JoinReply>, NotYet>;

/// A job that hosts cannot join yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotYet {
    /// Its hosts.
    pub hosts: Vec<String>,
    /// Why.
    pub why: String,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on there are none.
    pub fn nothing(&self, why: impl Into<String>) {
        *self.lock() = Known::Nothing(why.into());
    }

    /// From now on there are these.
    pub fn jobs(&self, jobs: BTreeMap<String, JobAnswers>) {
        *self.lock() = Known::Jobs(jobs);
    }

    fn answer(&self, JoinRequest { job, host }: &JoinRequest) -> Result<JoinReply, Status> {
        let known = self.lock();
        let jobs = match &*known {
            Known::Nothing(why) => return Err(Status::unavailable(why.as_str())),
            Known::Jobs(jobs) => jobs,
        };
        let none = || {
            // Names of jobs and hosts that are not its own are no host's business.
            let text = format!("job {job}: the fleet has no such job with host {host} as a worker");
            Status::not_found(text)
        };
        match jobs.get(job).ok_or_else(none)? {
            Ok(places) => places.get(host).cloned().ok_or_else(none),
            Err(it) if !it.hosts.contains(host) => Err(none()),
            Err(it) => Err(Status::unavailable(format!("job {job}: {}", it.why))),
        }
    }
}

/// The calls of hosts.
struct Hosts(Answers);

#[tonic::async_trait]
impl Fleet for Hosts {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Status> {
        let host = &request.get_ref().host;
        if !Caller::has_name(&request, host) {
            let caller = Caller::of(&request)?;
            return Err(Status::permission_denied(format!(
                "{caller} has shown no certificate with the DNS name `{host}`"
            )));
        }
        self.0.answer(request.get_ref()).map(Response::new)
    }
}

/// The places of the hosts of a job in its tree.
#[must_use]
pub fn places(
    fleet: &fleet::Fleet,
    job: &fleet::Job,
    tree: &JobTree,
    version: u64,
) -> BTreeMap<String, JoinReply> {
    let name = |worker: &roles::Worker| fleet.hosts[worker.host].name.clone();
    let first = tree.workers.first().map(name).unwrap_or_default();
    let places = tree.workers.iter().map(|worker| {
        let switch = &fleet.switches[worker.switch];
        let place = JoinReply {
            id: job.id.unwrap_or_default().into(),
            key: job.key.as_ref().map(digits).unwrap_or_default(),
            workers: tree.workers.len() as u32,
            rank: worker.rank.into(),
            switch: switch.name.clone(),
            address: switch.address.map(|it| it.to_string()),
            version,
            first_host: first.clone(),
        };
        (name(worker), place)
    });
    places.collect()
}

/// Serves hosts until the value is dropped.
///
/// # Errors
/// If the address is taken, or a file of TLS cannot be used.
pub fn serve(listen: &ListenArguments, answers: Answers) -> Result<Option<Running>, ListenError> {
    let ListenArguments {
        listen: Some(address),
        certificate: Some(certificate),
        key: Some(key),
        client_ca: Some(client_ca),
    } = listen
    else {
        return Ok(None);
    };
    let tls = Tls {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: client_ca.clone(),
    };
    let listener = Listener::tcp(*address, &tls)?;
    let limits = Limits {
        connections: CONNECTIONS_MAX,
        ..Limits::default()
    };
    let refused = |error: io::Error| ListenError::Refused {
        what: format!("cannot serve hosts at {address}"),
        error,
    };
    let running = server::start_fleet("hosts", vec![listener], Hosts(answers), limits);
    running.map(Some).map_err(refused)
}

/// Connections at a time: all hosts of a large job ask in the same second.
const CONNECTIONS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tonic::Code;

    fn ask(answers: &Answers, job: &str, host: &str) -> Result<u32, (Code, String)> {
        let request = JoinRequest {
            job: job.to_owned(),
            host: host.to_owned(),
        };
        let answer = answers.answer(&request).map(|it| it.rank);
        answer.map_err(|it| (it.code(), it.message().to_owned()))
    }

    #[test]
    fn a_host_learns_its_own_places_and_nothing_else() {
        let answers = Answers::default();
        let (code, _) = ask(&answers, "a", "h0").unwrap_err();
        assert_eq!(code, Code::Unavailable);
        let place = |rank| JoinReply {
            rank,
            ..JoinReply::default()
        };
        let ready = BTreeMap::from([("h0".to_owned(), place(0)), ("h1".to_owned(), place(1))]);
        let waits = NotYet {
            hosts: vec!["h2".to_owned()],
            why: "it runs".to_owned(),
        };
        answers.jobs(BTreeMap::from([
            ("a".to_owned(), Ok(ready)),
            ("b".to_owned(), Err(waits)),
        ]));
        assert_eq!(ask(&answers, "a", "h1"), Ok(1));
        let wait = (Code::Unavailable, "job b: it runs".to_owned());
        assert_eq!(ask(&answers, "b", "h2"), Err(wait));
        // The same answer for a job that is not there and for one of others.
        for (job, host) in [("a", "h2"), ("b", "h0"), ("c", "h0"), ("", "")] {
            let (code, text) = ask(&answers, job, host).unwrap_err();
            assert_eq!(code, Code::NotFound);
            let want = format!("job {job}: the fleet has no such job with host {host} as a worker");
            assert_eq!(text, want);
        }
        answers.nothing("standby");
        let none = (Code::Unavailable, "standby".to_owned());
        assert_eq!(ask(&answers, "a", "h1"), Err(none));
    }
}
