//! A fleet in etcd, and the lease of the controller that works.
//!
//! Keys, below the prefix of the location:
//!
//! | key | value |
//! |---|---|
//! | `fleet/topology` | a fleet without jobs |
//! | `fleet/jobs/NAME` | a job |
//! | `fleet/numbers/ID` | name of the job that has this number |
//! | `fleet/measured` | measured capacities |
//! | `plan` | the plan that switches follow, with its version |
//! | `plans/VERSION` | each of the last plans |
//! | `leader` | name of the controller that works; gone with its lease |
//! | `leader-at` | where standbys connect to it (`port.rs`) |
//!
//! All that is below `fleet/` is read at once, so it is of one moment. A plan is written only by
//! the controller that has `leader` in that moment. It keeps the lease of that key. A standby
//! ends a lease that is not kept, and takes the lead.

mod lease;
mod port;

use super::StoreError;
use crate::document::Document;
use crate::fleet::{Fleet, Job};
use crate::location::EtcdLocation;
use crate::measured::Capacities;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, Identity,
    KeyValue, PutOptions, TlsOptions, Txn, TxnOp, TxnOpResponse,
};
use lease::{BEYOND, Lease, Way};
use port::{LeaderConnection, LeaderPort};
use serde::de::DeserializeOwned;
use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_config::ConfigError;

/// Time limit of a call.
const CALL: Duration = Duration::from_secs(1);
/// Plans that are kept.
const KEPT: u64 = 100;

/// A fleet in etcd.
pub struct Etcd {
    location: EtcdLocation,
    client: Client,
    way: Way,
}

/// What is below `fleet/`, as of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The fleet, with its jobs in the order in which they came.
    pub fleet: Fleet,
    /// Measured capacities.
    pub measured: Option<Capacities>,
    /// Revision of the last change of the topology.
    topology: i64,
}

/// What a controller that works holds.
pub struct Term {
    name: String,
    lease: Lease,
    /// Number of the lease that `leader` has.
    id: i64,
    /// Revision in which `leader` was made; 0 without.
    since: i64,
    /// Where standbys connect, from the first term on.
    port: Option<LeaderPort>,
    /// To the leader, as a standby.
    connection: Option<LeaderConnection>,
}

impl Etcd {
    /// Prepares calls. No member of etcd needs to answer yet.
    ///
    /// # Errors
    /// Files of certificates that cannot be used.
    pub async fn open(location: &EtcdLocation) -> Result<Self, StoreError> {
        let path = location.path();
        let file = |variable: &str| -> Result<Option<Vec<u8>>, StoreError> {
            let Some(file) = env::var_os(variable).map(PathBuf::from) else {
                return Ok(None);
            };
            let read = std::fs::read(&file);
            let read = read.map_err(|error| StoreError::File { path: file, error });
            read.map(Some)
        };
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CALL)
            .with_timeout(CALL)
            .with_keep_alive(CALL, CALL)
            .with_keep_alive_while_idle(true);
        let mut scheme = "http";
        if let Some(ca) = file("ETCDCTL_CACERT")? {
            scheme = "https";
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
            match (file("ETCDCTL_CERT")?, file("ETCDCTL_KEY")?) {
                (Some(certificate), Some(key)) => {
                    tls = tls.identity(Identity::from_pem(certificate, key));
                }
                (None, None) => {}
                _ => return Err(StoreError::HalfIdentity),
            }
            options = options.with_tls(tls);
        }
        if let Ok(user) = env::var("ETCDCTL_USER") {
            let (name, password) = user.split_once(':').unwrap_or((&user, ""));
            options = options.with_user(name, password);
        }
        let members = location.endpoints.iter();
        let members: Vec<_> = members.map(|it| format!("{scheme}://{it}")).collect();
        let way = Way { members, options };
        let client = way.connect().await;
        let client = client.map_err(|error| StoreError::of(path, &error))?;
        Ok(Self {
            location: location.clone(),
            client,
            way,
        })
    }

    fn key(&self, end: &str) -> String {
        format!("{}{end}", self.location.prefix)
    }

    fn path(&self) -> &Path {
        self.location.path()
    }

    /// A call that is not answered in time is as one that fails.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(CALL * 2, call).await {
            Ok(done) => done.map_err(|error| StoreError::of(self.path(), &error)),
            Err(_) => Err(StoreError::Unreachable {
                location: self.path().to_owned(),
                why: format!("no answer in {} s", (CALL * 2).as_secs()),
            }),
        }
    }

    /// What is there now.
    ///
    /// # Errors
    /// If etcd does not answer, has no fleet, or a value is none of ours.
    pub async fn snapshot(&mut self) -> Result<Snapshot, StoreError> {
        let mut client = self.client.clone();
        let below = self.key("fleet/");
        let options = GetOptions::new().with_prefix();
        let found = self.call(client.get(below.clone(), Some(options))).await?;
        let mut topology = None;
        let mut measured = None;
        let mut jobs = Vec::new();
        for it in found.kvs() {
            let key = String::from_utf8_lossy(it.key());
            match key.strip_prefix(&below) {
                Some("topology") => topology = Some((self.value::<Fleet>(it)?, it.mod_revision())),
                Some("measured") => measured = Some(self.value::<Capacities>(it)?),
                Some(end) if end.starts_with("jobs/") => {
                    jobs.push((it.create_revision(), self.value::<Job>(it)?));
                }
                _ => {}
            }
        }
        let (mut fleet, topology) = topology.ok_or_else(|| StoreError::NoFleet {
            location: self.path().to_owned(),
        })?;
        jobs.sort_by_key(|(created, _)| *created);
        fleet.jobs = jobs.into_iter().map(|(_, job)| job).collect();
        Ok(Snapshot {
            fleet,
            measured,
            topology,
        })
    }

    fn value<T: DeserializeOwned>(&self, it: &KeyValue) -> Result<T, ConfigError> {
        let key = String::from_utf8_lossy(it.key());
        tally_config::parse(self.path().join(key.trim_start_matches('/')), it.value())
    }

    /// Writes measured capacities.
    ///
    /// # Errors
    /// If etcd does not take them.
    pub async fn write_measured(&mut self, measured: &Capacities) -> Result<(), StoreError> {
        let mut client = self.client.clone();
        let put = client.put(self.key("fleet/measured"), json(measured), None);
        self.call(put).await.map(|_| ())
    }

    /// Writes topology and measured capacities.
    ///
    /// # Errors
    /// If etcd does not take it.
    pub async fn write(
        &mut self,
        fleet: &Fleet,
        measured: Option<&Capacities>,
    ) -> Result<(), StoreError> {
        let topology = Fleet {
            jobs: Vec::new(),
            measured: None,
            ..fleet.clone()
        };
        let mut puts = vec![TxnOp::put(
            self.key("fleet/topology"),
            json(&topology),
            None,
        )];
        if let Some(measured) = measured {
            puts.push(TxnOp::put(self.key("fleet/measured"), json(measured), None));
        }
        let mut client = self.client.clone();
        self.call(client.txn(Txn::new().and_then(puts))).await?;
        Ok(())
    }

    /// Adds a job, or replaces the one of that name. It is refused if the topology is another one
    /// than `seen`, or another job has the number.
    ///
    /// # Errors
    /// If etcd does not answer. `false`: refused.
    pub async fn put_job(&mut self, job: &Job, seen: &Snapshot) -> Result<bool, StoreError> {
        let number = job.id.unwrap_or_default();
        let (at, number) = (
            self.key(&format!("fleet/jobs/{}", job.name)),
            self.key(&format!("fleet/numbers/{number}")),
        );
        let before = seen.fleet.jobs.iter().find(|it| it.name == job.name);
        let mut when = vec![Compare::mod_revision(
            self.key("fleet/topology"),
            CompareOp::Equal,
            seen.topology,
        )];
        when.push(match before {
            Some(it) if it.id == job.id => {
                Compare::value(number.clone(), CompareOp::Equal, job.name.as_str())
            }
            _ => Compare::create_revision(number.clone(), CompareOp::Equal, 0),
        });
        let is_new = if before.is_some() {
            CompareOp::Greater
        } else {
            CompareOp::Equal
        };
        when.push(Compare::create_revision(at.clone(), is_new, 0));
        let mut puts = vec![
            TxnOp::put(at, json(job), None),
            TxnOp::put(number, job.name.as_str(), None),
        ];
        if let Some(old) = before.and_then(|it| it.id).filter(|it| job.id != Some(*it)) {
            puts.push(TxnOp::delete(
                self.key(&format!("fleet/numbers/{old}")),
                None,
            ));
        }
        let mut client = self.client.clone();
        let done = client.txn(Txn::new().when(when).and_then(puts));
        Ok(self.call(done).await?.succeeded())
    }

    /// Takes a job out.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn delete_job(&mut self, job: &Job) -> Result<(), StoreError> {
        let number = job.id.unwrap_or_default();
        let deletes = vec![
            TxnOp::delete(self.key(&format!("fleet/jobs/{}", job.name)), None),
            TxnOp::delete(self.key(&format!("fleet/numbers/{number}")), None),
        ];
        let mut client = self.client.clone();
        self.call(client.txn(Txn::new().and_then(deletes))).await?;
        Ok(())
    }

    /// The plan that switches follow; `None` before the first.
    ///
    /// # Errors
    /// If etcd does not answer, or what is there is no plan.
    pub async fn plan(&mut self) -> Result<Option<Document>, StoreError> {
        let mut client = self.client.clone();
        let found = self.call(client.get(self.key("plan"), None)).await?;
        let found = found.kvs().first();
        Ok(found.map(|it| self.value(it)).transpose()?)
    }

    /// Writes the next plan. `false`: this controller does not work any more.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn write_plan(&mut self, plan: &Document, term: &Term) -> Result<bool, StoreError> {
        let version = plan.version.unwrap_or_default();
        let at = |version: u64| self.key(&format!("plans/{version:010}"));
        let text = json(plan);
        let old = DeleteOptions::new().with_range(at(version.saturating_sub(KEPT) + 1));
        let changes = vec![
            TxnOp::put(self.key("plan"), text.as_str(), None),
            TxnOp::put(at(version), text.as_str(), None),
            TxnOp::delete(at(0), Some(old)),
        ];
        let when = vec![self.is_leader(term)];
        let mut client = self.client.clone();
        let done = client.txn(Txn::new().when(when).and_then(changes));
        Ok(self.call(done).await?.succeeded())
    }

    fn is_leader(&self, term: &Term) -> Compare {
        // A key that is not there was made in revision 0.
        let since = term.since.max(1);
        Compare::create_revision(self.key("leader"), CompareOp::Equal, since)
    }

    /// Begins to ask for the lead.
    #[must_use]
    pub fn stand(&self, name: &str, lease: Duration) -> Term {
        Term {
            name: name.to_owned(),
            lease: Lease::new(self.client.clone(), self.way.clone(), lease),
            id: 0,
            since: 0,
            port: None,
            connection: None,
        }
    }

    /// The term of this controller if it is the one that works, as etcd has it now. It takes the
    /// lead if that is free, or its holder has been silent for the time of a lease.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn lead(&mut self, term: &mut Term) -> Result<Option<i64>, StoreError> {
        let lease = term.lease.alive().await;
        let lease = lease.map_err(|error| StoreError::of(self.path(), &error))?;
        if lease != term.id {
            // The key that there may be still has a lease that ends.
            (term.id, term.since) = (lease, 0);
        }
        let key = self.key("leader");
        // A transaction without changes is a read for etcd: no member writes it to its disk.
        let at = self.key("leader-at");
        let ask = Txn::new().when(vec![self.is_leader(term)]).or_else(vec![
            TxnOp::get(key.as_str(), None),
            TxnOp::get(at.as_str(), None),
        ]);
        let mut client = self.client.clone();
        let asked = self.call(client.txn(ask)).await?;
        if asked.succeeded() {
            return Ok(Some(term.since));
        }
        term.since = 0;
        if let [TxnOpResponse::Get(leader), TxnOpResponse::Get(leader_at)] =
            &asked.op_responses()[..]
            && let Some(leader) = leader.kvs().first()
        {
            if leader.lease() == lease {
                // It took the lead, and etcd's answer was lost.
                term.since = leader.create_revision();
                return Ok(Some(term.since));
            }
            let leader_at = leader_at.kvs().first();
            let address = leader_at.and_then(|it| it.value_str().ok()?.parse().ok());
            if !self.depose(leader.lease(), address, term).await? {
                return Ok(None);
            }
        }
        term.connection = None;
        let endpoint = self.location.endpoints.first().map_or("", |it| it);
        if term.port.is_none() {
            // Without it, standbys see the silence of the lease.
            term.port = LeaderPort::open(endpoint).ok();
        }
        let free = vec![Compare::create_revision(key.as_str(), CompareOp::Equal, 0)];
        let with = PutOptions::new().with_lease(lease);
        let put = |key: &str, value: &str| TxnOp::put(key, value, Some(with.clone()));
        let mut puts = vec![put(&key, &term.name)];
        if let Some(port) = &term.port {
            port.holds(lease);
            puts.push(put(&at, &port.address.to_string()));
        }
        let take = Txn::new().when(free).and_then(puts);
        let taken = self.call(client.txn(take)).await?;
        if !taken.succeeded() {
            return Ok(None);
        }
        // The revision of this change made the key.
        let header = taken.header();
        term.since = header.map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Some(term.since))
    }

    /// Ends the lease of a leader whose process has ended, or that has been silent for the time of
    /// its lease. Whether the lease has ended.
    async fn depose(
        &self,
        lease: i64,
        address: Option<SocketAddr>,
        term: &mut Term,
    ) -> Result<bool, StoreError> {
        if lease == 0 {
            // Of another hand.
            return Ok(false);
        }
        let open = || LeaderConnection::open(lease, address);
        let connection = term.connection.take().filter(|it| it.lease == lease);
        let connection = term.connection.insert(connection.unwrap_or_else(open));
        if !connection.has_ended() && !self.is_silent(lease).await? {
            return Ok(false);
        }
        let mut client = self.client.clone();
        match client.lease_revoke(lease).await {
            Err(etcd_client::Error::GRpcStatus(it)) if it.code() == tonic::Code::NotFound => {}
            other => _ = other.map_err(|error| StoreError::of(self.path(), &error))?,
        }
        Ok(true)
    }

    /// Whether the holder of a lease has not kept it for the time that it has given it.
    ///
    /// Etcd grants no lease of less than 2 s by default, and ends it up to 0.5 s late. But it says
    /// how many whole seconds are left, so the last second of a lease shows.
    async fn is_silent(&self, lease: i64) -> Result<bool, StoreError> {
        let mut client = self.client.clone();
        let left = self.call(client.lease_time_to_live(lease, None)).await?;
        // Below 0 it has ended.
        Ok(left.ttl() < BEYOND as i64)
    }

    /// Name of the controller that works.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn leader(&mut self) -> Result<Option<String>, StoreError> {
        let mut client = self.client.clone();
        let found = self.call(client.get(self.key("leader"), None)).await?;
        let found = found.kvs().first();
        Ok(found.map(|it| String::from_utf8_lossy(it.value()).into_owned()))
    }

    /// Gives the lead back, so that another controller has it at once.
    pub async fn resign(&mut self, term: &mut Term) {
        // The lease ends by itself if etcd does not answer.
        let _ = tokio::time::timeout(CALL, term.lease.revoke()).await;
        term.since = 0;
    }
}

fn json(value: &impl serde::Serialize) -> String {
    // Types of ours, which have no map with other keys than text.
    serde_json::to_string_pretty(value).expect("a value of ours is JSON")
}
