//! The request channel of a running switch: the calls `tally.control.v1` and both ends of them.
//!
//! The calls are in `proto/control.proto`, in two services: `View` shows, `Control` changes. They
//! are gRPC over Unix sockets, and over TCP with mutual TLS. `docs/CONTROL.md` is the operator's
//! side of it.
//!
//! `proto/fleet.proto` has the calls that hosts make to a controller, `tally.fleet.v1`, over TCP
//! with mutual TLS.
//!
//! | module | for |
//! |---|---|
//! | [`proto`] | the calls |
//! | `client` (feature) | programs of operators and controllers: where a switch is, connecting |
//! | `server` (feature) | daemons: sockets, who calls, limits, the thread |
//!
//! What a call does is the daemon's: it implements the two traits of [`proto`].

#[cfg(feature = "client")]
pub mod client;
pub mod proto;
#[cfg(feature = "server")]
pub mod server;

/// Where a switch's control socket is unless it is configured elsewhere.
pub const CONTROL_SOCKET: &str = "/run/tally/switch/control.sock";
/// Where its read-only socket is by convention.
pub const VIEW_SOCKET: &str = "/run/tally/switch/view.sock";
/// Largest request. A job or a port takes less than 1 KiB.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Largest answer. A report of 64 ports, 64 cores and 1024 jobs of 64 workers takes 10 MiB.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
