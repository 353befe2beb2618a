//! How a worker of a job with a tree may end: with the name of a rank that failed, and of the
//! switch that noticed.

use crate::address::SwitchId;
use crate::check::ending::Incarnation;
use crate::check::options::tree::TreeJob;
use crate::fabric::name;
use tally_endpoint::{TreeFailure, WorkerError};
use tally_wire::RankRange;
use tally_wire::control::{LeaveCode, Reason};

/// Whether a worker may end with this error.
///
/// # Errors
/// Why not.
pub(super) fn validate(
    incarnation: &Incarnation,
    job: &TreeJob,
    rank: u8,
    error: &WorkerError,
) -> Result<(), String> {
    let WorkerError::InTree(failure) = error else {
        return incarnation.validate(usize::from(rank), error);
    };
    if is_right(incarnation, job, failure) {
        return Ok(());
    }
    Err(format!(
        "ended with \"{error}\" ({error:?}); killed {:#x}, interrupted {:#x}, overflow {:?}",
        incarnation.killed, incarnation.interrupted, incarnation.facts.overflow
    ))
}

fn bits(ranks: RankRange) -> u64 {
    (ranks.first()..ranks.end()).fold(0, |all, rank| all | 1 << rank)
}

fn is_right(incarnation: &Incarnation, job: &TreeJob, failure: &TreeFailure) -> bool {
    let concern = &failure.concern;
    let named = job.switches.iter();
    let named = named
        .zip(&job.tree.nodes)
        .find(|(switch, _)| name(SwitchId(**switch as u16)) == concern.switch);
    let (Some((_, node)), Some(ranks)) = (named, concern.ranks) else {
        return false;
    };
    // A switch that is lost has all the ranks, one that lost a host has its rank.
    let range = ranks.first()..ranks.end();
    let is_of_switch = if concern.whole {
        range == node.ranks()
    } else {
        range.len() == 1 && node.ranks().contains(&range.start)
    };
    is_of_switch
        && match (failure.reason, failure.code()) {
            (Reason::MemberLost, _) => bits(ranks) & incarnation.excused() != 0,
            (Reason::MemberFailed, Some(LeaveCode::Overflow)) => {
                failure.fragment.is_some() && failure.fragment == incarnation.facts.overflow
            }
            (Reason::MemberFailed, Some(LeaveCode::Interrupted)) => {
                bits(ranks) & incarnation.interrupted != 0
            }
            _ => false,
        }
}
