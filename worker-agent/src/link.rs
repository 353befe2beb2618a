//! How datagrams get to the switch and back.
//!
//! A [`Link`] works in batches and without copies of its own: it lends the sender the buffers that
//! leave, and the receiver the buffers that arrived.

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod ethernet;
pub mod loss;
pub mod udp;

use crate::config::{SwitchAddress, Transport};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tally_endpoint::{Ecn, Transmit};
use tally_schema::agent::report::Losses;
use tally_wire::Mac;
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
        source: io::Error,
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
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: explained(source.into()),
        }
    }
}

/// The kernel's reason, with the limit if this process has too many open files.
fn explained(source: io::Error) -> io::Error {
    if source.raw_os_error() != Some(Errno::EMFILE as i32) {
        return source;
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    io::Error::other(format!(
        "all {limit} file descriptors of this process are in use; raise its limit (ulimit -n, LimitNOFILE= of the \
         service)"
    ))
}

/// Opens the link that `transport` describes.
///
/// # Errors
/// If it cannot be opened.
pub fn open_link(
    transport: &Transport,
    switch: SwitchAddress,
    group: Option<udp::Group>,
    units: Option<u8>,
) -> Result<Box<dyn Link>, LinkError> {
    match transport {
        Transport::Udp { bind } => {
            let link = udp::UdpLink::open(*bind, switch.address, group, units)?;
            Ok(Box::new(link))
        }
        #[cfg(feature = "dpdk")]
        Transport::Dpdk {
            eal,
            device,
            mac,
            address,
            port,
        } => {
            let (mac, address) = (*mac, *address);
            let local = ethernet::Local { mac, address };
            let mut port = dpdk::DpdkPort::new(eal, device, local, *port, switch.address, units)?;
            port.connect(dpdk::START_FOR)?;
            Ok(Box::new(port.link(group.map(|it| it.address))))
        }
        #[cfg(not(feature = "dpdk"))]
        Transport::Dpdk { .. } => Err(LinkError::NoDpdk),
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
    /// there was nothing to do. Once something has arrived, it may wait for `gather` longer, so
    /// that more is done at a time. It ends early when `wake` can be read, if the link waits in the
    /// kernel.
    ///
    /// # Errors
    /// If the link is broken for good.
    fn wait(
        &mut self,
        timeout: Duration,
        gather: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError>;

    /// Whether what is sent now leaves without waiting for the network's device.
    fn has_room(&self) -> bool {
        true
    }

    /// Pins the switch's MAC: sends to it alone, and drops datagrams that come from another.
    /// `None` releases the pin. A link over the kernel's sockets, where the kernel resolves the
    /// MAC, has no pin.
    fn pin(&mut self, switch_mac: Option<Mac>) {
        let _ = switch_mac;
    }

    /// What makes it unlikely that the switch hears us, if there is something.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Losses on purpose, and all that passed, if the link is to lose.
    fn losses(&self) -> Option<Losses> {
        None
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

    fn has_room(&self) -> bool {
        (**self).has_room()
    }

    fn pin(&mut self, switch_mac: Option<Mac>) {
        (**self).pin(switch_mac);
    }

    fn trouble(&self) -> Option<String> {
        (**self).trouble()
    }

    fn losses(&self) -> Option<Losses> {
        (**self).losses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_told_with_their_number() {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let told = |errno| LinkError::system("binding", errno).to_string();
        let want = format!("binding: all {soft} file descriptors of this process are in use");
        assert!(
            told(Errno::EMFILE).starts_with(&want),
            "{}",
            told(Errno::EMFILE)
        );
        assert!(told(Errno::ENFILE).contains("os error 23"));
    }
}
