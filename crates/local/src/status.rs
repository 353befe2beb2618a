//! The agent's status.

use crate::connect::reach;
use crate::error::LocalError;
use crate::message::{FromAgent, FromProcess, MESSAGE_BYTES_MAX, VERSION};
use crate::socket;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The status of the agent that listens at `socket`, with its jobs: JSON.
///
/// # Errors
/// If there is no agent, or it does not answer within `timeout`.
pub fn status(socket: &Path, timeout: Duration) -> Result<String, LocalError> {
    let asking = |why| LocalError::system(format!("asking the agent at {}", socket.display()), why);
    let agent = reach(socket)?;
    let mut out = Vec::new();
    FromProcess::Status(VERSION).emit(&mut out);
    agent.send(&out, None).map_err(asking)?;
    let deadline = Instant::now() + timeout;
    let mut room = [0; MESSAGE_BYTES_MAX];
    let mut all = String::new();
    loop {
        let got = match agent.receive_bytes(&mut room) {
            Ok(got) if got.bytes > 0 => got,
            Ok(_) => return Err(asking(io::ErrorKind::UnexpectedEof.into())),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(asking(io::ErrorKind::TimedOut.into()));
                }
                socket::wait(&[(agent.as_fd(), false)], Some(left)).map_err(asking)?;
                continue;
            }
            Err(why) => return Err(asking(why)),
        };
        match FromAgent::parse(&room[..got.bytes]) {
            Some(FromAgent::Text { last, text }) => {
                all.push_str(&text);
                if last {
                    return Ok(all);
                }
            }
            Some(FromAgent::Refused(failure)) => {
                return Err(asking(io::Error::other(failure.text)));
            }
            _ => return Err(asking(io::ErrorKind::InvalidData.into())),
        }
    }
}
