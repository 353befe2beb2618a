//! What all cores share of a port: whether it is open, frames dropped in storms, and LLDP heard.
//!
//! Relaxed atomics. Only frames that are dropped or consumed write here, so the words stay shared
//! between the cores' caches.

use super::RateLimit;
use super::probe::Probes;
use crate::{DropReason, PortId, metrics::Label};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use tally_wire::fabric::FRAME_BYTES_MAX;
use tally_wire::{Mac, Time};

/// Why a frame is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// To all hosts.
    Broadcast,
    /// To another group address.
    Multicast,
    /// To a host of unknown port.
    Unknown,
}

impl FloodKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Broadcast, Self::Multicast, Self::Unknown];

    /// The kind of a frame that is flooded, by its destination.
    #[inline]
    #[must_use]
    pub fn of(destination: Mac) -> Self {
        if destination == Mac::BROADCAST {
            Self::Broadcast
        } else if destination.is_group() {
            Self::Multicast
        } else {
            Self::Unknown
        }
    }

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        FLOOD_KIND.values[self as usize]
    }

    /// Why frames of it are dropped that exceed its limit.
    #[must_use]
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Broadcast => DropReason::StormBroadcast,
            Self::Multicast => DropReason::StormMulticast,
            Self::Unknown => DropReason::StormUnknown,
        }
    }
}

/// The label of what is counted by kind of flood.
pub const FLOOD_KIND: Label = Label {
    name: "kind",
    values: &["broadcast", "multicast", "unknown"],
};

/// Frames of one port that are flooded in a second at most, by kind; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLimits(pub [u32; FloodKind::ALL.len()]);

impl FloodLimits {
    /// The same for each kind.
    #[must_use]
    pub const fn each(per_s: u32) -> Self {
        Self([per_s; FloodKind::ALL.len()])
    }
}

/// Bytes of an LLDP frame that are kept: the mandatory TLVs and names of usual lengths.
const HEARD_BYTES: usize = 300;

/// The last LLDP frame of a port.
struct Heard {
    bytes: [u8; HEARD_BYTES],
    len: usize,
}

/// One port.
struct State {
    floods: [RateLimit; FloodKind::ALL.len()],
    /// Frames dropped, by kind.
    storms: [AtomicU64; FloodKind::ALL.len()],
    heard: Mutex<Heard>,
}

/// Frames of one neighbouring switch that wait for control at most.
const FROM_SWITCH_MAX: usize = 64;

/// A frame of the fabric's own, and the port by which it came.
pub type FromSwitch = (PortId, Box<[u8]>);

/// Frames of the fabric's own from one port, for control: each port has a queue, so that a
/// neighbour that sends without end keeps no other from being heard.
struct SwitchPort {
    port: PortId,
    frames: SyncSender<Box<[u8]>>,
    /// Locked by control alone.
    received: Mutex<Receiver<Box<[u8]>>>,
}

/// All ports.
pub struct PortStates {
    /// Apart from what changes often.
    closed: Box<[AtomicBool]>,
    states: Box<[State]>,
    /// The loop guard's probes.
    pub probes: Probes,
    /// In a fabric: what its switches say.
    switches: Box<[SwitchPort]>,
}

impl PortStates {
    /// So many open ports.
    #[must_use]
    pub fn new(ports: u16, floods: FloodLimits) -> Self {
        let state = || State {
            floods: floods.0.map(RateLimit::new),
            storms: Default::default(),
            heard: Mutex::new(Heard {
                bytes: [0; HEARD_BYTES],
                len: 0,
            }),
        };
        Self {
            closed: (0..ports).map(|_| AtomicBool::new(false)).collect(),
            states: (0..ports).map(|_| state()).collect(),
            probes: Probes::new(ports),
            switches: Box::default(),
        }
    }

    /// Has these ports lead to switches, whose floods have limits of their own.
    pub(super) fn lead_to_switches(
        &mut self,
        ports: impl Iterator<Item = PortId>,
        floods: FloodLimits,
    ) {
        let switch = |port: PortId| {
            let (frames, received) = sync_channel(FROM_SWITCH_MAX);
            SwitchPort {
                port,
                frames,
                received: Mutex::new(received),
            }
        };
        self.switches = ports.map(switch).collect();
        for switch in &self.switches {
            if let Some(state) = self.states.get_mut(usize::from(switch.port.0)) {
                state.floods = floods.0.map(RateLimit::new);
            }
        }
    }

    /// Keeps a frame of the fabric's own for control, if a switch may be behind the port and not
    /// too many wait.
    #[cold]
    pub(super) fn receive_fabric(&self, port: PortId, frame: &[u8]) {
        if let Some(switch) = self.switches.iter().find(|it| it.port == port)
            && frame.len() <= FRAME_BYTES_MAX
        {
            let _ = switch.frames.try_send(frame.into());
        }
    }

    /// Frames of the fabric's own that wait: a bounded number of each port.
    #[must_use]
    pub fn take_fabric(&self) -> Vec<FromSwitch> {
        let mut taken = Vec::new();
        for switch in &self.switches {
            let received = switch.received.lock();
            let received = received.unwrap_or_else(PoisonError::into_inner);
            let frames = received.try_iter().take(FROM_SWITCH_MAX);
            taken.extend(frames.map(|frame| (switch.port, frame)));
        }
        taken
    }

    /// Opens or closes a port: nothing is forwarded from a closed port, or to it.
    pub fn set_closed(&self, port: PortId, closed: bool) {
        if let Some(state) = self.closed.get(usize::from(port.0)) {
            state.store(closed, Relaxed);
        }
    }

    /// Whether a port is closed.
    #[inline]
    #[must_use]
    pub fn is_closed(&self, port: PortId) -> bool {
        let state = self.closed.get(usize::from(port.0));
        state.is_some_and(|closed| closed.load(Relaxed))
    }

    /// Admits a flood of that many frames, or counts them as dropped.
    pub(super) fn admit(
        &self,
        now: Time,
        port: PortId,
        kind: FloodKind,
        frames: u32,
    ) -> Result<(), DropReason> {
        let state = &self.states[usize::from(port.0)];
        if state.floods[kind as usize].take_many(now, frames) {
            return Ok(());
        }
        state.storms[kind as usize].fetch_add(frames.into(), Relaxed);
        Err(kind.reason())
    }

    /// Frames of a port that were dropped in storms, by kind.
    #[must_use]
    pub fn storms(&self, port: PortId) -> [u64; FloodKind::ALL.len()] {
        let state = self.states.get(usize::from(port.0));
        state.map_or_else(Default::default, |state| {
            state.storms.each_ref().map(|n| n.load(Relaxed))
        })
    }

    /// Keeps the first bytes of an LLDP frame, unless another core or control is just here.
    #[cold]
    pub(super) fn receive_lldp(&self, port: PortId, frame: &[u8]) {
        if let Some(state) = self.states.get(usize::from(port.0))
            && let Ok(mut heard) = state.heard.try_lock()
        {
            let len = frame.len().min(HEARD_BYTES);
            heard.bytes[..len].copy_from_slice(&frame[..len]);
            heard.len = len;
        }
    }

    /// The first bytes of the last LLDP frame of a port since the last call.
    #[must_use]
    pub fn take_heard(&self, port: PortId) -> Option<Vec<u8>> {
        let mut heard = self.states.get(usize::from(port.0))?.heard.lock().ok()?;
        let len = std::mem::take(&mut heard.len);
        (len > 0).then(|| heard.bytes[..len].to_vec())
    }
}

impl std::fmt::Debug for PortStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortStates")
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}
