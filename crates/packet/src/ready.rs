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
    /// If the kernel refuses, or is older than 5.11.
    pub fn new() -> Result<Self, Error> {
        let epoll = Epoll::new()?;
        // The kernel wants room for one, also where there are no sockets.
        let mut events = Vec::with_capacity(1);
        // Without the call nothing would ever seem to arrive, so this is the place to notice.
        epoll
            .wait(&mut events, Duration::ZERO)
            .map_err(|source| Error::System {
                what: "epoll_pwait2, which needs Linux 5.11 and no filter that forbids it",
                source,
            })?;
        Ok(Self {
            epoll,
            flags: Vec::new(),
            events,
        })
    }

    pub(crate) fn add(&mut self, socket: &Socket) -> Result<Flag, Error> {
        self.epoll.add(socket, self.flags.len())?;
        let flag = Flag::default();
        self.flags.push(flag.clone());
        self.events.reserve(self.flags.len());
        Ok(flag)
    }

    /// Finds out which sockets have something, after waiting for the first that has, but not longer
    /// than `most`. Until the next call, receiving from the others is a look at a flag.
    ///
    /// # Panics
    /// If the kernel refuses what it granted to [`Ready::new`].
    pub fn look(&mut self, most: Duration) {
        if let Err(why) = self.epoll.wait(&mut self.events, most) {
            // A mistake of ours, after which nothing would ever seem to arrive.
            panic!("epoll_pwait2: {why}");
        }
        for event in &self.events {
            let number = event.u64;
            if let Some(flag) = self.flags.get(number as usize) {
                flag.set(true);
            }
        }
    }
}
