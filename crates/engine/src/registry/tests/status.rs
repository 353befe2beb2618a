//! The members of a job, as reports show them.

use super::*;

#[test]
fn members_are_shown_with_their_place_silence_and_progress() {
    let net = Net::new();
    assert_eq!(net.registry.members(JOB, net.now), []);
    assert_eq!(net.registry.members(JobId(99), net.now), [], "no such job");
    let mut net = Net::running();
    for (worker, sent) in [(0, 2), (1, u32::MAX)] {
        net.peers[worker].join.sent = Some(FragmentId(sent));
        net.peers[worker].join.awaiting = 100 * worker as u16;
        net.join(worker);
    }
    net.now = net.now.after(ms(400));
    net.join(2);
    let members = net.registry.members(JOB, net.now);
    let ranks: Vec<_> = members.iter().map(|it| it.rank).collect();
    assert_eq!(ranks, [Rank(0), Rank(1), Rank(2), Rank::PS]);
    for (at, peer) in net.peers.iter().enumerate() {
        assert_eq!(members[at].member, peer.member);
        assert!(!members[at].left);
    }
    let silent: Vec<_> = members.iter().map(|it| it.silent >= ms(400)).collect();
    assert_eq!(silent, [true, true, false, true]);
    // Numbers wrap; who has said nothing is not behind.
    let behind: Vec<_> = members.iter().map(|it| (it.sent, it.behind)).collect();
    let (ahead, last) = (FragmentId(2), FragmentId(u32::MAX));
    assert_eq!(
        behind,
        [(Some(ahead), 0), (Some(last), 3), (None, 0), (None, 0)]
    );
    assert_eq!((members[0].awaiting, members[1].awaiting), (0, 100));
    net.leave(1, LeaveCode::Finished);
    let members = net.registry.members(JOB, net.now);
    assert!(members[1].left && !members[0].left);
}
