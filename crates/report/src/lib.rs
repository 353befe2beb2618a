//! What every measuring command of Tally reports, and how it is printed.
//!
//! One envelope for all ([`Report`]): the [`Machine`], the commit, the parameters, the results, and
//! the [`Target`]s. People read it as a table, programs as one JSON object; [`Spread`] is how
//! several samples of one figure are summed up, a [`Plot`] how a few lines of them are drawn,
//! [`Bars`] how values beside each other are.

mod bars;
mod machine;
mod plot;
mod report;
mod stats;

pub use bars::{Bar, Bars};
pub use machine::Machine;
pub use plot::{Line, Plot};
pub use report::{Report, Target};
pub use stats::Spread;
