//! Telling when all that had arrived at a data core has been taken.
//!
//! What waits in a receive queue may be from a time before an order of the control thread's, which
//! the core obeys first. A queue that gave less than was asked of it was empty at that moment; when
//! each of them has been so, and the turn has ended, all is taken that had arrived before the
//! order.

use tally_engine::Reply;

/// Who wants to be told.
#[derive(Default)]
pub struct Drains(Vec<Waiting>);

struct Waiting {
    done: Reply<()>,
    /// Queues that have had more than was taken ever since.
    full: Vec<usize>,
}

impl Drains {
    /// Has `done` told, by a core with so many queues.
    pub fn add(&mut self, done: Reply<()>, queues: usize) {
        let full = (0..queues).collect();
        self.0.push(Waiting { done, full });
    }

    /// Begins anew for all, after the number of the core's queues has changed.
    pub fn restart(&mut self, queues: usize) {
        for waiting in &mut self.0 {
            waiting.full = (0..queues).collect();
        }
    }

    /// Whether anybody is to be told. Seldom, so the rest is kept out of the loop of the core.
    #[inline]
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.0.is_empty()
    }

    /// A queue gave less than was asked of it.
    #[cold]
    #[inline(never)]
    pub fn was_short(&mut self, queue: usize) {
        for waiting in &mut self.0 {
            waiting.full.retain(|&other| other != queue);
        }
    }

    /// What was taken in this turn has been dealt with.
    #[cold]
    #[inline(never)]
    pub fn end_turn(&mut self) {
        for waiting in self.0.extract_if(.., |waiting| waiting.full.is_empty()) {
            (waiting.done)(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, TryRecvError, bounded};

    fn reply() -> (Reply<()>, Receiver<()>) {
        let (done, told) = bounded(1);
        (Box::new(move |()| done.send(()).unwrap()), told)
    }

    #[test]
    fn who_asks_is_told_when_every_queue_was_empty_once() {
        let mut drains = Drains::default();
        drains.was_short(0);
        drains.end_turn();
        let (done, told) = reply();
        drains.add(done, 3);
        for queue in [0, 2, 0] {
            drains.was_short(queue);
            drains.end_turn();
            assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
        }
        // Another has all to wait for still.
        let (second, told_second) = reply();
        drains.add(second, 3);
        drains.was_short(1);
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
        drains.end_turn();
        assert_eq!(told.try_recv(), Ok(()));
        assert_eq!(told_second.try_recv(), Err(TryRecvError::Empty));
        drains.was_short(0);
        drains.was_short(2);
        drains.end_turn();
        assert_eq!(told_second.try_recv(), Ok(()));
        assert!(!drains.is_waited_for());
    }

    #[test]
    fn a_core_without_queues_has_its_turn() {
        let mut drains = Drains::default();
        let (done, told) = reply();
        drains.add(done, 0);
        drains.end_turn();
        assert_eq!(told.try_recv(), Ok(()));
    }
}
