//! Shared memory between the processes: one `net_memif` connection for each host. The switch is the
//! server of all of them, behind one socket.

use std::path::PathBuf;

/// Buffers of each direction of a connection, in bytes, about. They are written and read one after
/// the other, so all of them should stay in the caches. What does not fit waits in the switch, once
/// for all.
const RING_BYTES: u32 = 512 << 10;
/// The least frames in a ring: a client lends the server its buffers by 32.
const RING_MIN: u32 = 32;

pub(super) struct Memif {
    socket: PathBuf,
    buffer_bytes: u16,
}

impl Memif {
    /// Connections behind this socket.
    pub(super) fn new(socket: PathBuf, mtu: u16) -> Self {
        let buffer_bytes = if mtu > 1500 { 9216 } else { 2048 };
        Self {
            socket,
            buffer_bytes,
        }
    }

    fn arguments(&self, host: usize, role: &str) -> String {
        format!(
            "role={role},id={host},socket={},socket-abstract=no,bsize={},rsize={}",
            self.socket.display(),
            self.buffer_bytes,
            self.log2_ring()
        )
    }

    /// Frames in a ring, as a power of two.
    fn log2_ring(&self) -> u32 {
        (RING_BYTES / u32::from(self.buffer_bytes))
            .max(RING_MIN)
            .ilog2()
    }

    /// The switch's device for a host.
    pub(super) fn device(&self, host: usize) -> String {
        format!("net_memif{host},{}", self.arguments(host, "server"))
    }

    /// The device of a card's, which copies frames anyway.
    pub(super) fn card_device(&self, number: usize) -> String {
        format!("net_memif0,{}", self.arguments(number, "client"))
    }

    /// The host's own device.
    pub(super) fn client_device(&self, host: usize) -> String {
        // The client's buffers are what is shared, so that nothing is copied at its end.
        format!(
            "net_memif0,{},zero-copy=yes",
            self.arguments(host, "client")
        )
    }
}
