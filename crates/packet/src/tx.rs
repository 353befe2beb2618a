//! Sending: frames that follow each other with the same headers leave as superframes.
//!
//! Each frame's segments are gathered by the kernel, so headers of their own and a payload that
//! many frames share are not copied together before.
//!
//! A superframe that is forwarded ([`Mbuf::cut`]) leaves as it came: with the word on it that the
//! kernel gave of it. If the kernel refuses it, it is cut.

use crate::segment::{Segmenter, describe};
use crate::socket::{Socket, no_message, offload_part, part_to_send, point};
use crate::superframe::{BYTES_MAX, DATAGRAMS_MAX, Offload, continues, joined, may_join};
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use tally_dpdk::{Mbuf, Mempool, free_bulk};
use tally_wire::frame::UDP_END;

/// Frames in one system call at most.
const FRAMES: usize = 64;

/// The sending side of a port.
pub struct PacketTx {
    socket: Arc<Socket>,
    /// Whether the kernel takes superframes.
    superframes: bool,
    groups: Vec<Group>,
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    sent: Vec<Mbuf>,
    /// Cuts what the kernel refuses.
    segmenter: Option<Box<Segmenter>>,
    /// Whether the first frame is a superframe that it refused.
    is_refused: bool,
    errors: u64,
    /// `Send`, not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

// SAFETY: the pointers in `headers` and `parts` are written before each system call and not used
// after it. All else may be used on any thread.
unsafe impl Send for PacketTx {}

/// Frames that leave as one.
struct Group {
    frames: usize,
    /// Whether it came as one.
    is_forwarded: bool,
    /// Pieces that the kernel gathers it from.
    parts: usize,
    offload: Offload,
    head: [u8; UDP_END],
}

impl PacketTx {
    pub(crate) fn new(socket: Arc<Socket>, pool: Mempool, superframes: bool) -> Self {
        Self {
            socket,
            superframes,
            groups: Vec::with_capacity(FRAMES),
            headers: vec![no_message(); FRAMES],
            // Of two segments each, and for each group what the kernel wants to know, and its
            // headers.
            parts: Vec::with_capacity(4 * FRAMES),
            sent: Vec::with_capacity(FRAMES),
            segmenter: Some(Box::new(Segmenter::new(pool))),
            is_refused: false,
            errors: 0,
            _one_thread: PhantomData,
        }
    }

    /// Sends the frames that the kernel takes now, first ones first, and returns their number.
    /// Exactly these leave the vector; the others remain the caller's, in order. Frames that the
    /// kernel refuses for good, because they are too long or the interface is down, leave it too
    /// and are counted ([`PacketTx::errors`]).
    pub fn burst(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        let before = frames.len();
        loop {
            if self.is_refused && !self.send_cut(frames) {
                break;
            }
            self.send_whole(frames);
            if !self.is_refused {
                break;
            }
        }
        before - frames.len()
    }

    /// Sends the superframe at the front in pieces; `false` if it has not all left.
    #[cold]
    fn send_cut(&mut self, frames: &mut Vec<Mbuf>) -> bool {
        let rest = frames.split_off(frames.len().min(1));
        if let Some(mut segmenter) = self.segmenter.take() {
            segmenter.send(frames, |cut| {
                self.send_whole(cut);
            });
            self.segmenter = Some(segmenter);
        }
        self.is_refused = !frames.is_empty();
        frames.extend(rest);
        !self.is_refused
    }

    /// Sends frames until the kernel takes no more, or refuses a superframe.
    fn send_whole(&mut self, frames: &mut Vec<Mbuf>) {
        let mut done = 0;
        while done < frames.len() {
            let n = self.send(&frames[done..]);
            if n == 0 {
                break;
            }
            done += n;
        }
        self.sent.extend(frames.drain(..done));
        free_bulk(&mut self.sent);
    }

    /// Frames that the kernel did not take.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let cut = self.segmenter.as_ref().map_or(0, |it| it.no_buffer());
        self.errors + cut
    }

    /// Sends some of the frames, and says how many are done with.
    fn send(&mut self, frames: &[Mbuf]) -> usize {
        self.group(&frames[..frames.len().min(FRAMES)]);
        let n = self.groups.len();
        // SAFETY: `n` headers, each with parts that are within buffers that no code writes to, and
        // that live until the call returns.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.fd(),
                self.headers.as_mut_ptr(),
                n as u32,
                libc::MSG_DONTWAIT,
            )
        };
        if let Ok(sent @ 1..) = usize::try_from(sent) {
            return self.groups[..sent].iter().map(|group| group.frames).sum();
        }
        match io::Error::last_os_error().raw_os_error() {
            // The kernel has enough of ours.
            Some(libc::EAGAIN | libc::EINTR) => 0,
            Some(libc::EINVAL) if self.groups[0].is_forwarded => {
                self.is_refused = true;
                0
            }
            // It says that it takes superframes, and the interface does not.
            Some(libc::EINVAL) if self.groups[0].frames > 1 => {
                self.superframes = false;
                self.send(frames)
            }
            // Dropped by the interface's queue, too long, or the interface is down: lost like on a
            // wire.
            _ => {
                let lost = self.groups[0].frames;
                self.errors += lost as u64;
                lost
            }
        }
    }

    /// Divides the frames into groups, and describes them to the kernel.
    fn group(&mut self, frames: &[Mbuf]) {
        self.groups.clear();
        self.parts.clear();
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let bytes = first.len();
            let is_superframe = first.is_superframe();
            let described = if is_superframe { describe(first) } else { None };
            let first = first.data();
            let most = if self.superframes && !is_superframe && may_join(first, bytes) {
                (BYTES_MAX / (bytes - UDP_END)).clamp(1, DATAGRAMS_MAX)
            } else {
                1
            };
            let others = rest[1..].iter().take(most - 1);
            let n = 1 + others
                .take_while(|frame| {
                    !frame.is_superframe() && frame.len() == bytes && continues(first, frame.data())
                })
                .count();
            let mut group = Group {
                frames: n,
                is_forwarded: is_superframe,
                parts: 0,
                offload: Offload::default(),
                head: [0; UDP_END],
            };
            if let Some(superframe) = described {
                group.offload = Offload::of_forwarded(&superframe, first);
            }
            if n > 1
                && let Some(head) = first.first_chunk()
            {
                let bytes = bytes - UDP_END;
                group.offload = Offload::of_superframe(bytes);
                group.head = joined(head, n * bytes);
            }
            self.groups.push(group);
            rest = &rest[n..];
        }
        // Now that the groups stay where they are.
        let mut rest = frames;
        for group in &mut self.groups {
            let before = self.parts.len();
            self.parts.push(offload_part(&mut group.offload));
            let (these, others) = rest.split_at(group.frames);
            if group.frames == 1 {
                self.parts.extend(these[0].parts().map(part_to_send));
            } else {
                self.parts.push(part_to_send(&group.head));
                for frame in these {
                    let mut parts = frame.parts();
                    // Whose first segment has all headers: it continues the superframe.
                    let first = parts.next().map(|first| &first[UDP_END..]);
                    self.parts
                        .extend(first.into_iter().chain(parts).map(part_to_send));
                }
            }
            group.parts = self.parts.len() - before;
            rest = others;
        }
        let numbers = self.groups.iter().map(|group| group.parts);
        point(&mut self.headers, &mut self.parts, numbers);
    }
}
