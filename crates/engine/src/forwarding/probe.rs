//! The loop guard's probes: frames that come back only through a loop.
//!
//! A probe is a frame to a group address of the switch's own making, so other switches flood it.
//! It names its switch by a random number, its port of origin, and a token: a random number that is
//! made anew for each probe. What comes back with the token of one of the last two probes of that
//! port has come through a loop, or from a host that was sent it. A host cannot guess a token.
//!
//! The data core that receives a probe of its own switch notes the two ports and drops it. Probes
//! of other switches are ordinary frames: they pass, so that a loop through two switches is seen.

use crate::PortId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use tally_wire::Mac;
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::neighbour::FRAME_BYTES_MIN;

/// The group that probes are sent to: "TALLY" behind the bits of a local group address.
pub const PROBE_MAC: Mac = Mac([3, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
/// The second ethertype for local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb6];
/// What follows the ethertype: name and version.
const MAGIC: [u8; 8] = *b"tallylp1";
/// Magic, instance, origin, token.
const PAYLOAD_BYTES: usize = 8 + 8 + 2 + 8;
/// No origin was seen.
const NONE: u32 = u32::MAX;

/// What came back by one port since it was last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// The lowest other port whose probe came.
    pub from: Option<PortId>,
    /// Whether the port's own probe came.
    pub own: bool,
}

#[derive(Debug)]
struct Port {
    /// Tokens of its last two probes; 0: none.
    tokens: [AtomicU64; 2],
    from: AtomicU32,
    own: AtomicBool,
}

/// The probes of one switch, shared by its cores.
#[derive(Debug)]
pub struct Probes {
    /// Random number of this switch's run; 0: it sends no probes.
    instance: AtomicU64,
    ports: Box<[Port]>,
}

impl Probes {
    /// None was sent.
    #[must_use]
    pub(super) fn new(ports: u16) -> Self {
        let port = || Port {
            tokens: Default::default(),
            from: AtomicU32::new(NONE),
            own: AtomicBool::new(false),
        };
        Self {
            instance: AtomicU64::new(0),
            ports: (0..ports).map(|_| port()).collect(),
        }
    }

    /// Names the switch. `instance` is random, so that no other switch has the same.
    pub fn set_instance(&self, instance: u64) {
        self.instance.store(instance.max(1), Relaxed);
    }

    /// The next probe of a port, whose token is `random`.
    #[must_use]
    pub fn make(&self, port: PortId, random: u64) -> [u8; FRAME_BYTES_MIN] {
        let instance = self.instance.load(Relaxed);
        if let Some(state) = self.ports.get(usize::from(port.0)) {
            let [last, before] = &state.tokens;
            before.store(last.load(Relaxed), Relaxed);
            last.store(random.max(1), Relaxed);
        }
        let mut frame = [0; FRAME_BYTES_MIN];
        frame[..6].copy_from_slice(&PROBE_MAC.0);
        // Not the switch's own: other switches would learn that behind ports that are blocked.
        let [.., a, b, c] = instance.to_be_bytes();
        let [high, low] = port.0.to_be_bytes();
        frame[6..12].copy_from_slice(&[2, a, b, c, high, low]);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        let payload = [
            &MAGIC[..],
            &instance.to_be_bytes(),
            &port.0.to_be_bytes(),
            &random.max(1).to_be_bytes(),
        ];
        frame[ETHERNET_BYTES..ETHERNET_BYTES + PAYLOAD_BYTES].copy_from_slice(&payload.concat());
        frame
    }

    /// Takes note of a frame to [`PROBE_MAC`] that came by `port`, if it is a probe of this switch
    /// (`true`).
    #[cold]
    pub(super) fn note(&self, port: PortId, frame: &[u8]) -> bool {
        let Some(payload) = frame.get(ETHERNET_BYTES..ETHERNET_BYTES + PAYLOAD_BYTES) else {
            return false;
        };
        let word = |at: usize| {
            let bytes = payload[at..].first_chunk().copied();
            u64::from_be_bytes(bytes.unwrap_or_default())
        };
        let instance = self.instance.load(Relaxed);
        let is_own = frame[12..14] == ETHERTYPE && payload[..8] == MAGIC && word(8) == instance;
        if !is_own || instance == 0 {
            return false;
        }
        let origin = u16::from_be_bytes([payload[16], payload[17]]);
        let token = word(18);
        let is_fresh = self.ports.get(usize::from(origin)).is_some_and(|state| {
            let mut tokens = state.tokens.iter();
            tokens.any(|known| known.load(Relaxed) == token)
        });
        if is_fresh
            && token != 0
            && let Some(state) = self.ports.get(usize::from(port.0))
        {
            if origin == port.0 {
                state.own.store(true, Relaxed);
            } else {
                state.from.fetch_min(u32::from(origin), Relaxed);
            }
        }
        true
    }

    /// What came back by a port since the last call.
    #[must_use]
    pub fn take(&self, port: PortId) -> Sighting {
        let Some(state) = self.ports.get(usize::from(port.0)) else {
            return Sighting::default();
        };
        let from = state.from.swap(NONE, Relaxed);
        Sighting {
            from: (from != NONE).then_some(PortId(from as u16)),
            own: state.own.swap(false, Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes() -> Probes {
        let probes = Probes::new(4);
        probes.set_instance(0x1234_5678_9abc_def0);
        probes
    }

    fn sighting(from: Option<u16>, own: bool) -> Sighting {
        let from = from.map(PortId);
        Sighting { from, own }
    }

    #[test]
    fn a_probe_that_comes_back_is_seen_at_its_port_once() {
        let probes = probes();
        let frame = probes.make(PortId(1), 77);
        assert_eq!(frame[..6], PROBE_MAC.0);
        assert!(probes.note(PortId(3), &frame));
        let other = probes.make(PortId(2), 78);
        assert!(probes.note(PortId(3), &other));
        assert!(probes.note(PortId(2), &other));
        assert_eq!(probes.take(PortId(3)), sighting(Some(1), false));
        assert_eq!(probes.take(PortId(3)), sighting(None, false));
        assert_eq!(probes.take(PortId(2)), sighting(None, true));
        assert_eq!(probes.take(PortId(1)), sighting(None, false));
    }

    #[test]
    fn what_a_host_makes_up_or_repeats_later_is_no_sighting() {
        let probes = probes();
        let old = probes.make(PortId(1), 1);
        let mut guessed = old;
        guessed[ETHERNET_BYTES + 25] ^= 1;
        assert!(probes.note(PortId(3), &guessed), "of this switch's number");
        let mut zero = old;
        zero[ETHERNET_BYTES + 18..ETHERNET_BYTES + 26].fill(0);
        assert!(probes.note(PortId(3), &zero));
        let mut odd_port = old;
        odd_port[ETHERNET_BYTES + 16] = 0xff;
        assert!(probes.note(PortId(3), &odd_port));
        for random in 2..4 {
            let _ = probes.make(PortId(1), random);
        }
        assert!(probes.note(PortId(3), &old));
        assert_eq!(probes.take(PortId(3)), sighting(None, false));
    }

    #[test]
    fn probes_of_other_switches_and_other_frames_pass() {
        let (probes, other) = (probes(), Probes::new(4));
        other.set_instance(5);
        let frame = other.make(PortId(1), 9);
        assert!(!probes.note(PortId(1), &frame));
        assert!(!probes.note(PortId(1), &frame[..39]));
        assert!(!probes.note(PortId(1), &[]));
        let silent = Probes::new(4);
        let frame = silent.make(PortId(1), 9);
        assert!(!silent.note(PortId(1), &frame), "it sends none");
    }
}
