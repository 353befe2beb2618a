//! What a world is for: the decisions and the checks of an app.

use super::World;
use crate::address::{Place, SessionId, SwitchId};
use crate::frame::Frame;
use crate::host::Data;
use crate::switch::{Did, Transit};
use tally_endpoint::{Event as WorkerEvent, PsEvent};
use tally_wire::Time;

/// What the sessions compute, and what happens to them.
pub trait App<D: Data> {
    /// A worker said something.
    fn worker_event(&mut self, world: &mut World<D>, session: SessionId, event: WorkerEvent);

    /// A parameter server said something.
    fn ps_event(&mut self, _world: &mut World<D>, _session: SessionId, _event: PsEvent) {}

    /// A worker's data has news.
    fn news(&mut self, _world: &mut World<D>, _session: SessionId) {}

    /// A frame has come to a switch or to a host, which has not parsed it yet. For checkers.
    #[inline]
    fn observe(&mut self, _now: Time, _place: Place, _frame: &Frame) {}

    /// What a switch's engine did in this event, if
    /// [`Memory::record`](crate::switch::Memory::record) was called. For checkers.
    fn engine_did(&mut self, _now: Time, _switch: SwitchId, _did: &[Did]) {}

    /// What forwarding decided, under the same condition. For checkers.
    fn forwarded(&mut self, _now: Time, _switch: SwitchId, _transit: &Transit) {}

    /// What was asked for with [`World::alarm`].
    fn alarm(&mut self, world: &mut World<D>, token: u64);
}
