//! Without aggregation everything is the PS's, and nothing has met a collision.

use super::*;

#[test]
fn every_contribution_goes_to_the_ps_and_no_slot_is_taken() {
    let mut w = World::new(PolicyName::None, 8);
    for rank in 0..3 {
        let sent = w.data(0, rank, 5);
        assert_eq!(sent, [partial(0, 1 << rank, 5)]);
        let expected = flagged(partial(0, 1 << rank, 5), Flags::RESEND);
        assert_eq!(w.resend(0, rank, 5), [expected]);
    }
    assert_eq!(w.taken(), 0);
    let c = w.shard.counters();
    assert_eq!((c.partials, c.resends_to_ps, c.collisions), (6, 3, 0));
}

#[test]
fn results_of_the_ps_pass_and_stay_in_the_ring() {
    let mut w = World::new(PolicyName::None, 8);
    w.data(0, 0, 5);
    let expected = published(result_of(Rank::SWITCH, 0), ints(111), None);
    let sent = w.say(result_of(Rank::PS, 0), 111);
    assert_eq!(sent, [flagged(expected, Flags::FROM_PS)]);
    assert_eq!(
        w.resend(0, 2, 1),
        [Sent::Retransmit(Rank(2), PortId(2), ints(111))]
    );
    w.dropped(DropReason::Late, |w| w.data(0, 1, 1));
    assert_eq!(w.say(ps(Kind::Remind, 1), 0).len(), 1, "not here");
}
