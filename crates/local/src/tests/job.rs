//! A job that several threads share.

use super::{ACCESS, Agent, HELLO, LONG, eventually, sum};
use crate::{
    Awaited, Caller, Job, JobError, Kind, Limits, Listener, LocalError, Peer, Ranks, Request,
};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Far less than [`LONG`], the time that a wait takes if no thread is woken.
const AT_ONCE: Duration = Duration::from_secs(5);

/// An agent that does what its test says, and a job at it.
fn pair(folder: &Path) -> (Peer, Job) {
    let path = folder.join("agent.sock");
    let mut listener = Listener::bind(&path, ACCESS).unwrap();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| Job::connect(&path, &HELLO, LONG, |_| true).unwrap());
        let Some(Caller::Process(pending)) = listener.next(LONG).unwrap() else {
            panic!("no process connected");
        };
        (pending.accept(Limits::default()), job.join().unwrap())
    })
}

/// The ticket of what the process submits next.
fn ticket(peer: &mut Peer) -> u64 {
    let mut found = None;
    eventually("a submission", || {
        if let Some(Request::Submit { ticket, .. }) = peer.receive().unwrap() {
            found = Some(ticket);
        }
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn threads_get_each_their_own_results() {
    let agent = Agent::new();
    let job = Job::connect(&agent.path(), &HELLO, LONG, |_| true).unwrap();
    std::thread::scope(|scope| {
        for n in 0..6_u8 {
            let job = &job;
            scope.spawn(move || {
                let bytes = 1000 * usize::from(n) + 4;
                for i in 0..50_u8 {
                    // Fewer regions are allowed than there are threads.
                    let block = loop {
                        match job.block("w", bytes) {
                            Ok(block) => break block,
                            Err(error) => assert_eq!(error.kind(), Kind::Limit, "{error}"),
                        }
                        std::thread::yield_now();
                    };
                    block.write(&vec![n ^ i; bytes]);
                    let done = job.submit_block(block, bytes / 4, &sum("w"), LONG);
                    let barrier = job.barrier("b", LONG).unwrap();
                    assert!(job.wait(barrier, LONG).unwrap().is_none());
                    let block = job.wait(done.unwrap(), LONG).unwrap().unwrap();
                    let mut got = vec![0; bytes];
                    block.read(&mut got);
                    job.give_back(block);
                    assert_eq!(got, vec![(n ^ i) + 1; bytes]);
                }
            });
        }
    });
    job.finish(LONG).unwrap();
    assert!(job.is_closed());
    assert!(matches!(job.barrier("late", LONG), Err(JobError::Closed)));
    assert!(matches!(job.finish(LONG), Err(JobError::Closed)));
}

#[test]
fn more_may_be_submitted_than_may_be_under_way_and_abandoned() {
    let agent = Agent::new();
    let job = Job::connect(&agent.path(), &HELLO, LONG, |_| true).unwrap();
    let region = job.region(400).unwrap();
    let submit = |n: usize| job.submit(&region, 4 * n, 1, &sum("w"), LONG).unwrap();
    let tickets: Vec<_> = (0..100).map(submit).collect();
    for odd in tickets.iter().skip(1).step_by(2) {
        job.abandon(*odd);
        let error = job.wait(*odd, Duration::ZERO).unwrap_err();
        // Abandoned, or done and so unknown.
        assert!([Kind::Argument, Kind::Timeout].contains(&error.kind()));
    }
    for even in tickets.iter().step_by(2) {
        job.wait(*even, LONG).unwrap();
        let again = job.wait(*even, LONG).unwrap_err();
        assert_eq!(again.kind(), Kind::Argument);
    }
    let end = job.barrier("end", LONG).unwrap();
    job.wait(end, LONG).unwrap();
    let mut got = [0; 400];
    region.read(0, &mut got);
    assert_eq!(got, [1; 400]);
    drop(job);
    // The memory outlives it.
    region.write(0, &got);
}

#[test]
fn a_thread_that_takes_anothers_message_wakes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut peer, job) = pair(folder.path());
    let never = job.barrier("never", LONG).unwrap();
    assert_eq!(ticket(&mut peer), never);
    for _ in 0..200 {
        let began = Instant::now();
        let waited_for = job.barrier("b", LONG).unwrap();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                job.wait(waited_for, LONG).unwrap();
                done.store(1, Ordering::Release);
            });
            let at = ticket(&mut peer);
            peer.complete(at);
            while done.load(Ordering::Acquire) == 0 {
                let error = job.wait(never, Duration::ZERO).unwrap_err();
                assert_eq!(error.kind(), Kind::Timeout);
            }
        });
        assert!(began.elapsed() < AT_ONCE, "it was not woken");
    }
}

#[test]
fn a_waiting_thread_hears_of_the_end_at_once_and_where_it_was() {
    for (how, kind) in [
        ("abort", Kind::Closed),
        ("gone", Kind::AgentGone),
        ("late", Kind::Timeout),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (peer, job) = pair(folder.path());
        let tickets = [0, 1, 2].map(|_| job.barrier("layer1", LONG).unwrap());
        let most = if how == "late" { AT_ONCE / 50 } else { LONG };
        let began = Instant::now();
        let mut peer = Some(peer);
        std::thread::scope(|scope| {
            let job = &job;
            let threads = tickets.map(|it| scope.spawn(move || job.wait(it, most)));
            std::thread::sleep(Duration::from_millis(20));
            match how {
                "abort" => job.abort(),
                "gone" => drop(peer.take()),
                _ => {}
            }
            for thread in threads {
                let error = thread.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), kind, "{how}: {error}");
                assert!(
                    kind == Kind::Closed || error.to_string().contains("`layer1`"),
                    "{error}"
                );
            }
        });
        assert!(began.elapsed() < AT_ONCE, "{how}");
    }
}

#[test]
fn a_limit_names_the_tensor_and_the_job_continues() {
    let agent = Agent::new();
    let job = Job::connect(&agent.path(), &HELLO, LONG, |_| true).unwrap();
    for bytes in [1 << 21, usize::MAX] {
        let error = job.block("layer9", bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Limit);
        let text = error.to_string();
        assert!(
            text.contains("`layer9`") && text.contains("memory_mib"),
            "{text}"
        );
    }
    let region = job.region(8).unwrap();
    let error = job.submit(&region, 8, 1, &sum("w"), LONG).unwrap_err();
    let JobError::Local { error, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(error, LocalError::Argument(_)));
    let ticket = job.submit(&region, 4, 1, &sum("w"), LONG).unwrap();
    job.wait(ticket, LONG).unwrap();
    job.finish(LONG).unwrap();
}

/// The question that the process asks next.
fn question(peer: &mut Peer) -> u64 {
    let mut found = None;
    eventually("a question", || {
        if let Some(Request::Ask { question }) = peer.receive().unwrap() {
            found = Some(question);
        }
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_wait_that_ends_names_the_ranks_and_may_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (mut peer, job) = pair(folder.path());
    let barrier = job.barrier("layer1", LONG).unwrap();
    assert_eq!(ticket(&mut peer), barrier);
    let short = Duration::from_millis(20);
    let late = || job.wait(barrier, short).unwrap_err();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| job.explain(late()));
        let asked = question(&mut peer);
        let (ranks, text) = (
            Ranks::of_bits(0b1010),
            "ranks 1, 3 have not contributed".into(),
        );
        peer.notify(asked, Awaited { ranks, text });
        let error = waiter.join().unwrap();
        assert!(error.is_late());
        assert_eq!(
            (error.kind(), error.ranks()),
            (Kind::Timeout, Ranks::of_bits(0b1010))
        );
        assert_eq!(
            error.after(LONG).to_string(),
            "job 7 rank 1: `layer1` takes more than 20s: ranks 1, 3 have not contributed"
        );
    });
    // An agent that does not answer, and answers late.
    let began = Instant::now();
    let error = job.explain(late());
    assert!((Duration::from_secs(1)..AT_ONCE).contains(&began.elapsed()));
    let want = format!(
        "agent at {} does not answer",
        folder.path().join("agent.sock").display()
    );
    assert!(error.to_string().contains(&want), "{error}");
    assert_eq!((error.is_late(), error.ranks()), (true, Ranks::NONE));
    let asked = question(&mut peer);
    peer.notify(asked, Awaited::default());
    peer.complete(barrier);
    job.wait(barrier, LONG).unwrap();
    // A job that fails meanwhile.
    let last = job.barrier("last", LONG).unwrap();
    assert_eq!(ticket(&mut peer), last);
    let late = job.wait(last, short).unwrap_err();
    drop(peer);
    let error = job.explain(late);
    assert_eq!(error.kind(), Kind::AgentGone, "{error}");
}

#[test]
fn a_client_s_wait_names_the_ranks_and_may_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let mut listener = Listener::bind(&path, ACCESS).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut client = crate::Client::connect(&path, &HELLO, LONG).unwrap();
            let ticket = client.barrier("b").unwrap();
            let short = Some(Duration::from_millis(20));
            let error = client.wait(ticket, short).unwrap_err();
            client.wait(ticket, Some(LONG)).unwrap();
            error
        });
        let Some(Caller::Process(pending)) = listener.next(LONG).unwrap() else {
            panic!("no process connected");
        };
        let mut peer = pending.accept(Limits::default());
        let barrier = ticket(&mut peer);
        let asked = question(&mut peer);
        let (ranks, text) = (Ranks::of_bits(0b1), "rank 0 has not contributed".into());
        peer.notify(asked, Awaited { ranks, text });
        std::thread::sleep(Duration::from_millis(50));
        peer.complete(barrier);
        let error = JobError::from(client.join().unwrap());
        assert_eq!(error.ranks().bits(), 0b1, "{error}");
        assert!(error.to_string().ends_with(": rank 0 has not contributed"));
    });
}

#[test]
fn fallbacks_reach_the_agent_and_never_wait_for_it() {
    let agent = Agent::new();
    let job = Job::connect(&agent.path(), &HELLO, LONG, |_| true).unwrap();
    for kind in ["", "all gather", &"x".repeat(33), "größe"] {
        let error = job.report_fallback(kind, 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Argument, "{error}");
    }
    job.report_fallback("all_gather", 2).unwrap();
    job.report_fallback("all_gather", 3).unwrap();
    job.report_fallback("send", 1).unwrap();
    job.finish(LONG).unwrap();
    let counts = agent.counts.fallbacks.lock().unwrap().clone();
    let want = [("all_gather".to_owned(), 5), ("send".to_owned(), 1)];
    assert_eq!(*counts.counts(), want.into());
    job.report_fallback("send", 1).unwrap();

    // An agent that reads nothing, until it does.
    let folder = tempfile::tempdir().unwrap();
    let (mut peer, job) = pair(folder.path());
    let began = Instant::now();
    for _ in 0..50_000 {
        job.report_fallback("all_gather", 1).unwrap();
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    let mut all = 0;
    let mut count = |peer: &mut Peer| {
        while let Some(request) = peer.receive().unwrap() {
            let Request::Fallback { count, .. } = request else {
                panic!("{request:?}");
            };
            all += count;
        }
        all
    };
    let read = count(&mut peer);
    assert!(read < 50_000, "the socket held them all");
    job.report_fallback("all_gather", 1).unwrap();
    assert_eq!(count(&mut peer), 50_001);
    // All are sent before the job is left.
    for _ in 0..50_000 {
        job.report_fallback("all_gather", 1).unwrap();
    }
    std::thread::scope(|scope| {
        let finish = scope.spawn(|| job.finish(LONG));
        let mut all = 0;
        eventually("the end", || match peer.receive().unwrap() {
            Some(Request::Fallback { count, .. }) => {
                all += count;
                false
            }
            Some(Request::Finish) => true,
            other => {
                assert!(other.is_none(), "{other:?}");
                false
            }
        });
        peer.finished();
        finish.join().unwrap().unwrap();
        assert_eq!(all, 50_000);
    });
    // Later reports are ignored.
    drop(peer);
    job.report_fallback("all_gather", 1).unwrap();
}
