//! The path of a data core that captures.
//!
//! It copies the first bytes of a frame, has the switch core decide on that frame alone, and
//! compares the counters of drops before and after. So each frame that came in has its drop reason,
//! in every dialect.

use super::Core;
use crate::capture::Capture;
use crate::control_queue::ControlSender;
use tally_dpdk::Mbuf;
use tally_engine::metrics::MetricSet as _;
use tally_engine::queue::QueueCounters;
use tally_engine::{DropReason, Drops, Handover, PortId};

/// Has the core decide on each frame of a burst alone; says how many bytes they have.
#[cold]
#[inline(never)]
pub(super) fn receive(
    capture: &Capture,
    core: &mut Core,
    control: &ControlSender,
    port: PortId,
    burst: &mut Vec<Mbuf>,
) -> u64 {
    let mut one = Vec::with_capacity(1);
    let mut bytes = 0;
    for frame in burst.drain(..) {
        let copied = capture.copy(port, false, &frame);
        one.push(frame);
        let drop = decide(core, control, |core| bytes += core.receive(port, &mut one));
        capture.give_received(copied, drop);
    }
    bytes
}

/// As [`receive`], for frames of other cores: copies those that are dropped.
#[cold]
#[inline(never)]
pub(super) fn receive_handed_over(
    capture: &Capture,
    core: &mut Core,
    control: &ControlSender,
    handed: &mut Vec<Handover<Mbuf>>,
) {
    let mut one = Vec::with_capacity(1);
    for handover in handed.drain(..) {
        let copied = match &handover {
            Handover::Ingress(port, frame) => capture.copy(*port, false, frame),
            Handover::Egress(..) => None,
        };
        one.push(handover);
        let drop = decide(core, control, |core| core.receive_handed_over(&mut one));
        if drop.is_some() {
            capture.give_received(copied, drop);
        }
    }
}

/// Has the core do something about one frame; says for which reason it counted a drop.
fn decide(
    core: &mut Core,
    control: &ControlSender,
    act: impl FnOnce(&mut Core),
) -> Option<DropReason> {
    let before = drops(core);
    act(core);
    core.aggregate();
    while let Some(frame) = core.poll_control() {
        if let Err(reason) = control.send(frame) {
            core.context.count_drop(reason);
        }
    }
    let after = drops(core);
    let mut counted = before.iter().zip(after.iter());
    counted.find_map(|((reason, before), (_, after))| (after > before).then_some(reason))
}

/// All frames that the core has dropped.
fn drops(core: &Core) -> Drops {
    let mut drops = *core.context.drops();
    drops.add(&core.dialects.native.aggregator().counters().drops);
    if let Some(switchml) = &core.dialects.switchml {
        drops.add(&switchml.counters().drops);
    }
    let ports = &core.context.ports;
    drops[DropReason::HandoverFull] += ports.handover_full;
    drops[DropReason::FrameTooLong] += ports.frame_too_long;
    drops[DropReason::NoBuffer] += ports.no_buffer;
    let queues = ports.queue_counters();
    drops[DropReason::TxFull] += queues.iter().map(QueueCounters::dropped_total).sum::<u64>();
    drops
}
