//! Which of a core's sockets have something: one system call for all of them.

use crate::Error;
use crate::socket::{Epoll, Socket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The sockets that one thread receives from.
pub struct Ready {
    epoll: Epoll,
    flags: Vec<Flag>,
    events: Vec<libc::epoll_event>,
}

/// Whether a socket may have something.
#[derive(Clone, Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, to: bool) {
        self.0.store(to, Ordering::Relaxed);
    }
}

impl Ready {
    /// None yet.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            epoll: Epoll::new()?,
            flags: Vec::new(),
            events: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, socket: &Socket) -> Result<Flag, Error> {
        self.epoll.add(socket, self.flags.len())?;
        let flag = Flag::default();
        self.flags.push(flag.clone());
        self.events.reserve(self.flags.len());
        Ok(flag)
    }

    /// Finds out which sockets have something, after waiting for the first that has, but not longer than
    /// `most`. Until the next call, receiving from the others is a look at a flag.
    pub fn look(&mut self, most: Duration) {
        self.epoll.wait(&mut self.events, most);
        for event in &self.events {
            let number = event.u64;
            if let Some(flag) = self.flags.get(number as usize) {
                flag.set(true);
            }
        }
    }
}
