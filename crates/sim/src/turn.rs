//! Turns of the switch's data cores.
//!
//! A real core takes a burst from each port, sums at the end, and begins again; meanwhile frames wait in
//! the ports' queues. Here nothing takes time, so how long a core has been at its last turn is drawn: the
//! first frame that comes to an idle core says when it turns next. What has arrived by then is taken
//! port by port, however it arrived, and turn after turn as long as there is anything.
//!
//! Commands come between turns, when no contribution waits to be summed: what waits here has not
//! been looked at yet, and meets the rosters of its turn.

use crate::frame::Frame;
use std::collections::VecDeque;
use std::time::Duration;
use tally_engine::{Contribution, Member, PortId};
use tally_wire::Header;

/// How cores take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnConfig {
    /// From the first frame of a turn to its beginning at most; each is drawn.
    pub lasting: Duration,
    /// Frames that it takes from a port at most.
    pub burst: usize,
}

/// What the last contribution of a port was, as `Coupling` of `switch/src/datapath.rs`.
#[derive(Clone, Copy)]
struct Coupling {
    from: Member,
    header: Header,
    contribution: Contribution,
}

/// One core's side of a port.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Frame>,
    coupling: Option<Coupling>,
}

/// A data core, without its shard of the engine.
#[derive(Default)]
pub(crate) struct Core {
    queues: Vec<Queue>,
    /// The beginning of its next turn has been scheduled.
    pub(crate) is_due: bool,
}

impl Core {
    fn queue(&mut self, port: PortId) -> &mut Queue {
        let at = usize::from(port.0);
        if at >= self.queues.len() {
            self.queues.resize_with(at + 1, Queue::default);
        }
        &mut self.queues[at]
    }

    /// Lets a frame wait for the next turn.
    pub(crate) fn wait(&mut self, port: PortId, frame: Frame) {
        self.queue(port).waiting.push_back(frame);
    }

    /// The next frame of a port.
    pub(crate) fn next(&mut self, port: PortId) -> Option<Frame> {
        self.queue(port).waiting.pop_front()
    }

    /// Remembers an admitted contribution.
    pub(crate) fn couple(&mut self, from: Member, header: Header, contribution: Contribution) {
        self.queue(from.port).coupling = Some(Coupling {
            from,
            header,
            contribution,
        });
    }

    /// The port's last contribution, if this one is like it but for fragment and priority.
    pub(crate) fn coupled(&mut self, from: Member, header: &Header) -> Option<Contribution> {
        let last = self.queue(from.port).coupling?;
        let like = Header {
            fragment: last.header.fragment,
            priority: last.header.priority,
            ..*header
        };
        (last.from == from && last.header == like).then_some(last.contribution)
    }
}
