//! Errors of a card, in words for the switch's operator.

use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tally_engine::PortId;
use tally_wire::JobId;

/// Why a card does not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// No card listens at the socket.
    #[error("cannot reach the card's registers at {}: {source}{}", path.display(), socket_hint(source))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A device's registers cannot be had.
    #[error("cannot map the card's registers at {}: {source}{}", path.display(), map_hint(source))]
    Map {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A file that is too short to be a card's registers.
    #[error(
        "{} has {found} bytes, and a card's registers take {expected}{}: is it the right BAR?",
        path.display(),
        from(*offset)
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// Where in it the registers begin.
        offset: u64,
        /// Number needed.
        expected: u64,
    },
    /// A place in a region that cannot be mapped.
    #[error(
        "the card's registers cannot begin at 0x{offset:x}: this machine maps memory by {page} bytes"
    )]
    Offset {
        /// The place.
        offset: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// No address of a PCI device.
    #[error("`{0}` is no PCI address, such as 0000:01:00.0")]
    PciAddress(String),
    /// The connection to the registers has failed.
    #[error("the card's registers: {0}")]
    Io(#[from] io::Error),
    /// The other side has ended the connection.
    #[error("the card has closed the connection to its registers: see its log")]
    Closed,
    /// It does not answer.
    #[error("the card has not answered for {after:?} when asked for {what}")]
    Silent {
        /// The register.
        what: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The other side of the socket does not speak as a card does.
    #[error("what answers for {what} is not the register socket of a card")]
    Protocol {
        /// The register.
        what: String,
    },
    /// An access that the card does not allow.
    #[error("the card refuses access to {what}: is its register map of another version?")]
    Refused {
        /// The register.
        what: String,
    },
    /// An address that the window does not have.
    #[error("a card has no register at 0x{0:03x}")]
    Address(u16),
    /// Another device, or none.
    #[error("no card of Tally's: its ID is 0x{found:08x}{}", id_hint(*found))]
    NotACard {
        /// What was read.
        found: u32,
    },
    /// Another register map.
    #[error(
        "the card has version {found} of the registers, this switch knows {known}: use those that belong together"
    )]
    Interface {
        /// The card's.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// A register says what it cannot.
    #[error("the card makes no sense: {what} reads {found}, allowed {allowed}")]
    Nonsense {
        /// The register.
        what: &'static str,
        /// What it says.
        found: u32,
        /// What it may say.
        allowed: &'static str,
    },
    /// A register has not what was written to it.
    #[error(
        "the card has forgotten what it was told ({what} reads 0x{found:x}, not 0x{expected:x}): it was reset, or another program drives it"
    )]
    Forgot {
        /// The register.
        what: String,
        /// What was written.
        expected: u32,
        /// What it says.
        found: u32,
    },
    /// Its time stands still.
    #[error("the card's clock has stood still for {after:?}")]
    Stopped {
        /// How long.
        after: Duration,
    },
    /// Its time has gone back.
    #[error("the card was reset: it was up for {before} ms, and now for {now}")]
    Reset {
        /// Its uptime when last asked.
        before: u32,
        /// Its uptime now.
        now: u32,
    },
    /// It is not done with what takes microseconds.
    #[error("the card has been clearing a place for {after:?}")]
    Clearing {
        /// How long.
        after: Duration,
    },
    /// It says of itself that it is broken.
    #[error("an internal check of the card has failed: reset it, and report this")]
    Fault,
    /// The card is well; the job is not for it.
    #[error("{0}")]
    Unfit(#[from] Unfit),
}

impl CardError {
    /// Whether the card is to be taken for failed. It is not if only the job does not fit.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Unfit(_))
    }
}

/// Why a job does not fit a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A worker alone needs no sum.
    #[error("job {}: a card takes jobs of 2 workers and more", .0.0)]
    OneWorker(JobId),
    /// More workers than a job on the card may have.
    #[error("job {}: {workers} workers, and the card takes {max} at most", job.0)]
    Workers {
        /// The job.
        job: JobId,
        /// Its workers.
        workers: usize,
        /// The card's.
        max: u32,
    },
    /// A longer payload than the card has room for.
    #[error("job {}: payloads of {bytes} bytes, and the card takes {max} at most", job.0)]
    Payload {
        /// The job.
        job: JobId,
        /// Its payload.
        bytes: usize,
        /// The card's.
        max: u32,
    },
    /// A member is behind a port that the card has no bit for.
    #[error("job {}: a member is behind port {}, and a card knows ports 0 to 15 only", job.0, port.0)]
    Port {
        /// The job.
        job: JobId,
        /// The port.
        port: PortId,
    },
    /// Sums of the job go to a parent switch.
    #[error("job {}: its sums go to a parent switch, and a card serves only the root of a tree", .0.0)]
    Parent(JobId),
    /// All places are taken.
    #[error("job {}: the card has {places} places, and all are taken", job.0)]
    Full {
        /// The job.
        job: JobId,
        /// The card's places.
        places: u32,
    },
}

fn socket_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            " (is `tally-card run` running on this host, with this path for `--registers`?)"
        }
        io::ErrorKind::PermissionDenied => " (may this user write to the socket?)",
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            " (is another switch connected to it? a card has one driver at a time)"
        }
        _ => "",
    }
}

fn from(offset: u64) -> String {
    match offset {
        0 => String::new(),
        _ => format!(" from offset 0x{offset:x} on"),
    }
}

fn map_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => " (is the card at this address? `lspci -D` lists all)",
        io::ErrorKind::PermissionDenied => " (mapping a device's registers takes root)",
        _ => "",
    }
}

fn id_hint(found: u32) -> &'static str {
    match found {
        u32::MAX => {
            " (all ones: the device does not answer. Has it been loaded with the design, and is its memory enabled?)"
        }
        0 => " (is it the right BAR, and the right offset in it?)",
        _ => "",
    }
}
