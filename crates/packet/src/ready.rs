//! Which of a core's sockets have something: one system call for all of them.

use crate::Error;
use crate::flag::Flag;
use crate::rx::PacketRx;
use crate::socket::Epoll;
use std::time::Duration;

/// The sockets that one thread receives from.
pub struct Ready {
    epoll: Epoll,
    flags: Vec<Flag>,
    events: Vec<libc::epoll_event>,
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

    /// Looks at this port's socket, too, until the port is dropped.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch(&mut self, rx: &PacketRx) -> Result<(), Error> {
        let (socket, flag) = rx.watched();
        // The place of a port that is gone, whose socket the kernel has forgotten.
        let unused = self.flags.iter().position(Flag::is_last);
        let at = unused.unwrap_or(self.flags.len());
        self.epoll.add(socket, at)?;
        match self.flags.get_mut(at) {
            Some(place) => *place = flag.clone(),
            None => self.flags.push(flag.clone()),
        }
        let missing = self.flags.len().saturating_sub(self.events.len());
        self.events.reserve(missing);
        Ok(())
    }

    /// Looks no longer at this port's socket: it goes to another thread.
    pub fn forget(&mut self, rx: &PacketRx) {
        let (socket, flag) = rx.watched();
        self.epoll.remove(socket);
        for place in &mut self.flags {
            if place.is(flag) {
                *place = Flag::default();
            }
        }
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
