//! Ranks of a host that are one worker (ADR 43).

/// Ranks of a host that can be one worker: what the kernels fold at once.
pub const RANKS_PER_HOST_MAX: u16 = 64;

pub(super) const fn default_ranks_per_host() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(super) const fn is_one(ranks_per_host: &u16) -> bool {
    *ranks_per_host == 1
}
