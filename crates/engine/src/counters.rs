//! What a shard counts: what it did, and why it dropped.

use tally_wire::{FrameError, HeaderError, switchml};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a frame was dropped. One counter each; the names are those of the reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant,)+ }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drop_reasons! {
    /// Ends before its headers do.
    Truncated = "truncated",
    /// Carries a VLAN tag.
    Vlan = "vlan-tag",
    /// To the switch's MAC, but neither IPv4 nor ARP.
    NotIpv4 = "not-ipv4",
    /// IP version other than 4.
    IpVersion = "ip-version",
    /// IPv4 options.
    IpOptions = "ip-options",
    /// A fragment of an IPv4 packet.
    IpFragment = "ip-fragment",
    /// IPv4 length does not fit the frame.
    IpLength = "ip-length",
    /// To the switch's address, but not UDP (and no echo request).
    NotUdp = "not-udp",
    /// UDP length does not fit the IPv4 length.
    UdpLength = "udp-length",
    /// The port's hardware found a checksum wrong.
    Checksum = "bad-checksum",
    /// In more than one mbuf segment.
    Segmented = "segmented",
    /// To a UDP port of the switch that is none of Tally's.
    UdpPort = "udp-port",
    /// To the switch's MAC but another IPv4 address.
    NotOurs = "not-our-address",
    /// Shorter than the header that its UDP port stands for.
    HeaderTruncated = "header-truncated",
    /// Unknown version.
    Version = "version",
    /// Unknown type.
    Kind = "type",
    /// Reserved bit or a flag that the type does not have.
    Reserved = "reserved-bits",
    /// Element type does not fit.
    Element = "element-type",
    /// Payload length does not fit the header.
    Length = "payload-length",
    /// Rank does not fit the type.
    RankRange = "rank-range",
    /// Bitmap does not fit.
    Bitmap = "bitmap",
    /// A type that only the switch sends.
    NotForSwitch = "not-for-switch",
    /// No such job, or it does not run.
    UnknownJob = "unknown-job",
    /// Epoch is not the job's.
    Epoch = "stale-epoch",
    /// The tag is not that of the frame under the epoch's secret.
    AuthTag = "auth-tag",
    /// Rank at or above the number of workers.
    RankOutOfJob = "rank-out-of-job",
    /// Not from the port and addresses that the rank is bound to.
    NotMember = "not-a-member",
    /// Fragment belongs to another shard than the UDP port says.
    Shard = "wrong-shard",
    /// Units are not those agreed in the job.
    Units = "units-mismatch",
    /// Element type differs from the slot's.
    ElementMismatch = "element-mismatch",
    /// The rank's contribution is in the slot already.
    Duplicate = "duplicate",
    /// The fragment has its result, or is older than the ring.
    Late = "late",
    /// Claims the switch's own MAC or IPv4 address as its source.
    SpoofedSwitch = "spoofed-switch",
    /// Claims the switch's own MAC or IPv4 address behind a VLAN tag or SNAP header.
    SpoofedBehindTag = "spoofed-behind-tag",
    /// To a group address of jobs, to which only the switch sends.
    ClaimsGroup = "claims-group",
    /// An ICMP error about a datagram to the switch.
    ClaimsError = "claims-icmp-error",
    /// From the MAC of a job's member, but by another port.
    ClaimsMember = "claims-member",
    /// To the switch's IPv4 address, but not to its MAC; behind tags as well.
    NotOurMac = "not-our-mac",
    /// More VLAN tags than are looked behind.
    TagDepth = "tag-depth",
    /// The queue to the control thread was full.
    ControlFull = "control-queue-full",
    /// The egress queue of the port was full.
    TxFull = "tx-full",
    /// An ordinary frame was longer than the MTU of the port that it would have left by.
    FrameTooLong = "frame-too-long",
    /// The queue to another data core was full.
    HandoverFull = "handover-full",
    /// No buffer left to copy a frame into.
    NoBuffer = "no-buffer",
    /// Would have left on the port it came from.
    Reflection = "reflection",
    /// Was flooded a moment ago, and came back by another port.
    Loop = "loop",
    /// Beyond the port's limit of flooded frames.
    Storm = "storm",
    /// An ARP or ICMP echo request beyond the port's limit of answers.
    AnswerLimit = "answer-limit",
    /// SwitchML: from a station that is in no session.
    SwitchmlStation = "switchml-no-session",
    /// SwitchML: from a worker's addresses, and not to the address of the switch that this worker was told.
    SwitchmlForged = "switchml-forged",
    /// SwitchML: from another port than the worker's first frame, or of a session in which that happened.
    SwitchmlPort = "switchml-port",
    /// SwitchML: an unknown packet size, or not the session's.
    SwitchmlSize = "switchml-size",
    /// SwitchML: a slot beyond those that a session has.
    SwitchmlSlot = "switchml-slot",
    /// SwitchML: a set whose sum has this rank, which has been in the other set since.
    SwitchmlSet = "switchml-set",
    /// SwitchML: a first contribution, and no buffer more may be kept.
    SwitchmlHeld = "switchml-no-slot-memory",
    /// From a card, and nothing that a card may send.
    CardFrame = "card-frame",
    /// Given to a card, which gave it back as it was.
    CardReturned = "card-returned",
    /// From a card, of a job or an epoch that it does not have any more.
    CardStray = "card-stray",
}

impl DropReason {
    /// Whether its sender is hostile or misconfigured: it claimed what is another's, or hid what it
    /// claims.
    #[must_use]
    pub const fn is_claim(self) -> bool {
        matches!(
            self,
            Self::SpoofedSwitch
                | Self::SpoofedBehindTag
                | Self::ClaimsGroup
                | Self::ClaimsError
                | Self::ClaimsMember
                | Self::TagDepth
        )
    }
}

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

/// What one shard did since it started. Plain integers: one writer, copied out for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Contributions taken into slots.
    pub contributions: u64,
    /// Of them, those that were added together with others of their turn.
    pub grouped: u64,
    /// Slots taken; none by a fragment that came whole in one turn.
    pub slots_taken: u64,
    /// Results finished here.
    pub results: u64,
    /// Results of the PS passed on.
    pub results_from_ps: u64,
    /// Results sent again from the ring.
    pub results_again: u64,
    /// Slots given up to an arrival of higher priority.
    pub preemptions: u64,
    /// Slots freed of a fragment that had its result from elsewhere.
    pub abandoned: u64,
    /// Slots that left to the PS because the rest of their fragment was there.
    pub followed: u64,
    /// Arrivals that found no slot and went to the PS.
    pub collisions: u64,
    /// RESENDs that went to the PS.
    pub resends_to_ps: u64,
    /// Contributions that went to the PS because no place was left to hold them out of order.
    pub held_full: u64,
    /// PARTIAL frames sent to the PS, for whatever reason.
    pub partials: u64,
    /// REMINDs served.
    pub reminds: u64,
    /// NACKs passed on to workers.
    pub nacks: u64,
    /// PROBEs of workers that missed a result.
    pub probes: u64,
    /// Of them, those answered by a NACK to a rank whose contribution was missing.
    pub probe_nacks: u64,
    /// Results that came from a worker that had them.
    pub results_from_workers: u64,
    /// Results with a saturated element.
    pub overflows: u64,
    /// Frames dropped, by `DropReason as usize`.
    pub drops: [u64; DropReason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            contributions: 0,
            grouped: 0,
            slots_taken: 0,
            results: 0,
            results_from_ps: 0,
            results_again: 0,
            preemptions: 0,
            abandoned: 0,
            followed: 0,
            collisions: 0,
            resends_to_ps: 0,
            held_full: 0,
            partials: 0,
            reminds: 0,
            nacks: 0,
            probes: 0,
            probe_nacks: 0,
            results_from_workers: 0,
            overflows: 0,
            drops: [0; DropReason::ALL.len()],
        }
    }
}

impl Counters {
    /// Counts one dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Frames dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// The named counters that are not drops, with their values.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 19] {
        [
            ("contributions", self.contributions),
            ("grouped", self.grouped),
            ("slots_taken", self.slots_taken),
            ("results", self.results),
            ("results_from_ps", self.results_from_ps),
            ("results_again", self.results_again),
            ("preemptions", self.preemptions),
            ("abandoned", self.abandoned),
            ("followed", self.followed),
            ("collisions", self.collisions),
            ("resends_to_ps", self.resends_to_ps),
            ("held_full", self.held_full),
            ("partials", self.partials),
            ("reminds", self.reminds),
            ("nacks", self.nacks),
            ("probes", self.probes),
            ("probe_nacks", self.probe_nacks),
            ("results_from_workers", self.results_from_workers),
            ("overflows", self.overflows),
        ]
    }

    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        self.contributions += other.contributions;
        self.grouped += other.grouped;
        self.slots_taken += other.slots_taken;
        self.results += other.results;
        self.results_from_ps += other.results_from_ps;
        self.results_again += other.results_again;
        self.preemptions += other.preemptions;
        self.abandoned += other.abandoned;
        self.followed += other.followed;
        self.collisions += other.collisions;
        self.resends_to_ps += other.resends_to_ps;
        self.held_full += other.held_full;
        self.partials += other.partials;
        self.reminds += other.reminds;
        self.nacks += other.nacks;
        self.probes += other.probes;
        self.probe_nacks += other.probe_nacks;
        self.results_from_workers += other.results_from_workers;
        self.overflows += other.overflows;
        for (mine, theirs) in self.drops.iter_mut().zip(other.drops) {
            *mine += theirs;
        }
    }
}
