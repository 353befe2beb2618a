//! What the engine asks of packet memory and of the way out.

use crate::roster::Roster;
use tally_wire::{Header, Rank, Time};

/// A received frame, owned. The engine touches only its payload; headers are the adapter's.
pub trait Buffer: Sized {
    /// The payload behind the headers.
    fn payload(&self) -> &[u8];

    /// The payload, to be summed into. The engine calls it only on buffers it never shared.
    fn payload_mut(&mut self) -> &mut [u8];
}

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One worker, at its bound address.
    Worker(Rank),
    /// The job's parameter server, at its bound address.
    Ps,
    /// The parent of a node, at the shard of the fragment.
    Parent,
}

/// The way out of the engine.
pub trait Egress<B: Buffer> {
    /// Send `buffer` with `header` to one member. The caller owned it alone. To the parent it
    /// leaves with as much payload as the header says.
    fn send(&mut self, roster: &Roster, to: To, header: &Header, buffer: B);

    /// Send the result `buffer` with `header` to the job's group, once on each port in
    /// `roster.ports`, and give the frame back for the ring. From then on its bytes are shared and
    /// read-only. `born` is when the first contribution came, if the switch saw one.
    fn publish(&mut self, roster: &Roster, header: &Header, buffer: B, born: Option<Time>) -> B;

    /// Send a published frame once more, as it stands, on the port of one worker.
    fn republish(&mut self, roster: &Roster, to: Rank, frame: &B);

    /// Send the node's sum `buffer` with `header` to the parent (TR-1), and give the frame back for
    /// the ring. From then on its bytes are shared and read-only. `born` is when the first
    /// contribution came, if the switch saw one.
    fn send_up(&mut self, roster: &Roster, header: &Header, buffer: B, born: Option<Time>) -> B;

    /// Send a copy of `frame`, which may be shared, with `header` to the parent.
    fn copy_up(&mut self, roster: &Roster, header: &Header, frame: &B);

    /// Whether a queue may still have a reference to `frame`.
    fn is_queued(&self, frame: &B) -> bool;

    /// The engine is done with this buffer.
    fn discard(&mut self, buffer: B) {
        drop(buffer);
    }
}
