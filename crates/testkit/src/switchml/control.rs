//! The way to the switch's controller: gRPC, in the order of the published client.
//!
//! All ranks learn the session's number from rank 0 by Broadcast. Rank 0 asks for its session and
//! comes to a Barrier; the others come to the Barrier and ask then; all come to a Barrier once
//! more. At the end they may meet at another one.
//!
//! The connection is served by a thread of its own, for as long as the value lives: it answers the
//! controller's heartbeats while datagrams are in flight. The thread, and with it the connection,
//! is in the network namespace of the thread that [connects](Control::connect).

use super::link::Peer;
use anyhow::{Context, Result, anyhow, bail};
use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_switch::switchml::proto;
use tally_wire::Mac;
use tally_wire::switchml::Size;
use tokio::sync::mpsc as tokio_mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Between attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

type Step = Pin<Box<dyn Future<Output = ()>>>;
type Work = Box<dyn FnOnce(Channel) -> Step + Send>;

/// A connection to a controller.
pub struct Control {
    work: Option<tokio_mpsc::UnboundedSender<Work>>,
    thread: Option<JoinHandle<()>>,
}

/// A worker that joins a session.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its rank.
    pub rank: u8,
    /// How many there are.
    pub workers: u8,
    /// Where it sends from.
    pub station: Peer,
    /// Elements of a packet.
    pub size: Size,
}

/// A session that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its number.
    pub session: u64,
    /// Where to send to.
    pub switch: Peer,
}

impl Control {
    /// Connects to `HOST:PORT`, trying again for `patience`.
    ///
    /// # Errors
    /// If no controller answers.
    pub fn connect(address: &str, patience: Duration) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .with_context(|| format!("{address}: not HOST:PORT"))?;
        let (work, mut todo) = tokio_mpsc::unbounded_channel::<Work>();
        let (result, started) = mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(e) => {
                    let _ = result.send(Err(e.into()));
                    return;
                }
            };
            runtime.block_on(async move {
                let channel = match connect(&endpoint, patience).await {
                    Ok(channel) => channel,
                    Err(e) => {
                        let _ = result.send(Err(e));
                        return;
                    }
                };
                let _ = result.send(Ok(()));
                while let Some(work) = todo.recv().await {
                    work(channel.clone()).await;
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("switchml-control".into())
            .spawn(serve)?;
        started
            .recv()
            .map_err(|_| anyhow!("the thread of the connection died"))?
            .with_context(|| format!("no controller at {address}"))?;
        Ok(Self {
            work: Some(work),
            thread: Some(thread),
        })
    }

    /// Has the connection's thread do something, and waits for the outcome.
    fn call<T, F>(&self, step: impl FnOnce(Channel) -> F + Send + 'static) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + 'static,
    {
        let gone = || Status::unavailable("the thread of the connection died");
        let (result, outcome) = mpsc::channel();
        let work: Work = Box::new(move |channel| {
            Box::pin(async move {
                let _ = result.send(step(channel).await.map(Response::into_inner));
            })
        });
        let sender = self.work.as_ref().ok_or_else(gone)?;
        sender.send(work).map_err(|_| gone())?;
        outcome.recv().map_err(|_| gone())?
    }

    /// What `root` says, when all have come.
    ///
    /// # Errors
    /// The controller's refusal.
    pub fn broadcast(&self, value: u64, rank: u32, workers: u32, root: u32) -> Result<u64, Status> {
        let request = proto::BroadcastRequest {
            value,
            rank,
            num_workers: workers,
            root,
        };
        let response = self.call(move |channel| async move {
            proto::sync_client::SyncClient::new(channel)
                .broadcast(request)
                .await
        })?;
        Ok(response.value)
    }

    /// Waits until all have come.
    ///
    /// # Errors
    /// The controller's refusal.
    pub fn barrier(&self, workers: u32) -> Result<(), Status> {
        let request = proto::BarrierRequest {
            num_workers: workers,
        };
        self.call(move |channel| async move {
            proto::sync_client::SyncClient::new(channel)
                .barrier(request)
                .await
        })?;
        Ok(())
    }

    /// Joins a session.
    ///
    /// # Errors
    /// The controller's refusal.
    pub fn udp_session(&self, request: proto::UdpSessionRequest) -> Result<Joined, Status> {
        let response = self.call(move |channel| async move {
            proto::session_client::SessionClient::new(channel)
                .udp_session(request)
                .await
        })?;
        let [0, 0, mac @ ..] = response.mac.to_be_bytes() else {
            return Err(Status::internal(format!("{:#x} is no MAC", response.mac)));
        };
        Ok(Joined {
            session: response.session_id,
            switch: Peer {
                mac: Mac(mac),
                ip: Ipv4Addr::from(response.ipv4),
            },
        })
    }

    /// All of it, in the published client's order. Rank 0 brings the session's number.
    ///
    /// # Errors
    /// The controller's refusal, by the call that it answers.
    pub fn join(&self, member: &Member, session: u64) -> Result<Joined> {
        let (rank, workers) = (u32::from(member.rank), u32::from(member.workers));
        let session = self
            .broadcast(session, rank, workers, 0)
            .map_err(|status| refused("Broadcast", &status))?;
        let barrier = || {
            self.barrier(workers)
                .map_err(|status| refused("Barrier", &status))
        };
        if rank > 0 {
            barrier()?;
        }
        let joined = self
            .udp_session(member.request(session))
            .map_err(|status| refused("UdpSession", &status))?;
        if rank == 0 {
            barrier()?;
        }
        barrier()?;
        if joined.session != session {
            bail!("asked for session {session}, got {}", joined.session);
        }
        Ok(joined)
    }

    /// Waits until all workers of the session are done.
    ///
    /// # Errors
    /// The controller's refusal.
    pub fn meet(&self, workers: u8) -> Result<()> {
        self.barrier(workers.into())
            .map_err(|status| refused("Barrier", &status))
    }
}

impl Member {
    /// What it asks the controller for.
    #[must_use]
    pub fn request(&self, session: u64) -> proto::UdpSessionRequest {
        proto::UdpSessionRequest {
            session_id: session,
            rank: self.rank.into(),
            num_workers: self.workers.into(),
            mac: self.station.mac.to_u64(),
            ipv4: self.station.ip.into(),
            packet_size: self.size.code().into(),
        }
    }
}

fn refused(call: &str, status: &Status) -> anyhow::Error {
    anyhow!("{call}: {:?}: {}", status.code(), status.message())
}

async fn connect(endpoint: &Endpoint, patience: Duration) -> Result<Channel> {
    let start = Instant::now();
    loop {
        match endpoint.connect().await {
            Ok(channel) => return Ok(channel),
            Err(e) if start.elapsed() > patience => return Err(e.into()),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

impl Drop for Control {
    /// Ends the connection.
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
