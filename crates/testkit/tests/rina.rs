//! Rina with real agents, switches and processes: racks of both kinds, every sum and the bits of
//! every rank, loss, a switch that restarts, members that die, and strangers at their ports.
//!
//! Uses the release programs (`cargo build --release`), and needs root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tally_local::{
    Arithmetic, Class, Client, Dtype, Hello, LocalError, Operation, Priority, Region, Submission,
};
use tally_testkit::cluster::{Program, Timeouts, allowed, prefixed};
use tally_testkit::racks::{RackSpec, Racks, RacksSpec};

const LONG: Duration = Duration::from_secs(60);

/// Racks in words: `T2,P1` is a rack of two hosts that sums, and one of one host that does not.
fn racks(words: &str) -> RacksSpec {
    let rack = |word: &str| RackSpec {
        sums: word.starts_with('T'),
        hosts: word[1..].parse().unwrap(),
    };
    RacksSpec::new(words.split(',').map(rack).collect(), programs())
}

/// Short timeouts, for what must fail.
fn hasty(mut spec: RacksSpec) -> RacksSpec {
    spec.timeouts = Timeouts {
        join_ms: 3000,
        stall_ms: 2000,
        ..Timeouts::default()
    };
    spec
}

/// Connects a rank of a job.
fn connect(racks: &Racks, job: u16, rank: u16) -> Client {
    let spec = racks.spec();
    let hello = Hello {
        job: Racks::job_id(job),
        rank,
        workers: spec.hosts() as u16 * spec.ranks_per_host,
    };
    let socket = racks.socket(usize::from(rank / spec.ranks_per_host));
    let deadline = Instant::now() + LONG;
    loop {
        match Client::connect(&socket, &hello, LONG) {
            Ok(client) => return client,
            Err(LocalError::Refused { failure, .. }) if failure.class == Class::Leaving => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Does something at all ranks of a job, each in a thread.
fn at<T: Send>(racks: &Racks, job: u16, work: impl Fn(u16, &mut Client) -> T + Sync) -> Vec<T> {
    let spec = racks.spec();
    let ranks = spec.hosts() as u16 * spec.ranks_per_host;
    let work = &work;
    std::thread::scope(|scope| {
        let run = move |rank| {
            let mut client = connect(racks, job, rank);
            work(rank, &mut client)
        };
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || run(rank)))
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
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

/// A whole number, whose sums are exact however they are made.
fn number(rank: u16, at: usize, most: i32) -> i32 {
    let all = 2 * most + 1;
    (at as i32 * 31 + i32::from(rank) * 17) % all - most
}

fn bytes_of(dtype: Dtype, value: i32) -> Vec<u8> {
    match dtype {
        Dtype::F32 => (value as f32).to_ne_bytes().to_vec(),
        Dtype::I32 => value.to_ne_bytes().to_vec(),
        Dtype::I16 => (value as i16).to_ne_bytes().to_vec(),
        Dtype::I8 => vec![(value as i8).to_ne_bytes()[0]],
        // The upper half of a single has eight bits of a number.
        Dtype::Bf16 => ((value as f32).to_bits() >> 16).to_ne_bytes()[..2].to_vec(),
        Dtype::F16 => half(value).to_ne_bytes().to_vec(),
    }
}

/// A number below 2048 as an IEEE half.
fn half(value: i32) -> u16 {
    if value == 0 {
        return 0;
    }
    let sign = u16::from(value < 0) << 15;
    let magnitude = value.unsigned_abs();
    let exponent = magnitude.ilog2();
    let fraction = (magnitude << (10 - exponent)) as u16 & 0x3ff;
    sign | ((exponent as u16 + 15) << 10) | fraction
}

fn whole(
    client: &mut Client,
    region: &Region,
    of: &Submission,
    elements: usize,
    bytes: &[u8],
) -> Result<Vec<u8>, LocalError> {
    region.write(0, bytes);
    let ticket = client.submit(region, 0, elements, of)?;
    client.wait(ticket, Some(LONG))?;
    let mut out = vec![0; bytes.len()];
    region.read(0, &mut out);
    Ok(out)
}

/// One collective, whose results are compared with what they must be.
fn check(
    client: &mut Client,
    region: &Region,
    (rank, ranks): (u16, u16),
    of: &Submission,
    elements: usize,
) -> Result<(), LocalError> {
    // Sums of up to eight ranks must fit, and bf16 has eight bits.
    let most = match of.dtype {
        Dtype::I8 | Dtype::Bf16 | Dtype::F16 => 15,
        _ => 1000,
    };
    let values = (0..elements).flat_map(|at| bytes_of(of.dtype, number(rank, at, most)));
    let out = whole(client, region, of, elements, &values.collect::<Vec<_>>())?;
    let want = (0..elements).flat_map(|at| {
        let sum: i32 = (0..ranks).map(|rank| number(rank, at, most)).sum();
        match of.operation {
            Operation::Broadcast { root } => bytes_of(of.dtype, number(root, at, most)),
            Operation::Mean if of.dtype == Dtype::F32 => {
                (sum as f32 / f32::from(ranks)).to_ne_bytes().to_vec()
            }
            Operation::Mean => bytes_of(of.dtype, sum / i32::from(ranks)),
            _ => bytes_of(of.dtype, sum),
        }
    });
    let want: Vec<u8> = want.collect();
    let first = out.iter().zip(&want).position(|(a, b)| a != b);
    assert_eq!(first, None, "rank {rank}: {of:?} of {elements}");
    Ok(())
}

/// All kinds and types, few and many elements; then floats whose sums depend on their order, of
/// which all ranks must have the same bits.
fn all_kinds(rank: u16, ranks: u16, client: &mut Client) -> Vec<Vec<u8>> {
    use {Arithmetic as A, Dtype as D, Operation as O};
    let region = client.region(4 << 20).unwrap();
    let of = (rank, ranks);
    let root = ranks - 1;
    for (operation, dtype, arithmetic) in [
        (O::Sum, D::F32, A::Native),
        (O::Sum, D::F32, A::Fixed),
        (O::Mean, D::F32, A::Native),
        (O::Mean, D::F32, A::Fixed),
        (O::Sum, D::I32, A::Native),
        (O::Mean, D::I32, A::Native),
        (O::Sum, D::I16, A::Native),
        (O::Sum, D::I8, A::Native),
        (O::Sum, D::Bf16, A::Own),
        (O::Sum, D::Bf16, A::Fixed),
        (O::Sum, D::F16, A::Native),
        (O::Broadcast { root }, D::F32, A::Native),
        (O::Broadcast { root: 0 }, D::I8, A::Native),
    ] {
        let submission = submission(operation, dtype, arithmetic);
        for elements in [0, 1, 2, 1001] {
            check(client, &region, of, &submission, elements).unwrap();
        }
    }
    for arithmetic in [A::Native, A::Fixed] {
        let submission = submission(O::Sum, D::F32, arithmetic);
        check(client, &region, of, &submission, 300_007).unwrap();
    }
    let ticket = client.barrier("b").unwrap();
    client.wait(ticket, Some(LONG)).unwrap();
    let uneven = |at: usize| (number(rank, at, 1000) as f32 * 0.1).powi(3);
    let bytes: Vec<u8> = (0..50_001)
        .flat_map(|at| uneven(at).to_ne_bytes())
        .collect();
    let mut results = Vec::new();
    for arithmetic in [A::Native, A::Fixed] {
        let of = submission(O::Sum, D::F32, arithmetic);
        results.push(whole(client, &region, &of, 50_001, &bytes).unwrap());
    }
    client.finish(Some(LONG)).unwrap();
    results
}

fn assert_all_alike(results: &[Vec<Vec<u8>>]) {
    assert!(results.iter().all(|it| *it == results[0]), "other bits");
}

/// Sums in each of these racks, and how often in a row with the same agents.
fn sums_in(rings: &[(&str, usize)]) {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let mut fixed = Vec::new();
    for &(words, times) in rings {
        eprintln!("{words}");
        let racks = Racks::start(racks(words)).unwrap();
        for _ in 0..times {
            let results = at(&racks, 0, |rank, client| all_kinds(rank, 5, client));
            assert_all_alike(&results);
            fixed.push(results[0][1].clone());
        }
        racks.end().unwrap();
    }
    // Block fixed point has the same bits with any racks.
    assert!(fixed.iter().all(|it| *it == fixed[0]));
}

#[test]
fn every_sum_is_right_and_all_ranks_have_its_bits() {
    sums_in(&[("T2,P1,T2", 2), ("P5", 1)]);
}

#[test]
#[ignore = "takes long: ./test rina"]
fn sums_are_alike_in_other_racks() {
    sums_in(&[("P2,T3", 1), ("T2,T3", 1), ("P5", 2), ("T5", 1)]);
}

#[test]
#[ignore = "takes long: ./test rina"]
fn one_host_and_one_rack_of_one_are_rings_too() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    for words in ["T1", "P1", "T1,P1"] {
        let racks = Racks::start(racks(words)).unwrap();
        let ranks = racks.spec().hosts() as u16;
        assert_all_alike(&at(&racks, 0, |rank, client| {
            all_kinds(rank, ranks, client)
        }));
        racks.end().unwrap();
    }
}

#[test]
#[ignore = "takes long: ./test rina"]
fn hosts_of_several_ranks_and_two_jobs_at_once() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let spec = RacksSpec {
        jobs: 2,
        ranks_per_host: 2,
        ..racks("T2,P1")
    };
    let racks = &Racks::start(spec).unwrap();
    std::thread::scope(|scope| {
        let run = |job| at(racks, job, |rank, client| all_kinds(rank, 6, client));
        let threads: Vec<_> = (0..2).map(|job| scope.spawn(move || run(job))).collect();
        for thread in threads {
            assert_all_alike(&thread.join().unwrap());
        }
    });
}

#[test]
fn sums_are_exact_with_loss_and_over_a_restart_of_a_switch() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let spec = RacksSpec {
        loss: 0.02,
        ..racks("T2,P1,T2")
    };
    let mut racks = Racks::start(spec).unwrap();
    let results = at(&racks, 0, |rank, client| all_kinds(rank, 5, client));
    assert_all_alike(&results);
    // Ranks sum until they are told to end by a rank that counts.
    let of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
    let clients: Vec<_> = (0..5).map(|rank| connect(&racks, 0, rank)).collect();
    std::thread::scope(|scope| {
        let of = &of;
        let sum = |rank: u16, mut client: Client| {
            let region = client.region(4 << 20).unwrap();
            for _ in 0..20 {
                check(&mut client, &region, (rank, 5), of, 200_000).unwrap();
            }
            client.finish(Some(LONG)).unwrap();
        };
        for (rank, client) in (0..).zip(clients) {
            scope.spawn(move || sum(rank, client));
        }
        std::thread::sleep(Duration::from_millis(300));
        racks.kill_switch(2).unwrap();
        racks.start_switch(2).unwrap();
    });
    racks.end().unwrap();
}

/// Sums until there is an error, which is returned.
fn until_it_fails(racks: &Racks, rank: u16, client: &mut Client, begun: &Barrier) -> LocalError {
    let ranks = racks.spec().hosts() as u16;
    let region = client.region(4 << 20).unwrap();
    let of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
    check(client, &region, (rank, ranks), &of, 1000).unwrap();
    begun.wait();
    loop {
        if let Err(error) = check(client, &region, (rank, ranks), &of, 100_000) {
            return error;
        }
    }
}

#[test]
fn a_member_that_dies_is_named() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let mut racks = Racks::start(hasty(racks("T2,P2"))).unwrap();
    // Host 2 is member 1, alone in a rack that does not sum.
    let begun = &Barrier::new(5);
    let clients: Vec<_> = (0..4).map(|rank| connect(&racks, 0, rank)).collect();
    let killed = Instant::now();
    let errors: Vec<_> = std::thread::scope(|scope| {
        let shared = &racks;
        let threads: Vec<_> = (0u16..)
            .zip(clients)
            .map(|(rank, mut client)| {
                scope.spawn(move || until_it_fails(shared, rank, &mut client, begun))
            })
            .collect();
        begun.wait();
        std::thread::sleep(Duration::from_millis(100));
        shared.agent(2).signal("KILL").unwrap();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert!(killed.elapsed() < Duration::from_secs(20));
    for rank in [0, 3] {
        let LocalError::Failed { failure, .. } = &errors[rank] else {
            panic!("rank {rank}: {}", errors[rank]);
        };
        let text = &failure.text;
        assert!(text.contains("member 1 (rank 2, 10.84.1.1:4791)"), "{text}");
        assert_eq!((failure.class, failure.ranks.bits()), (Class::Member, 4));
    }
    // Another host of the rack hears that its agent has left.
    let LocalError::Failed { failure, .. } = &errors[1] else {
        panic!("{}", errors[1]);
    };
    assert_eq!(failure.ranks.bits(), 1, "{}", failure.text);
    // One that stops is silent.
    let _ = racks.kill_agent(2);
    racks.start_agent(2, |_| {}).unwrap();
    let clients: Vec<_> = (0..4).map(|rank| connect(&racks, 0, rank)).collect();
    let (shared, begun) = (&racks, &Barrier::new(4));
    std::thread::scope(|scope| {
        for (rank, mut client) in (0u16..).zip(clients) {
            // Its agent does not answer any more.
            if rank == 2 {
                scope.spawn(move || {
                    let region = client.region(4 << 20).unwrap();
                    let of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
                    check(&mut client, &region, (2, 4), &of, 1000).unwrap();
                    shared.agent(2).signal("STOP").unwrap();
                    begun.wait();
                });
                continue;
            }
            scope.spawn(move || {
                let error = until_it_fails(shared, rank, &mut client, begun);
                let (_, text, ranks) = failure_in(error);
                if rank != 1 {
                    assert!(text.contains("member 1 (rank 2, "), "{text}");
                    assert_eq!(ranks, 4, "{text}");
                }
            });
        }
    });
    // The same job again, with a new agent there.
    let _ = racks.kill_agent(2);
    racks.start_agent(2, |_| {}).unwrap();
    let results = at(&racks, 0, |rank, client| all_kinds(rank, 4, client));
    assert_all_alike(&results);
    racks.end().unwrap();
}

fn failure_in(error: LocalError) -> (Class, String, u64) {
    match error {
        LocalError::Failed { failure, .. } => (failure.class, failure.text, failure.ranks.bits()),
        error => panic!("{error}"),
    }
}

#[test]
#[ignore = "takes long: ./test rina"]
fn a_process_that_ends_or_is_late_or_differs_is_named() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let racks = Racks::start(hasty(racks("T2,P2"))).unwrap();
    let sum = |rank: u16, client: &mut Client, name: &str| {
        let region = client.region(1 << 20).unwrap();
        let mut of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
        check(client, &region, (rank, 4), &of, 1000).unwrap();
        of.name = name.into();
        check(client, &region, (rank, 4), &of, 1000).map_err(failure_in)
    };
    // Rank 3 does not come to the second one.
    let late = at(&racks, 0, |rank, client| {
        if rank < 3 {
            return sum(rank, client, "late").unwrap_err();
        }
        let region = client.region(1 << 20).unwrap();
        let of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
        check(client, &region, (rank, 4), &of, 1000).unwrap();
        std::thread::sleep(Duration::from_secs(4));
        (Class::Other, String::new(), 0)
    });
    for (rank, (class, text, ranks)) in late.iter().enumerate().take(3) {
        if rank == 1 {
            continue;
        }
        assert_eq!((*class, *ranks), (Class::Silence, 8), "{text}");
        assert!(text.contains("member 2 (rank 3, "), "{text}");
    }
    // Rank 2 ends without a word.
    let ended = at(&racks, 0, |rank, client| {
        if rank != 2 {
            return sum(rank, client, "ended").unwrap_err();
        }
        let region = client.region(1 << 20).unwrap();
        let of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
        check(client, &region, (rank, 4), &of, 1000).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        (Class::Other, String::new(), 0)
    });
    for rank in [0, 3] {
        let (class, text, ranks) = &ended[rank];
        assert_eq!((*class, *ranks), (Class::Member, 4), "{text}");
        assert!(
            text.contains("member 1 (rank 2, ") && text.contains("left the job"),
            "{text}"
        );
    }
    // Rank 3 submits another one.
    let differs = at(&racks, 0, |rank, client| {
        sum(rank, client, if rank == 3 { "v" } else { "w" }).unwrap_err()
    });
    for rank in [0, 2, 3] {
        let (class, text, _) = &differs[rank];
        assert_eq!(*class, Class::Mismatch, "{text}");
        assert!(
            text.contains("called \"v\"") && text.contains("called \"w\""),
            "{text}"
        );
    }
    // In a rack that sums, too.
    let differs = at(&racks, 0, |rank, client| {
        sum(rank, client, if rank == 1 { "v" } else { "w" }).unwrap_err()
    });
    assert!(
        differs.iter().any(|it| it.0 == Class::Mismatch),
        "{differs:?}"
    );
    assert_all_alike(&at(&racks, 0, |rank, client| all_kinds(rank, 4, client)));
    racks.end().unwrap();
}

#[test]
#[ignore = "takes long: ./test rina"]
fn hosts_of_other_plans_and_keys_do_not_take_part() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let mut racks = Racks::start(hasty(racks("P1,P2"))).unwrap();
    let join = |rank: u16, client: &mut Client| {
        let region = client.region(1 << 20).unwrap();
        let of = submission(Operation::Sum, Dtype::F32, Arithmetic::Native);
        check(client, &region, (rank, 3), &of, 10)
            .map_err(failure_in)
            .unwrap_err()
    };
    let _ = racks.kill_agent(1);
    racks
        .start_agent(1, |config| config.payload_bytes = 512)
        .unwrap();
    let errors = at(&racks, 0, join);
    let is_said = |it: &(Class, String, u64)| it.1.contains("another plan of job 7");
    assert!(errors.iter().any(is_said), "{errors:?}");
    assert!(errors.iter().all(|it| it.0 == Class::Join), "{errors:?}");
    let _ = racks.kill_agent(1);
    let other = Racks::key(1);
    racks
        .start_agent(1, |config| config.jobs[0].key = other)
        .unwrap();
    let errors = at(&racks, 0, join);
    assert!(errors.iter().all(|it| it.0 == Class::Join), "{errors:?}");
    let text = &errors[0].1;
    assert!(text.contains("member 1 (rank 1, 10.84.1.1:4791)"), "{text}");
    assert!(
        racks
            .agent(1)
            .log()
            .contains("has not proven the key of job 7")
    );
    // Rank 2 does not come at all.
    let _ = racks.kill_agent(1);
    racks.start_agent(1, |_| {}).unwrap();
    let errors: Vec<_> = std::thread::scope(|scope| {
        let racks = &racks;
        let run = |rank| move || join(rank, &mut connect(racks, 0, rank));
        let threads = [0, 1].map(|rank| scope.spawn(run(rank)));
        threads.map(|it| it.join().unwrap()).into()
    });
    let text = errors.iter().map(|it| &*it.1).collect::<String>();
    assert!(text.contains("member 2 (rank 2, 10.84.1.2:4791)"), "{text}");
    racks.end().unwrap();
}

/// Bytes that a stranger sends to a member's port, from its own namespace; not a test.
#[test]
fn a_stranger_of_its_own() {
    let Some(address) = std::env::var_os("TALLY_TEST_STRANGER") else {
        return;
    };
    let address = address.into_string().unwrap();
    let deadline = Instant::now() + Duration::from_secs(3);
    let mut silent = Vec::new();
    while Instant::now() < deadline {
        let Ok(mut stream) = TcpStream::connect(&*address) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let mut challenge = [0; 32];
        let _ = stream.read_exact(&mut challenge);
        match silent.len() % 4 {
            // A hello without a proof.
            0 => drop(stream.write_all(&[&[2, 0, 0, 0, 0, 0, 0, 70], &[0; 78][..]].concat())),
            // The listener's own words.
            1 => drop(stream.write_all(&challenge)),
            // A piece before the proof, too long.
            2 => drop(
                stream.write_all(&[&[7, 0, 0, 0, 255, 255, 255, 255], &[0; 4096][..]].concat()),
            ),
            // Silence.
            _ => {}
        }
        silent.push(stream);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn strangers_at_a_member_s_port_change_nothing() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let racks = Racks::start(racks("P1,P2")).unwrap();
    let mut clients: Vec<_> = (0..2).map(|rank| connect(&racks, 0, rank)).collect();
    let mut command = prefixed(&racks.host_prefix(2), &std::env::current_exe().unwrap());
    command.arg("a_stranger_of_its_own");
    command.env("TALLY_TEST_STRANGER", racks.listener(0, 1).to_string());
    let mut stranger = Command::spawn(&mut command).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    clients.push(connect(&racks, 0, 2));
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |(rank, mut client): (u16, Client)| move || all_kinds(rank, 3, &mut client);
        let threads: Vec<_> = (0..).zip(clients).map(|it| scope.spawn(run(it))).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_all_alike(&results);
    assert!(stranger.wait().unwrap().success());
    let log = racks.agent(1).log();
    assert!(
        log.contains("refused a connection from 10.84.1.2:"),
        "{log}"
    );
    racks.end().unwrap();
}

/// The digits' losses by step, from a process on each host.
fn losses(racks: &Racks, backend: &str) -> Vec<f64> {
    // The link to the interpreter: it finds the packages beside the link.
    let python = programs().canonicalize().unwrap();
    let python = python.join("../python-venv/bin/python");
    let example = "../../worker-agent/python/examples/digits_ddp.py";
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(example);
    let hosts = racks.spec().hosts();
    let start = |host: usize| {
        let mut command = prefixed(&racks.host_prefix(host), &python);
        command.arg(&example).args(["--backend", backend]);
        command.args(["--steps", "20", "--print-steps"]);
        command.env("MASTER_ADDR", racks.spec().address(0).to_string());
        command.env("MASTER_PORT", "29500");
        command.env("GLOO_SOCKET_IFNAME", "eth0");
        command.env("OMP_NUM_THREADS", "1");
        command.env("TALLY_JOB", Racks::job_id(0).to_string());
        command.env("TALLY_SOCKET", racks.socket(host));
        command.env("RANK", host.to_string());
        command.env("LOCAL_RANK", "0");
        command.env("WORLD_SIZE", hosts.to_string());
        let name = format!("{backend}{host}");
        let log = racks.folder().join(format!("{name}.log"));
        Program::start(&name, command, &log).unwrap()
    };
    let trainers: Vec<_> = (0..hosts).map(start).collect();
    let logs = trainers.into_iter().map(|it| it.wait_ok(3 * LONG).unwrap());
    let logs: Vec<_> = logs.collect();
    let steps = logs.iter().flat_map(|log| log.lines());
    let steps = steps.filter_map(|line| line.strip_prefix("step "));
    steps
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect()
}

#[test]
#[ignore = "imports PyTorch, takes long: ./test rina"]
fn pytorch_trains_as_over_gloo() {
    if !allowed() {
        return;
    }
    let _alone = alone();
    let mut spec = racks("T2,P1");
    // Processes import PyTorch one after the other.
    spec.timeouts.join_ms = 60_000;
    spec.timeouts.stall_ms = 60_000;
    let racks = Racks::start(spec).unwrap();
    let [theirs, ours] = ["gloo", "tally"].map(|backend| losses(&racks, backend));
    println!("losses over Gloo {theirs:?}, over Tally {ours:?}");
    assert_eq!((theirs.len(), ours.len()), (20, 20));
    assert!(theirs[19] < theirs[0]);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!((ours - theirs).abs() < 1e-5, "{ours} {theirs}");
    }
    racks.end().unwrap();
}
