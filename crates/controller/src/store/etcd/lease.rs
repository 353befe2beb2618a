//! A lease that a thread of its own keeps, also while this one plans.

use etcd_client::{Client, ConnectOptions, Error};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::Code;

/// Keepalives in the time of a lease.
const KEEPALIVES: u32 = 4;
/// Seconds for which etcd keeps a lease beyond its time: a standby ends it before.
pub(super) const BEYOND: u64 = 1;

/// How etcd is reached.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) members: Vec<String>,
    pub(super) options: ConnectOptions,
}

impl Way {
    pub(super) async fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.members, Some(self.options.clone())).await
    }
}

/// A lease, which is granted when it is first needed, and again when it has ended.
pub(super) struct Lease {
    client: Client,
    way: Way,
    time: Duration,
    kept: Option<Held>,
    /// One that has ended here, and perhaps not in etcd.
    ended: Option<i64>,
}

struct Held {
    id: i64,
    /// It lives until then for certain. `None`: etcd has ended it.
    until: Arc<Mutex<Option<Instant>>>,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Lease {
    pub(super) fn new(client: Client, way: Way, time: Duration) -> Self {
        Self {
            client,
            way,
            time,
            kept: None,
            ended: None,
        }
    }

    /// The number of a lease that lives.
    pub(super) async fn alive(&mut self) -> Result<i64, Error> {
        let is_alive = |kept: &Held| {
            let until = *kept.until.lock().expect("no holder panics");
            until.is_some_and(|until| Instant::now() < until)
        };
        if let Some(kept) = self.kept.as_ref().filter(|it| is_alive(it)) {
            return Ok(kept.id);
        }
        if let Some(kept) = self.kept.take() {
            self.ended = Some(kept.id);
        }
        if let Some(id) = self.ended {
            // Etcd may have it for longer, with its keys: it counts from its own restart.
            match self.client.lease_revoke(id).await {
                Err(Error::GRpcStatus(status)) if status.code() == Code::NotFound => {}
                other => _ = other?,
            }
            self.ended = None;
        }
        let asked = Instant::now();
        let seconds = self.time.as_secs() + BEYOND;
        let granted = self.client.lease_grant(seconds as i64, None).await?;
        let kept = keep(self.way.clone(), granted.id(), asked + self.time, self.time)?;
        let id = kept.id;
        self.kept = Some(kept);
        Ok(id)
    }

    /// Ends it, with all keys that have it.
    pub(super) async fn revoke(&mut self) -> Result<(), Error> {
        if let Some(kept) = self.kept.take() {
            self.client.lease_revoke(kept.id).await?;
        }
        Ok(())
    }
}

/// Keeps a lease until it is dropped, or etcd has ended it.
///
/// The thread has a connection of its own: one of the other runtime stands still while that plans.
fn keep(way: Way, id: i64, until: Instant, time: Duration) -> Result<Held, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let until = Arc::new(Mutex::new(Some(until)));
    let (stop, stopped) = channel::<()>();
    let shared = Arc::clone(&until);
    let pause = time / KEEPALIVES;
    let work = move || {
        let mut client = None;
        loop {
            match stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
            let asked = Instant::now();
            let call = async { timeout(pause, once(&way, &mut client, id)).await };
            match runtime.block_on(call) {
                Ok(Ok(true)) => {
                    *shared.lock().expect("no holder panics") = Some(asked + time);
                }
                Ok(Ok(false)) => {
                    *shared.lock().expect("no holder panics") = None;
                    return;
                }
                // Lost, or late: the next one may come through in time.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    };
    let thread = std::thread::Builder::new().name("lease".to_owned());
    Ok(Held {
        id,
        until,
        stop: Some(stop),
        thread: Some(thread.spawn(work)?),
    })
}

/// Whether etcd has the lease still, for its whole time again.
async fn once(way: &Way, client: &mut Option<Client>, id: i64) -> Result<bool, Error> {
    let client = match client {
        Some(client) => client,
        None => client.insert(way.connect().await?),
    };
    let (mut keeper, mut answers) = client.lease_keep_alive(id).await?;
    keeper.keep_alive().await?;
    let answer = answers.message().await?;
    Ok(answer.is_some_and(|it| it.ttl() > 0))
}
