//! The call `Capture`: from what a client asks to what data cores copy, and back.
//!
//! A capture ends by itself: with its time, its number, the call, or the switch. At its end
//! [`Started`] is dropped, and the data cores copy no more.

use crate::bus::Bus;
use crate::capture::{Budget, Capture, Copied, Filter, WAITING_MAX, Wanted};
use crate::messages::CoreCommand;
use std::time::{Duration, Instant, SystemTime};
use tally_api::proto::{CaptureReply, CaptureRequest, CapturedFrame};
use tally_engine::{DropReason, PortId};
use tally_schema::switch::report::Report;
use tally_wire::JobId;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Frames of one reply at most.
const FRAMES_OF_REPLY: usize = 256;
/// Replies that wait for the client at most.
const REPLIES: usize = 4;
/// Bytes of a frame by default.
const SNAPLEN: u32 = 256;
/// Frames by default, and at most.
const COUNT: [u64; 2] = [100_000, 10_000_000];
/// Seconds by default, and at most.
const SECONDS: [f64; 2] = [60.0, 3600.0];
/// How long copies may wait for others to come to the client with.
const GATHER: Duration = Duration::from_millis(20);

/// The frames of a call.
pub type Frames = ReceiverStream<Result<CaptureReply, Status>>;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    filter: Filter,
    snaplen: usize,
    count: u64,
    time: Duration,
}

impl Asked {
    /// Reads a request of a switch whose ports have these names.
    ///
    /// # Errors
    /// What cannot be.
    pub fn parse(request: &CaptureRequest, ports: &[String]) -> Result<Self, Status> {
        let port = request.port.as_ref().map(|name| port_of(name, ports));
        let job = request.job.map(super::convert::id).transpose()?;
        let wanted = match &request.reason {
            Some(name) => Wanted::Reason(reason(name)?),
            None if request.drops => Wanted::Drops,
            None => Wanted::All,
        };
        let count = request.count.unwrap_or(COUNT[0]);
        within("count", count, 1, COUNT[1])?;
        let snaplen = request.snaplen.unwrap_or(SNAPLEN);
        within("snaplen", snaplen, 14, 9216)?;
        let seconds = request.seconds.unwrap_or(SECONDS[0]);
        within("seconds", seconds, 0.1, SECONDS[1])?;
        Ok(Self {
            filter: Filter {
                port: port.transpose()?,
                job: job.map(JobId),
                wanted,
            },
            snaplen: snaplen as usize,
            count,
            time: Duration::from_secs_f64(seconds),
        })
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    name: &str,
    found: T,
    least: T,
    most: T,
) -> Result<(), Status> {
    if (least <= found) && (found <= most) {
        return Ok(());
    }
    let text = format!("{name}: found {found}, allowed {least} to {most}");
    Err(Status::invalid_argument(text))
}

fn port_of(name: &str, ports: &[String]) -> Result<PortId, Status> {
    let at = ports.iter().position(|port| port == name);
    at.map(|at| PortId(at as u16)).ok_or_else(|| {
        Status::not_found(format!(
            "port {name}: unknown; there are {}",
            ports.join(", ")
        ))
    })
}

fn reason(name: &str) -> Result<DropReason, Status> {
    let all = DropReason::ALL.iter();
    let found = all.copied().find(|reason| reason.name() == name);
    found.ok_or_else(|| {
        let names = DropReason::NAMES.join(", ");
        Status::invalid_argument(format!("reason: found {name}, allowed {names}"))
    })
}

/// Names of the ports, by number.
pub fn port_names(report: &Report) -> Vec<String> {
    report.ports.iter().map(|port| port.name.clone()).collect()
}

/// A capture that runs; dropping it ends it.
struct Started {
    bus: Bus,
    copies: mpsc::Receiver<Copied>,
    budget: std::sync::Arc<Budget>,
    /// Nanoseconds since 1970 at the start of the switch.
    epoch_ns: u64,
    /// There is one at a time.
    _permit: OwnedSemaphorePermit,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.bus.send(|| CoreCommand::Capture(None));
    }
}

/// Has the data cores copy frames for a client.
pub fn start(
    asked: &Asked,
    ports: Vec<String>,
    bus: Bus,
    epoch: Instant,
    permit: OwnedSemaphorePermit,
) -> Frames {
    let (out, copies) = mpsc::channel(WAITING_MAX);
    let budget = Budget::new(asked.count);
    let capture = Capture {
        filter: asked.filter,
        snaplen: asked.snaplen,
        budget: std::sync::Arc::clone(&budget),
        epoch,
        out,
    };
    bus.send(|| CoreCommand::Capture(Some(Box::new(capture.clone()))));
    drop(capture);
    let started = Started {
        bus,
        copies,
        budget,
        epoch_ns: since_1970(epoch),
        _permit: permit,
    };
    let (replies, frames) = mpsc::channel(REPLIES);
    let (count, time) = (asked.count, asked.time);
    tokio::spawn(async move {
        // Said at once: the client knows that the capture runs.
        let first = CaptureReply {
            ports,
            ..CaptureReply::default()
        };
        if replies.send(Ok(first)).await.is_ok() {
            let _ = tokio::time::timeout(time, started.carry(&replies, count)).await;
        }
    });
    ReceiverStream::new(frames)
}

/// Nanoseconds from 1970 to a moment.
fn since_1970(moment: Instant) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let then = now.unwrap_or_default().saturating_sub(moment.elapsed());
    then.as_nanos() as u64
}

impl Started {
    /// Carries copies to the client until it has `count`, or is gone.
    async fn carry(mut self, replies: &mpsc::Sender<Result<CaptureReply, Status>>, mut count: u64) {
        let mut batch = Vec::with_capacity(FRAMES_OF_REPLY);
        while count > 0 {
            tokio::select! {
                () = replies.closed() => return,
                n = self.copies.recv_many(&mut batch, FRAMES_OF_REPLY) => if n == 0 { return },
            }
            count = count.saturating_sub(batch.len() as u64);
            let reply = CaptureReply {
                ports: Vec::new(),
                frames: batch.drain(..).map(|copied| self.frame(copied)).collect(),
                lost: self.budget.lost(),
            };
            if replies.send(Ok(reply)).await.is_err() {
                return;
            }
            if count > 0 && self.copies.is_empty() {
                tokio::time::sleep(GATHER).await;
            }
        }
    }

    fn frame(&self, copied: Copied) -> CapturedFrame {
        CapturedFrame {
            time_ns: self.epoch_ns + copied.at.0,
            port: u32::from(copied.port.0),
            sent: copied.sent,
            drop: copied.drop.map(|reason| reason.name().to_owned()),
            bytes: copied.bytes,
            data: copied.data.into(),
        }
    }
}
