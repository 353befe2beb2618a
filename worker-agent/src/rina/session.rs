//! The collectives of one host in a ring, one after the other.
//!
//! A host is a member by itself, the agent of a rack that sums, or another worker of such a rack.
//! Members have a [`Link`] to their neighbours, and hosts of racks a [`Session`] of the rack's job.
//! The first collective of that session is a barrier named by the plan, so that a rack whose hosts
//! have different plans fails in words.
//!
//! # The catches
//!
//! * One collective is under way at a time, in the order of submission. Priorities have no meaning.
//! * A host that is no member hears of the ring by its agent alone: its error says that the agent
//!   has left, and the agent's why.

use super::content::Content;
use super::identity::{Identity, MemberName};
use super::link::Link;
use super::pass::{Pass, Place, Wrong};
use super::setting::Setting;
use super::wire::{Header, Kind, hash_of};
use crate::error::AgentError;
use crate::link::LinkError;
use crate::session::CollectiveKind as K;
use crate::session::{Collective, Done, Elements, NAME_BYTES_MAX, Refused, Session, SessionState};
use crate::session::{SessionReport, Ticket};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use tally_local::{Class, Failure};
use tally_rina::Rack;
use tally_session::{Converter, Overflow};
use tally_wire::Key;

/// Messages of the predecessor that are taken in one turn.
const MESSAGES_MAX: usize = 64;
/// For neighbours to take last words, after a failure.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Why a ring has failed.
pub(crate) enum RinaError {
    /// On account of the ring.
    Ring(Failure),
    /// On account of the rack's session.
    Rack(AgentError),
}

impl From<Failure> for RinaError {
    fn from(failure: Failure) -> Self {
        Self::Ring(failure)
    }
}

impl From<AgentError> for RinaError {
    fn from(error: AgentError) -> Self {
        Self::Rack(error)
    }
}

struct Request {
    ticket: Ticket,
    collective: Collective,
    buffer: Box<dyn Elements>,
    began: Instant,
}

/// The collective that is under way.
struct Current {
    request: Request,
    content: Content,
    pass: Pass,
    /// When something of it was done last.
    moved: Instant,
}

pub(crate) struct Rina {
    racks: Vec<Rack>,
    place: Place,
    members: Vec<MemberName>,
    hosts: u16,
    parts: u16,
    first_rank: u16,
    payload_bytes: usize,
    stall: Duration,
    linger: Duration,
    link: Option<Link>,
    rack: Option<Session>,
    converter: Converter,
    queue: VecDeque<Request>,
    current: Option<Current>,
    done: VecDeque<Done>,
    submitted: u64,
    passes: u64,
    report: SessionReport,
    is_finishing: bool,
    /// When it was closed, and for how long neighbours may take what was sent.
    closed: Option<Duration>,
    /// All has ended that was closed.
    is_over: bool,
    /// The caller's descriptor is in the link's set.
    is_watching: bool,
}

impl Rina {
    /// Begins to join. `switch` is the link to the rack's switch, where that sums.
    pub(crate) fn open(
        setting: &Setting<'_>,
        switch: Option<Box<dyn crate::link::Link>>,
    ) -> Result<Self, AgentError> {
        if cfg!(target_endian = "big") {
            return Err(AgentError::Options(
                "rings need a little-endian host".into(),
            ));
        }
        let (racks, members) = setting.members();
        let (config, host) = (setting.config, setting.host());
        let (rack_number, first) = setting.rack();
        let before = &racks[..rack_number];
        let of = |rack: &Rack| if rack.sums { 1 } else { rack.workers.len() };
        let before: usize = before.iter().map(of).sum();
        let place = match setting.sums() {
            true => Place {
                member: before,
                worker: host - first,
            },
            false => Place {
                member: before + host - first,
                worker: 0,
            },
        };
        let plan = setting.plan_words();
        let rack = match switch.filter(|_| setting.sums()) {
            None => None,
            Some(switch) => {
                let mut rack = Session::over(switch, &setting.of_rack(), 1)?;
                let hash = hash_of(&plan);
                let digits: String = hash[..8].iter().map(|it| format!("{it:02x}")).collect();
                let name = format!("racks of `rina`, digest {digits}");
                let barrier = Collective::barrier(name);
                let refused = |why: Refused| AgentError::Options(why.to_string());
                rack.submit(barrier, Box::new(Vec::new()))
                    .map_err(refused)?;
                Some(rack)
            }
        };
        let link = match place.worker == 0 && members.len() > 1 {
            false => None,
            true => Some(
                Link::open(Identity {
                    job: config.job.id,
                    key: config.job.key.clone(),
                    plan: hash_of(&plan),
                    member: place.member,
                    members: members.clone(),
                    join: config.timeouts.join(),
                    stall: config.timeouts.stall(),
                    log: setting.log,
                    name: setting.name.to_owned(),
                })
                .map_err(|why| LinkError::system("the ring's connections", why))?,
            ),
        };
        let parts = setting.parts;
        Ok(Self {
            racks,
            place,
            members,
            hosts: config.job.workers,
            parts,
            first_rank: host as u16 * parts,
            payload_bytes: config.payload_bytes as usize,
            stall: config.timeouts.stall(),
            linger: config.timeouts.linger(),
            link,
            rack,
            converter: Converter::default(),
            queue: VecDeque::new(),
            current: None,
            done: VecDeque::new(),
            submitted: 0,
            passes: 0,
            report: SessionReport {
                job: config.job.id,
                rank: host as u16 * parts,
                workers: config.job.workers * parts,
                payload_bytes: config.payload_bytes,
                window: config.window,
                ..SessionReport::default()
            },
            is_finishing: false,
            closed: None,
            is_over: false,
            is_watching: false,
        })
    }

    pub(crate) fn submit(
        &mut self,
        collective: Collective,
        buffer: Box<dyn Elements>,
    ) -> Result<Ticket, Refused> {
        collective.check(buffer.bytes(), self.hosts * self.parts)?;
        if self.is_finishing || self.closed.is_some() {
            return Err(Refused::Over);
        }
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.queue.push_back(Request {
            ticket,
            collective,
            buffer,
            began: Instant::now(),
        });
        Ok(ticket)
    }

    /// Does what there is to do; whether there was something.
    pub(crate) fn turn(&mut self) -> Result<bool, RinaError> {
        let now = Instant::now();
        let mut is_busy = false;
        if let Some(link) = &mut self.link {
            is_busy |= link.turn(now)?;
        }
        if let Some(rack) = &mut self.rack {
            let is_over = self.closed.is_some();
            is_busy |= match rack.turn() {
                Err(_) if is_over => false,
                turned => turned?,
            };
        }
        if let Some(most) = self.closed {
            let link = self.link.as_mut();
            let rack = self.rack.as_ref().map(Session::state);
            self.is_over = link.is_none_or(|it| it.is_closed(now, most))
                && rack
                    .is_none_or(|it| matches!(it, SessionState::Finished | SessionState::Failed));
            return Ok(is_busy);
        }
        is_busy |= self.begin(now);
        let moved = self.take_messages()? | self.advance(now)?;
        if moved && let Some(current) = &mut self.current {
            current.moved = now;
        }
        is_busy |= moved | self.end_pass(now)?;
        self.check_stall(now)?;
        if self.is_finishing && self.current.is_none() && self.queue.is_empty() {
            self.close(None);
        }
        Ok(is_busy)
    }

    /// Begins the next collective.
    fn begin(&mut self, now: Instant) -> bool {
        if self.current.is_some() || self.link.as_ref().is_some_and(|it| !it.is_formed()) {
            return false;
        }
        let Some(request) = self.queue.pop_front() else {
            return false;
        };
        let is_root = match request.collective.kind {
            K::Broadcast { root } => {
                (self.first_rank..self.first_rank + self.parts).contains(&root)
            }
            _ => true,
        };
        let mut content = Content::load(
            &request.collective,
            &*request.buffer,
            is_root,
            (self.hosts * self.parts, self.hosts),
            self.payload_bytes,
            &mut self.converter,
        );
        let pass = self.begin_pass(now, &request.collective, &mut content);
        self.current = Some(Current {
            request,
            content,
            pass,
            moved: now,
        });
        true
    }

    fn begin_pass(&mut self, now: Instant, collective: &Collective, content: &mut Content) -> Pass {
        let (how, elements) = content.pass();
        self.passes += 1;
        // Messages have the lower half.
        let number = self.passes as u32;
        let of = Collective {
            name: name_in_rack(collective, elements.len()),
            ..collective.clone()
        };
        let what = (how, elements.len());
        let mut pass = Pass::new(&self.racks, self.place, number, of, what);
        // Nothing came that could be added.
        let _ = pass.act(elements);
        if let Some(link) = &mut self.link {
            let words = described(collective, elements.len());
            let header = Header {
                pass: number,
                ..Header::new(Kind::Open, words.len())
            };
            link.send(now, &header, words.as_bytes());
        }
        pass
    }

    /// Takes what the predecessor has sent for the pass that is under way.
    fn take_messages(&mut self) -> Result<bool, RinaError> {
        let Some(link) = &mut self.link else {
            return Ok(false);
        };
        let mut is_busy = false;
        for _ in 0..MESSAGES_MAX {
            let Some(header) = link.data()? else {
                return Ok(is_busy);
            };
            let ahead = header.pass.wrapping_sub(self.passes as u32);
            if ahead == 1 {
                // Its pass has not begun here.
                return Ok(is_busy);
            }
            let current = self.current.as_mut().filter(|_| ahead == 0);
            let Some(Current {
                request,
                content,
                pass,
                ..
            }) = current
            else {
                return Err(out_of_turn(link, "a message of another pass"));
            };
            let (_, elements) = content.pass();
            let body = link.body(&header);
            match header.kind {
                Kind::Open if !pass.is_opened => {
                    let ours = described(&request.collective, elements.len());
                    if body != ours.as_bytes() {
                        let theirs = String::from_utf8_lossy(body).into_owned();
                        return Err(mismatch(link, &theirs, &ours).into());
                    }
                    pass.is_opened = true;
                }
                Kind::Piece if pass.is_opened => match pass.receive(&header, body, elements) {
                    Ok(()) => {}
                    Err(Wrong::Piece(text)) => return Err(out_of_turn(link, &text)),
                    Err(Wrong::Overflow) => return Err(overflow(&request.collective).into()),
                },
                _ => return Err(out_of_turn(link, "a message that has no place here")),
            }
            link.consume(&header);
            is_busy = true;
        }
        Ok(is_busy)
    }

    /// Takes the rack's results, and passes on what is ready.
    fn advance(&mut self, now: Instant) -> Result<bool, RinaError> {
        let mut is_busy = false;
        while let Some(done) = self.rack.as_mut().and_then(Session::done) {
            is_busy = true;
            let Some(Current {
                request,
                content,
                pass,
                ..
            }) = &mut self.current
            else {
                // The barrier in front of all.
                continue;
            };
            pass.take(&done, content.pass().1)
                .map_err(|_| overflow(&request.collective))?;
        }
        let Some(Current { content, pass, .. }) = &mut self.current else {
            return Ok(is_busy);
        };
        let (_, elements) = content.pass();
        if let Some(rack) = &mut self.rack {
            let submitted = pass.submit(rack, elements);
            is_busy |= submitted.map_err(|why| AgentError::Options(why.to_string()))?;
        }
        if let Some(link) = &mut self.link {
            // Not while others of the rack keep it from its first sum.
            if pass.has_rack_result || !pass.waits_for_rack() {
                link.begin(self.passes);
            }
            is_busy |= pass.send(now, link, elements);
        }
        Ok(is_busy)
    }

    /// Ends the pass, and the collective, if all is there.
    fn end_pass(&mut self, now: Instant) -> Result<bool, RinaError> {
        let Some(mut current) = self.current.take_if(|it| it.pass.is_done()) else {
            return Ok(false);
        };
        if current.content.end_pass() {
            let collective = current.request.collective.clone();
            current.pass = self.begin_pass(now, &collective, &mut current.content);
            current.moved = now;
            self.current = Some(current);
            return Ok(true);
        }
        let Request {
            ticket,
            collective,
            mut buffer,
            began,
        } = current.request;
        let stored = current.content.store(&mut *buffer, &mut self.converter);
        stored.map_err(|it| overflow_of(&collective, it))?;
        self.report.collectives += 1;
        self.report.bytes += buffer.bytes() as u64;
        self.done.push_back(Done {
            ticket,
            buffer,
            collective,
            seconds: began.elapsed().as_secs_f64(),
        });
        Ok(true)
    }

    /// That the collective that is under way moves.
    fn check_stall(&self, now: Instant) -> Result<(), RinaError> {
        let (Some(current), Some(link)) = (&self.current, &self.link) else {
            return Ok(());
        };
        let name = &current.request.collective.name;
        let id = link.identity();
        if let Some(member) = link.left_before(self.passes as u32) {
            let what = format!("has left the job, and this one waits for it with \"{name}\"");
            return Err(id.failure(Class::Member, member, &what).into());
        }
        let after = now.saturating_duration_since(current.moved);
        if after < self.stall {
            return Ok(());
        }
        let Some(failure) = self.stalled(after) else {
            return Ok(());
        };
        Err(failure.into())
    }

    /// What the collective that is under way waits for; none if the rack's session knows better.
    fn stalled(&self, after: Duration) -> Option<Failure> {
        let (current, link) = (self.current.as_ref()?, self.link.as_ref()?);
        let (name, id) = (&current.request.collective.name, link.identity());
        let own = id.member;
        let mut behind = link.behind(self.passes).filter(|it| *it != own).peekable();
        if behind.peek().is_none() {
            if current.pass.waits_for_rack() {
                return None;
            }
            let words = id.words(id.predecessor());
            let text = format!(
                "waiting for {name}: nothing from {words} within {after:.1?}, although all members have begun it; see \
                 the links between members"
            );
            let class = Class::Silence;
            return Some(Failure::new(class, text));
        }
        let behind: Vec<_> = behind.collect();
        let words: Vec<_> = behind.iter().map(|it| id.words(*it)).collect();
        let text = format!(
            "waiting for {name}: not submitted within {after:.1?} by {}; see what keeps it, or give it more time with \
             the agents' `timeouts.stall_ms`",
            words.join(", ")
        );
        let ranks = id.members[behind[0]].set();
        let class = Class::Silence;
        Some(Failure { class, ranks, text })
    }

    /// Waits until there may be something to do, for `most` at the longest, or until `wake` can be
    /// read, which is always the same.
    pub(crate) fn wait_or(
        &mut self,
        most: Duration,
        wake: BorrowedFd<'_>,
    ) -> Result<(), RinaError> {
        if let Some(link) = &self.link
            && !std::mem::replace(&mut self.is_watching, true)
        {
            link.add(wake);
        }
        let wake = self.link.as_ref().map_or(wake, Link::fd);
        match &mut self.rack {
            Some(rack) if rack.state() != SessionState::Failed => {
                rack.wait_or(most, Some(wake))?;
            }
            _ => {
                let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::ZERO);
                // A signal ends it early.
                let _ = poll(&mut [PollFd::new(wake, PollFlags::POLLIN)], most);
            }
        }
        Ok(())
    }

    pub(crate) fn done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Leaves once all that was submitted is done.
    pub(crate) fn finish(&mut self) {
        self.is_finishing = true;
    }

    /// Leaves: with all results, or because of a failure, which the others hear of.
    pub(crate) fn close(&mut self, failed: Option<&Failure>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(if failed.is_some() {
            CLOSE_WITHIN
        } else {
            self.linger
        });
        if let Some(link) = &mut self.link {
            link.close(Instant::now(), failed, self.passes as u32);
        }
        if let Some(rack) = &mut self.rack {
            match failed {
                Some(_) => rack.give_up(),
                None => rack.finish(),
            }
        }
    }

    /// This member, as the others' errors name it.
    pub(crate) fn own_words(&self) -> (String, MemberName) {
        let own = self.members[self.place.member].clone();
        let words = match &self.link {
            Some(link) => link.identity().words(self.place.member),
            None => format!("member {}", self.place.member),
        };
        (words, own)
    }

    pub(crate) fn set_key(&mut self, key: Key) {
        if let Some(link) = &mut self.link {
            link.set_key(key.clone());
        }
        if let Some(rack) = &mut self.rack {
            rack.set_key(key);
        }
    }

    pub(crate) fn state(&self) -> SessionState {
        let rack = self.rack.as_ref().map(Session::state);
        if self.is_over {
            return SessionState::Finished;
        }
        if self.link.as_ref().is_some_and(|it| !it.is_formed()) {
            return SessionState::Joining(None);
        }
        match rack {
            // Its members have the rack's numbers.
            Some(SessionState::Joining(_)) => SessionState::Joining(None),
            Some(SessionState::Running { epoch }) => SessionState::Running { epoch },
            _ => SessionState::Running { epoch: 0 },
        }
    }

    pub(crate) fn members(&self) -> usize {
        self.members.len()
    }

    /// What the oldest collective waits for.
    pub(crate) fn awaited(&self, now: Instant) -> Option<Failure> {
        let name = match (&self.current, self.queue.front()) {
            (Some(current), _) => &current.request.collective.name,
            (None, Some(request)) => &request.collective.name,
            (None, None) => return None,
        };
        let obstacle = match (&self.link, &self.current) {
            (Some(link), _) if !link.is_formed() => link.obstacle(),
            (_, Some(current)) => {
                let after = now.saturating_duration_since(current.moved);
                if let Some(failure) = self.stalled(after) {
                    return Some(failure);
                }
                "hosts of the rack have not come to it, or its sums are on their way".into()
            }
            _ => "it has not begun".into(),
        };
        let text = format!("waiting for {name}: {obstacle}");
        Some(Failure::new(Class::Other, text))
    }

    pub(crate) fn report(&self) -> SessionReport {
        let waiting = (self.queue.len() + usize::from(self.current.is_some())) as u64;
        let own = self.report.clone();
        match &self.rack {
            None => SessionReport { waiting, ..own },
            Some(rack) => SessionReport {
                waiting,
                rank: own.rank,
                workers: own.workers,
                collectives: own.collectives,
                bytes: own.bytes,
                // Numbers of the rack's job.
                behind: Vec::new(),
                slowest: None,
                ..rack.report()
            },
        }
    }
}

/// A collective by what all hosts must bring alike.
fn described(collective: &Collective, bytes: usize) -> String {
    let Collective {
        kind,
        dtype,
        arithmetic,
        name,
        ..
    } = collective;
    match kind {
        K::Broadcast { root } => {
            format!("broadcast from rank {root} of {bytes} bytes of {dtype} called \"{name}\"")
        }
        K::Barrier => format!("barrier \"{name}\""),
        K::Sum | K::Mean | K::Max => {
            let kind = if *kind == K::Mean { "mean" } else { "sum" };
            let how = if dtype.is_int() {
                ""
            } else {
                arithmetic.name()
            };
            format!("{kind} of {bytes} bytes of {dtype} {how} called \"{name}\"")
        }
    }
}

/// The name of its pieces in the rack's session, up to what a name may have.
fn name_in_rack(collective: &Collective, bytes: usize) -> String {
    let words = described(collective, bytes);
    if words.len() <= NAME_BYTES_MAX {
        return words;
    }
    let digits: String = hash_of(&words)[..8]
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    let most = words.floor_char_boundary(NAME_BYTES_MAX - digits.len() - 1);
    format!("{} {digits}", &words[..most])
}

fn mismatch(link: &Link, theirs: &str, ours: &str) -> Failure {
    let id = link.identity();
    let (from, own) = (id.predecessor(), id.words(id.member));
    let what = format!(
        "brings a {theirs}, and {own} a {ours}; every rank must submit the same collectives in the same order"
    );
    id.failure(Class::Mismatch, from, &what)
}

fn out_of_turn(link: &Link, what: &str) -> RinaError {
    let id = link.identity();
    let what = format!("does not keep to the protocol: {what}");
    id.failure(Class::Member, id.predecessor(), &what).into()
}

fn overflow(collective: &Collective) -> Failure {
    let name = &collective.name;
    let text = format!(
        "{name}: a sum of integers has left their range; scale the elements down, or use a wider type"
    );
    Failure::new(Class::Overflow, text)
}

fn overflow_of(collective: &Collective, it: Overflow) -> Failure {
    let name = &collective.name;
    let text = format!("{name}: {it}; scale the elements down, or use a wider type");
    Failure::new(Class::Overflow, text)
}
