//! A dialect that sends each frame of one ethertype back to its sender, after a delay.

use std::collections::VecDeque;
use std::time::Duration;
use tally_engine::Context;
use tally_engine::demux::{Arrival, Claim};
use tally_engine::dialect::{Dialect, Next};
use tally_engine::egress::class_of_frame;
use tally_engine::{DropReason, Frame, Platform, PortId};
use tally_wire::Time;

/// The second ethertype for local experiments (IEEE 802).
pub const ETHERTYPE: u16 = 0x88b6;

/// What control asks.
pub enum Command {
    /// Keep frames for so long from now on.
    Delay(Duration),
}

/// What it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Frames sent back.
    pub echoed: u64,
    /// Frames that wait.
    pub waiting: usize,
    /// Times that its timer was due.
    pub timeouts: u64,
}

/// The dialect on one core.
pub struct Echo<F> {
    delay: Duration,
    /// In the order in which they leave.
    waiting: VecDeque<(Time, PortId, F)>,
    echoed: u64,
    timeouts: u64,
}

impl<F> Default for Echo<F> {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            waiting: VecDeque::new(),
            echoed: 0,
            timeouts: 0,
        }
    }
}

impl<P: Platform> Dialect<P> for Echo<P::Frame> {
    type Command = Command;
    type Metrics = Metrics;

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Ethertype(ETHERTYPE)]
    }

    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        let mut frame = context.exclusive(frame)?;
        let bytes = frame.data_mut().ok_or(DropReason::NoBuffer)?;
        bytes.copy_within(6..12, 0);
        bytes[6..12].copy_from_slice(&context.address.mac.0);
        let last = self.waiting.back().map_or(context.now, |&(at, ..)| at);
        let at = context.now.after(self.delay).max(last);
        self.waiting.push_back((at, arrival.port, frame));
        Ok(Next::Done)
    }

    fn aggregate(&mut self, context: &mut Context<P>) {
        while let Some((at, ..)) = self.waiting.front()
            && *at <= context.now
            && let Some((_, port, frame)) = self.waiting.pop_front()
        {
            let class = class_of_frame(frame.data());
            context.ports.forward(port, class, frame);
            self.echoed += 1;
        }
    }

    fn command(&mut self, _: &mut Context<P>, Command::Delay(delay): Command) {
        self.delay = delay;
    }

    fn metrics(&self, _: &Context<P>) -> Metrics {
        Metrics {
            echoed: self.echoed,
            waiting: self.waiting.len(),
            timeouts: self.timeouts,
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.waiting.front().map(|&(at, ..)| at)
    }

    fn handle_timeout(&mut self, context: &mut Context<P>) {
        self.timeouts += 1;
        self.aggregate(context);
    }
}
