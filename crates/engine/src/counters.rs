//! What a shard counts: what it did, and why it dropped.

use crate::metrics;
use crate::metrics::{Label, help};
use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};
use tally_wire::{FrameError, HeaderError, switchml};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a frame was dropped. One counter each; the names are those of the reports. The text
        /// of a reason says what the frame is or does, as in "a frame that …".
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant,)+ }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// All names, in that order.
            pub const NAMES: &'static [&'static str] = &[$($name,)+];

            /// The name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Says of a frame what the reason means: "a frame that …".
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => help(concat!($($doc),+)),)+ }
            }
        }
    };
}

drop_reasons! {
    /// Is to the switch and ends before its headers do.
    Truncated = "truncated",
    /// Is to the switch and has a VLAN tag.
    Vlan = "vlan-tag",
    /// Is to the switch's MAC, and neither IPv4 nor ARP.
    NotIpv4 = "not-ipv4",
    /// Is to the switch and has an IP version other than 4.
    IpVersion = "ip-version",
    /// Is to the switch and has IPv4 options.
    IpOptions = "ip-options",
    /// Is to the switch and a fragment of an IPv4 packet.
    IpFragment = "ip-fragment",
    /// Is to the switch, and its IPv4 length does not fit the frame.
    IpLength = "ip-length",
    /// Is to the switch's address, and neither UDP nor an echo request.
    NotUdp = "not-udp",
    /// Is to the switch, and its UDP length does not fit the IPv4 length.
    UdpLength = "udp-length",
    /// Has a checksum that the port's hardware found wrong.
    Checksum = "bad-checksum",
    /// Came in several buffers and is longer than any one. Others are copied into one
    /// (`linearised`).
    Segmented = "segmented",
    /// Is a superframe that a kernel has made of TCP segments or UDP datagrams, to the switch's MAC
    /// or to a service of the switch.
    Superframe = "superframe",
    /// Is to a UDP port of the switch that has no service.
    UdpPort = "udp-port",
    /// Is to the switch's MAC and another IPv4 address.
    NotOurs = "not-our-address",
    /// Is shorter than the header that its UDP port stands for.
    HeaderTruncated = "header-truncated",
    /// Has an unknown protocol version.
    Version = "version",
    /// Has an unknown type.
    Kind = "type",
    /// Has a reserved bit set, or a flag that its type does not have.
    Reserved = "reserved-bits",
    /// Has an element type that does not fit its type.
    Element = "element-type",
    /// Has a payload length that does not fit its header.
    Length = "payload-length",
    /// Has a rank that does not fit its type.
    RankRange = "rank-range",
    /// Has a bitmap that does not fit its type.
    Bitmap = "bitmap",
    /// Has a type that only the switch sends.
    NotForSwitch = "not-for-switch",
    /// Is of a job that does not exist or does not run.
    UnknownJob = "unknown-job",
    /// Has another epoch than its job.
    Epoch = "stale-epoch",
    /// Has a tag that is not the frame's under the epoch's secret.
    AuthTag = "auth-tag",
    /// Has a rank at or above the number of workers.
    RankOutOfJob = "rank-out-of-job",
    /// Came from another port or address than its rank is bound to.
    NotMember = "not-a-member",
    /// Has a fragment that belongs to another shard than its UDP port.
    Shard = "wrong-shard",
    /// Has other units than those agreed in the job.
    Units = "units-mismatch",
    /// Differs in element type from its slot.
    ElementMismatch = "element-mismatch",
    /// Repeats a contribution that the slot has; normal under loss. In SwitchML: while others are
    /// missing.
    Duplicate = "duplicate",
    /// Is of a fragment that has its result or is older than the result ring; normal under loss.
    Late = "late",
    /// Claims the switch's own MAC or IPv4 address as its source.
    SpoofedSwitch = "spoofed-switch",
    /// Claims the switch's own MAC or IPv4 address behind VLAN tags or a SNAP header.
    SpoofedBehindTag = "spoofed-behind-tag",
    /// Is from a port to a group address of jobs (239.84.0.0/16), to which only the switch sends.
    /// Includes IGMPv2 reports for these groups.
    ClaimsGroup = "claims-group",
    /// Is an ICMP error about a datagram to the switch, which no host has a reason to send.
    ClaimsError = "claims-icmp-error",
    /// Has the MAC of a running job's member as source, and came by another port.
    ClaimsMember = "claims-member",
    /// Is to the switch's IPv4 address, behind a tag or not, and not to its MAC: the host remembers
    /// another MAC of the switch, or tags frames to it.
    NotOurMac = "not-our-mac",
    /// Has more than 16 VLAN tags.
    TagDepth = "tag-depth",
    /// Is a JOIN or LEAVE that found the queue to the control thread full: 256 of its port wait.
    ControlFull = "control-queue-full",
    /// Found its class of the egress queue full.
    TxFull = "tx-full",
    /// Is an ordinary frame longer than the `mtu` of the port that it would leave by.
    FrameTooLong = "frame-too-long",
    /// Found the queue to another data core full.
    HandoverFull = "handover-full",
    /// Needed a buffer when the packet memory was exhausted.
    NoBuffer = "no-buffer",
    /// Would leave by the port where it came from.
    Reflection = "reflection",
    /// Was flooded within the last half second, and came back by another port: two ports are joined
    /// outside of the switch.
    Loop = "loop",
    /// Is a broadcast that exceeds `limits.broadcasts_per_s` of its port.
    StormBroadcast = "storm-broadcast",
    /// Is a multicast that exceeds `limits.multicasts_per_s` of its port.
    StormMulticast = "storm-multicast",
    /// Is to an unknown address and exceeds `limits.unknown_per_s` of its port.
    StormUnknown = "storm-unknown",
    /// Is to a link-local group (01:80:c2:00:00:01 to 0f) such as LLDP's, which no bridge forwards.
    LinkLocal = "link-local",
    /// Is a probe of this switch's loop guard that came back.
    LoopProbe = "loop-probe",
    /// Came by a port that is down or that the loop guard has blocked, or would leave by one.
    PortClosed = "port-closed",
    /// Came by a link of the fabric whose switch is not heard, or would leave by such links only.
    FabricLink = "fabric-link",
    /// Is an ARP or echo request that exceeds `limits.answers_per_s` of its port.
    AnswerLimit = "answer-limit",
    /// Is to a UDP port of SwitchML's, from a MAC and IP address that are in no session.
    SwitchmlStation = "switchml-no-session",
    /// Has the addresses of a SwitchML worker, and is not to the switch address that this worker
    /// was told.
    SwitchmlForged = "switchml-forged",
    /// Is to a SwitchML worker's secret address from a port by which the worker's frames do not
    /// come, or of a session in which that happened.
    SwitchmlPort = "switchml-port",
    /// Has another SwitchML packet size than its session, or an unknown one.
    SwitchmlSize = "switchml-size",
    /// Names a slot beyond `switchml.slots`.
    SwitchmlSlot = "switchml-slot",
    /// Is late: its sum has this SwitchML worker's contribution, and the worker has since used the
    /// other set.
    SwitchmlSet = "switchml-set",
    /// Is a first contribution beyond `switchml.held`. Its client sends it again.
    SwitchmlHeld = "switchml-no-slot-memory",
    /// Is a data packet with the ring DSCP, of no known connection of a ring: its switch or ring
    /// began anew, the ring was removed, or an application uses that DSCP.
    NetreduceUnknown = "netreduce-unknown",
    /// Is a data packet with the DSCP of packets that a switch has summed, from a host.
    NetreduceReleased = "netreduce-released",
    /// Is to begin a message of a ring, and has no header of the ring that is due, or a wrong tag.
    NetreduceHeader = "netreduce-header",
    /// Is of an older epoch of its ring, or of one that has ended.
    NetreduceEpoch = "netreduce-stale-epoch",
    /// Differs in position, length, type or path MTU from what its message is.
    NetreduceShape = "netreduce-shape",
    /// Begins a message beyond two windows of its ring.
    NetreduceWindow = "netreduce-window",
    /// Is of a ring's connection, and came from another MAC, or a port by which frames of that host
    /// do not come.
    NetreducePort = "netreduce-port",
    /// Is a data packet of a ring with a wrong invariant CRC.
    NetreduceIcrc = "netreduce-icrc",
    /// Is a packet of a ring, to a host that cannot be reached now, or a partial sum to such a
    /// root.
    NetreduceNoRoute = "netreduce-no-route",
    /// Came from the card, and is of a kind that the card may not send.
    CardFrame = "card-frame",
    /// Came back from the card unchanged: the card does not have that job.
    CardReturned = "card-returned",
    /// Came from the card, of a job or epoch that it no longer has; some at each move.
    CardStray = "card-stray",
}

impl DropReason {
    /// Whether its sender is hostile or misconfigured: it claimed what is another's, or hid what it
    /// claims.
    #[must_use]
    pub fn is_claim(self) -> bool {
        self.claim().is_some()
    }

    /// Its index in [`CLAIMS`], if it is one of them.
    #[must_use]
    pub fn claim(self) -> Option<usize> {
        CLAIMS.iter().position(|claim| *claim == self)
    }
}

/// Reasons whose frames are counted by port: the sender is hostile or misconfigured.
pub const CLAIMS: [DropReason; 6] = [
    DropReason::SpoofedSwitch,
    DropReason::SpoofedBehindTag,
    DropReason::ClaimsGroup,
    DropReason::ClaimsError,
    DropReason::ClaimsMember,
    DropReason::TagDepth,
];

/// The label of claims.
pub const CLAIM: Label = Label {
    name: "reason",
    values: &CLAIM_NAMES,
};

const CLAIM_NAMES: [&str; CLAIMS.len()] = {
    let mut names = [""; CLAIMS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = CLAIMS[at].name();
        at += 1;
    }
    names
};

impl From<FrameError> for DropReason {
    #[inline]
    fn from(e: FrameError) -> Self {
        match e {
            FrameError::Truncated => Self::Truncated,
            FrameError::Vlan => Self::Vlan,
            FrameError::NotIpv4 => Self::NotIpv4,
            FrameError::IpVersion => Self::IpVersion,
            FrameError::IpOptions => Self::IpOptions,
            FrameError::IpFragment => Self::IpFragment,
            FrameError::IpLength => Self::IpLength,
            FrameError::NotUdp => Self::NotUdp,
            FrameError::UdpLength => Self::UdpLength,
        }
    }
}

impl From<HeaderError> for DropReason {
    #[inline]
    fn from(e: HeaderError) -> Self {
        match e {
            HeaderError::Truncated => Self::HeaderTruncated,
            HeaderError::Version => Self::Version,
            HeaderError::Kind => Self::Kind,
            HeaderError::Reserved => Self::Reserved,
            HeaderError::Element => Self::Element,
            HeaderError::Length => Self::Length,
            HeaderError::Rank => Self::RankRange,
            HeaderError::Bitmap => Self::Bitmap,
        }
    }
}

impl From<switchml::HeaderError> for DropReason {
    #[inline]
    fn from(e: switchml::HeaderError) -> Self {
        match e {
            switchml::HeaderError::Truncated => Self::HeaderTruncated,
            switchml::HeaderError::Kind => Self::Kind,
            switchml::HeaderError::Size => Self::SwitchmlSize,
            switchml::HeaderError::Length => Self::Length,
        }
    }
}

/// The label of drops.
pub const REASON: Label = Label {
    name: "reason",
    values: DropReason::NAMES,
};

metrics! {
    /// Frames dropped. Plain integers: one writer, copied out for reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Drops, labels [] {
        /// Frames dropped, by reason.
        pub drops: [u64; DropReason::ALL.len()] = counter "dropped_frames" in Frames by REASON;
    }
}

impl Drops {
    /// Counts one dropped frame.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Reasons with their frames.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().copied().zip(self.drops)
    }

    /// Frames dropped for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.drops.iter().sum()
    }
}

impl Index<DropReason> for Drops {
    type Output = u64;

    #[inline]
    fn index(&self, reason: DropReason) -> &u64 {
        &self.drops[reason as usize]
    }
}

impl IndexMut<DropReason> for Drops {
    #[inline]
    fn index_mut(&mut self, reason: DropReason) -> &mut u64 {
        &mut self.drops[reason as usize]
    }
}

metrics! {
    /// What one pool shard did since it started.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Counters, labels [] {
        /// Contributions summed.
        pub contributions: u64 = counter "contributions";
        /// Contributions summed together with others of their poll iteration.
        pub grouped: u64 = counter "grouped_contributions";
        /// Slots allocated. A fragment that arrives whole in one poll iteration takes none.
        pub slots_taken: u64 = counter "slots_allocated";
        /// Results finished by the switch.
        pub results: u64 = counter "results";
        /// Results of parameter servers, passed on.
        pub results_from_ps: u64 = counter "results_from_ps";
        /// Results retransmitted from the result ring.
        pub results_again: u64 = counter "results_retransmitted";
        /// Slots preempted by an arrival of higher priority.
        pub preemptions: u64 = counter "preemptions";
        /// Slots freed because their fragment had its result from elsewhere.
        pub abandoned: u64 = counter "slots_abandoned";
        /// Slots sent to the parameter server after the rest of their fragment.
        pub followed: u64 = counter "slots_followed";
        /// Arrivals that found no slot and went to the parameter server.
        pub collisions: u64 = counter "collisions";
        /// RESENDs that went to the parameter server.
        pub resends_to_ps: u64 = counter "resends_to_ps";
        /// Contributions that went to the parameter server because `pool.held` was exhausted.
        pub held_full: u64 = counter "held_full";
        /// PARTIAL frames sent to the parameter server.
        pub partials: u64 = counter "partials";
        /// REMINDs served.
        pub reminds: u64 = counter "reminds";
        /// NACKs passed on to workers.
        pub nacks: u64 = counter "nacks";
        /// PROBEs of workers that missed a result.
        pub probes: u64 = counter "probes";
        /// PROBEs answered by a NACK to a rank whose contribution was missing.
        pub probe_nacks: u64 = counter "probe_nacks";
        /// Results that came from a worker that had them.
        pub results_from_workers: u64 = counter "results_from_workers";
        /// Sums of a node of a tree that were sent to its parent.
        pub sums_up: u64 = counter "sums_up";
        /// Sums retransmitted to the parent.
        pub sums_up_again: u64 = counter "sums_up_retransmitted";
        /// Results that a node had and its parent asked for, or did not know.
        pub results_up: u64 = counter "results_up";
        /// PROBEs of a node to its parent.
        pub probes_up: u64 = counter "probes_up";
        /// Results of the parent, passed down.
        pub results_down: u64 = counter "results_down";
        /// NACKs of the parent.
        pub nacks_down: u64 = counter "nacks_down";
        /// Results with a saturated element.
        pub overflows: u64 = counter "overflows";
    }
    parts {
        /// Frames dropped.
        pub drops: Drops;
    }
}

metrics! {
    /// What the pool shards did for one job since the switch has it, without what a card did.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct JobCounters, labels ["job_id"] {
        /// Contributions of the job's members at the switch: summed, forwarded or dropped.
        pub contributions: u64 = counter "job_contributions";
        /// Fragments whose result the switch sent to the job's members.
        pub results: u64 = counter "job_results";
        /// Payload bytes of these results: the job's goodput.
        pub payload_bytes: u64 = counter "job_payload_bytes" in Bytes;
        /// Sums of the job sent to the parent switch, without copies.
        pub sums_up: u64 = counter "job_sums_up";
        /// Bytes of all frames with payload sent to the parent switch for the job.
        pub uplink_bytes: u64 = counter "job_uplink_bytes" in Bytes;
        /// Results of the job that came from the parent switch.
        pub results_down: u64 = counter "job_results_down";
    }
}

impl Counters {
    /// Counts one dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Frames dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason]
    }
}
