//! RoCEv2 of Linux (`rdma_rxe`) in virtual machines at a real switch: perftest's messages, and
//! rings.
//!
//! Uses the release programs and the image that `./test roce` makes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_schema::switch::config::{Config, NetreduceSection, RingSection};
use tally_testkit::cluster::{Cluster, Machine, Spec};
use tally_testkit::reference::{Inputs, Reference};

/// A command of an emulated CPU that others share.
const LONG: Duration = Duration::from_secs(120);
/// Messages of perftest, in numbers and bytes, and the longest payload of a packet.
const MESSAGES: u32 = 100;
const MESSAGE_BYTES: u32 = 65_536;
const PATH_MTU: u32 = 1024;

fn spec(machines: usize) -> Spec {
    Spec {
        jobs: Vec::new(),
        guests: machines,
        programs: programs(),
        ..Spec::default()
    }
}

fn cluster(machines: usize) -> (Cluster, Vec<Machine>) {
    let cluster = Cluster::start(spec(machines)).unwrap();
    let machines = cluster.boot_guests(&image()).unwrap();
    (cluster, machines)
}

/// Where `guest/image` has written kernel and initial RAM disk.
fn image() -> PathBuf {
    let image = programs().join("../roce");
    assert!(image.join("initrd").exists(), "first: ./test roce");
    image
}

/// The command line of a test of perftest. IPv4 is the second address of the device.
fn perftest(test: &str) -> String {
    format!("{test} -d rxe0 -x 1 -m {PATH_MTU} -s {MESSAGE_BYTES} -n {MESSAGES} -F")
}

/// A switch that sums for a ring of all machines.
fn ring_cluster(machines: usize) -> (Cluster, Vec<Machine>) {
    ring_of(machines, None)
}

/// The same, over links that lose this share of frames each way.
fn ring_of(machines: usize, wire_loss: Option<f64>) -> (Cluster, Vec<Machine>) {
    let spec = Spec {
        wire_loss,
        ..spec(machines)
    };
    let mut cluster = Cluster::new(spec).unwrap();
    let config = config(&cluster, machines);
    cluster.start_switch_with(&config).unwrap();
    let machines = cluster.boot_guests(&image()).unwrap();
    (cluster, machines)
}

/// The switch's configuration with that ring.
fn config(cluster: &Cluster, machines: usize) -> Config {
    let members = (0..machines).map(|it| cluster.ip(cluster.guest_host(it)));
    let mut config = cluster.switch_config();
    config.netreduce = Some(NetreduceSection {
        rings: vec![RingSection::new(1, KEY.parse().unwrap(), members.collect())],
        ..NetreduceSection::default()
    });
    config
}

/// What the members of a ring of all machines print, each with these arguments.
fn sum(cluster: &Cluster, machines: &mut [Machine], arguments: &str) -> Vec<String> {
    let members = machines.len();
    for (rank, machine) in machines.iter_mut().enumerate() {
        machine
            .start(&member(cluster, rank, members, arguments))
            .unwrap();
    }
    let said = machines
        .iter_mut()
        .map(|machine| machine.end(LONG).unwrap());
    said.collect()
}

/// Starts perftest's server in a machine, for one client.
fn serve(machine: &mut Machine, test: &str) {
    let server = perftest(test);
    // Until its TCP port 18515 listens.
    let command = format!(
        "{server} >/tmp/{test} 2>&1 & \
         until grep -q ':4853 00000000:0000 0A' /proc/net/tcp*; do sleep 0.1; done"
    );
    machine.run(&command, LONG).unwrap();
}

/// Waits for the end of perftest's server.
fn served(machine: &mut Machine, test: &str) {
    let command = format!("while pidof {test} >/dev/null; do sleep 0.1; done; cat /tmp/{test}");
    let said = machine.run(&command, LONG).unwrap();
    assert!(said.contains("BW average"), "{said}");
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn messages_of_rdma_rxe_cross_the_switch() {
    let _alone = alone();
    let (mut cluster, mut machines) = cluster(2);
    let server = cluster.ip(cluster.guest_host(0));
    let tests = ["ib_send_bw", "ib_write_bw"];
    for test in tests {
        serve(&mut machines[0], test);
        let client = format!("{} {server}", perftest(test));
        machines[1].run(&client, LONG).unwrap();
        served(&mut machines[0], test);
    }
    drop(machines);
    let report = cluster.stop_switch().unwrap();
    let ports = &report.ports;
    let sent = (tests.len() as u32 * MESSAGES * MESSAGE_BYTES / PATH_MTU).into();
    assert!(ports[1].counters.rx_frames > sent && ports[0].counters.tx_frames > sent);
    // Acknowledgements come back.
    assert!(ports[0].counters.rx_frames > 0);
    assert_eq!((ports[0].tx_dropped, ports[1].tx_dropped), (0, 0));
}

/// The key of all rings here.
const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// The command line of a member of a ring of all machines.
fn member(cluster: &Cluster, rank: usize, members: usize, arguments: &str) -> String {
    let ip = |rank| cluster.ip(cluster.guest_host(rank));
    format!(
        "ring --key {KEY} --rank {rank} --members {members} --address {} --coordinator {}:4790 \
         {arguments}",
        ip(rank),
        ip(0)
    )
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn a_ring_says_that_its_messages_were_not_summed() {
    let _alone = alone();
    let (cluster, mut machines) = cluster(2);
    for (rank, machine) in machines.iter_mut().enumerate() {
        let command = member(&cluster, rank, 2, "--elements 1000");
        machine.start(&command).unwrap();
    }
    let said = machines.iter_mut().map(|machine| machine.end(LONG));
    let said: Vec<_> = said.map(|it| it.unwrap_err().to_string()).collect();
    // Each has the message of the other, or has heard from it that it has failed.
    let why = "message was not summed by the switch";
    for (rank, said) in said.iter().enumerate() {
        let begin = format!("ring 1: rank {rank}: ");
        assert!(said.contains(&begin) && said.contains(why), "{said}");
    }
    assert!(said.iter().any(|it| it.contains("from rank")), "{said:?}");
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn rings_of_two_and_three_sum_every_type_exactly() {
    let _alone = alone();
    for members in [2, 3] {
        let (mut cluster, mut machines) = ring_cluster(members);
        // Whole messages, a tensor shorter than a packet, and halves of which one is over.
        for arguments in [
            "--element f32 --elements 100000 --rounds 3",
            "--element i32 --elements 43520 --rounds 2",
            "--element f16 --elements 7",
            "--element bf16 --elements 100001 --rounds 2",
            "--element f32 --elements 100000 --packets 5",
        ] {
            for said in sum(&cluster, &mut machines, arguments) {
                assert!(said.contains("right"), "{said}");
            }
        }
        drop(machines);
        let report = cluster.stop_switch().unwrap().netreduce.unwrap();
        // Each once, in multiples of four bytes, also if a machine was slow and sent some again.
        let bytes = 4 * (3 * 100_000 + 2 * 43_520 + 3 * 4 + 2 * 50_001 + 3 * 100_000);
        assert_eq!(report.rings[0].counters.sum_bytes, bytes, "{report}");
    }
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn what_tally_agent_sums_in_a_ring_is_what_the_reference_does() {
    let _alone = alone();
    let (cluster, mut machines) = ring_cluster(3);
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let reference = Reference {
        program: project.join("worker-agent/reference/check.py"),
    };
    for element in ["f32", "f16", "bf16", "i32"] {
        let ip = |rank| cluster.ip(cluster.guest_host(rank));
        for (rank, machine) in machines.iter_mut().enumerate() {
            let command = format!(
                "echo {KEY} | tally-agent ring --ring 1 --key-file - --rank {rank} --members 3 \
                 --address {} --coordinator {}:4790 --synthetic --seed 5 --element {element} \
                 --elements 5001 --repeat 2 --output /tmp/sum >&2 && od -An -v -tx1 /tmp/sum",
                ip(rank),
                ip(0)
            );
            machine.start(&command).unwrap();
        }
        let mut outputs = Vec::new();
        for (rank, machine) in machines.iter_mut().enumerate() {
            let said = machine.end(LONG).unwrap();
            assert!(
                said.contains("sum of 5001 elements from 3 hosts on rxe0"),
                "{said}"
            );
            // Lines of bytes follow those of the program, which begin with a letter.
            let dump = said.lines().filter(|line| line.starts_with(' '));
            let bytes = dump.flat_map(str::split_whitespace);
            let bytes: Vec<_> = bytes
                .map(|it| u8::from_str_radix(it, 16).unwrap())
                .collect();
            let file = cluster
                .folder()
                .join(format!("{element}-{rank}.safetensors"));
            std::fs::write(&file, bytes).unwrap();
            outputs.push(file);
        }
        let inputs = Inputs::Synthetic {
            seed: 5,
            element,
            elements: 5001,
            workers: 3,
        };
        let verdict = reference.check("native", 1024, &inputs, outputs).unwrap();
        assert!(verdict.exact, "{element}: {}", verdict.text);
    }
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn a_ring_and_perftest_share_the_switch() {
    let _alone = alone();
    let (mut cluster, mut machines) = ring_cluster(3);
    let server = cluster.ip(cluster.guest_host(0));
    let test = "ib_write_bw";
    serve(&mut machines[0], test);
    let client = format!("{} {server} >/tmp/client 2>&1 & echo", perftest(test));
    machines[1].run(&client, LONG).unwrap();
    let said = sum(&cluster, &mut machines, "--elements 100000 --rounds 5");
    assert!(said.iter().all(|it| it.contains("5 sums")), "{said:?}");
    served(&mut machines[0], test);
    drop(machines);
    let report = cluster.stop_switch().unwrap();
    assert!(report.netreduce.unwrap().rings[0].counters.sums > 0);
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn a_member_that_dies_is_named_and_the_ring_forms_again() {
    let _alone = alone();
    let (cluster, mut machines) = ring_cluster(3);
    for (rank, machine) in machines.iter_mut().enumerate() {
        let command = member(&cluster, rank, 3, "--elements 100000 --rounds 100000");
        let command = if rank == 1 {
            format!("({command} >/tmp/ring 2>&1 & sleep 3; kill -9 $!; cat /tmp/ring)")
        } else {
            command
        };
        machine.start(&command).unwrap();
    }
    let said: Vec<_> = machines.iter_mut().map(|it| it.end(LONG)).collect();
    assert!(said[1].as_ref().unwrap().contains("epoch"), "{said:?}");
    for rank in [0, 2] {
        let said = said[rank].as_ref().unwrap_err().to_string();
        let why = format!("ring 1: rank {rank}: rank 1 has died");
        assert!(said.contains(&why), "{said}");
    }
    for said in sum(&cluster, &mut machines, "--elements 100000 --rounds 3") {
        assert!(said.contains("3 sums"), "{said}");
    }
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn a_switch_that_restarts_ends_the_epoch_and_the_next_one_sums() {
    let _alone = alone();
    let (mut cluster, mut machines) = ring_cluster(2);
    for (rank, machine) in machines.iter_mut().enumerate() {
        let command = member(&cluster, rank, 2, "--elements 100000 --rounds 100000");
        machine.start(&command).unwrap();
    }
    std::thread::sleep(Duration::from_secs(5));
    let config = config(&cluster, 2);
    cluster.kill_switch().unwrap();
    cluster.start_switch_with(&config).unwrap();
    for (rank, machine) in machines.iter_mut().enumerate() {
        let said = machine.end(LONG).unwrap_err().to_string();
        assert!(said.contains(&format!("ring 1: rank {rank}: ")), "{said}");
        assert!(said.contains("retry counter exceeded"), "{said}");
    }
    for said in sum(&cluster, &mut machines, "--elements 100000 --rounds 3") {
        assert!(said.contains("3 sums"), "{said}");
    }
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn sums_over_links_that_lose_packets_are_exact() {
    let _alone = alone();
    let (mut cluster, mut machines) = ring_of(3, Some(0.005));
    for said in sum(&cluster, &mut machines, "--elements 100000 --rounds 3") {
        assert!(said.contains("3 sums"), "{said}");
    }
    drop(machines);
    let losses = cluster.wire_losses().unwrap();
    let lost: u64 = losses
        .iter()
        .map(|it| it.to_switch.long + it.to_host.long)
        .sum();
    assert!(lost > 0, "{losses:?}");
    // Retransmissions are in no sum.
    let report = cluster.stop_switch().unwrap().netreduce.unwrap();
    assert_eq!(report.rings[0].counters.sum_bytes, 3 * 400_000, "{report}");
    assert!(report.counters["sums_again"] > 0, "{report}");
}
