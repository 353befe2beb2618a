//! Which station is which rank of which session, and for how long.
//!
//! A session *fills* from its first UdpSession on; when its last worker has come it is bound on all
//! data cores, and *runs*. It ends
//!
//! * when one of its stations asks for another session, or for the same one on another connection:
//!   its client was started anew, and a station is in one session at most, the newest. Only the
//!   host that was let in as this station may ask, or one that calls from the station's own
//!   address;
//! * when two ports of the switch claim one of its stations;
//! * when its connections are all closed and no frame comes for the idle timeout, or for
//!   [`GIVES_WAY`] if all places are taken and a new session needs one;
//! * while it fills, when its workers do not come in time, or all of those who came have gone.
//!
//! A station that is let in is told a secret address of the switch, and its frames count only if
//! they go there. It is random for each place of each session, and a place that is taken anew has
//! another.
//!
//! What is refused changes nothing: all checks come before the first change.

use super::{
    Answer, ConnectionId, ControllerConfig, End, GIVES_WAY, Membership, Plane, Ranks, Refusal,
    UdpSession,
};
use crate::switchml::Conflict;
use crate::switchml::{HostAddress, Session, SessionId};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use tally_wire::switchml::Size;
use tally_wire::{Mac, Time};

#[derive(Debug)]
pub(super) struct Sessions {
    config: ControllerConfig,
    entries: BTreeMap<SessionId, Entry>,
    /// Secrets made so far.
    secrets: u64,
}

#[derive(Debug)]
struct Entry {
    size: Size,
    /// By rank.
    members: Vec<Option<Member>>,
    /// The host whose call was its first.
    by: IpAddr,
    since: Time,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    station: HostAddress,
    /// The host that it was given to, by the address of its connection.
    peer: IpAddr,
    /// The switch's address that it was told.
    switch_mac: Mac,
    /// None when it has closed.
    connection: Option<ConnectionId>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Not all workers have come.
    Filling,
    /// Bound.
    Running,
    /// Bound, and all connections are closed.
    Closed {
        /// Since when.
        at: Time,
        /// When to look whether frames still come.
        look: Time,
    },
}

impl Entry {
    /// Its rank that this station has.
    fn rank_of(&self, station: HostAddress) -> Option<u32> {
        let at = |member: &Option<Member>| member.is_some_and(|member| member.station == station);
        self.members.iter().position(at).map(|rank| rank as u32)
    }

    /// A rank whose station has this one's Ethernet or IPv4 address.
    fn overlaps(&self, station: HostAddress) -> Option<(u32, Member)> {
        let members = self.members.iter().enumerate();
        let mut members = members.filter_map(|(rank, member)| Some((rank as u32, (*member)?)));
        members.find(|(_, member)| {
            member.station.mac == station.mac || member.station.ip == station.ip
        })
    }

    fn missing(&self) -> Ranks {
        let members = self.members.iter().enumerate();
        let empty = members.filter(|(_, member)| member.is_none());
        Ranks(empty.map(|(rank, _)| (rank as u32, None)).collect())
    }

    /// Its connections are all closed, and this long no frame came.
    fn silent(&self, id: SessionId, now: Time, plane: &mut impl Plane) -> Option<Duration> {
        let Phase::Closed { at, .. } = self.phase else {
            return None;
        };
        let last = plane.last_frame(id).map_or(at, |frame| frame.max(at));
        Some(now.since(last))
    }

    /// Whether a request is that of a client that was started anew: its place is its own, in a
    /// session that runs already.
    fn is_restart(&self, connection: ConnectionId, rank: u32, station: HostAddress) -> bool {
        !matches!(self.phase, Phase::Filling)
            && self.members[rank as usize].is_some_and(|member| {
                member.station == station && member.connection != Some(connection)
            })
    }
}

impl Member {
    /// Whether a call from there may put another in its place: it is from the host that it was
    /// given to, or from the address that the station itself has.
    fn belongs_to(&self, peer: IpAddr) -> bool {
        peer == self.peer || peer == IpAddr::V4(self.station.ip)
    }
}

impl Sessions {
    pub(super) fn new(config: ControllerConfig) -> Self {
        Self {
            config,
            entries: BTreeMap::new(),
            secrets: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn set_secret(&mut self, secret: [u8; 32]) {
        self.config.secret = secret;
    }

    /// What a worker is told that is in.
    pub(super) fn answer(&self, id: SessionId, rank: u32) -> Answer {
        let entry = self.entries.get(&id);
        let member = entry.and_then(|entry| entry.members.get(rank as usize)?.as_ref());
        Answer::Session {
            id,
            mac: member.map_or(self.config.mac, |member| member.switch_mac),
            ip: self.config.ip,
        }
    }

    fn secret(&mut self) -> Mac {
        self.secrets += 1;
        switch_mac(&self.config.secret, self.secrets)
    }

    /// Whether this host has a place in a session, and if one of that number is there, has it in
    /// that one.
    pub(super) fn is_named_by(&self, id: SessionId, rank: u32, peer: IpAddr) -> bool {
        let Some(entry) = self.entries.get(&id) else {
            return true;
        };
        let member = entry.members.get(rank as usize).copied().flatten();
        member.is_some_and(|member| member.belongs_to(peer))
    }

    /// The running session in which this host has this rank, on another connection.
    pub(super) fn running_with(
        &self,
        rank: u32,
        peer: IpAddr,
        connection: ConnectionId,
    ) -> Option<(SessionId, HostAddress)> {
        let running = self.entries.iter();
        let mut running = running.filter(|(_, entry)| !matches!(entry.phase, Phase::Filling));
        running.find_map(|(&id, entry)| {
            let member = entry.members.get(rank as usize).copied().flatten()?;
            let is_anew = member.peer == peer && member.connection != Some(connection);
            is_anew.then_some((id, member.station))
        })
    }

    /// Whether all workers of a session have come.
    pub(super) fn runs(&self, id: SessionId) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| !matches!(entry.phase, Phase::Filling))
    }

    /// Whether one of these addresses is a worker's of this session.
    pub(super) fn has(&self, id: SessionId, mac: u64, ip: Ipv4Addr) -> bool {
        let Some(entry) = self.entries.get(&id) else {
            return false;
        };
        let mut members = entry.members.iter().flatten();
        members.any(|member| member.station.mac.to_u64() == mac || member.station.ip == ip)
    }

    /// Two ports claim a worker. Returns what ends with it.
    pub(super) fn conflict(
        &mut self,
        id: SessionId,
        conflict: &Conflict,
        ports: [String; 2],
        plane: &mut impl Plane,
    ) -> Vec<(SessionId, End)> {
        let mut ended = Vec::new();
        let entry = self.entries.get(&id);
        let member =
            entry.and_then(|entry| entry.members.get(usize::from(conflict.rank))?.as_ref());
        if let Some(&Member { station, .. }) = member {
            let rank = conflict.rank.into();
            let why = End::TwoPorts {
                station,
                rank,
                ports,
            };
            self.end(id, why, plane, &mut ended);
        }
        ended
    }

    /// A worker comes; its rank is below its number of workers. Returns the session if it was the
    /// last one, and it runs.
    pub(super) fn join(
        &mut self,
        now: Time,
        (connection, peer): (ConnectionId, IpAddr),
        request: &UdpSession,
        plane: &mut impl Plane,
        ended: &mut Vec<(SessionId, End)>,
    ) -> Result<Option<Arc<Session>>, Refusal> {
        let UdpSession {
            session: id,
            rank,
            workers,
            ..
        } = *request;
        let (station, size) = self.check(request)?;
        let restart = match self.entries.get(&id) {
            Some(entry) => {
                check_alike(entry, request, station, size)?;
                if let Some(member) = &entry.members[rank as usize]
                    && member.connection != Some(connection)
                {
                    self.check_belongs((id, rank), member, peer, now, plane)?;
                }
                entry.is_restart(connection, rank, station)
            }
            None => false,
        };
        let mut elsewhere = Vec::new();
        for (&other, entry) in self.entries.iter().filter(|(other, _)| **other != id) {
            if let Some((rank, member)) = entry.overlaps(station) {
                if member.connection != Some(connection) {
                    self.check_belongs((other, rank), &member, peer, now, plane)?;
                }
                elsewhere.push((other, rank, member.station));
            }
        }
        let place = if self.entries.contains_key(&id) {
            None
        } else {
            let place = self.place(now, id, !elsewhere.is_empty(), plane)?;
            self.check_waiting(peer)?;
            place
        };

        // From here on nothing is refused but by the plane.
        if restart {
            let why = End::Replaced {
                station,
                rank,
                by: id,
            };
            self.end(id, why, plane, ended);
        }
        if let Some((other, why)) = place {
            self.end(other, why, plane, ended);
        }
        for (other, rank, station) in elsewhere {
            let why = End::Replaced {
                station,
                rank,
                by: id,
            };
            self.end(other, why, plane, ended);
        }
        let secret = self.secret();
        let entry = self.entries.entry(id).or_insert_with(|| Entry {
            size,
            members: vec![None; workers as usize],
            by: peer,
            since: now,
            phase: Phase::Filling,
        });
        let member = &mut entry.members[rank as usize];
        // A call that is made again hears the same: that may be under way to the cores already.
        let same = member.filter(|member| member.connection == Some(connection));
        *member = Some(Member {
            station,
            peer,
            switch_mac: same.map_or(secret, |member| member.switch_mac),
            connection: Some(connection),
        });
        let members: Option<Vec<Member>> = entry.members.iter().copied().collect();
        let Some(members) = members.filter(|_| matches!(entry.phase, Phase::Filling)) else {
            return Ok(None);
        };
        let session = Arc::new(Session {
            id,
            size,
            workers: members.iter().map(|member| member.station).collect(),
            switch_macs: members.iter().map(|member| member.switch_mac).collect(),
        });
        if let Err(why) = plane.bind(&session) {
            self.entries.remove(&id);
            ended.push((id, End::Refused(why.clone())));
            return Err(Refusal::Bind { session: id, why });
        }
        (entry.phase, entry.since) = (Phase::Running, now);
        Ok(Some(session))
    }

    /// Whether a request makes sense by itself.
    fn check(&self, request: &UdpSession) -> Result<(HostAddress, Size), Refusal> {
        let code = request.packet_size;
        let size = u8::try_from(code).ok().and_then(Size::from_code);
        let size = size.ok_or(Refusal::Size { found: code })?;
        if size > self.config.size_max {
            return Err(Refusal::SizeOfPorts {
                found: size.payload_bytes(),
                allowed: self.config.size_max.payload_bytes(),
            });
        }
        let [high, low, bytes @ ..] = request.mac.to_be_bytes();
        let mac = Mac(bytes);
        if high != 0 || low != 0 || mac.is_group() || mac == Mac::default() {
            return Err(Refusal::Mac { found: request.mac });
        }
        let ip = request.ip;
        if !is_host(ip) {
            return Err(Refusal::Ip { found: ip });
        }
        if mac == self.config.mac || ip == self.config.ip {
            return Err(Refusal::Own { mac, ip });
        }
        Ok((HostAddress { mac, ip }, size))
    }

    /// Whether a host may put a new process into a place that another connection has.
    fn check_belongs(
        &self,
        (session, rank): (SessionId, u32),
        member: &Member,
        peer: IpAddr,
        now: Time,
        plane: &mut impl Plane,
    ) -> Result<(), Refusal> {
        let entry = self.entries.get(&session);
        let silent = entry.and_then(|entry| entry.silent(session, now, plane));
        if member.belongs_to(peer) || silent.is_some_and(|silent| silent >= GIVES_WAY) {
            return Ok(());
        }
        Err(Refusal::StationTaken {
            station: member.station,
            session,
            rank,
            found: peer,
            allowed: member.peer,
        })
    }

    /// Whether a host may begin one more session.
    fn check_waiting(&self, peer: IpAddr) -> Result<(), Refusal> {
        let allowed = (self.config.sessions / 2).max(2);
        let entries = self.entries.values();
        let waiting = entries.filter(|e| matches!(e.phase, Phase::Filling) && e.by == peer);
        if waiting.count() >= allowed {
            return Err(Refusal::Waiting { peer, allowed });
        }
        Ok(())
    }

    /// Which session is to end so that there is a place for a new one; None if there is one.
    fn place(
        &self,
        now: Time,
        id: SessionId,
        replaces: bool,
        plane: &mut impl Plane,
    ) -> Result<Option<(SessionId, End)>, Refusal> {
        let allowed = self.config.sessions;
        if self.entries.len() < allowed || replaces {
            return Ok(None);
        }
        let silent =
            |(&other, entry): (&SessionId, &Entry)| Some((entry.silent(other, now, plane)?, other));
        match self.entries.iter().filter_map(silent).max() {
            Some((silent, other)) if silent >= GIVES_WAY => {
                Ok(Some((other, End::GaveWay { silent, to: id })))
            }
            _ => Err(Refusal::Full { allowed }),
        }
    }

    fn end(
        &mut self,
        id: SessionId,
        why: End,
        plane: &mut impl Plane,
        ended: &mut Vec<(SessionId, End)>,
    ) {
        if let Some(entry) = self.entries.remove(&id) {
            if !matches!(entry.phase, Phase::Filling) {
                plane.unbind(id);
            }
            ended.push((id, why));
        }
    }

    /// A connection is no more. Returns what ends with it.
    pub(super) fn closed(&mut self, now: Time, connection: ConnectionId) -> Vec<(SessionId, End)> {
        let mut deserted = Vec::new();
        for (&id, entry) in &mut self.entries {
            let of = |member: &Member| member.connection == Some(connection);
            if !entry.members.iter().flatten().any(of) {
                continue;
            }
            if matches!(entry.phase, Phase::Filling) {
                for member in &mut entry.members {
                    member.take_if(|member| of(member));
                }
                if entry.members.iter().all(Option::is_none) {
                    deserted.push(id);
                }
                continue;
            }
            for member in entry.members.iter_mut().flatten() {
                member.connection.take_if(|c| *c == connection);
            }
            if entry
                .members
                .iter()
                .flatten()
                .all(|member| member.connection.is_none())
            {
                entry.phase = Phase::Closed {
                    at: now,
                    look: now.after(self.config.idle_timeout),
                };
            }
        }
        for id in &deserted {
            self.entries.remove(id);
        }
        deserted.into_iter().map(|id| (id, End::Deserted)).collect()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let look = |entry: &Entry| match entry.phase {
            Phase::Filling => Some(entry.since.after(self.config.setup_timeout)),
            Phase::Running => None,
            Phase::Closed { look, .. } => Some(look),
        };
        self.entries.values().filter_map(look).min()
    }

    /// Returns what ends now.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        plane: &mut impl Plane,
    ) -> Vec<(SessionId, End)> {
        let idle = self.config.idle_timeout;
        let patience = self.config.setup_timeout;
        let mut over = Vec::new();
        for (&id, entry) in &mut self.entries {
            match &mut entry.phase {
                Phase::Filling if entry.since.after(patience) <= now => {
                    let missing = entry.missing();
                    over.push((id, End::Late { missing, patience }));
                }
                Phase::Closed { look, .. } if *look <= now => {
                    let silent = entry.silent(id, now, plane).unwrap_or_default();
                    if silent >= idle {
                        over.push((id, End::Idle { silent }));
                    } else if let Phase::Closed { look, .. } = &mut entry.phase {
                        *look = now.after(idle - silent);
                    }
                }
                _ => {}
            }
        }
        let mut ended = Vec::new();
        for (id, why) in over {
            self.end(id, why, plane, &mut ended);
        }
        ended
    }

    pub(super) fn status(&self) -> impl Iterator<Item = Membership> {
        self.entries.iter().map(|(&id, entry)| {
            let members = || entry.members.iter().flatten();
            Membership {
                id,
                size: entry.size,
                workers: entry.members.len() as u32,
                present: members().count() as u32,
                connected: members()
                    .filter(|member| member.connection.is_some())
                    .count() as u32,
                running: !matches!(entry.phase, Phase::Filling),
                since: entry.since,
            }
        })
    }
}

/// The n-th address of the switch that it tells a worker, counted from 1: unicast and locally
/// administered (IEEE 802), and 46 bits that only who knows the secret can tell.
#[must_use]
pub fn switch_mac(secret: &[u8; 32], n: u64) -> Mac {
    let digest = Sha256::new()
        .chain_update(secret)
        .chain_update(b"switchml")
        .chain_update(n.to_be_bytes())
        .finalize();
    let mut mac = [0; 6];
    mac.copy_from_slice(&digest[..6]);
    mac[0] = mac[0] & 0xfc | 2;
    Mac(mac)
}

/// Whether a request fits the session that it names.
fn check_alike(
    entry: &Entry,
    request: &UdpSession,
    station: HostAddress,
    size: Size,
) -> Result<(), Refusal> {
    let session = request.session;
    let workers = entry.members.len() as u32;
    for (what, found, allowed) in [
        ("num_workers", request.workers, workers),
        ("packet_size", size.code().into(), entry.size.code().into()),
    ] {
        if found != allowed {
            return Err(Refusal::SessionDiffers {
                session,
                what,
                found,
                allowed,
            });
        }
    }
    let rank = request.rank;
    match (entry.members[rank as usize], entry.rank_of(station)) {
        (Some(member), _) if member.station != station => Err(Refusal::RankOfSession {
            session,
            rank,
            found: station,
            allowed: member.station,
        }),
        (_, Some(other)) if other != rank => Err(Refusal::StationOfSession {
            session,
            station,
            found: rank,
            allowed: other,
        }),
        _ => Ok(()),
    }
}

/// Whether packets may come from there.
fn is_host(ip: Ipv4Addr) -> bool {
    // 0.0.0.0/8 is "this network" (RFC 1122, 3.2.1.3), 240.0.0.0/4 is reserved (RFC 1112, 4).
    let first = ip.octets()[0];
    first != 0 && first < 240 && !ip.is_loopback() && !ip.is_multicast()
}
