//! What is known of the ports beside what the data cores count: for reports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tally_schema::switch::report::{LinkCounters, NeighbourReport, NicCounters, PortState, Spread};

/// How a port's frames are divided among the data cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortShape {
    /// Its name.
    pub name: String,
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Who steers frames into them.
    pub steering: Spread,
    /// Flow rules that the device has for it.
    pub rules: u16,
    /// Why it has none, if it was asked.
    pub rules_refused: Option<String>,
}

/// One port.
#[derive(Clone, Debug, Default)]
pub struct PortFacts {
    /// Its name and queues.
    pub shape: PortShape,
    /// What it does.
    pub state: PortState,
    /// Its link, storms and loops.
    pub link: LinkCounters,
    /// What its device counts.
    pub nic: NicCounters,
    /// Speed of its link in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Who is at its other end.
    pub neighbour: Option<NeighbourReport>,
}

/// All ports, by number. The thread that looks after them writes it, reports read it.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Vec<PortFacts>>>);

impl Board {
    /// Ports of these shapes.
    #[must_use]
    pub fn new(shapes: impl IntoIterator<Item = PortShape>) -> Self {
        let of = |shape| PortFacts {
            shape,
            ..PortFacts::default()
        };
        Self(Arc::new(Mutex::new(shapes.into_iter().map(of).collect())))
    }

    /// For as long as a value is copied or written.
    pub fn lock(&self) -> MutexGuard<'_, Vec<PortFacts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it.
    #[must_use]
    pub fn facts(&self) -> Vec<PortFacts> {
        self.lock().clone()
    }
}
