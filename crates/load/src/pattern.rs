//! Contributions of the simulated workers, and their expected sums.
//!
//! Nearly all of a payload is the same in all contributions: small numbers by their index alone, so
//! that a buffer which has been sent once needs only new headers and a new first line. That line
//! (64 bytes) tells contributions apart:
//!
//! | word | contribution of rank r to fragment f | fault that the sum shows |
//! |---|---|---|
//! | 0 | (f mod 2^16) + 257·r | a sum of other fragments |
//! | 1 | the job | a sum of other jobs |
//! | 2 to 5 | bit r mod 16 in word 2 + r / 16, else 0 | a contribution that is missing, or counted twice |
//!
//! All sums are whole numbers below 2^24, so that an f32 has them without rounding.

use tally_wire::{
    Addresses, Element, FragmentId, HEADERS_BYTES, Header, JobId, MAX_PAYLOAD_BYTES, MAX_WORKERS,
    UNIT_BYTES, frame,
};

/// Bytes of a word.
const WORD_BYTES: usize = 4;
/// Headers and first line: what differs from frame to frame.
const HEAD_BYTES: usize = HEADERS_BYTES + UNIT_BYTES;
/// Where the fields are that differ within a template.
const UDP_PORT_AT: usize = 36;
const FLAGS_AT: usize = frame::UDP_END + 1;
const PRIORITY_AT: usize = frame::UDP_END + tally_wire::header::field::PRIORITY;
const FRAGMENT_AT: usize = frame::UDP_END + tally_wire::header::field::FRAGMENT.start;

/// The largest sum.
const SUM_MAX: i64 = MAX_WORKERS as i64 * (0xffff + 257 * MAX_WORKERS as i64);
const _: () = assert!(SUM_MAX < 1 << 24, "an f32 has it exactly");

/// Word `at` of rank's contribution to a fragment.
fn word(at: usize, rank: u8, fragment: FragmentId, job: JobId) -> i32 {
    match at {
        0 => (fragment.0 & 0xffff) as i32 + 257 * i32::from(rank),
        1 => i32::from(job.0),
        2..=5 => i32::from(usize::from(rank / 16) == at - 2) << (rank % 16),
        // Knuth's multiplicative hash: 12 bits, of both signs.
        _ => ((at as u32).wrapping_mul(2_654_435_761) >> 20).cast_signed() - 2048,
    }
}

fn encode(element: Element, value: i64) -> [u8; WORD_BYTES] {
    match element {
        Element::F32 => (value as f32).to_le_bytes(),
        _ => (value as i32).to_be_bytes(),
    }
}

/// The value of a word as the element type has it, for people.
fn decode(element: Element, bytes: &[u8]) -> f64 {
    let Some(&bytes) = bytes.first_chunk::<WORD_BYTES>() else {
        return f64::NAN;
    };
    match element {
        Element::F32 => f32::from_le_bytes(bytes).into(),
        _ => i32::from_be_bytes(bytes).into(),
    }
}

/// The payload that all contributions have but for their first line, as long as the longest.
#[must_use]
pub fn common_payload(element: Element) -> Vec<u8> {
    (0..MAX_PAYLOAD_BYTES / WORD_BYTES)
        .flat_map(|at| encode(element, word(at, 0, FragmentId(0), JobId(0)).into()))
        .collect()
}

/// The frames of one worker: headers and first line, but for what differs between its frames.
#[derive(Clone, Debug)]
pub struct Template {
    head: [u8; HEAD_BYTES],
    element: Element,
    rank: u8,
    /// Shards less one.
    shards_mask: u32,
    base_port: u16,
}

impl Template {
    /// `header` and `addresses` as of any frame; `shards` a power of two from the first UDP port
    /// on.
    #[must_use]
    pub fn new(addresses: &Addresses, header: &Header, shards: u16) -> Self {
        let mut head = [0; HEAD_BYTES];
        frame::emit(&mut head, addresses, header);
        for (at, bytes) in head[HEADERS_BYTES..]
            .chunks_exact_mut(WORD_BYTES)
            .enumerate()
        {
            let value = word(at, header.rank.0, FragmentId(0), header.job);
            bytes.copy_from_slice(&encode(header.element, value.into()));
        }
        Self {
            head,
            element: header.element,
            rank: header.rank.0,
            shards_mask: u32::from(shards) - 1,
            base_port: addresses.dst_port,
        }
    }

    /// Writes what is of this frame alone to its start; the rest of its payload is
    /// [common](common_payload).
    ///
    /// # Panics
    /// If `frame` is shorter than 128 bytes.
    #[inline]
    pub fn write(&self, frame: &mut [u8], fragment: FragmentId, priority: u8, flags: u8) {
        let b: &mut [u8; HEAD_BYTES] = frame
            .first_chunk_mut()
            .expect("a frame with at least one unit of payload");
        *b = self.head;
        let port = self.base_port + (fragment.0 & self.shards_mask) as u16;
        b[UDP_PORT_AT..UDP_PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        b[FLAGS_AT] = flags;
        b[PRIORITY_AT] = priority;
        b[FRAGMENT_AT..FRAGMENT_AT + 4].copy_from_slice(&fragment.0.to_be_bytes());
        let value = word(0, self.rank, fragment, JobId(0));
        b[HEADERS_BYTES..HEADERS_BYTES + WORD_BYTES]
            .copy_from_slice(&encode(self.element, value.into()));
    }
}

/// The sums of a job.
#[derive(Clone, Debug)]
pub struct Sums {
    payload: Vec<u8>,
    element: Element,
    workers: u8,
}

/// A word of a result that is not the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wrong {
    /// Which word.
    pub word: usize,
    /// What it is.
    pub found: f64,
    /// What it should be.
    pub expected: f64,
}

impl Sums {
    /// Of payloads of so many units.
    #[must_use]
    pub fn new(job: JobId, element: Element, workers: u8, units: u8) -> Self {
        let words = usize::from(units) * UNIT_BYTES / WORD_BYTES;
        let sum = |at| {
            let of_rank = |rank| i64::from(word(at, rank, FragmentId(0), job));
            encode(element, (0..workers).map(of_rank).sum())
        };
        Self {
            payload: (0..words).flat_map(sum).collect(),
            element,
            workers,
        }
    }

    fn first(&self, fragment: FragmentId) -> [u8; WORD_BYTES] {
        let of_rank = |rank| i64::from(word(0, rank, fragment, JobId(0)));
        encode(self.element, (0..self.workers).map(of_rank).sum())
    }

    /// Writes the result of a fragment to `payload`, which has its length.
    pub fn write(&self, fragment: FragmentId, payload: &mut [u8]) {
        payload.copy_from_slice(&self.payload);
        payload[..WORD_BYTES].copy_from_slice(&self.first(fragment));
    }

    /// Compares a result with the sum: its first line and another one by turns, or `all` of it.
    ///
    /// # Errors
    /// The first word that differs.
    #[inline]
    pub fn check(&self, fragment: FragmentId, payload: &[u8], all: bool) -> Result<(), Wrong> {
        let lines = self.payload.len() / UNIT_BYTES;
        let turn = fragment.0 as usize % lines * UNIT_BYTES;
        let parts = if all {
            [WORD_BYTES..self.payload.len(), 0..0]
        } else {
            [
                WORD_BYTES..UNIT_BYTES,
                turn.max(WORD_BYTES)..turn + UNIT_BYTES,
            ]
        };
        let same = payload.len() == self.payload.len()
            && payload[..WORD_BYTES] == self.first(fragment)
            && parts
                .into_iter()
                .all(|part| payload[part.clone()] == self.payload[part]);
        if same {
            return Ok(());
        }
        Err(self.difference(fragment, payload))
    }

    #[cold]
    fn difference(&self, fragment: FragmentId, payload: &[u8]) -> Wrong {
        let mut expected = self.payload.clone();
        expected[..WORD_BYTES].copy_from_slice(&self.first(fragment));
        let pairs = expected
            .chunks_exact(WORD_BYTES)
            .zip(payload.chunks(WORD_BYTES));
        let at = pairs.take_while(|(a, b)| a == b).count();
        let of = |bytes: &[u8]| {
            let word = bytes.get(at * WORD_BYTES..).unwrap_or_default();
            decode(self.element, word)
        };
        Wrong {
            word: at,
            found: of(payload),
            expected: of(&expected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tally_kernels::Kernels;
    use tally_wire::{Epoch, Flags, Kind, Mac, Rank, UdpFrame};

    fn header(rank: u8, element: Element, units: u8) -> Header {
        Header {
            kind: Kind::Data,
            flags: Flags::NONE,
            priority: 0,
            element,
            job: JobId(65_535),
            epoch: Epoch(3),
            fragment: FragmentId(0),
            rank: Rank(rank),
            units,
            bitmap: Rank(rank).bit(),
            tag: tally_wire::AuthTag::NONE,
        }
    }

    fn addresses() -> Addresses {
        Addresses {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src_ip: Ipv4Addr::new(10, 84, 0, 1),
            dst_ip: Ipv4Addr::new(10, 84, 0, 254),
            src_port: 40_000,
            dst_port: 31_249,
        }
    }

    /// The frame as the generator makes it: over a buffer that another worker's frame was in.
    fn contribution(rank: u8, element: Element, units: u8, fragment: FragmentId) -> Vec<u8> {
        let payload = &common_payload(element)[..usize::from(units) * UNIT_BYTES];
        let mut frame = vec![0xa5; HEADERS_BYTES];
        frame.extend_from_slice(payload);
        Template::new(&addresses(), &header(63, element, units), 4).write(
            &mut frame,
            FragmentId(9),
            1,
            0,
        );
        let template = Template::new(&addresses(), &header(rank, element, units), 4);
        template.write(&mut frame, fragment, 77, Flags::RESEND.0);
        let udp = UdpFrame::parse(&frame).unwrap();
        assert_eq!(
            udp.addresses.dst_port,
            31_249 + (fragment.0 % 4) as u16,
            "F-3"
        );
        let parsed = Header::parse(udp.datagram(&frame)).unwrap();
        let want = Header {
            fragment,
            priority: 77,
            flags: Flags::RESEND,
            ..header(rank, element, units)
        };
        assert_eq!(parsed, want);
        frame.split_off(HEADERS_BYTES)
    }

    #[test]
    fn what_all_workers_send_adds_up_to_the_sum() {
        let kernels = Kernels::best();
        for element in [Element::I32, Element::F32] {
            for (workers, units) in [(1, 1), (2, 16), (64, 128)] {
                for fragment in [0, 1, 65_535, 65_536, u32::MAX].map(FragmentId) {
                    let mut sum = contribution(0, element, units, fragment);
                    for rank in 1..workers {
                        let other = contribution(rank, element, units, fragment);
                        match element {
                            Element::F32 => kernels.sum_f32(&mut sum, &other),
                            _ => assert!(!kernels.sum_i32(&mut sum, &other)),
                        }
                    }
                    let sums = Sums::new(JobId(65_535), element, workers, units);
                    assert_eq!(sums.check(fragment, &sum, true), Ok(()));
                    assert_eq!(sums.check(fragment, &sum, false), Ok(()));
                    let mut written = vec![0; sum.len()];
                    sums.write(fragment, &mut written);
                    assert_eq!(written, sum);
                }
            }
        }
    }

    #[test]
    fn any_wrong_word_is_found_and_named() {
        let sums = Sums::new(JobId(7), Element::I32, 8, 4);
        let mut payload = vec![0; 256];
        for at in 0..64 {
            sums.write(FragmentId(5), &mut payload);
            payload[at * 4 + 3] ^= 1;
            let wrong = sums.check(FragmentId(5), &payload, true).unwrap_err();
            assert_eq!(
                (wrong.word, (wrong.found - wrong.expected).abs()),
                (at, 1.0)
            );
            // Without --verify the line that the fragment's turn is on, and the first.
            let seen = sums.check(FragmentId(5), &payload, false).is_err();
            assert_eq!(seen, at < 32, "word {at}");
        }
        assert!(sums.check(FragmentId(5), &payload[..128], true).is_err());
    }

    #[test]
    fn a_contribution_that_is_missing_or_counted_twice_shows() {
        let kernels = Kernels::best();
        let sums = Sums::new(JobId(65_535), Element::I32, 3, 1);
        let of = |rank| contribution(rank, Element::I32, 1, FragmentId(4));
        for ranks in [vec![0, 1], vec![0, 1, 1], vec![0, 0, 2], vec![0, 1, 2, 2]] {
            let mut sum = vec![0; 64];
            ranks.iter().for_each(|&rank| {
                kernels.sum_i32(&mut sum, &of(rank));
            });
            assert!(sums.check(FragmentId(4), &sum, false).is_err(), "{ranks:?}");
        }
    }
}
