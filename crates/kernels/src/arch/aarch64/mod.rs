//! AArch64.

pub(super) mod neon;
