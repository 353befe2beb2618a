//! A switch of the simplest kind: it keeps every contribution by rank and adds them up when all
//! are there. It shares no code with the engine, and none of its sums with the kernels.

use super::Rng;
use half::{bf16, f16};
use std::collections::BTreeMap;
use tally_wire::control::{Behind, DATAGRAM_BYTES, LeaveCode, Reason, Role, State};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{
    Accept, AuthTag, Ecn, Element, Epoch, Flags, FragmentId, Header, JobId, Join, Key, Kind, Leave,
    Mac, Part, Rank, Refuse, all_ranks,
};

pub const JOB: JobId = JobId(7);
pub const SHARDS: u8 = 3;

pub const MAC: Mac = Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]);

pub fn key() -> Key {
    Key::new(b"sixteen bytes or more").unwrap()
}

/// Sums as PROTOCOL.md words them, and whether an integer saturated.
pub fn naive_sum(element: Element, contributions: &[&[u8]]) -> (Vec<u8>, bool) {
    if element.is_narrow() {
        return narrow_sum(element, contributions);
    }
    let mut sum = contributions[0].to_vec();
    let mut overflow = false;
    for c in &contributions[1..] {
        if element == Element::Scale {
            sum.iter_mut().zip(*c).for_each(|(a, b)| *a = (*a).max(*b));
            continue;
        }
        for (a, b) in sum.chunks_mut(4).zip(c.chunks(4)) {
            let (x, y): ([u8; 4], [u8; 4]) = ((&*a).try_into().unwrap(), b.try_into().unwrap());
            if element == Element::I32 {
                let exact = i64::from(i32::from_be_bytes(x)) + i64::from(i32::from_be_bytes(y));
                let kept = exact.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                overflow |= kept != exact;
                a.copy_from_slice(&(kept as i32).to_be_bytes());
            } else {
                let total = f32::from_le_bytes(x) + f32::from_le_bytes(y);
                let total = if total.is_nan() {
                    f32::from_bits(0x7fc0_0000)
                } else {
                    total
                };
                a.copy_from_slice(&total.to_le_bytes());
            }
        }
    }
    (sum, overflow)
}

fn narrow_sum(element: Element, contributions: &[&[u8]]) -> (Vec<u8>, bool) {
    if let [one] = contributions {
        return (one.to_vec(), false);
    }
    let mut overflow = false;
    let sums = (0..contributions[0].len()).step_by(element.bytes());
    let sum = sums.flat_map(|at| {
        let two = |c: &&[u8]| [c[at], c[at + 1]];
        let float = |widen: fn([u8; 2]) -> f32| {
            let terms = contributions.iter().map(|c| widen(two(c)));
            terms.reduce(|a, b| a + b).unwrap()
        };
        match element {
            Element::F16 => {
                let sum = float(|b| f16::from_le_bytes(b).to_f32());
                let half = f16::from_f32(sum).to_le_bytes();
                if sum.is_nan() { [0, 0x7e] } else { half }.to_vec()
            }
            Element::Bf16 => {
                let sum = float(|b| bf16::from_le_bytes(b).to_f32());
                let half = bf16::from_f32(sum).to_le_bytes();
                if sum.is_nan() { [0xc0, 0x7f] } else { half }.to_vec()
            }
            Element::I16 => {
                let terms = contributions
                    .iter()
                    .map(|c| i64::from(i16::from_be_bytes(two(c))));
                let sum: i64 = terms.sum();
                overflow |= i16::try_from(sum).is_err();
                let kept = sum.clamp(-32768, 32767) as i16;
                kept.to_be_bytes().to_vec()
            }
            _ => {
                let sum: i64 = contributions.iter().map(|c| i64::from(c[at] as i8)).sum();
                overflow |= i8::try_from(sum).is_err();
                vec![sum.clamp(-128, 127) as u8]
            }
        }
    });
    (sum.collect(), overflow)
}

/// How often, of 1000, the switch does what it may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// A new fragment finds its slot taken and goes to the PS.
    pub collide: u64,
    /// A fragment is preempted, and what is held goes to the PS.
    pub preempt: u64,
    /// A link was full on the way of a frame that comes to the switch.
    pub mark: u64,
}

struct Held {
    element: Element,
    /// MARKED, if a part of it was.
    flags: Flags,
    by_rank: BTreeMap<u8, Vec<u8>>,
}

pub struct Switch {
    pub job: JobId,
    pub key: Key,
    pub epoch: u16,
    /// Salt of the epoch.
    pub salt: u64,
    pub state: State,
    pub habits: Habits,
    /// Answers nothing but JOIN when false.
    pub sums: bool,
    /// Takes it for a bug of the session when workers send different types of elements. If false,
    /// it drops what differs from the first, as S-1 has it.
    pub strict: bool,
    /// Its MAC in ACCEPT.
    pub mac: Mac,
    workers: u8,
    units: u8,
    challenge: u64,
    members: BTreeMap<u8, u64>,
    /// How far workers are (J-10).
    sent: BTreeMap<u8, (u32, u16)>,
    left: u64,
    /// The part of the PS that it misses when none has joined.
    pub part: Part,
    held: BTreeMap<u32, Held>,
    done: BTreeMap<u32, (Element, Vec<u8>, Flags)>,
    /// Ranks whose contributions went to the PS.
    sent_to_ps: BTreeMap<u32, u64>,
}

/// Datagrams by member: rank, or 255 for the PS.
type Out = Vec<(u8, Vec<u8>)>;

impl Switch {
    pub fn new(workers: u8, habits: Habits) -> Self {
        Self {
            job: JOB,
            key: key(),
            epoch: 0,
            salt: 0,
            state: State::Waiting,
            habits,
            sums: true,
            strict: true,
            mac: MAC,
            workers,
            units: 0,
            challenge: 1,
            members: BTreeMap::new(),
            sent: BTreeMap::new(),
            left: 0,
            part: Part::ONLY,
            held: BTreeMap::new(),
            done: BTreeMap::new(),
            sent_to_ps: BTreeMap::new(),
        }
    }

    /// Takes it that a PS is there, once the job has an epoch.
    pub fn seat_ps(&mut self) {
        if self.epoch != 0 {
            self.members.entry(255).or_insert(1);
        }
    }

    /// Forgets everything, as after a crash.
    pub fn restart(&mut self) {
        let challenge = self.challenge + 100;
        let (job, key, strict, mac) = (self.job, self.key.clone(), self.strict, self.mac);
        *self = Self::new(self.workers, self.habits);
        (self.job, self.key) = (job, key);
        (self.challenge, self.strict, self.mac) = (challenge, strict, mac);
    }

    fn header(&self, kind: Kind, fragment: u32) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: Element::None,
            job: self.job,
            epoch: Epoch(self.epoch),
            fragment: FragmentId(fragment),
            rank: Rank::SWITCH,
            units: 0,
            bitmap: 0,
            tag: AuthTag::NONE,
        }
    }

    fn elements(
        &self,
        kind: Kind,
        flags: Flags,
        n: u32,
        e: Element,
        bitmap: u64,
        p: &[u8],
    ) -> Vec<u8> {
        let header = self.seal(Header {
            flags,
            element: e,
            units: self.units,
            bitmap,
            ..self.header(kind, n)
        });
        let mut out = vec![0; header.datagram_bytes()];
        header.emit(&mut out);
        out[HEADER_BYTES..][..p.len()].copy_from_slice(p);
        header.emit_trailer(&mut out[HEADER_BYTES + p.len()..]);
        out
    }

    fn seal(&self, header: Header) -> Header {
        let secret = self
            .key
            .epoch_secret(self.job, Epoch(self.epoch), self.salt);
        secret.seal(header)
    }

    /// A frame without elements.
    fn short(&self, kind: Kind, flags: Flags, rank: Rank, n: u32) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        let header = Header {
            flags,
            rank,
            ..self.header(kind, n)
        };
        self.seal(header).emit(&mut out);
        out
    }

    fn control(&self, kind: Kind, member: u8, fill: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut out = vec![0; DATAGRAM_BYTES];
        Header {
            rank: Rank(member),
            units: 2,
            ..self.header(kind, 0)
        }
        .emit(&mut out);
        fill(&mut out);
        self.key.seal(&mut out);
        out
    }

    fn accept(&self, member: u8) -> Vec<u8> {
        let joined = (0..self.workers).filter(|r| self.members.contains_key(r));
        let accept = Accept {
            instance: self.members.get(&member).copied().unwrap_or(1),
            challenge: self.challenge,
            state: self.state,
            workers: self.workers,
            units: self.units,
            shards: SHARDS,
            base_port: 31249,
            window: 64,
            joined: joined.fold(0, |bits, r| bits | 1 << r),
            left: self.left,
            missing_ps: (!self.members.contains_key(&255)).then_some(self.part),
            group: tally_wire::frame::group_of(self.job),
            behind: self.behind().filter(|_| member != 255),
            mac: self.mac,
            salt: self.salt,
            wrapped: None,
            place: None,
        };
        self.control(Kind::Accept, member, |out| accept.emit(out))
    }

    /// Who is behind, once all that have not left have said how far they are.
    fn behind(&self) -> Option<Behind> {
        let here = (0..self.workers).filter(|r| self.left >> r & 1 == 0);
        let here: Vec<_> = here.map(|r| Some((*self.sent.get(&r)?, r))).collect();
        let here = here.into_iter().collect::<Option<Vec<_>>>()?;
        let (awaiting, slowest) = here
            .iter()
            .map(|((_, awaiting), r)| (*awaiting, *r))
            .min()?;
        let here: Vec<_> = here.into_iter().map(|((sent, _), r)| (sent, r)).collect();
        // The naive way to compare numbers that wrap: all are near one of them.
        let near = here.first()?.0;
        let ahead = |sent: u32| sent.wrapping_sub(near) as i32;
        let least = here.iter().map(|it| ahead(it.0)).min()?;
        let late = here.iter().filter(|it| ahead(it.0) == least);
        Some(Behind {
            least: FragmentId(near.wrapping_add(least as u32)),
            ranks: late.fold(0, |bits, it| bits | 1 << it.1),
            slowest: Rank(slowest),
            awaiting,
        })
    }

    pub fn refuse(
        &self,
        member: u8,
        instance: u64,
        reason: Reason,
        about: u8,
        found: u32,
        allowed: u32,
    ) -> Vec<u8> {
        self.refuse_behind(member, instance, reason, about, [found, allowed], 0)
    }

    fn refuse_behind(
        &self,
        member: u8,
        instance: u64,
        reason: Reason,
        about: u8,
        [found, allowed]: [u32; 2],
        behind: u64,
    ) -> Vec<u8> {
        let about = (about < 64).then_some(Rank(about));
        let challenge = self.challenge;
        let refuse = Refuse {
            instance,
            challenge,
            reason,
            about,
            found,
            allowed,
            behind,
            concern: None,
        };
        self.control(Kind::Refuse, member, |out| refuse.emit(out))
    }

    pub fn handle(&mut self, rng: &mut Rng, datagram: &[u8]) -> Out {
        let mut header = Header::parse(datagram).expect("sessions send good frames");
        if rng.chance(self.habits.mark) {
            header = header.received_with(Ecn::Ce);
        }
        let (from, n) = (header.rank.0, header.fragment.0);
        assert_eq!(header.job, self.job);
        if header.kind == Kind::Join {
            assert!(self.key.verify(datagram));
            return self.join(&header, Join::parse(datagram).unwrap());
        }
        if header.kind == Kind::Leave {
            assert!(self.key.verify(datagram));
            return self.leave(from, Leave::parse(datagram).unwrap());
        }
        let known = header.kind == Kind::Nack || self.members.contains_key(&from);
        if header.epoch != Epoch(self.epoch) || !known || self.state == State::Waiting || !self.sums
        {
            return Vec::new();
        }
        let secret = self.key.epoch_secret(self.job, header.epoch, self.salt);
        assert!(secret.verifies(&header), "{header:?}");
        let payload = &datagram[HEADER_BYTES..];
        match header.kind {
            Kind::Data => self.data(rng, &header, payload),
            Kind::Nack => vec![(from, datagram.to_vec())],
            Kind::Result if self.done.contains_key(&n) => Vec::new(),
            Kind::Result => {
                self.held.remove(&n);
                let flags = Flags::FROM_PS.when(from == 255).with(header.flags);
                self.finish(n, header.element, payload.to_vec(), flags)
            }
            Kind::Remind if self.held.contains_key(&n) => self.give_up_slot(n, Flags::NONE),
            Kind::Remind => {
                let flags = Flags::FINISHED.when(self.done.contains_key(&n));
                vec![(255, self.short(Kind::NotHere, flags, Rank::SWITCH, n))]
            }
            Kind::Probe => self.probe(from, n, datagram),
            kind => panic!("{kind:?} is not for the switch"),
        }
    }

    fn join(&mut self, header: &Header, join: Join) -> Out {
        let member = header.rank.0;
        if join.challenge != self.challenge {
            return vec![(
                member,
                self.refuse(member, join.instance, Reason::Challenge, 255, 0, 0),
            )];
        }
        if let Some(&bound) = self.members.get(&member)
            && bound != join.instance
            && join.role == Role::Worker
        {
            return vec![(
                member,
                self.refuse(member, join.instance, Reason::RankTaken, 255, 0, 0),
            )];
        }
        if join.role == Role::Worker {
            if self.epoch == 0 {
                self.epoch = if header.epoch == Epoch(0) {
                    41
                } else {
                    header.epoch.0
                };
                self.salt = if header.epoch == Epoch(0) {
                    0x5a17
                } else {
                    join.salt
                };
                self.challenge += 1;
                self.members.clear();
            }
            if let Some(sent) = join.sent {
                self.sent.insert(member, (sent.0, join.awaiting));
            }
            self.units = join.units;
            self.members.insert(member, join.instance);
        } else if header.epoch == Epoch(self.epoch) || self.epoch == 0 {
            self.members.insert(member, join.instance);
        }
        if self.state == State::Waiting
            && self.epoch != 0
            && self.members.len() == usize::from(self.workers) + 1
        {
            self.state = State::Running;
            return self.members.keys().map(|&m| (m, self.accept(m))).collect();
        }
        // Also to a PS that has yet to hear of the epoch.
        let known = self.members.insert(member, join.instance);
        let answer = self.accept(member);
        if known.is_none() {
            self.members.remove(&member);
        }
        vec![(member, answer)]
    }

    fn leave(&mut self, from: u8, leave: Leave) -> Out {
        if self.members.get(&from) != Some(&leave.instance) {
            return vec![(
                from,
                self.refuse(from, leave.instance, Reason::StaleEpoch, 255, 0, 0),
            )];
        }
        if leave.code != LeaveCode::Finished && self.state == State::Waiting {
            // Its place is free again, and the others keep waiting.
            let out = vec![(from, self.accept(from))];
            self.members.remove(&from);
            if self.members.keys().all(|&member| member >= self.workers) {
                self.restart();
            }
            return out;
        }
        if leave.code != LeaveCode::Finished {
            let (code, fragment) = (leave.code as u32, leave.fragment.0);
            let refuse = |(&m, &i): (&u8, &u64)| {
                (
                    m,
                    self.refuse_behind(
                        m,
                        i,
                        Reason::MemberFailed,
                        from,
                        [code, fragment],
                        leave.behind,
                    ),
                )
            };
            let out = self.members.iter().filter(|m| *m.0 != from).map(refuse);
            let out = out.chain([(from, self.accept(from))]).collect();
            self.restart();
            return out;
        }
        self.left |= Rank(from).bit();
        if self.left == all_ranks(self.workers) {
            self.state = State::Ended;
        }
        vec![(from, self.accept(from))]
    }

    /// S-7. It asks all ranks that are missing, and not one as the real one does.
    fn probe(&mut self, from: u8, n: u32, datagram: &[u8]) -> Out {
        if let Some((e, p, flags)) = self.done.get(&n) {
            return vec![(from, self.elements(Kind::Result, *flags, n, *e, 0, p))];
        }
        let sent = self.sent_to_ps.get(&n).copied().unwrap_or(0);
        let held = self.held.get(&n);
        let is_missing = |r: &u8| match held {
            Some(held) => !held.by_rank.contains_key(r) && sent >> r & 1 == 0,
            None => *r == from,
        };
        let missing: Vec<u8> = (0..self.workers).filter(is_missing).collect();
        if sent != 0 && (held.is_none() || missing.is_empty()) {
            return vec![(255, datagram.to_vec())];
        }
        let nack = |r| (r, self.short(Kind::Nack, Flags::NONE, Rank(r), n));
        missing.into_iter().map(nack).collect()
    }

    fn data(&mut self, rng: &mut Rng, header: &Header, payload: &[u8]) -> Out {
        let (from, n, element) = (header.rank.0, header.fragment.0, header.element);
        let resend = header.flags.has(Flags::RESEND);
        let marked = Flags::MARKED.when(header.flags.has(Flags::MARKED));
        if let Some((e, p, flags)) = self.done.get(&n) {
            let result = self.elements(Kind::Result, *flags, n, *e, 0, p);
            return if resend {
                vec![(from, result)]
            } else {
                Vec::new()
            };
        }
        let noted = self.sent_to_ps.get(&n).copied().unwrap_or(0);
        let follows = resend && noted != 0;
        if !self.held.contains_key(&n) && (follows || rng.chance(self.habits.collide)) {
            self.sent_to_ps.insert(n, noted | 1 << from);
            let flags = Flags::RESEND
                .when(resend)
                .with(Flags::COLLISION.when(!resend));
            let flags = flags.with(marked);
            return vec![(
                255,
                self.elements(Kind::Partial, flags, n, element, 1 << from, payload),
            )];
        }
        let by_rank = BTreeMap::new();
        let flags = Flags::NONE;
        let held = Held {
            element,
            flags,
            by_rank,
        };
        let held = self.held.entry(n).or_insert(held);
        if held.element != element {
            assert!(!self.strict, "W-3: {element:?} after {:?}", held.element);
            return Vec::new();
        }
        held.flags = held.flags.with(marked);
        let before = held.by_rank.insert(from, payload.to_vec());
        assert!(
            before.is_none_or(|b| b == payload),
            "W-3: sent again with another payload"
        );
        if held.by_rank.len() == usize::from(self.workers) {
            let all: Vec<&[u8]> = held.by_rank.values().map(Vec::as_slice).collect();
            let (sum, overflow) = naive_sum(element, &all);
            let flags = held.flags.with(Flags::OVERFLOW.when(overflow));
            self.held.remove(&n);
            return self.finish(n, element, sum, flags);
        }
        if rng.chance(self.habits.preempt) {
            return self.give_up_slot(n, Flags::COLLISION);
        }
        Vec::new()
    }

    fn finish(&mut self, n: u32, e: Element, sum: Vec<u8>, flags: Flags) -> Out {
        let result = self.elements(Kind::Result, flags, n, e, 0, &sum);
        self.done.insert(n, (e, sum, flags));
        (0..self.workers).map(|r| (r, result.clone())).collect()
    }

    fn give_up_slot(&mut self, n: u32, flags: Flags) -> Out {
        let Held {
            element,
            flags: held,
            by_rank,
        } = self.held.remove(&n).unwrap();
        let bits = by_rank.keys().fold(0, |bits, r| bits | 1u64 << r);
        *self.sent_to_ps.entry(n).or_default() |= bits;
        let flags = flags.with(held);
        let partial = |ranks: &[u8]| {
            let bitmap = ranks.iter().fold(0, |bits, r| bits | 1u64 << r);
            let all: Vec<&[u8]> = ranks.iter().map(|r| by_rank[r].as_slice()).collect();
            let (sum, overflow) = naive_sum(element, &all);
            let flags = flags.with(Flags::OVERFLOW.when(overflow));
            (
                255,
                self.elements(Kind::Partial, flags, n, element, bitmap, &sum),
            )
        };
        let ranks: Vec<u8> = by_rank.keys().copied().collect();
        if element.is_narrow() {
            return ranks.iter().map(|&r| partial(&[r])).collect();
        }
        if element != Element::F32 {
            return vec![partial(&ranks)];
        }
        let fold = ranks.iter().zip(0u8..).take_while(|(r, i)| *r == i).count();
        let (fold, single) = ranks.split_at(fold);
        let fold = (!fold.is_empty()).then(|| partial(fold));
        fold.into_iter()
            .chain(single.iter().map(|&r| partial(&[r])))
            .collect()
    }
}
