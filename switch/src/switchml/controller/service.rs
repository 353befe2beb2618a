//! From calls to requests, and from answers to replies.
//!
//! A refusal is an error of gRPC with a text. Published clients do not look into a reply of zeros,
//! which is how the original refuses, and wait without limit for packets that are never sent.

use super::incoming::Caller;
use super::{Line, Message};
use crate::switchml::proto::session_server::{Session, SessionServer};
use crate::switchml::proto::sync_server::{Sync, SyncServer};
use crate::switchml::proto::{
    BarrierRequest, BarrierResponse, BroadcastRequest, BroadcastResponse, RdmaSessionRequest,
    RdmaSessionResponse, UdpSessionRequest, UdpSessionResponse,
};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tally_engine::switchml::SessionId;
use tally_engine::switchml::controller::{Answer, CallId, Code, Refusal, Request, UdpSession};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::NamedService;
use tonic::{Response, Status};
use tower_service::Service;

/// No request is nearly as long.
const REQUEST_BYTES_MAX: usize = 64 << 10;

const NO_RDMA: &str =
    "this switch has no RDMA sessions; build the client for DPDK, and it asks for a UdpSession";

/// Both services of the controller.
#[derive(Clone)]
pub(super) struct Services {
    session: SessionServer<Handler>,
    sync: SyncServer<Handler>,
}

impl Services {
    pub(super) fn new(line: Line) -> Self {
        let handler = Handler { line };
        let session = SessionServer::new(handler.clone());
        Self {
            session: session.max_decoding_message_size(REQUEST_BYTES_MAX),
            sync: SyncServer::new(handler).max_decoding_message_size(REQUEST_BYTES_MAX),
        }
    }
}

impl Service<http::Request<Body>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // `/package.Service/Method`. What neither knows, each says to be unimplemented.
        let service = request.uri().path().split('/').nth(1);
        if service == Some(SyncServer::<Handler>::NAME) {
            self.sync.call(request)
        } else {
            self.session.call(request)
        }
    }
}

#[derive(Clone)]
struct Handler {
    line: Line,
}

impl Handler {
    /// Puts a call into the queue, and waits for what comes of it.
    async fn ask<T>(&self, from: &tonic::Request<T>, request: Request) -> Result<Answer, Status> {
        let caller = from.extensions().get::<Caller>();
        let caller = caller.ok_or_else(|| Status::internal("a call without a connection"))?;
        caller.has_called.store(true, Ordering::Relaxed);
        let connection = caller.connection;
        let call = CallId(self.line.next.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        let mut waiting = Waiting {
            line: &self.line,
            call: Some(call),
        };
        let _ = self.line.queue.send(Message::Call {
            connection,
            call,
            request,
            answer,
        });
        let answer = answered.await;
        waiting.call = None;
        answer
            .map_err(|_| Status::unavailable("the switch is stopping"))?
            .map_err(|refusal| status(&refusal))
    }
}

/// A call that is given up (the client has cancelled it, or gone) is dropped before its answer.
struct Waiting<'a> {
    line: &'a Line,
    call: Option<CallId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            let _ = self.line.queue.send(Message::Abandoned(call));
        }
    }
}

fn status(refusal: &Refusal) -> Status {
    let code = match refusal.code() {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::Aborted => tonic::Code::Aborted,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::Internal => tonic::Code::Internal,
    };
    Status::new(code, refusal.to_string())
}

/// An answer of another kind than its request is a bug of ours, and no reason to end the switch.
fn mixed_up() -> Status {
    Status::internal("an answer to another call")
}

#[tonic::async_trait]
impl Session for Handler {
    async fn rdma_session(
        &self,
        _: tonic::Request<RdmaSessionRequest>,
    ) -> Result<Response<RdmaSessionResponse>, Status> {
        Err(Status::unimplemented(NO_RDMA))
    }

    async fn udp_session(
        &self,
        request: tonic::Request<UdpSessionRequest>,
    ) -> Result<Response<UdpSessionResponse>, Status> {
        let said = request.get_ref();
        let asked = Request::UdpSession(UdpSession {
            session: SessionId(said.session_id),
            rank: said.rank,
            workers: said.num_workers,
            mac: said.mac,
            ip: Ipv4Addr::from_bits(said.ipv4),
            packet_size: said.packet_size,
        });
        match self.ask(&request, asked).await? {
            Answer::Session { id, mac, ip } => Ok(Response::new(UdpSessionResponse {
                session_id: id.0,
                mac: mac.to_u64(),
                ipv4: ip.to_bits(),
            })),
            _ => Err(mixed_up()),
        }
    }
}

#[tonic::async_trait]
impl Sync for Handler {
    async fn barrier(
        &self,
        request: tonic::Request<BarrierRequest>,
    ) -> Result<Response<BarrierResponse>, Status> {
        let workers = request.get_ref().num_workers;
        match self.ask(&request, Request::Barrier { workers }).await? {
            Answer::Met => Ok(Response::new(BarrierResponse {})),
            _ => Err(mixed_up()),
        }
    }

    async fn broadcast(
        &self,
        request: tonic::Request<BroadcastRequest>,
    ) -> Result<Response<BroadcastResponse>, Status> {
        let said = request.get_ref();
        let asked = Request::Broadcast {
            value: said.value,
            rank: said.rank,
            workers: said.num_workers,
            root: said.root,
        };
        match self.ask(&request, asked).await? {
            Answer::Value(value) => Ok(Response::new(BroadcastResponse { value })),
            _ => Err(mixed_up()),
        }
    }
}
