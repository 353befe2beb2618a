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
    /// Makes the member's call fail within two seconds, and each later one at once.
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

    /// Shuts this connection down when it is set, also if it is set already.
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
