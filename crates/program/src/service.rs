//! The service manager: readiness, stop, and the watchdog.
//!
//! systemd gives `NOTIFY_SOCKET` to units of `Type=notify`, and `WATCHDOG_USEC` to those with
//! `WatchdogSec=`. Without them all of this does nothing.
//!
//! The catch: [`Watchdog::alive`] only limits how often systemd hears of it. Call it where the
//! program has shown that it works, never on a timer of its own.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// Tells that the program serves, and with what.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells that the program has begun to stop.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Tells that another process is the service's from now on.
pub fn main_process(pid: u32) {
    send(&[NotifyState::MainPid(pid)]);
}

/// A service manager that is not there, or does not take it, changes nothing for us.
fn send(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

/// The watchdog of the service manager.
#[derive(Debug)]
pub struct Watchdog {
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Watchdog {
    /// As the service manager wants it; silent if it does not.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::new(sd_notify::watchdog_enabled())
    }

    fn new(limit: Option<Duration>) -> Self {
        // Twice in its time, as systemd recommends, and a little more.
        let every = limit.map(|limit| limit * 2 / 5);
        Self { every, last: None }
    }

    /// How often it wants a heartbeat; `None` if not at all.
    #[must_use]
    pub const fn every(&self) -> Option<Duration> {
        self.every
    }

    /// Whether a heartbeat is due.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(every) = self.every else {
            return false;
        };
        self.last
            .is_none_or(|last| now.duration_since(last) >= every)
    }

    /// Takes a heartbeat, and passes it on if one is due.
    pub fn alive(&mut self, now: Instant) {
        if self.is_due(now) {
            send(&[NotifyState::Watchdog]);
            self.last = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_of_life_is_due_twice_in_the_manager_s_time() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut watchdog = Watchdog::new(Some(Duration::from_secs(10)));
        assert_eq!(watchdog.every(), Some(Duration::from_secs(4)));
        assert!(watchdog.is_due(at(0)));
        watchdog.alive(at(0));
        assert!(!watchdog.is_due(at(3)) && watchdog.is_due(at(4)));
        assert!(!Watchdog::new(None).is_due(at(100)));
    }
}
