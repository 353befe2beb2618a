//! Links of ports: state, neighbours, and what devices count.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tally_engine::forwarding::{FLOOD_KIND, FloodKind};
use tally_engine::metrics;
use tally_engine::metrics::Label;

/// What a port does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// It carries frames.
    #[default]
    Up,
    /// Its link is down.
    Down,
    /// Its interface does not exist.
    Missing,
    /// An operator took it down.
    Disabled,
    /// The loop guard has blocked it.
    Blocked,
}

impl std::fmt::Display for PortState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Missing => "missing",
            Self::Disabled => "disabled",
            Self::Blocked => "blocked",
        })
    }
}

metrics! {
    /// The link of a port, its storms and its loops.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct LinkCounters, labels ["port"] {
        /// Whether the port's link is up: 1, or 0 if it is down or its interface does not exist.
        pub link_up: u8 = gauge "port_link_up";
        /// Times that the port's link went up or down.
        pub link_changes: u64 = counter "port_link_changes";
        /// Times that the port's interface was opened while the switch ran: after it was deleted
        /// and made again, or after the port was taken up.
        pub reopened: u64 = counter "port_reopened";
        /// Whether the loop guard has blocked the port: 1, else 0.
        pub loop_blocked: u8 = gauge "port_loop_blocked";
        /// Times that the loop guard blocked the port.
        pub loop_blocks: u64 = counter "port_loop_blocks";
        /// Frames from the port that exceeded the limit of their kind and were dropped.
        pub storm_dropped: [u64; FloodKind::ALL.len()] =
            counter "port_storm_dropped_frames" in Frames by FLOOD_KIND;
    }
}

/// The label of a driver's own counters.
const XSTAT: Label = Label {
    name: "counter",
    values: &[],
};

metrics! {
    /// What a port's device or interface counts by itself.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct NicCounters, labels ["port"] {
        /// Frames that the device or the kernel dropped because the switch did not take them in
        /// time.
        pub nic_rx_missed: u64 = counter "port_nic_rx_missed_frames" in Frames;
        /// Frames that arrived damaged.
        pub nic_rx_errors: u64 = counter "port_nic_rx_error_frames" in Frames;
        /// Frames that the device dropped because the packet memory was exhausted.
        pub nic_rx_no_buffer: u64 = counter "port_nic_rx_no_buffer_frames" in Frames;
        /// Frames that the device took and could not send.
        pub nic_tx_errors: u64 = counter "port_nic_tx_error_frames" in Frames;
        /// Errors, drops and pauses by the driver's own names, of those that are not 0; 32 at most.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub nic_xstats: BTreeMap<String, u64> = counter "port_nic_driver_events" by XSTAT;
    }
}

/// What the other end of a link says of itself by LLDP. It may say anything: texts have visible
/// ASCII characters only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourReport {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Its chassis, mostly a MAC.
    pub chassis: String,
    /// Its port.
    pub port: String,
}
