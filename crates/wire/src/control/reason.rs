//! Reasons of REFUSE and codes of LEAVE.

/// Reason of a REFUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Repeat the request with this challenge.
    Challenge = 1,
    /// No such job. A hint: not authenticated.
    UnknownJob = 2,
    /// Not under the job's key. A hint: not authenticated.
    BadMac = 3,
    /// Rank `found`, but the job has `allowed` workers.
    BadRank = 4,
    /// The member expects `found` workers, the job has `allowed`.
    Workers = 5,
    /// Payloads of `found` units, the job has `allowed`.
    Payload = 6,
    /// The shape differs from that of the rank named.
    Shape = 7,
    /// The rank is bound to another live instance.
    RankTaken = 8,
    /// The rank named exceeded the member timeout.
    MemberLost = 9,
    /// The rank named left with code `found`.
    MemberFailed = 10,
    /// The epoch is not, or no longer, the job's.
    StaleEpoch = 11,
    /// Window `found` is above `allowed`: repeat the request with `allowed`.
    Window = 12,
    /// The job was removed from the switch.
    Removed = 13,
    /// The job begins no epoch: it is drained.
    Draining = 14,
    /// The tenant would have `found` jobs, and may have `allowed`.
    TenantJobs = 15,
    /// The tenant's jobs would have `found` workers, and may have `allowed`.
    TenantWorkers = 16,
    /// The switch waits for its parent in the job's tree, which refused with reason `found`.
    Parent = 17,
    /// The PS is one of `found`, the node has `allowed`.
    Parts = 18,
}

impl Reason {
    const ALL: [Self; 18] = [
        Self::Challenge,
        Self::UnknownJob,
        Self::BadMac,
        Self::BadRank,
        Self::Workers,
        Self::Payload,
        Self::Shape,
        Self::RankTaken,
        Self::MemberLost,
        Self::MemberFailed,
        Self::StaleEpoch,
        Self::Window,
        Self::Removed,
        Self::Draining,
        Self::TenantJobs,
        Self::TenantWorkers,
        Self::Parent,
        Self::Parts,
    ];

    /// The reason with this number, if there is one.
    #[must_use]
    pub fn from_number(n: u32) -> Option<Self> {
        let at = usize::try_from(n).ok()?.checked_sub(1)?;
        Self::ALL.get(at).copied()
    }

    /// Whether REFUSE has no valid HMAC, so that a member only stores it (J-8).
    #[must_use]
    pub const fn is_hint(self) -> bool {
        matches!(self, Self::UnknownJob | Self::BadMac)
    }

    /// Whether the member must give up.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !self.is_hint()
            && !matches!(
                self,
                Self::Challenge
                    | Self::RankTaken
                    | Self::Window
                    | Self::Draining
                    | Self::TenantJobs
                    | Self::TenantWorkers
                    | Self::Parent
                    | Self::Parts
            )
    }
}

/// Code of a LEAVE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LeaveCode {
    /// The member has all its results.
    Finished = 0,
    /// The member failed.
    Failed = 1,
    /// A fragment overflowed.
    Overflow = 2,
    /// The user stopped the member.
    Interrupted = 3,
    /// The stall timeout expired (J-9).
    Stalled = 4,
}

impl LeaveCode {
    /// The code with this number, if there is one.
    #[must_use]
    pub const fn from_number(n: u32) -> Option<Self> {
        Some(match n {
            0 => Self::Finished,
            1 => Self::Failed,
            2 => Self::Overflow,
            3 => Self::Interrupted,
            4 => Self::Stalled,
            _ => return None,
        })
    }
}
