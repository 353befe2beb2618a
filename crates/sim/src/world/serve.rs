//! Service of sessions: what they send, in which order, and when they are woken.

use super::{News, World};
use crate::address::{HostId, Place, SessionId};
use crate::events::Event;
use crate::frame::{Frame, Origin};
use crate::host::{Data, Kind};
use crate::link::Arrivals;
use crate::port::{arrival, has_elements, wire_bytes};
use crate::trace::Step;
use tally_endpoint::Transmit;
use tally_endpoint::nic::{Demand, Turn};
use tally_wire::Time;
use tally_wire::frame::{UDP_END, emit_udp};

/// What a session has sent.
struct Sent {
    frames: usize,
    /// The NIC has room for more.
    has_room: bool,
}

impl<D: Data> World<D> {
    /// Lets a session send what it has to, say what it has to, and be woken in time.
    pub(super) fn serve(&mut self, id: SessionId) {
        let host = &self.hosts[usize::from(self.sessions[id.0 as usize].address.host.0)];
        if host.asleep_until > self.now {
            return;
        }
        // Where others may be before it, it waits for the NIC with them.
        if !(host.is_armed && host.order.is_some() && host.sessions.len() > 1) {
            self.transmit(id, usize::MAX);
        }
        self.observe_session(id);
    }

    /// Lets the sessions of a host send, whose NIC has room or whose processes run again.
    pub(super) fn host_idle(&mut self, id: HostId) {
        let at = usize::from(id.0);
        self.hosts[at].is_armed = false;
        let sessions = self.hosts[at].sessions.len();
        let is_asleep = self.hosts[at].asleep_until > self.now;
        if sessions > 1
            && !is_asleep
            && let Some(mut order) = self.hosts[at].order.take()
        {
            let all = self.hosts[at].sessions.clone();
            for (n, &session) in all.iter().enumerate() {
                if let Some(demand) = self.demand(session) {
                    order.offer(n, demand);
                }
            }
            while let Some(Turn { at: n, most }) = order.next() {
                let Sent { frames, has_room } = self.transmit(all[n], most);
                order.sent(frames, has_room && frames < most);
                if !has_room {
                    break;
                }
            }
            order.end();
            self.hosts[at].order = Some(order);
            for session in all {
                self.observe_session(session);
            }
            return;
        }
        if sessions > 1 {
            // Not always the same one first.
            self.hosts[at].sessions.rotate_left(1);
        }
        for n in 0..sessions {
            self.serve(self.hosts[at].sessions[n]);
        }
    }

    /// What a session has to send.
    fn demand(&self, id: SessionId) -> Option<Demand> {
        let session = &self.sessions[id.0 as usize];
        match &session.kind {
            Kind::Worker(worker, _) => worker.demand(self.now),
            Kind::Ps(ps) => ps.demand(self.now),
            Kind::Collectives(_) | Kind::Switchml(_) | Kind::Ring(_) => Some(Demand {
                control: false,
                priority: 0,
                work: 0,
                job: session.job.0,
            }),
            Kind::Dead => None,
        }
    }

    /// Lets a session send up to `most` frames, as long as the NIC has room.
    fn transmit(&mut self, id: SessionId, most: usize) -> Sent {
        let Self { now, .. } = *self;
        let session = &mut self.sessions[id.0 as usize];
        let host = &mut self.hosts[usize::from(session.address.host.0)];
        let mut frames = 0;
        while frames < most {
            if !host.ahead.is_zero() && host.uplink.backlog(now) >= host.ahead {
                if !host.is_armed {
                    host.is_armed = true;
                    // Half of it may leave first, so that this is not once a frame.
                    let left = host.uplink.backlog(now) - host.ahead / 2;
                    self.events.push(now.after(left), Event::HostIdle(host.id));
                }
                return Sent {
                    frames,
                    has_room: false,
                };
            }
            let mut frame = Frame::empty(self.room, Origin::Host(host.id));
            let bytes = frame.fill(self.room);
            let room = &mut bytes[UDP_END..];
            let sent = match &mut session.kind {
                Kind::Worker(worker, data) => worker.poll_transmit(now, room, data),
                Kind::Ps(ps) => ps.poll_transmit(now, room),
                Kind::Collectives(process) => process.poll_transmit(now, room),
                Kind::Switchml(_) | Kind::Ring(_) | Kind::Dead => None,
            };
            let len = match (sent, &mut session.kind) {
                (Some(Transmit { len, port }), _) => {
                    let addresses = session.address.to_switch(session.switch, port);
                    emit_udp(bytes, &addresses, len);
                    Some(UDP_END + len)
                }
                (None, Kind::Switchml(client)) => client.poll_transmit(now, bytes),
                (None, Kind::Ring(member)) => member.poll_transmit(now, bytes),
                _ => None,
            };
            let Some(len) = len else {
                break;
            };
            frames += 1;
            frame.fill(len);
            if let Some(trace) = &mut self.trace {
                trace.frame(now, Step::Sent, Place::Host(host.id), &frame);
            }
            let bytes = wire_bytes(frame.bytes(), self.nominal_payload_bytes);
            let arrivals = match host.uplink.take(now, bytes) {
                Some(left) => {
                    let has_elements = has_elements(frame.bytes());
                    host.uplink.fly(left, has_elements, &mut self.rng)
                }
                None => Arrivals::default(),
            };
            let peer = host.peer();
            if let Some(at) = arrivals.copy {
                self.events.push(at, arrival(peer, frame.copied()));
            }
            if let Some(at) = arrivals.first {
                self.events.push(at, arrival(peer, frame));
            } else if let Some(trace) = &mut self.trace {
                trace.frame(now, Step::Lost, Place::Host(host.id), &frame);
            }
        }
        Sent {
            frames,
            has_room: true,
        }
    }

    /// Takes what a session has to say, and has it woken in time.
    fn observe_session(&mut self, id: SessionId) {
        let now = self.now;
        let session = &mut self.sessions[id.0 as usize];
        let deadline = match &mut session.kind {
            Kind::Worker(worker, data) => {
                while let Some(event) = worker.poll_event() {
                    self.news.push_back(News::Worker(id, event));
                }
                if data.has_news() {
                    self.news.push_back(News::Data(id));
                }
                worker.poll_timeout()
            }
            Kind::Ps(ps) => {
                while let Some(event) = ps.poll_event() {
                    self.news.push_back(News::Ps(id, event));
                }
                ps.poll_timeout()
            }
            Kind::Collectives(process) => process.poll(now),
            Kind::Switchml(client) => client.poll_timeout(),
            Kind::Ring(member) => member.poll_timeout(),
            Kind::Dead => None,
        };
        if let Some(at) = deadline
            && session.wake_at.is_none_or(|wake| at < wake)
        {
            // A deadline that has passed and is still there is looked at again, a moment later.
            let at = at.max(Time(now.0 + 1));
            session.wake_at = Some(at);
            self.events.push(at, Event::Wake(id));
        }
    }
}
