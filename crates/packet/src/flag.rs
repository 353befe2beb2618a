//! What a [`Ready`](crate::Ready) says to a port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a socket may have something.
#[derive(Clone, Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, to: bool) {
        self.0.store(to, Ordering::Relaxed);
    }
}

impl Flag {
    /// Whether the port that it belongs to is gone.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
