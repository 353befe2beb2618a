//! The bridge to an FPGA card that aggregates in hardware: its registers, and what drives them.
//!
//! A card is a port with frames on it, and a window of registers. Frames are the switch's affair;
//! what says to whom they belong is in [`tags`]. The registers are behind [`Window`]: those of a
//! card in a slot are memory ([`Bar`]), those of the simulated one are behind a Unix socket
//! ([`Socket`]). [`Card`] drives either.
//!
//! ```no_run
//! # use tally_bridge::{Card, CardError, Own, Socket};
//! # fn drive(own: &Own, roster: &tally_engine::Roster) -> Result<(), CardError> {
//! let mut card = Card::open(Socket::connect("/run/tally-card.sock")?)?;
//! card.set_own(own)?;
//! let place = card.load(roster)?;
//! card.alive()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The catches
//!
//! - A card can lie, hang, or forget all that it was told. Each of these is a [`CardError`] in
//!   bounded time: half a second for the longest of all calls that fail by silence. After one, all
//!   that the card has is to be taken for lost; [`Card::open`] on a new window begins anew.
//! - What a card in a slot refuses, it refuses in silence: a write to memory has no answer. The
//!   driver reads back what matters.

mod bar;
mod card;
mod counters;
mod error;
pub mod protocol;
pub mod registers;
mod socket;
pub use tally_engine::offload::tags;
mod window;

pub use bar::Bar;
pub use card::{Capabilities, Card, Own, Place};
pub use counters::CardCounters;
pub use error::{CardError, Unfit};
pub use socket::Socket;
pub use window::{Window, name_of};
