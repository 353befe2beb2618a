//! The backends, one for each instruction set, and the choice among them.

use core::fmt;
use core::str::FromStr;

/// An instruction set that the operations are compiled for.
///
/// Every host has all variants, so that a configuration can name one that this machine lacks and
/// get an error: [`Kernels::new`](crate::Kernels::new) refuses a backend that the CPU cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Plain Rust loops, compiled for the target's baseline. Always available.
    Scalar,
    /// x86-64 AVX2, 32 bytes at a time.
    Avx2,
    /// x86-64 AVX-512 F, BW and VL, 64 bytes at a time.
    Avx512,
    /// AArch64 Advanced SIMD (NEON), 16 bytes at a time.
    Neon,
}

impl Backend {
    /// Every backend, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Name in configurations and reports: `scalar`, `avx2`, `avx512` or `neon`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = ParseBackendError;

    /// Parses the output of [`Display`](fmt::Display).
    ///
    /// `auto` is not a backend: a configuration that allows it keeps an `Option<Backend>` and falls
    /// back to [`Backend::best`].
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| ParseBackendError { name: name.into() })
    }
}

/// Error: the name is not a [`Backend`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown backend {name:?}: expected scalar, avx2, avx512 or neon")]
pub struct ParseBackendError {
    name: String,
}

/// Error: the requested backend cannot run on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "backend {backend} is not available on this CPU; the best one here is {}",
    Backend::best()
)]
pub struct Unavailable {
    /// The requested backend.
    pub backend: Backend,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for backend in Backend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
    }

    #[test]
    fn auto_and_other_spellings_are_refused() {
        for name in ["auto", "AVX2", "avx-512", ""] {
            let error = name.parse::<Backend>().unwrap_err();
            assert!(
                error.to_string().contains("expected scalar, avx2"),
                "{error}"
            );
        }
    }

    #[test]
    fn best_is_available_and_scalar_always_is() {
        assert!(Backend::best().is_available());
        assert_eq!(Backend::available().next(), Some(Backend::Scalar));
        assert_eq!(Backend::available().last(), Some(Backend::best()));
    }

    #[test]
    fn a_foreign_backend_is_refused_with_its_name() {
        let foreign = if cfg!(target_arch = "aarch64") {
            Backend::Avx2
        } else {
            Backend::Neon
        };
        let refusal = crate::Kernels::new(foreign).unwrap_err();
        assert_eq!(refusal.backend, foreign);
        assert!(refusal.to_string().contains(foreign.name()));
    }
}
