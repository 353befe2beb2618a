//! Shared memory between the processes of a fabric: one `net_memif` connection for each link.
//!
//! A switch is the server of its hosts' connections, and a spine of its leaves', behind one socket
//! each. A client connects once, when it starts, so spines start before leaves, and no program can
//! come back.

use std::path::{Path, PathBuf};

/// Frames in a ring, as a power of two.
const LOG2_RING: u32 = 8;
/// The number of a switch's first link at its socket, behind those of hosts.
const LINKS_FROM: usize = 1000;

pub(super) struct Memif {
    folder: PathBuf,
    buffer_bytes: u16,
}

impl Memif {
    pub(super) fn new(folder: &Path, mtu: u16) -> Self {
        Self {
            folder: folder.to_owned(),
            buffer_bytes: if mtu > 1500 { 9216 } else { 2048 },
        }
    }

    fn arguments(&self, switch: &str, id: usize, role: &str) -> String {
        let socket = self.folder.join(format!("{switch}-memif.sock"));
        format!(
            "role={role},id={id},socket={},socket-abstract=no,bsize={},rsize={LOG2_RING}",
            socket.display(),
            self.buffer_bytes
        )
    }

    /// The device of a leaf for the host at its port of that number.
    pub(super) fn port_device(&self, leaf: &str, port: usize) -> String {
        format!("net_memif{port},{}", self.arguments(leaf, port, "server"))
    }

    /// The host's own device.
    pub(super) fn host_device(&self, leaf: &str, port: usize) -> String {
        // The client's buffers are what is shared, so that nothing is copied at its end.
        format!(
            "net_memif0,{},zero-copy=yes",
            self.arguments(leaf, port, "client")
        )
    }

    /// The device of a switch, its `port`th, for a link to `spine`.
    pub(super) fn link_device(
        &self,
        spine: &str,
        link: usize,
        port: usize,
        is_spine: bool,
    ) -> String {
        let role = if is_spine { "server" } else { "client" };
        format!(
            "net_memif{port},{}",
            self.arguments(spine, LINKS_FROM + link, role)
        )
    }
}
