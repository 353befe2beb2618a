//! Plain memory as the engine's buffers and way out, for tests and the fuzz target.
//!
//! Every buffer is numbered in its [`Ledger`] from birth to the moment when the engine sends,
//! republishes or discards it. One that merely disappears, as a value overwritten in a slot would,
//! is counted as lost, although its memory is freed: an mbuf's would not be.

use std::cell::Cell;
use std::rc::Rc;
use tally_engine::switchml::{Destination, Replies};
use tally_engine::{Buffer, Egress, Member, PortId, Roster, To};
use tally_wire::{
    AuthTag, Epoch, EpochSecret, Flags, Header, JobId, Key, Kind, Mac, Rank, Time, switchml,
};

/// What became of the buffers.
#[derive(Clone, Default)]
pub struct Ledger(Rc<Counts>);

#[derive(Default)]
struct Counts {
    live: Cell<usize>,
    lost: Cell<usize>,
}

impl Ledger {
    /// A received frame's payload.
    pub fn frame(&self, payload: impl Into<Vec<u8>>) -> Plain {
        self.0.live.set(self.0.live.get() + 1);
        Plain {
            payload: payload.into(),
            shared: Cell::new(false),
            accounted: false,
            counts: Rc::clone(&self.0),
        }
    }

    /// Buffers that the engine has.
    pub fn live(&self) -> usize {
        self.0.live.get()
    }

    /// Buffers that disappeared.
    pub fn lost(&self) -> usize {
        self.0.lost.get()
    }
}

/// A frame in plain memory.
pub struct Plain {
    payload: Vec<u8>,
    shared: Cell<bool>,
    accounted: bool,
    counts: Rc<Counts>,
}

impl Plain {
    fn accounted(mut self) -> Vec<u8> {
        self.accounted = true;
        std::mem::take(&mut self.payload)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.counts.live.set(self.counts.live.get() - 1);
        if !self.accounted {
            self.counts.lost.set(self.counts.lost.get() + 1);
        }
    }
}

impl Buffer for Plain {
    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        assert!(!self.shared.get(), "writes to a published frame");
        &mut self.payload
    }
}

/// Something that left the engine, its header without the tag, which was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// To one member, at this address.
    To(To, Member, Header, Vec<u8>),
    /// To the group, on these ports; with the time of the first contribution.
    Group(Vec<PortId>, Header, Vec<u8>, Option<Time>),
    /// A node's sum to its parent, at this address; with the time of the first contribution.
    Up(Member, Header, Vec<u8>, Option<Time>),
    /// A published frame's payload once more, on the port of this worker.
    Retransmit(Rank, PortId, Vec<u8>),
}

/// Everything that left, in order.
#[derive(Default)]
pub struct Wire {
    /// In order; tests take it.
    pub sent: Vec<Sent>,
    /// The same, of what left for SwitchML's clients.
    pub replies: Vec<Reply>,
    /// Buffers given back.
    pub discarded: usize,
    /// Whether all that left stands in a queue still.
    pub queued: bool,
}

/// A sum that left for a worker of SwitchML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// To whom.
    pub to: Destination,
    /// Its header.
    pub header: switchml::Header,
    /// The type of service of the frame that caused it.
    pub tos: u8,
    /// Its elements.
    pub sum: Vec<u8>,
}

impl Wire {
    /// What left since the last call.
    pub fn take(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }
}

impl Egress<Plain> for Wire {
    fn send(&mut self, roster: &Roster, to: To, header: &Header, buffer: Plain) {
        let header = untagged(roster, header);
        assert!(
            !buffer.shared.get(),
            "sends a published frame's only buffer away"
        );
        let member = match to {
            To::Ps => *roster.server_of(header.fragment),
            To::Worker(rank) => roster.workers[usize::from(rank.0)],
            To::Parent => {
                let uplink = roster.uplink.expect("sends up at the root");
                uplink.shard_of(header.fragment)
            }
        };
        let mut payload = buffer.accounted();
        if to == To::Parent {
            payload.truncate(header.payload_bytes());
        }
        self.sent.push(Sent::To(to, member, header, payload));
    }

    fn publish(
        &mut self,
        roster: &Roster,
        header: &Header,
        buffer: Plain,
        born: Option<Time>,
    ) -> Plain {
        let header = untagged(roster, header);
        assert!(!buffer.shared.get(), "publishes twice");
        buffer.shared.set(true);
        let payload = buffer.payload.clone();
        self.sent
            .push(Sent::Group(roster.ports.clone(), header, payload, born));
        buffer
    }

    fn republish(&mut self, roster: &Roster, to: Rank, frame: &Plain) {
        assert!(frame.shared.get(), "republishes what was never published");
        let port = roster.workers[usize::from(to.0)].port;
        self.sent
            .push(Sent::Retransmit(to, port, frame.payload.clone()));
    }

    fn send_up(
        &mut self,
        roster: &Roster,
        header: &Header,
        buffer: Plain,
        born: Option<Time>,
    ) -> Plain {
        let header = untagged(roster, header);
        assert!(!buffer.shared.get(), "sends up a published frame");
        assert!(header.kind == Kind::Data && !header.flags.has(Flags::RESEND));
        buffer.shared.set(true);
        let parent = roster.uplink.expect("sends up at the root");
        let to = parent.shard_of(header.fragment);
        let payload = buffer.payload.clone();
        self.sent.push(Sent::Up(to, header, payload, born));
        buffer
    }

    fn copy_up(&mut self, roster: &Roster, header: &Header, frame: &Plain) {
        let header = untagged(roster, header);
        let parent = roster.uplink.expect("sends up at the root");
        let to = parent.shard_of(header.fragment);
        self.sent
            .push(Sent::To(To::Parent, to, header, frame.payload.clone()));
    }

    fn is_queued(&self, _: &Plain) -> bool {
        self.queued
    }

    fn discard(&mut self, buffer: Plain) {
        self.discarded += 1;
        buffer.accounted();
    }
}

impl Replies<Plain> for Wire {
    fn reply(&mut self, to: &Destination, header: &switchml::Header, tos: u8, sum: &Plain) {
        sum.shared.set(true);
        self.replies.push(Reply {
            to: *to,
            header: *header,
            tos,
            sum: sum.payload.clone(),
        });
    }

    fn discard(&mut self, buffer: Plain) {
        Egress::discard(self, buffer);
    }
}

/// A header that leaves, checked, without its tag.
fn untagged(roster: &Roster, header: &Header) -> Header {
    assert_eq!(
        header.check(),
        Ok(()),
        "the engine sends an invalid header: {header:?}"
    );
    assert!(
        roster.secret.verifies(header),
        "the engine sends a wrong tag: {header:?}"
    );
    Header {
        tag: AuthTag::NONE,
        ..*header
    }
}

/// The secret of an epoch of a job, the same in all tests.
pub fn secret(job: JobId, epoch: Epoch) -> EpochSecret {
    let key = Key::new(&[0x5a; 16]).expect("a key of 16 bytes");
    key.epoch_secret(job, epoch, u64::from(epoch.0))
}

/// A member at an address of its own: the `n`-th host, on the port of that number.
pub fn host(n: u16) -> Member {
    let [high, low] = n.to_be_bytes();
    Member {
        port: PortId(n),
        mac: Mac([2, 0, 0, 0, high, low]),
        ip: std::net::Ipv4Addr::new(10, 0, high, low),
        udp_port: 40_000 + n,
    }
}
