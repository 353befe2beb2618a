//! Rina (ICNP'24): ring all-reduce in which a rack whose switch sums is one member.
//!
//! The elements are split into one chunk for each member. In the reduce phase a chunk's partial sum
//! passes all members and ends at the chunk's owner. In the gather phase the sums pass all members
//! once more. A worker behind an ordinary switch is a member itself. The workers of a rack whose
//! switch sums are one member: one of them, the *agent*, talks to the other members, and the switch
//! adds what the agent and the other workers of the rack contribute.
//!
//! Sans-IO, and without elements: events and actions name a [`Segment`], and the driver owns the
//! buffers, adds, and sends. So the agent, the simulator and tests run the same code.
//!
//! | file | story |
//! |---|---|
//! | `plan.rs` | members in order, chunks, segments, the order of sends and of a rack's sums |
//! | `order.rs` | pieces that become ready in any order and leave in a fixed one |
//! | `member.rs` | the state machine of a member: a worker of its own, or the agent of a rack |
//! | `rack.rs` | the state machine of the other workers of such a rack |
//! | `model.rs` | how long a collective takes by each algorithm, and which is the fastest |
//!
//! # The invariant
//!
//! Each element of each worker is in the sum once, and all workers have the same bits: a sum is
//! made at one place and copied. Bits of floats depend on the plan (the order of members, the first
//! worker of a rack, the number of elements) and on nothing else: no order of arrival changes them.
//! Integers, and floats as block fixed point, have the same bits with any plan.
//!
//! # The catches
//!
//! * Transfers between members are reliable: each piece comes once. They leave in order; any order
//!   of arrival will do.
//! * In a rack, all workers submit the same pieces in the same order, [`Plan::rack_order`].
//! * The rings of NetReduce (`tally-roce`, `tally-verbs`) are another protocol. Names of this one
//!   begin with `rina`.

mod member;
pub mod model;
mod order;
mod plan;
mod rack;

pub use member::{Action, Member, Refused};
pub use plan::{Operation, Phase, Piece, Plan, PlanError, RACK_WORKERS_MAX, Rack, Segment};
pub use rack::RackWorker;
