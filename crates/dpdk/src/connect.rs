//! Opening a device by the one line that configurations and command lines have for it, and waiting
//! for its peer.
//!
//! The catch: a `net_memif` client connects only once, when it is started, so its port is made anew
//! until its server is there.

use std::slice;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::eal::{Eal, is_pci};
use crate::error::Error;
use crate::mempool::Mempool;
use crate::port::{Port, StartedPort};
use crate::port_info::PortConfig;

/// How long a device that has been started may take until its link is up. A peer that has answered
/// gets this much time because the server of `net_memif` may not survive it if its client goes away
/// meanwhile: DPDK's interrupt thread then waits for a socket that is closed, and panics.
const LINK_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at the link.
const LINK_POLL: Duration = Duration::from_millis(5);
/// Between two attempts to start it.
const RETRY: Duration = Duration::from_millis(100);

/// Opens a device: a PCI address, or a virtual device with its arguments
/// (`net_memif0,role=client,id=0`). An MTU above what the device states is lowered to that:
/// `net_memif` claims 1500 and carries all that fits its ring. A device whose link does not come up
/// within `patience` is given back as it is, because some never say.
///
/// # Errors
///
/// As [`Port::vdev`], [`Port::pci`] and [`Port::configure`]; what starting it says, where that will
/// not get better or has not within `patience`.
pub fn connect(
    eal: &Eal,
    device: &str,
    config: &PortConfig,
    pool: &Mempool,
    patience: Duration,
) -> Result<StartedPort, Error> {
    let deadline = Instant::now() + patience;
    let is_pci = is_pci(device);
    let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
    loop {
        // What is wrong so far will not get better.
        let port = if is_pci {
            Port::pci(eal, device)?
        } else {
            Port::vdev(eal, name, arguments)?
        };
        let mtu = config.mtu.map(|mtu| mtu.min(port.info().mtu_max));
        let config = PortConfig { mtu, ..*config };
        let port = port.configure(&config, slice::from_ref(pool))?;
        let is_late = Instant::now() >= deadline;
        match port.start() {
            Ok(started) => {
                let until = Instant::now() + LINK_PATIENCE;
                while Instant::now() < until {
                    if started.port.link()?.up {
                        return Ok(started);
                    }
                    sleep(LINK_POLL);
                }
                if is_late {
                    return Ok(started);
                }
            }
            // A peer that is not there is a failed call; anything else will not get better.
            Err(Error::Call { .. }) if !is_late && !is_pci => sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
}
