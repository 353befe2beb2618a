//! Hosts whose ranks are one worker (ADR 43): the real program at the naive switch of the loopback
//! interface, which counts hosts, and the processes of all of them. Sums are compared with ones
//! made here.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use rig::agent::{Agent, WAIT_MAX as LONG, config, eventually};
use rig::common::Rng;
use rig::common::switch::{Habits, Switch};
use rig::{Rig, write_config};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tally_local::{
    Arithmetic, Class, Client, Dtype, Failure, Hello, LocalError, Operation, Priority, Region,
    Submission,
};

const HABITS: Habits = Habits {
    collide: 100,
    preempt: 100,
    mark: 50,
};

/// An agent that serves the ranks of all hosts.
struct Hosts {
    agent: Agent,
    hosts: u16,
    each: u16,
}

impl Hosts {
    fn new(hosts: u8, each: u16, habits: Habits, arguments: &[&str]) -> Self {
        Self::with(Rig::new(hosts, habits, true), each, arguments, |text| text)
    }

    fn with(
        rig: Rig,
        each: u16,
        arguments: &[&str],
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let hosts = u16::from(rig.workers);
        let agent = Agent::changed(rig, arguments, |folder| {
            let path = folder.join("agent.json");
            let text = std::fs::read_to_string(&path).unwrap();
            let workers = format!("\"workers\": {}, \"ranks_per_host\": {each}", hosts * each);
            let text = text.replace(&format!("\"workers\": {hosts}"), &workers);
            write_config(&path, &change(text));
        });
        Self { agent, hosts, each }
    }

    fn ranks(&self) -> u16 {
        self.hosts * self.each
    }

    fn connect(&self, rank: u16) -> Client {
        let hello = Hello {
            job: 7,
            rank,
            workers: self.ranks(),
        };
        Client::connect(&self.agent.socket(), &hello, LONG).unwrap()
    }

    /// `work` at all ranks at once.
    fn all<T: Send>(&self, work: impl Fn(u16, Client) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let start = |rank| scope.spawn(move || work(rank, self.connect(rank)));
            let threads: Vec<_> = (0..self.ranks()).map(start).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    /// That all ranks sum, and leave.
    fn works(&self) {
        let ranks = self.ranks();
        self.all(|rank, mut client| {
            let region = client.region(400).unwrap();
            put(&region, &whole(rank, 100));
            let ticket = client.submit(&region, 0, 100, &sum("w")).unwrap();
            client.wait(ticket, Some(LONG)).unwrap();
            assert_eq!(get(&region, 100), sum_of_whole(ranks, 100));
            client.finish(Some(LONG)).unwrap();
        });
    }
}

fn submission(operation: Operation, dtype: Dtype, arithmetic: Arithmetic) -> Submission {
    Submission {
        operation,
        dtype,
        arithmetic,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    }
}

fn sum(name: &str) -> Submission {
    let name = name.into();
    let sum = submission(Operation::Sum, Dtype::F32, Arithmetic::Fixed);
    Submission { name, ..sum }
}

/// A rank's elements: whole numbers, whose sums are exact however they are made.
fn whole(rank: u16, elements: usize) -> Vec<f32> {
    let mut rng = Rng(u64::from(rank) << 32 | elements as u64);
    let mut element = || (rng.below(2000) as f32) - 1000.0;
    (0..elements).map(|_| element()).collect()
}

fn sum_of_whole(ranks: u16, elements: usize) -> Vec<f32> {
    let all: Vec<_> = (0..ranks).map(|rank| whole(rank, elements)).collect();
    let of = |i: usize| all.iter().map(|it| it[i]).sum();
    (0..elements).map(of).collect()
}

fn put(region: &Region, values: &[f32]) {
    let bytes: Vec<_> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    region.write(0, &bytes);
}

fn get(region: &Region, elements: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * elements];
    region.read(0, &mut bytes);
    let words = bytes.as_chunks().0.iter();
    words.map(|word| f32::from_ne_bytes(*word)).collect()
}

/// A collective's failure.
fn failure(done: Result<(), LocalError>) -> Failure {
    match done.unwrap_err() {
        LocalError::Failed { failure, .. } => failure,
        other => panic!("{other}"),
    }
}

/// Submits a barrier, and waits for it.
fn barrier(client: &mut Client, name: &str) -> Result<(), LocalError> {
    let ticket = client.barrier(name)?;
    client.wait(ticket, Some(LONG))
}

#[test]
fn every_rank_of_every_host_gets_the_sum_with_any_losses() {
    for (hosts, each) in [(2, 2), (3, 1), (1, 3), (2, 4)] {
        let all = Hosts::new(hosts, each, HABITS, &["--loss", "0.02"]);
        let ranks = all.ranks();
        all.all(|rank, mut client| {
            for n in [0, 1, 63, 64, 65, 5001] {
                for arithmetic in Arithmetic::ALL {
                    let region = client.region(4 * n + 4).unwrap();
                    put(&region, &whole(rank, n));
                    let what = submission(Operation::Sum, Dtype::F32, arithmetic);
                    let ticket = client.submit(&region, 0, n, &what).unwrap();
                    client.wait(ticket, Some(LONG)).unwrap();
                    assert_eq!(
                        get(&region, n),
                        sum_of_whole(ranks, n),
                        "{n} {arithmetic:?}"
                    );
                }
                let region = client.region(4 * n + 4).unwrap();
                put(&region, &whole(rank, n));
                let mean = submission(Operation::Mean, Dtype::F32, Arithmetic::Native);
                let ticket = client.submit(&region, 0, n, &mean).unwrap();
                client.wait(ticket, Some(LONG)).unwrap();
                let want = sum_of_whole(ranks, n);
                let want: Vec<_> = want.iter().map(|it| it / f32::from(ranks)).collect();
                assert_eq!(get(&region, n), want);
            }
            for root in 0..ranks {
                let region = client.region(4000).unwrap();
                put(&region, &whole(rank, 1000));
                let what = submission(Operation::Broadcast { root }, Dtype::F32, Arithmetic::Own);
                let ticket = client.submit(&region, 0, 1000, &what).unwrap();
                client.wait(ticket, Some(LONG)).unwrap();
                assert_eq!(get(&region, 1000), whole(root, 1000));
            }
            barrier(&mut client, "end").unwrap();
            client.finish(Some(LONG)).unwrap();
        });
    }
}

/// Hosts sum their ranks in order, and the switch the hosts: every rank has the bits of that fold.
#[test]
fn the_fold_is_that_of_ranks_in_hosts_and_of_hosts_at_the_switch() {
    let all = Hosts::new(2, 3, HABITS, &[]);
    let value = |rank: u16, i: usize| 0.1 + f32::from(rank) * 1e7 * (1.0 + i as f32 / 7.0).sin();
    let fold = |i: usize| {
        let host = |ranks: std::ops::Range<u16>| ranks.map(|r| value(r, i)).reduce(|a, b| a + b);
        host(0..3).unwrap() + host(3..6).unwrap()
    };
    let want: Vec<_> = (0..1000).map(|i| fold(i).to_bits()).collect();
    let flat = |i: usize| (0..6).map(|r| value(r, i)).reduce(|a, b| a + b).unwrap();
    assert!(
        (0..1000).any(|i| flat(i).to_bits() != want[i]),
        "else it shows nothing"
    );
    all.all(|rank, mut client| {
        let region = client.region(4000).unwrap();
        put(
            &region,
            &(0..1000).map(|i| value(rank, i)).collect::<Vec<_>>(),
        );
        let what = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
        let ticket = client.submit(&region, 0, 1000, &what).unwrap();
        client.wait(ticket, Some(LONG)).unwrap();
        let bits: Vec<_> = get(&region, 1000).iter().map(|it| it.to_bits()).collect();
        assert_eq!(bits, want, "rank {rank}");
        client.finish(Some(LONG)).unwrap();
    });
}

#[test]
fn a_rank_that_dies_is_named_on_its_host_and_all_can_start_again() {
    let all = Hosts::new(2, 2, Habits::default(), &[]);
    let have_begun = Barrier::new(4);
    let failures = all.all(|rank, mut client| {
        barrier(&mut client, "begun").unwrap();
        have_begun.wait();
        (rank != 3).then(|| failure(barrier(&mut client, "never")))
    });
    let [Some(first), Some(second), Some(host), None] = &failures[..] else {
        panic!("{failures:?}");
    };
    let pid = std::process::id();
    assert_eq!((host.class, host.ranks.bits()), (Class::Member, 0b1000));
    let want = format!("rank 3 (process {pid} of this host) ended without leaving the job");
    assert!(host.text.starts_with(&want), "{}", host.text);
    for other in [first, second] {
        assert_eq!((other.class, other.ranks.bits()), (Class::Member, 0b1100));
        let text = &other.text;
        assert!(
            text.contains("rank 1 left the job because of an error"),
            "{text}"
        );
        assert!(
            text.contains("(ranks here are hosts: rank 1 is ranks 2 to 3 of the job)"),
            "{text}"
        );
    }
    all.agent.logs(&format!("job 7 ranks 2 to 3: {want}"));
    // At once.
    all.works();
}

#[test]
fn a_rank_that_brings_something_else_is_named_before_anything_is_sent() {
    let all = Hosts::new(2, 3, Habits::default(), &[]);
    let have_begun = Barrier::new(6);
    let failures = all.all(|rank, mut client| {
        barrier(&mut client, "begun").unwrap();
        have_begun.wait();
        let region = client.region(4096).unwrap();
        let elements = if rank == 4 { 999 } else { 1000 };
        let ticket = client.submit(&region, 0, elements, &sum("layer1.weight"));
        let ticket = ticket.unwrap();
        failure(client.wait(ticket, Some(LONG)))
    });
    for failure in &failures[3..] {
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Mismatch, 1 << 4)
        );
        let text = &failure.text;
        let brings = "rank 4 brings a sum of 999 F32 in block fixed point called \"layer1.weight\"";
        assert!(text.contains(brings), "{text}");
        assert!(
            text.contains("ranks 3, 5 bring a sum of 1000 F32"),
            "{text}"
        );
    }
    for failure in &failures[..3] {
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Member, 0b11_1000)
        );
    }
    all.works();
}

/// Both ranks of the root's host would make the same bytes of it.
#[test]
fn hosts_that_broadcast_from_other_ranks_of_one_host_differ() {
    let mut switch = Switch::new(2, Habits::default());
    switch.strict = false;
    let all = Hosts::with(Rig::with(2, switch, true), 2, &[], |text| text);
    let failures = all.all(|rank, mut client| {
        let region = client.region(4096).unwrap();
        let root = if rank < 2 { 2 } else { 3 };
        let what = submission(Operation::Broadcast { root }, Dtype::F32, Arithmetic::Own);
        let ticket = client.submit(&region, 0, 100, &what).unwrap();
        failure(client.wait(ticket, Some(LONG)))
    });
    for failure in failures {
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Mismatch, 0b1111)
        );
        let text = &failure.text;
        assert!(
            text.contains("from rank 2") && text.contains("from rank 3"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_after_the_time_to_join() {
    let short = |text: String| text.replace("\"join_ms\": 20000", "\"join_ms\": 700");
    let all = Hosts::with(Rig::new(2, Habits::default(), true), 2, &[], short);
    let mut first = all.connect(2);
    let began = Instant::now();
    eventually("waiting for rank 3 of this host", || {
        String::from_utf8(all.agent.ask(&[]).stdout).unwrap()
    });
    let failure = failure(barrier(&mut first, "never"));
    assert_eq!((failure.class, failure.ranks.bits()), (Class::Join, 0b1000));
    let want = "rank 3 of this host did not come within 700ms: the agent's `ranks_per_host` is 2";
    assert!(failure.text.starts_with(want), "{}", failure.text);
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(600) && took < Duration::from_secs(5),
        "{took:?}"
    );
    all.works();
}

#[test]
fn a_rank_that_waits_for_others_of_its_host_is_told_which() {
    let short = |text: String| text.replace("\"join_ms\"", "\"stall_ms\": 2500, \"join_ms\"");
    let all = Hosts::with(Rig::new(2, Habits::default(), true), 2, &[], short);
    let (have_begun, have_ended) = (Barrier::new(4), Barrier::new(4));
    let results = all.all(|rank, mut client| {
        barrier(&mut client, "begun").unwrap();
        have_begun.wait();
        // The other host's ranks would hear of it as early.
        if rank >= 2 {
            std::thread::sleep(Duration::from_secs(1));
        }
        let result = (rank != 1).then(|| {
            let began = Instant::now();
            let ticket = client.barrier("the next").unwrap();
            let late = client.wait(ticket, Some(Duration::from_millis(500)));
            let failure = failure(client.wait(ticket, Some(LONG)));
            (late.unwrap_err(), failure, began.elapsed())
        });
        have_ended.wait();
        result
    });
    let (late, failure, took) = results[0].as_ref().unwrap();
    let LocalError::Timeout { awaited, .. } = late else {
        panic!("{late}");
    };
    assert_eq!(awaited.ranks.bits(), 0b10);
    let want = "waiting for the next: rank 1 of this host did not submit it";
    assert!(awaited.text.starts_with(want), "{}", awaited.text);
    assert_eq!(
        (failure.class, failure.ranks.bits()),
        (Class::Silence, 0b10)
    );
    assert!(failure.text.starts_with(want), "{}", failure.text);
    assert!(
        *took >= Duration::from_millis(2400) && *took < Duration::from_secs(8),
        "{took:?}"
    );
    // Ranks of the other host know the host, from the switch.
    let (_, failure, _) = results[2].as_ref().unwrap();
    let names = failure.ranks.bits();
    assert!(
        names == 0b11 || failure.class == Class::Member,
        "{failure:?}"
    );
    all.works();
}

#[test]
fn a_sum_that_overflows_in_a_host_ends_the_job_at_all_ranks() {
    let all = Hosts::new(2, 2, Habits::default(), &[]);
    let failures = all.all(|rank, mut client| {
        let region = client.region(4000).unwrap();
        // Each host overflows by itself, and the sum of all would be in range.
        let value = if rank < 2 { i32::MAX } else { i32::MIN };
        region.write(0, &value.to_ne_bytes().repeat(1000));
        let what = submission(Operation::Sum, Dtype::I32, Arithmetic::Own);
        let ticket = client.submit(&region, 0, 1000, &what).unwrap();
        failure(client.wait(ticket, Some(LONG)))
    });
    for failure in failures {
        assert_eq!(failure.class, Class::Overflow, "{}", failure.text);
    }
    all.works();
}

#[test]
fn a_rank_that_has_left_does_not_keep_its_host() {
    let all = Hosts::new(1, 2, Habits::default(), &[]);
    let (have_begun, has_left) = (Barrier::new(2), Barrier::new(2));
    all.all(|rank, mut client| {
        barrier(&mut client, "begun").unwrap();
        have_begun.wait();
        if rank == 0 {
            let began = Instant::now();
            client.finish(Some(LONG)).unwrap();
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "it waits for no other"
            );
            has_left.wait();
        } else {
            has_left.wait();
            let failure = failure(barrier(&mut client, "the next"));
            assert_eq!((failure.class, failure.ranks.bits()), (Class::Member, 1));
            let want = "rank 0 has left the job, and other ranks of its host submit the next";
            assert_eq!(failure.text, want);
        }
    });
    all.works();
}

#[test]
fn status_shows_each_rank_and_the_job_that_it_is_of() {
    let all = Hosts::new(2, 2, Habits::default(), &[]);
    let said = || String::from_utf8(all.agent.ask(&[]).stdout).unwrap();
    let mut first: Vec<_> = (0..2).map(|rank| all.connect(rank)).collect();
    eventually("waiting for ranks 2, 3", &said);
    let mut more: Vec<_> = (2..4).map(|rank| all.connect(rank)).collect();
    let mut clients: Vec<_> = first.iter_mut().chain(&mut more).collect();
    let tickets: Vec<_> = clients
        .iter_mut()
        .map(|it| it.barrier("b").unwrap())
        .collect();
    for (client, ticket) in clients.iter_mut().zip(tickets) {
        client.wait(ticket, Some(LONG)).unwrap();
    }
    eventually("4 of them here", &said);
    eventually("done by kind: barrier 1", &said);
    let json = String::from_utf8(all.agent.ask(&["--json"]).stdout).unwrap();
    let status: tally_schema::agent::status::Status =
        tally_config::parse("status", json.as_bytes()).unwrap();
    let ranks: Vec<_> = status.jobs[0].ranks.iter().map(|it| it.rank).collect();
    assert_eq!((ranks, status.jobs[0].workers), (vec![0, 1, 2, 3], 4));
}

#[test]
fn a_configuration_of_no_whole_hosts_is_refused() {
    let rig = Rig::new(3, Habits::default(), false);
    let folder = tempfile::tempdir().unwrap();
    let text =
        config(&rig, &folder).replace("\"workers\": 3", "\"workers\": 3, \"ranks_per_host\": 2");
    let path = folder.path().join("agent.json");
    write_config(&path, &text);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(["serve", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let want = "jobs[0].ranks_per_host: found 2, expected a divisor of 3, the job's workers";
    assert!(text.contains(want), "{text}");
}
