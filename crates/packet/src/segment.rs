//! Cutting superframes up, for ways out that carry none.

use tally_dpdk::{Mbuf, Mempool};
use tally_wire::superframe::Superframe;

/// Appends the frames of a superframe to `out`, each a copy in a buffer of its own, and returns how
/// many are missing because the pool was exhausted: the last ones. All of them are, if it is none.
pub fn segment(frame: &Mbuf, pool: &Mempool, out: &mut Vec<Mbuf>) -> usize {
    let Some(superframe) = describe(frame) else {
        return frame.wire_frames();
    };
    let head = frame.data();
    let mut parts = frame.parts();
    // The first one, behind the headers, which describe() found there.
    let mut part = parts
        .next()
        .map_or(&[][..], |first| &first[superframe.headers_bytes()..]);
    for index in 0..superframe.segments() {
        let bytes = superframe.payload_of(index).len();
        let made = pool.alloc().and_then(|mut made| {
            let room = made.append(superframe.headers_bytes() + bytes)?;
            let mut payload = &mut room[superframe.headers_bytes()..];
            while !payload.is_empty() {
                if part.is_empty() {
                    part = parts.next()?;
                    continue;
                }
                let n = part.len().min(payload.len());
                let (now, later) = part.split_at(n);
                payload[..n].copy_from_slice(now);
                payload = &mut payload[n..];
                part = later;
            }
            superframe.write_headers(head, index, room);
            Some(made)
        });
        match made {
            Some(made) => out.push(made),
            None => return superframe.segments() - index,
        }
    }
    0
}

/// What a superframe consists of.
pub(crate) fn describe(frame: &Mbuf) -> Option<Superframe> {
    let cut = frame.cut()?;
    let superframe = Superframe::parse(frame.data(), frame.len(), cut.segment_bytes)?;
    (superframe.headers_bytes() == usize::from(cut.headers_bytes)).then_some(superframe)
}

/// A superframe of which some frames have not left yet.
pub struct Segmenter {
    pool: Mempool,
    /// The frames that are left, in order.
    frames: Vec<Mbuf>,
    /// A reference to the superframe.
    of: Option<Mbuf>,
    no_buffer: u64,
}

impl Segmenter {
    /// Takes buffers from `pool`.
    #[must_use]
    pub fn new(pool: Mempool) -> Self {
        Self {
            pool,
            frames: Vec::new(),
            of: None,
            no_buffer: 0,
        }
    }

    /// Sends frames by `burst`, which takes some of a vector from its front and leaves the rest,
    /// and says how many. A superframe is cut for it, and leaves `frames` once all of it is sent:
    /// until then the next call must begin with the same one.
    pub fn send(&mut self, frames: &mut Vec<Mbuf>, mut burst: impl FnMut(&mut Vec<Mbuf>)) -> usize {
        let before = frames.len();
        loop {
            if let Some(of) = &self.of {
                if !self.frames.is_empty() {
                    burst(&mut self.frames);
                }
                if !self.frames.is_empty() {
                    break;
                }
                // Unless what waited was given up meanwhile.
                if frames.first().is_some_and(|first| first.is_same_buffer(of)) {
                    frames.remove(0);
                }
                self.of = None;
            }
            let is_superframe = |frame: &Mbuf| frame.is_superframe();
            match frames.iter().position(is_superframe) {
                None => {
                    burst(frames);
                    break;
                }
                Some(0) => {
                    let frame = &frames[0];
                    self.no_buffer += segment(frame, &self.pool, &mut self.frames) as u64;
                    self.of = Some(frame.share());
                }
                Some(n) => {
                    self.frames.extend(frames.drain(..n));
                    burst(&mut self.frames);
                    let is_done = self.frames.is_empty();
                    frames.splice(..0, self.frames.drain(..));
                    if !is_done {
                        break;
                    }
                }
            }
        }
        before - frames.len()
    }

    /// Frames that were not made because the pool was exhausted.
    #[must_use]
    pub fn no_buffer(&self) -> u64 {
        self.no_buffer
    }
}
