//! How another thread ends what a member waits for.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ends a member's epoch from another thread, also while it waits. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    /// The member's connection to the coordinator: its end ends each wait.
    stream: Mutex<Option<TcpStream>>,
}

impl Stop {
    /// The member's call fails within two seconds, and so does each later one.
    pub fn set(&self) {
        let stream = self.0.stream.lock();
        let stream = stream.unwrap_or_else(PoisonError::into_inner);
        self.0.is_set.store(true, Ordering::SeqCst);
        if let Some(stream) = &*stream {
            // Fails if the other side has ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether it was set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    /// Has this connection ended when it is set, which it may be already.
    pub(crate) fn ends(&self, stream: &TcpStream) -> std::io::Result<()> {
        let clone = stream.try_clone()?;
        let place = self.0.stream.lock();
        *place.unwrap_or_else(PoisonError::into_inner) = Some(clone);
        if self.is_set() {
            self.set();
        }
        Ok(())
    }
}
