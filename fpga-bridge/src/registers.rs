//! The card's registers, by address, and its counters.
//!
//! Generated from `registers.json` by `cargo run -p tally-bridge --example registers`: change that, not this.
//! `docs/FPGA-REGISTERS.md` has the same as tables.

/// What [`ID`] reads.
pub const ID_VALUE: u32 = 0x5441_4c59;
/// What [`INTERFACE`] reads.
pub const INTERFACE_VALUE: u32 = 2;

/// `TALY` in ASCII. Anything else is no card of Tally's.
pub const ID: u16 = 0x000;

/// Version of this register map. It grows by one when a driver of the version before would do the wrong thing.
pub const INTERFACE: u16 = 0x004;

/// Slots of the pool; a power of two.
pub const SLOTS: u16 = 0x008;

/// Longest payload of a job on the card; a multiple of 64.
pub const PAYLOAD_BYTES: u16 = 0x00c;

/// Places for jobs; 32 at most.
pub const JOBS: u16 = 0x010;

/// Workers of a job at most; 64 at most.
pub const MEMBERS: u16 = 0x014;

/// Results that are kept of each job; a power of two, twice the longest window of a worker.
pub const RING: u16 = 0x018;

/// What else it has.
pub const FEATURES: u16 = 0x01c;
/// Of [`FEATURES`]: f32 is folded in rank order on the card; otherwise it goes to the parameter server.
pub const BIT_F32: u32 = 1 << 0;

/// The clock that it is built for, in kHz.
pub const CLOCK_KHZ: u16 = 0x020;

/// Milliseconds since reset. It moves as long as the card lives.
pub const UPTIME: u16 = 0x024;

/// What goes on.
pub const STATUS: u16 = 0x028;
/// Of [`STATUS`]: a place is being cleared; commands are refused meanwhile.
pub const BIT_CLEARING: u32 = 1 << 0;
/// Of [`STATUS`]: an internal check has failed: no sum of this card can be trusted until it is reset.
pub const BIT_FAULT: u32 = 1 << 1;

/// The card as a whole.
pub const CONTROL: u16 = 0x02c;
/// Of [`CONTROL`]: 0: every frame passes through.
pub const BIT_ENABLE: u32 = 1 << 0;
/// Of [`CONTROL`]: all places are cleared.
pub const BIT_CLEAR_ALL: u32 = 1 << 1;

/// The first two bytes of the MAC address.
pub const OWN_MAC_HIGH: u16 = 0x040;

/// The last four bytes.
pub const OWN_MAC_LOW: u16 = 0x044;

/// The IPv4 address.
pub const OWN_IP: u16 = 0x048;

/// The UDP port of shard 0, and the source port of all that the card makes.
pub const BASE_PORT: u16 = 0x04c;

/// Shards of the switch: fragment f comes to UDP port BASE_PORT + f mod SHARDS. A power of two.
pub const SHARDS: u16 = 0x050;

/// The place, below JOBS, that commands are about: of the job, and of its members.
pub const JOB_SELECT: u16 = 0x080;

/// The job's number.
pub const JOB_NUMBER: u16 = 0x084;

/// Its epoch.
pub const JOB_EPOCH: u16 = 0x088;

/// Payload units of 64 bytes of its elements.
pub const JOB_UNITS: u16 = 0x08c;

/// Its workers, 2 to MEMBERS.
pub const JOB_WORKERS: u16 = 0x090;

/// The ports of the switch that have a worker, bit p for port p: where results leave.
pub const JOB_PORTS: u16 = 0x094;

/// The slot of its fragment 0, modulo SLOTS.
pub const JOB_HASH: u16 = 0x098;

/// Takes the job into its place, or out of it.
pub const JOB_COMMAND: u16 = 0x09c;
/// Of [`JOB_COMMAND`]: the job is live from now on; of the job and epoch that the place has already, only addresses and ports are replaced.
pub const BIT_JOB_LOAD: u32 = 1 << 0;
/// Of [`JOB_COMMAND`]: the job is live no more, and its slots and results are cleared.
pub const BIT_JOB_UNLOAD: u32 = 1 << 1;

/// Its rank; 255 for the parameter server.
pub const MEMBER_SELECT: u16 = 0x0c0;

/// The first two bytes of its MAC address.
pub const MEMBER_MAC_HIGH: u16 = 0x0c4;

/// The last four bytes.
pub const MEMBER_MAC_LOW: u16 = 0x0c8;

/// Its IPv4 address.
pub const MEMBER_IP: u16 = 0x0cc;

/// Its UDP port.
pub const MEMBER_UDP_PORT: u16 = 0x0d0;

/// Its port of the switch, 0 to 15.
pub const MEMBER_PORT: u16 = 0x0d4;

/// Stores the member.
pub const MEMBER_COMMAND: u16 = 0x0d8;
/// Of [`MEMBER_COMMAND`]: the table takes what the registers above say.
pub const BIT_MEMBER_STORE: u32 = 1 << 0;

/// The counters are read from the latch, so that they belong together.
pub const COUNTER_SNAPSHOT: u16 = 0x100;
/// Of [`COUNTER_SNAPSHOT`]: all counters are latched in the same cycle.
pub const BIT_COUNTER_SNAPSHOT: u32 = 1 << 0;

/// The first counter; each has its lower word first.
pub const COUNTERS_AT: u16 = 0x400;

/// All registers but the counters: address and name.
pub const NAMES: [(u16, &str); 33] = [
    (ID, "ID"),
    (INTERFACE, "INTERFACE"),
    (SLOTS, "SLOTS"),
    (PAYLOAD_BYTES, "PAYLOAD_BYTES"),
    (JOBS, "JOBS"),
    (MEMBERS, "MEMBERS"),
    (RING, "RING"),
    (FEATURES, "FEATURES"),
    (CLOCK_KHZ, "CLOCK_KHZ"),
    (UPTIME, "UPTIME"),
    (STATUS, "STATUS"),
    (CONTROL, "CONTROL"),
    (OWN_MAC_HIGH, "OWN_MAC_HIGH"),
    (OWN_MAC_LOW, "OWN_MAC_LOW"),
    (OWN_IP, "OWN_IP"),
    (BASE_PORT, "BASE_PORT"),
    (SHARDS, "SHARDS"),
    (JOB_SELECT, "JOB_SELECT"),
    (JOB_NUMBER, "JOB_NUMBER"),
    (JOB_EPOCH, "JOB_EPOCH"),
    (JOB_UNITS, "JOB_UNITS"),
    (JOB_WORKERS, "JOB_WORKERS"),
    (JOB_PORTS, "JOB_PORTS"),
    (JOB_HASH, "JOB_HASH"),
    (JOB_COMMAND, "JOB_COMMAND"),
    (MEMBER_SELECT, "MEMBER_SELECT"),
    (MEMBER_MAC_HIGH, "MEMBER_MAC_HIGH"),
    (MEMBER_MAC_LOW, "MEMBER_MAC_LOW"),
    (MEMBER_IP, "MEMBER_IP"),
    (MEMBER_UDP_PORT, "MEMBER_UDP_PORT"),
    (MEMBER_PORT, "MEMBER_PORT"),
    (MEMBER_COMMAND, "MEMBER_COMMAND"),
    (COUNTER_SNAPSHOT, "COUNTER_SNAPSHOT"),
];

/// What a counter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// What the engine in software counts by the same names.
    Count,
    /// Frames dropped, by reason.
    Drop,
    /// The streams.
    Stream,
}

/// All counters, in the order of their addresses.
pub const COUNTERS: [(Group, &str); 51] = [
    (Group::Count, "contributions"),
    (Group::Count, "slots_taken"),
    (Group::Count, "results"),
    (Group::Count, "results_from_ps"),
    (Group::Count, "results_again"),
    (Group::Count, "preemptions"),
    (Group::Count, "abandoned"),
    (Group::Count, "followed"),
    (Group::Count, "collisions"),
    (Group::Count, "resends_to_ps"),
    (Group::Count, "held_full"),
    (Group::Count, "partials"),
    (Group::Count, "reminds"),
    (Group::Count, "nacks"),
    (Group::Count, "probes"),
    (Group::Count, "probe_nacks"),
    (Group::Count, "results_from_workers"),
    (Group::Count, "overflows"),
    (Group::Drop, "truncated"),
    (Group::Drop, "ip-version"),
    (Group::Drop, "ip-options"),
    (Group::Drop, "ip-fragment"),
    (Group::Drop, "ip-length"),
    (Group::Drop, "udp-length"),
    (Group::Drop, "header-truncated"),
    (Group::Drop, "version"),
    (Group::Drop, "type"),
    (Group::Drop, "reserved-bits"),
    (Group::Drop, "element-type"),
    (Group::Drop, "payload-length"),
    (Group::Drop, "rank-range"),
    (Group::Drop, "bitmap"),
    (Group::Drop, "not-for-switch"),
    (Group::Drop, "stale-epoch"),
    (Group::Drop, "rank-out-of-job"),
    (Group::Drop, "not-a-member"),
    (Group::Drop, "wrong-shard"),
    (Group::Drop, "units-mismatch"),
    (Group::Drop, "element-mismatch"),
    (Group::Drop, "duplicate"),
    (Group::Drop, "late"),
    (Group::Drop, "spoofed-switch"),
    (Group::Drop, "stream-error"),
    (Group::Drop, "stream-oversize"),
    (Group::Drop, "stream-keep"),
    (Group::Stream, "frames_in"),
    (Group::Stream, "beats_in"),
    (Group::Stream, "frames_out"),
    (Group::Stream, "beats_out"),
    (Group::Stream, "passed"),
    (Group::Stream, "stalls"),
];
