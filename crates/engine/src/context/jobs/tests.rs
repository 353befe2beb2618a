use super::*;
use crate::Member;
use crate::plain::{host, secret};

const JOB: JobId = JobId(7);
const FIRST: DialectId = DialectId(0);
const CARD: DialectId = DialectId(2);

fn roster(epoch: u16, ps: Member) -> Arc<Roster> {
    let (epoch, workers) = (Epoch(epoch), vec![host(1), host(2)]);
    let secret = secret(JOB, epoch);
    Arc::new(Roster::new(JOB, epoch, secret, 1, workers, ps))
}

#[test]
fn a_job_is_served_by_one_dialect_at_a_time() {
    let mut jobs = Jobs::default();
    let serve = |jobs: &mut Jobs, epoch| jobs.serve(JOB, Some(Epoch(epoch)), CARD, 0).is_some();
    assert!(!serve(&mut jobs, 1), "it does not run");
    assert_eq!(jobs.bind(&roster(1, host(3)), FIRST), (FIRST, None));
    assert!(!serve(&mut jobs, 2), "not this epoch");
    assert!(!jobs.is_moved(JOB) && jobs.server(JOB) == Some(FIRST));
    assert!(serve(&mut jobs, 1));
    assert!(!serve(&mut jobs, 1), "it is there");
    assert!(jobs.is_moved(JOB) && jobs.server(JOB) == Some(CARD));
    assert_eq!(
        (jobs.served_by(CARD), jobs.served_by(FIRST)),
        (vec![JOB], vec![])
    );
    // The PS has another address: the card's affair, and the first dialect hears nothing.
    assert_eq!(jobs.bind(&roster(1, host(9)), FIRST), (CARD, None));
    assert!(jobs.is_moved(JOB));
    let bound = jobs.serve(JOB, None, FIRST, 0).unwrap();
    assert_eq!(bound.servers, [host(9)]);
    assert!(!jobs.is_moved(JOB) && jobs.serve(JOB, None, FIRST, 0).is_none());
}

#[test]
fn another_epoch_begins_at_the_first_dialect() {
    let mut jobs = Jobs::default();
    jobs.bind(&roster(1, host(3)), FIRST);
    assert_eq!(jobs.bind(&roster(2, host(3)), FIRST), (FIRST, None));
    jobs.serve(JOB, Some(Epoch(2)), CARD, 5).unwrap();
    let bound = jobs.bind(&roster(3, host(3)), FIRST);
    assert_eq!(bound, (FIRST, Some(CARD)), "the card is to release it");
    assert!(!jobs.is_moved(JOB) && jobs.served_by(CARD).is_empty());
    let arrivals: Vec<_> = jobs.arrivals().collect();
    assert_eq!(arrivals, [(JOB, FIRST, 0)], "of the epoch that runs");
}

#[test]
fn an_ended_job_is_nowhere() {
    let mut jobs = Jobs::default();
    jobs.bind(&roster(1, host(3)), FIRST);
    jobs.serve(JOB, Some(Epoch(1)), CARD, 0).unwrap();
    jobs.unbind(JOB);
    assert!(!jobs.is_moved(JOB) && jobs.server(JOB).is_none());
    assert!(jobs.served_by(CARD).is_empty() && jobs.arrivals().next().is_none());
    assert!(jobs.serve(JOB, None, FIRST, 0).is_none());
}

#[test]
fn contributions_are_counted_across_moves() {
    let mut jobs = Jobs::default();
    jobs.bind(&roster(1, host(3)), FIRST);
    let earlier = |jobs: &Jobs| jobs.arrivals().next().unwrap().2;
    jobs.serve(JOB, Some(Epoch(1)), CARD, 5).unwrap();
    assert_eq!(earlier(&jobs), 5);
    // A move that is refused counts nothing.
    assert!(jobs.serve(JOB, Some(Epoch(2)), FIRST, 100).is_none());
    assert!(jobs.serve(JOB, None, CARD, 100).is_none());
    assert_eq!(earlier(&jobs), 5);
    jobs.serve(JOB, None, FIRST, 3).unwrap();
    assert_eq!(earlier(&jobs), 8);
    // Another address is no move.
    jobs.bind(&roster(1, host(9)), FIRST);
    assert_eq!(earlier(&jobs), 8);
}
