//! How datagrams get to the switch and back.
//!
//! A [`Link`] works in batches and without copies of its own: it lends the sender the buffers that
//! leave, and the receiver the buffers that arrived.

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod ethernet;
pub mod loss;
pub mod udp;

use std::os::fd::BorrowedFd;
use std::time::Duration;
use tally_endpoint::{Ecn, Transmit};
use thiserror::Error;

/// Why there is no link, or no more.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A call to the kernel.
    #[error("{what}: {source}")]
    System {
        /// What it was for.
        what: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// DPDK's own reason.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] tally_dpdk::Error),
    /// This build has no DPDK.
    #[error("this tally-agent was built without DPDK; transport.type must be udp")]
    NoDpdk,
}

impl LinkError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// A way to the switch and back.
pub trait Link {
    /// Lends `fill` one buffer after the other, until it has nothing more to send or a batch is
    /// full, and sends what it wrote. Returns how many datagrams that were. What the network does
    /// not take is lost, as on the way.
    ///
    /// # Errors
    /// If the link is broken for good.
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError>;

    /// Lends `take` one datagram from the switch after the other, up to a batch, with what its IP
    /// header says of congestion. Returns how many there were.
    ///
    /// # Errors
    /// If the link is broken for good.
    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError>;

    /// Waits until something may have arrived, but not longer than `timeout`. For calling when
    /// there was nothing to do. Once something has arrived, it may wait for `gather` longer, for more
    /// to be done at a time. It ends early when `wake` can be read, if the link waits in the kernel.
    ///
    /// # Errors
    /// If the link is broken for good.
    fn wait(
        &mut self,
        timeout: Duration,
        gather: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError>;

    /// What makes it unlikely that the switch hears us, if there is something.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Datagrams dropped on purpose: sent and received ones.
    fn dropped(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        (**self).send(fill)
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        (**self).receive(take)
    }

    fn wait(
        &mut self,
        timeout: Duration,
        gather: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        (**self).wait(timeout, gather, wake)
    }

    fn trouble(&self) -> Option<String> {
        (**self).trouble()
    }

    fn dropped(&self) -> (u64, u64) {
        (**self).dropped()
    }
}
