//! Between an agent and the one that takes its place: the listening socket and its lock.
//!
//! The successor gets both as descriptors. So there is no moment at which nothing listens, and none
//! at which a third agent can take the lock. Processes that are served stay with the agent that has
//! mapped their regions: no other can map them (`memory.rs`).

use crate::error::LocalError;
use crate::socket::{self, Seqpacket};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of the longest text that one side tells the other.
pub const TEXT_BYTES_MAX: usize = 4096;

/// One end of the connection between an agent and its successor.
#[derive(Debug)]
pub struct Succession(Seqpacket);

impl Succession {
    /// An end, and the descriptor of the other one, for a program to be started.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn pair() -> Result<(Self, OwnedFd), LocalError> {
        let (ours, theirs) =
            Seqpacket::pair().map_err(|why| LocalError::system("socketpair", why))?;
        let theirs = theirs.as_fd().try_clone_to_owned();
        let theirs = theirs.map_err(|why| LocalError::system("socketpair", why))?;
        Ok((Self(ours), theirs))
    }

    /// The end that a program was started with.
    #[must_use]
    pub fn of(descriptor: OwnedFd) -> Self {
        Self(Seqpacket::of(descriptor))
    }

    /// Tells the other side, with a descriptor if there is one.
    ///
    /// # Errors
    /// If it has ended.
    pub fn notify(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> Result<(), LocalError> {
        let sent = self.0.send(text.as_bytes(), descriptor);
        sent.map_err(|why| LocalError::system("telling the agent's successor", why))
    }

    /// What the other side tells within `most`.
    ///
    /// # Errors
    /// If that is nothing, or the other side has ended.
    pub fn receive(&self, most: Duration) -> Result<(String, Option<OwnedFd>), LocalError> {
        let failed = |why| LocalError::system("the agent's succession", why);
        let deadline = Instant::now() + most;
        let mut room = [0; TEXT_BYTES_MAX];
        loop {
            match self.0.receive(&mut room) {
                Ok(got) if got.bytes > 0 => {
                    let text = String::from_utf8_lossy(&room[..got.bytes]).into_owned();
                    return Ok((text, got.fd));
                }
                Ok(_) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(failed(io::ErrorKind::TimedOut.into()));
                    }
                    socket::wait(&[(self.0.as_fd(), false)], Some(left)).map_err(failed)?;
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(failed(why)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::agent::{Access, Caller, Listener};
    use crate::{Class, Client, Failure, Hello};
    use std::path::Path;

    const ACCESS: Access = Access {
        mode: 0o600,
        group: None,
    };
    const SOON: Duration = Duration::from_secs(5);

    fn listener(path: &Path) -> Listener {
        Listener::bind(path, ACCESS).unwrap()
    }

    /// The next one who says what it wants is refused with `text`.
    fn refuse_next(listener: &mut Listener, text: &str) {
        let Some(Caller::Process(pending)) = listener.next(SOON).unwrap() else {
            panic!("nothing came");
        };
        pending.refuse(Failure::new(Class::Job, text));
    }

    #[test]
    fn a_socket_and_its_lock_go_to_the_successor_without_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let mut first = listener(&path);
        let (ours, theirs) = Succession::pair().unwrap();
        first.hand_over(&ours).unwrap();
        let mut second = Listener::inherit(&path, &Succession::of(theirs), SOON).unwrap();
        // Both hold it; a third has no chance.
        let third = Listener::bind(&path, ACCESS).unwrap_err().to_string();
        assert!(third.contains("another agent serves it"), "{third}");
        first.resign();
        second.sign().unwrap();
        let hello = Hello {
            job: 7,
            rank: 0,
            workers: 1,
        };
        std::thread::scope(|scope| {
            let client = scope.spawn(|| Client::connect(&path, &hello, SOON));
            assert!(first.next(Duration::from_millis(50)).unwrap().is_none());
            refuse_next(&mut second, "by the second");
            let error = client.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("by the second"), "{error}");
        });
        drop(first);
        assert!(path.exists(), "the socket is the successor's");
        let third = Listener::bind(&path, ACCESS).unwrap_err().to_string();
        assert!(third.contains("another agent serves it"), "{third}");
        drop(second);
        assert!(!path.exists());
        drop(listener(&path));
    }

    #[test]
    fn a_successor_that_fails_leaves_all_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let first = listener(&path);
        let (ours, theirs) = Succession::pair().unwrap();
        first.hand_over(&ours).unwrap();
        let theirs = Succession::of(theirs);
        drop(Listener::inherit(&path, &theirs, SOON).unwrap());
        assert!(path.exists(), "the socket is the first one's");
        drop(theirs);
        let error = ours.receive(SOON).unwrap_err().to_string();
        assert!(error.contains("succession"), "{error}");
        assert!(Listener::bind(&path, ACCESS).is_err());
        drop(first);
        drop(listener(&path));
    }

    #[test]
    fn silence_and_what_is_no_socket_are_errors() {
        let (ours, theirs) = Succession::pair().unwrap();
        let error = ours.receive(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("timed out"), "{error}");
        ours.notify("something else", None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let error = Listener::inherit(&path, &Succession::of(theirs), SOON).unwrap_err();
        assert!(error.to_string().contains("something else"), "{error}");
    }
}
