//! Shared memory between the processes: one `net_memif` connection for each host. The switch is the
//! server of all of them, behind one socket.

use super::Spec;
use std::path::{Path, PathBuf};

/// Frames in each direction of a connection, as a power of two: two of the largest windows.
const LOG2_RING: u32 = 10;

pub(super) struct Memif {
    socket: PathBuf,
    buffer_bytes: u16,
}

impl Memif {
    pub(super) fn new(folder: &Path, spec: &Spec) -> Self {
        let buffer_bytes = if spec.links().mtu > 1500 { 9216 } else { 2048 };
        Self {
            socket: folder.join("memif.sock"),
            buffer_bytes,
        }
    }

    fn arguments(&self, host: usize, role: &str) -> String {
        format!(
            "role={role},id={host},socket={},socket-abstract=no,bsize={},rsize={LOG2_RING}",
            self.socket.display(),
            self.buffer_bytes
        )
    }

    /// The switch's device for a host.
    pub(super) fn device(&self, host: usize) -> String {
        format!("net_memif{host},{}", self.arguments(host, "server"))
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
