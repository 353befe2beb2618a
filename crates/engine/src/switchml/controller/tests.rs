//! Scripts in virtual time, and a random walk at the end.

use super::*;
use std::collections::BTreeSet;

mod hosts;
mod lifetimes;
mod meetings;
mod mixed;
mod refusals;
mod walk;

/// How long an address waits for a second job, where a test lets it.
const GRACE_PERIOD: Duration = Duration::from_secs(1);
const SETUP: Duration = Duration::from_secs(300);
const IDLE: Duration = Duration::from_secs(200);
const SWITCH: (Mac, Ipv4Addr) = (Mac([2, 0x54, 0, 0, 0, 1]), Ipv4Addr::new(10, 84, 0, 254));

type Outcome = Result<Answer, Refusal>;

/// A data path that only remembers.
#[derive(Debug, Default)]
struct Plane {
    bound: BTreeMap<SessionId, Arc<Session>>,
    frames: BTreeMap<SessionId, Time>,
    refuses: Option<String>,
    /// All that was asked of it.
    log: Vec<String>,
}

impl super::Plane for Plane {
    fn bind(&mut self, session: &Arc<Session>) -> Result<(), String> {
        if let Some(why) = &self.refuses {
            return Err(why.clone());
        }
        self.log.push(format!("bind {}", session.id));
        self.bound.insert(session.id, Arc::clone(session));
        Ok(())
    }

    fn unbind(&mut self, id: SessionId) {
        self.log.push(format!("unbind {id}"));
        self.bound.remove(&id).expect("a session that is bound");
    }

    fn last_frame(&mut self, id: SessionId) -> Option<Time> {
        self.frames.get(&id).copied()
    }
}

/// A controller with its clients.
struct World {
    controller: Controller<Plane>,
    now: Time,
    next: u64,
    answers: BTreeMap<CallId, Outcome>,
    events: Vec<Event>,
}

/// A worker's process: its connection, and what it says.
#[derive(Clone, Copy, Debug)]
struct Client {
    connection: ConnectionId,
    rank: u32,
    workers: u32,
    host: u8,
}

impl Client {
    fn station(&self) -> HostAddress {
        HostAddress {
            mac: Mac([2, 0, 0, 0, 0, self.host]),
            ip: Ipv4Addr::new(10, 84, 0, self.host),
        }
    }

    fn session(&self, id: u64) -> UdpSession {
        let HostAddress { mac, ip } = self.station();
        UdpSession {
            session: SessionId(id),
            rank: self.rank,
            workers: self.workers,
            mac: mac.to_u64(),
            ip,
            packet_size: 1,
        }
    }
}

/// One host, as all in a test that does not say otherwise.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The n-th of the others.
fn host(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, n))
}

fn address(n: u64) -> SocketAddr {
    SocketAddr::new(HOST, 1000 + n as u16)
}

impl World {
    fn new(sessions: usize) -> Self {
        Self::with(sessions, Duration::ZERO, vec![vec![]; 2])
    }

    /// With the time for which addresses wait for a second job, and the lists of hosts.
    fn with(sessions: usize, grace_period: Duration, listens: Vec<Vec<IpAddr>>) -> Self {
        let config = ControllerConfig {
            listens,
            secret: [7; 32],
            grace_period,
            sessions,
            mac: SWITCH.0,
            ip: SWITCH.1,
            size_max: Size::B1024,
            setup_timeout: SETUP,
            idle_timeout: IDLE,
        };
        Self {
            controller: Controller::new(config, Plane::default()),
            now: Time(0),
            next: 0,
            answers: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The first connection has port 1001, and so on: one number for each connection and call.
    fn connect(&mut self, listen: usize) -> ConnectionId {
        let n = self.number();
        self.controller.opened(ConnectionId(n), listen, address(n));
        ConnectionId(n)
    }

    fn connect_from(&mut self, listen: usize, host: IpAddr) -> ConnectionId {
        let n = self.number();
        let peer = SocketAddr::new(host, 1000 + n as u16);
        self.controller.opened(ConnectionId(n), listen, peer);
        ConnectionId(n)
    }

    /// All workers of a job with stations of their own, each calling from its host.
    fn job_at(&mut self, listen: usize, hosts: &[u8], first_host: u8) -> Vec<Client> {
        let workers = hosts.len() as u32;
        let ranks = hosts.iter().zip(0..);
        let client = |(&from, rank): (&u8, u32)| Client {
            connection: self.connect_from(listen, host(from)),
            rank,
            workers,
            host: first_host + rank as u8,
        };
        ranks.map(client).collect()
    }

    /// All workers of a job, on hosts of their own.
    fn job(&mut self, listen: usize, workers: u32, first_host: u8) -> Vec<Client> {
        let client = |rank| Client {
            connection: self.connect(listen),
            rank,
            workers,
            host: first_host + rank as u8,
        };
        (0..workers).map(client).collect()
    }

    fn call(&mut self, connection: ConnectionId, request: Request) -> CallId {
        let call = CallId(self.number());
        self.controller.handle(self.now, connection, call, request);
        self.collect();
        call
    }

    fn collect(&mut self) {
        while let Some((call, answer)) = self.controller.poll_answer() {
            let before = self.answers.insert(call, answer);
            assert_eq!(before, None, "{call:?} was answered twice");
        }
        while let Some(event) = self.controller.poll_event() {
            self.events.push(event);
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        self.controller.closed(self.now, connection);
        self.collect();
    }

    fn abandon(&mut self, call: CallId) {
        self.controller.abandoned(call);
        self.collect();
    }

    /// Time passes, and the controller wakes up when it said it would.
    fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        while let Some(at) = self.controller.poll_timeout().filter(|&at| at <= until) {
            assert!(self.now <= at, "late");
            self.now = at;
            self.controller.handle_timeout(at);
            self.collect();
            let next = self.controller.poll_timeout();
            assert!(next.is_none_or(|next| next > at), "woken for nothing");
        }
        self.now = until;
    }

    fn broadcast(&mut self, client: &Client, value: u64) -> CallId {
        let request = Request::Broadcast {
            value,
            rank: client.rank,
            workers: client.workers,
            root: 0,
        };
        self.call(client.connection, request)
    }

    fn barrier(&mut self, client: &Client) -> CallId {
        let workers = client.workers;
        self.call(client.connection, Request::Barrier { workers })
    }

    fn udp_session(&mut self, client: &Client, id: u64) -> CallId {
        self.call(client.connection, Request::UdpSession(client.session(id)))
    }

    fn answer(&self, call: CallId) -> Option<&Outcome> {
        self.answers.get(&call)
    }

    fn refusal(&self, call: CallId) -> &Refusal {
        match self.answers.get(&call) {
            Some(Err(refusal)) => refusal,
            other => panic!("{call:?}: {other:?}"),
        }
    }

    fn text(&self, call: CallId) -> String {
        self.refusal(call).to_string()
    }

    /// The published clients' order, step by step, all ranks at once in each.
    fn set_up(&mut self, job: &[Client], id: u64) {
        let calls: Vec<_> = job.iter().map(|c| self.broadcast(c, id)).collect();
        for call in calls {
            assert_eq!(self.answer(call), Some(&Ok(Answer::Value(id))));
        }
        self.set_up_sessions(job, id);
    }

    /// The rest of it, once all know the number.
    fn set_up_sessions(&mut self, job: &[Client], id: u64) {
        let (root, others) = job.split_first().unwrap();
        let first = self.udp_session(root, id);
        assert!(self.is_in(first, id));
        let mut calls = vec![self.barrier(root)];
        calls.extend(others.iter().map(|c| self.barrier(c)));
        for call in calls {
            assert_eq!(self.answer(call), Some(&Ok(Answer::Met)));
        }
        for client in others {
            let call = self.udp_session(client, id);
            assert!(self.is_in(call, id));
        }
        let calls: Vec<_> = job.iter().map(|c| self.barrier(c)).collect();
        for call in calls {
            assert_eq!(self.answer(call), Some(&Ok(Answer::Met)));
        }
        assert!(self.is_bound(id));
    }

    fn is_bound(&self, id: u64) -> bool {
        self.controller.plane.bound.contains_key(&SessionId(id))
    }

    /// Whether a UdpSession was granted.
    fn is_in(&self, call: CallId, id: u64) -> bool {
        match self.answer(call) {
            Some(&Ok(Answer::Session { id: of, mac, ip })) => {
                let is_secret = mac.0[0] & 3 == 2 && mac != SWITCH.0;
                of.0 == id && ip == SWITCH.1 && is_secret
            }
            _ => false,
        }
    }

    /// The switch's address that a call was told.
    fn secret(&self, call: CallId) -> Mac {
        match self.answer(call) {
            Some(&Ok(Answer::Session { mac, .. })) => mac,
            other => panic!("{call:?}: {other:?}"),
        }
    }

    fn end_of(&self, id: u64) -> Option<&End> {
        self.events.iter().find_map(|event| match event {
            Event::Ended { id: of, why } if of.0 == id => Some(why),
            _ => None,
        })
    }
}
