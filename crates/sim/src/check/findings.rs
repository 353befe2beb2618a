//! What checkers have found.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// The properties that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Checker {
    /// A result is the sum of each rank's contribution, once, and so the same at all workers.
    ExactSum,
    /// A result of another incarnation was taken for one of this.
    StaleEpoch,
    /// A fragment's result reached the application more than once, or without being asked for.
    Once,
    /// W-2: nothing is sent that is a window ahead of what is missing.
    Window,
    /// W-3, R-3: what is sent again is what was sent.
    Payload,
    /// What came into a slot leaves it, once.
    Custody,
    /// Each worker ends as it must: with its results, or with an error that names the right rank.
    Outcome,
    /// All of it within bounded time.
    Convergence,
    /// No job waits while others work.
    Starvation,
    /// Slots, held contributions and buffers are free at the end.
    Leak,
    /// A collective gives what its kind says, and ranks that bring others are named (D-4, D-5).
    Session,
    /// Nothing that claims the switch's addresses or groups is forwarded to a host, and a bound
    /// member's ordinary frames are (ADR 22).
    Forwarding,
    /// Nothing grows with time.
    Memory,
    /// An assertion of the production code.
    Panic,
}

/// A property that did not hold.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which.
    pub checker: Checker,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.checker, self.text)
    }
}

/// Where all parts of a run put what they find. Only the first counts: the rest may follow from it.
#[derive(Clone, Default)]
pub struct Findings(Rc<RefCell<Option<Finding>>>);

impl Findings {
    /// Reports a violation.
    pub fn report(&self, checker: Checker, text: impl FnOnce() -> String) {
        let mut first = self.0.borrow_mut();
        if first.is_none() {
            let text = text();
            *first = Some(Finding { checker, text });
        }
    }

    /// Reports unless `holds`.
    pub fn require(&self, holds: bool, checker: Checker, text: impl FnOnce() -> String) {
        if !holds {
            self.report(checker, text);
        }
    }

    /// Whether there is one.
    #[must_use]
    pub fn any(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// The first.
    #[must_use]
    pub fn first(&self) -> Option<Finding> {
        self.0.borrow().clone()
    }
}
