//! `tallyctl`: the operator's program. It shows and changes a running switch over its request
//! channel.
//!
//! | module | story |
//! |---|---|
//! | [`args`] | the command line |
//! | [`capture`] | frames as pcapng |
//! | [`run`] | from a command to calls, and from answers to lines |
//! | [`session`] | the connection to a switch, and what may go wrong with it |
//! | [`show`] | parts of a report as tables and JSON |
//! | [`top`] | the live view of a terminal |

pub mod args;
pub mod capture;
pub mod run;
pub mod session;
pub mod show;
pub mod top;
