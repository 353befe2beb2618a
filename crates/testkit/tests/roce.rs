//! RoCEv2 of Linux (`rdma_rxe`) in virtual machines at a real switch: perftest's messages, and
//! rings.
//!
//! Uses the release programs and the image that `./test roce` makes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_schema::switch::config::{Config, NetreduceSection, RingSection};
use tally_schema::switch::report::Report as SwitchReport;
use tally_testkit::cluster::{Cluster, Machine, Spec};
use tally_testkit::reference::{Inputs, Reference};

/// A command of an emulated CPU that others share.
const LONG: Duration = Duration::from_secs(300);
/// Messages of perftest, in numbers and bytes, and the longest payload of a packet.
const MESSAGES: u32 = 100;
const MESSAGE_BYTES: u32 = 65_536;
const PATH_MTU: u32 = 1024;
/// Elements with which a ring begins each epoch (N-15).
const OPENING_BYTES: u64 = 4;
/// The key of all rings here.
const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// Where `guest/image` has written kernel and initial RAM disk.
fn image() -> PathBuf {
    let image = programs().join("../roce");
    assert!(image.join("initrd").exists(), "first: ./test roce");
    image
}

/// Virtual machines at a switch. To boot one takes longer than most of what they do.
struct Lab {
    machines: Vec<Machine>,
    cluster: Cluster,
}

impl Lab {
    /// Over links that lose this share of frames each way.
    fn boot(machines: usize, wire_loss: Option<f64>) -> Self {
        let spec = Spec {
            jobs: vec![2],
            guests: machines,
            programs: programs(),
            wire_loss,
            ..Spec::default()
        };
        let mut cluster = Cluster::new(spec).unwrap();
        cluster.start_switch().unwrap();
        let folders = ["examples", "packages"].map(|it| programs().join(it));
        let folders = folders.map(|it| it.canonicalize().unwrap().display().to_string());
        let machines = cluster.boot_guests(&image(), &folders.join(":"));
        let machines = machines.unwrap();
        Self { machines, cluster }
    }

    /// Another switch in place of the one that runs. It sums for a ring of the first `members`
    /// machines; with none, it only forwards.
    fn restart_switch(&mut self, members: usize) -> SwitchReport {
        let report = self.cluster.stop_switch().unwrap();
        self.cluster
            .start_switch_with(&self.config(members))
            .unwrap();
        report
    }

    fn config(&self, members: usize) -> Config {
        let mut config = self.cluster.switch_config();
        if members > 0 {
            let addresses = (0..members).map(|it| self.ip(it)).collect();
            config.netreduce = Some(NetreduceSection {
                rings: vec![RingSection::new(1, KEY.parse().unwrap(), addresses)],
                ..NetreduceSection::default()
            });
        }
        config
    }

    fn ip(&self, machine: usize) -> Ipv4Addr {
        self.cluster.ip(self.cluster.guest_host(machine))
    }

    /// The command line of a member of a ring of the first `members` machines.
    fn member(&self, rank: usize, members: usize, arguments: &str) -> String {
        format!(
            "ring --key {KEY} --rank {rank} --members {members} --address {} \
             --coordinator {}:4790 {arguments}",
            self.ip(rank),
            self.ip(0)
        )
    }

    /// Starts these members.
    fn start(&mut self, members: usize, arguments: &str) {
        for rank in 0..members {
            let command = self.member(rank, members, arguments);
            self.machines[rank].start(&command).unwrap();
        }
    }

    /// What they print, and how they fail.
    fn ends(&mut self, members: usize) -> Vec<Result<String, String>> {
        let machines = self.machines[..members].iter_mut();
        let ends = machines.map(|it| it.end(LONG).map_err(|error| error.to_string()));
        ends.collect()
    }

    /// What members print that sum.
    fn sum(&mut self, members: usize, arguments: &str) -> Vec<String> {
        self.start(members, arguments);
        let said = self.ends(members).into_iter();
        said.map(|it| it.unwrap()).collect()
    }
}

/// The command line of a test of perftest. IPv4 is the second address of the device.
fn perftest(test: &str) -> String {
    format!("{test} -d rxe0 -x 1 -m {PATH_MTU} -s {MESSAGE_BYTES} -n {MESSAGES} -F")
}

/// Starts perftest's server in a machine, for one client.
fn serve(machine: &mut Machine, test: &str) {
    let server = perftest(test);
    // Until its TCP port 18515 listens.
    let command = format!(
        "{server} >/run/{test} 2>&1 & \
         until grep -q ':4853 00000000:0000 0A' /proc/net/tcp*; do sleep 0.1; done"
    );
    machine.run(&command, LONG).unwrap();
}

/// Waits for the end of perftest's server.
fn served(machine: &mut Machine, test: &str) {
    let command = format!("while pidof {test} >/dev/null; do sleep 0.1; done; cat /run/{test}");
    let said = machine.run(&command, LONG).unwrap();
    assert!(said.contains("BW average"), "{said}");
}

/// What it shows, and how.
type Case = (&'static str, fn(&mut Lab));

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn machines_at_a_switch() {
    let _alone = alone();
    let mut lab = Lab::boot(3, None);
    let cases: [Case; 14] = [
        ("messages of rdma_rxe cross the switch", messages_cross),
        ("a ring says what was not summed", not_summed),
        ("a ring of two sums every type", |lab| every_type(lab, 2)),
        ("a ring of three sums every type", |lab| every_type(lab, 3)),
        ("sums are the reference's", sums_are_the_reference_s),
        ("agents sum for processes in a ring", agents_sum),
        ("hosts of two ranks are a ring", hosts_of_two_ranks),
        ("numpy sums in a ring", numpy_sums),
        (
            "regions are registered until they are freed",
            regions_are_registered,
        ),
        ("an agent names what a ring lacks", agents_fail),
        ("a ring and perftest share the switch", ring_and_perftest),
        ("a member dies, and the ring forms again", member_dies),
        (
            "a switch restarts, and the next epoch sums",
            switch_restarts,
        ),
        ("what a bit costs the CPU of a host", cpu_of_hosts),
    ];
    for (name, case) in cases {
        println!("{name}");
        case(&mut lab);
    }
}

fn messages_cross(lab: &mut Lab) {
    let server = lab.ip(0);
    let tests = ["ib_send_bw", "ib_write_bw"];
    for test in tests {
        serve(&mut lab.machines[0], test);
        let client = format!("{} {server}", perftest(test));
        lab.machines[1].run(&client, LONG).unwrap();
        served(&mut lab.machines[0], test);
    }
    let report = lab.restart_switch(0);
    // The machines' are the last ones.
    let ports = &report.ports[report.ports.len() - lab.machines.len()..];
    let sent = (tests.len() as u32 * MESSAGES * MESSAGE_BYTES / PATH_MTU).into();
    assert!(ports[1].counters.rx_frames > sent && ports[0].counters.tx_frames > sent);
    // Acknowledgements come back.
    assert!(ports[0].counters.rx_frames > 0);
    assert_eq!((ports[0].tx_dropped, ports[1].tx_dropped), (0, 0));
}

fn not_summed(lab: &mut Lab) {
    lab.start(2, "--elements 1000");
    let said: Vec<_> = lab.ends(2).into_iter().map(Result::unwrap_err).collect();
    // Each has the message of the other, or has heard from it that it has failed.
    let why = "message was not summed by the switch";
    for (rank, said) in said.iter().enumerate() {
        let begin = format!("ring 1: rank {rank}: ");
        assert!(said.contains(&begin) && said.contains(why), "{said}");
    }
    assert!(said.iter().any(|it| it.contains("from rank")), "{said:?}");
}

fn every_type(lab: &mut Lab, members: usize) {
    lab.restart_switch(members);
    // Whole messages, a tensor shorter than a packet, and halves of which one is over.
    for arguments in [
        "--element f32 --elements 100000 --rounds 3",
        "--element i32 --elements 43520 --rounds 2",
        "--element f16 --elements 7",
        "--element bf16 --elements 100001 --rounds 2",
        "--element f32 --elements 100000 --packets 5",
    ] {
        for said in lab.sum(members, arguments) {
            assert!(said.contains("right"), "{said}");
        }
    }
    let report = lab.restart_switch(members).netreduce.unwrap();
    // Each once, in multiples of four bytes, also if a machine was slow and sent some again.
    let bytes = 4 * (3 * 100_000 + 2 * 43_520 + 3 * 4 + 2 * 50_001 + 3 * 100_000);
    let bytes = bytes + 5 * OPENING_BYTES;
    assert_eq!(report.rings[0].counters.sum_bytes, bytes, "{report}");
}

/// Of `tally-agent ring`.
fn sums_are_the_reference_s(lab: &mut Lab) {
    lab.restart_switch(3);
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let reference = Reference {
        program: project.join("worker-agent/reference/check.py"),
    };
    for element in ["f32", "f16", "bf16", "i32"] {
        for rank in 0..3 {
            let command = format!(
                "echo {KEY} | tally-agent ring --ring 1 --key-file - --rank {rank} --members 3 \
                 --address {} --coordinator {}:4790 --synthetic --seed 5 --element {element} \
                 --elements 5001 --repeat 2 --output /run/sum >&2 && od -An -v -tx1 /run/sum",
                lab.ip(rank),
                lab.ip(0)
            );
            lab.machines[rank].start(&command).unwrap();
        }
        let mut outputs = Vec::new();
        for (rank, said) in lab.ends(3).into_iter().enumerate() {
            let said = said.unwrap();
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
            let file = format!("{element}-{rank}.safetensors");
            let file = lab.cluster.folder().join(file);
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

/// The agent's configuration of a host of ring 1.
fn agent(lab: &Lab, rank: usize, workers: usize, ranks_per_host: usize) -> String {
    let (address, first) = (lab.ip(rank), lab.ip(0));
    format!(
        r#"{{"socket": "/run/agent.sock", "switch": {{"address": "{first}"}}, "jobs": [],
            "transport": {{"type": "udp", "bind": "{address}"}},
            "timeouts": {{"join_ms": 10000, "stall_ms": 20000}},
            "rings": [{{"id": 1, "key": "{KEY}", "workers": {workers},
                "ranks_per_host": {ranks_per_host}, "address": "{address}",
                "coordinator": {{"address": "{first}"}}}}]}}"#
    )
    .replace('\n', " ")
}

/// Starts an agent at a host, and a program as each rank of the host in `ranks`; shows what all of
/// them said when the ranks have ended.
fn train(lab: &mut Lab, host: usize, config: &str, workers: usize, ranks: &[usize], program: &str) {
    let mut command = format!(
        "umask 077; echo '{config}' >/run/agent.json; \
         tally-agent serve --config /run/agent.json >/run/agent.log 2>&1 & agent=$!; \
         until [ -S /run/agent.sock ]; do sleep 0.1; done; \
         export TALLY_SOCKET=/run/agent.sock TALLY_JOB=1 WORLD_SIZE={workers}; "
    );
    for rank in ranks {
        command += &format!("RANK={rank} {program} >/run/rank{rank} 2>&1 & r{rank}=$!; ");
    }
    command += "failed=0; ";
    for rank in ranks {
        command += &format!("wait $r{rank} || failed=1; cat /run/rank{rank}; ");
    }
    command += "echo left $(rdma resource show mr | grep -c 'comm ring 1'); ";
    command += "kill $agent; wait $agent; cat /run/agent.log; exit $failed";
    lab.machines[host].start(&command).unwrap();
}

/// Of processes that know nothing of rings. Their tensors are in memory that the NIC reads, and a
/// mean goes through the agent's.
fn agents_sum(lab: &mut Lab) {
    lab.restart_switch(3);
    for rank in 0..3 {
        let config = agent(lab, rank, 3, 1);
        train(lab, rank, &config, 3, &[rank], "all_reduce 100001");
    }
    for (rank, said) in lab.ends(3).into_iter().enumerate() {
        let said = said.unwrap();
        assert!(said.contains(&format!("rank {rank}: libtally ")), "{said}");
        assert!(
            said.contains("summed 100001 elements over 3 ranks, whose mean rank is 1"),
            "{said}"
        );
        assert!(said.contains("running in a ring"), "{said}");
    }
    let report = lab.restart_switch(3).netreduce.unwrap();
    // The sum, and three floats for the mean.
    assert_eq!(
        report.rings[0].counters.sum_bytes,
        OPENING_BYTES + 4 * 100_001 + 12,
        "{report}"
    );
}

fn hosts_of_two_ranks(lab: &mut Lab) {
    lab.restart_switch(2);
    for host in 0..2 {
        let config = agent(lab, host, 4, 2);
        train(
            lab,
            host,
            &config,
            4,
            &[2 * host, 2 * host + 1],
            "all_reduce 50000",
        );
    }
    for said in lab.ends(2) {
        let said = said.unwrap();
        let sums = said.matches("summed 50000 elements over 4 ranks, whose mean rank is 1.5");
        assert_eq!(sums.count(), 2, "{said}");
    }
    // As many bytes as of one rank.
    let report = lab.restart_switch(2).netreduce.unwrap();
    assert_eq!(
        report.rings[0].counters.sum_bytes,
        OPENING_BYTES + 4 * 50_000 + 12,
        "{report}"
    );
}

/// What a Python program says at each of two machines.
fn python(lab: &mut Lab, environment: &str, program: &str) -> (Vec<String>, SwitchReport) {
    lab.restart_switch(2);
    // A link to the interpreter, which finds the packages beside the link.
    let python = programs().canonicalize().unwrap();
    let python = python.join("../python-venv/bin/python");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let project = project.canonicalize().unwrap();
    let (python, project) = (python.display(), project.display());
    let command = format!("{environment} {python} {project}/{program}");
    for rank in 0..2 {
        // One machine may take longer to import than the other.
        let config = agent(lab, rank, 2, 1).replace(r#""join_ms": 10000"#, r#""join_ms": 60000"#);
        train(lab, rank, &config, 2, &[rank], &command);
    }
    let said: Vec<_> = lab.ends(2).into_iter().map(|it| it.unwrap()).collect();
    for said in &said {
        assert!(said.contains("running in a ring"), "{said}");
        // Nothing of a process that has left is registered with the NIC.
        assert!(said.contains("left 0"), "{said}");
    }
    (said, lab.restart_switch(2))
}

/// Of a program that knows nothing of rings.
fn numpy_sums(lab: &mut Lab) {
    let program = "worker-agent/python/tests/fresh_numpy.py";
    let (said, report) = python(lab, "", program);
    assert!(
        said.iter().all(|it| it.contains("sums are right")),
        "{said:?}"
    );
    assert_eq!(
        report.netreduce.unwrap().rings[0].counters.sum_bytes,
        OPENING_BYTES + 4 * 1000
    );
}

fn regions_are_registered(lab: &mut Lab) {
    let library = programs().canonicalize().unwrap().join("libtally.so");
    let program = format!("crates/testkit/guest/regions.py {}", library.display());
    let (said, _) = python(lab, "", &program);
    for said in said {
        let counts = said.lines().find_map(|it| it.strip_prefix("registered: "));
        let counts: Vec<u32> = counts
            .unwrap()
            .split(' ')
            .map(|it| it.parse().unwrap())
            .collect();
        // Each at its first sum, until the first call after it was freed.
        assert_eq!(counts[1..], [counts[0] + 1, counts[0]], "{said}");
    }
}

#[test]
#[ignore = "boots virtual machines: ./test roce_torch"]
fn pytorch_trains_in_a_ring() {
    let _alone = alone();
    let mut lab = Lab::boot(2, None);
    // PyTorch's own connections, between the machines.
    let environment = format!(
        "MASTER_ADDR={} MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0",
        lab.ip(0)
    );
    let program = "worker-agent/python/tests/fresh_ddp.py";
    let (said, report) = python(&mut lab, &environment, program);
    assert!(
        said.iter().all(|it| it.contains("sums are right")),
        "{said:?}"
    );
    // 20 steps with the gradients of nine parameters, and a sum of eight.
    let sums = report.netreduce.unwrap().rings[0].counters.sum_bytes;
    assert!(sums >= OPENING_BYTES + 4 * (20 * 9 + 8), "{sums}");
}

fn agents_fail(lab: &mut Lab) {
    lab.restart_switch(2);
    // The other host never comes.
    let config = agent(lab, 0, 2, 1);
    train(lab, 0, &config, 2, &[0], "all_reduce 1000");
    let said = lab.machines[0].end(LONG).unwrap_err().to_string();
    assert!(
        said.contains("ring 1: rank 0: ranks missing after 10 s: 1"),
        "{said}"
    );
    // Ranks that bring different tensors.
    for rank in 0..2 {
        let config = agent(lab, rank, 2, 1);
        let program = format!("all_reduce {}", 1000 + rank);
        train(lab, rank, &config, 2, &[rank], &program);
    }
    let why =
        r#"rank 0 sums 4000 bytes of F32 (sum of "gradients", F32), rank 1 4004 bytes of F32"#;
    for said in lab.ends(2) {
        let said = said.unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    // The doctor finds the device.
    let config = agent(lab, 0, 2, 1);
    let command = format!(
        "umask 077; echo '{config}' >/run/agent.json; tally-agent doctor --config /run/agent.json || true"
    );
    let said = lab.machines[0].run(&command, LONG).unwrap();
    let found = format!("1: rxe0 has {}, and payloads of up to", lab.ip(0));
    assert!(said.contains(&found), "{said}");
    // An address that no device has.
    let ours = format!(r#""ranks_per_host": 1, "address": "{}""#, lab.ip(0));
    let absent = r#""ranks_per_host": 1, "address": "192.0.2.1""#;
    let config = agent(lab, 0, 2, 1).replace(&ours, absent);
    train(lab, 0, &config, 2, &[0], "all_reduce 1000");
    let said = lab.machines[0].end(LONG).unwrap_err().to_string();
    let why =
        "no RoCE device has the IPv4 address 192.0.2.1; devices found: rxe0; see `rings[].address`";
    assert!(said.contains(why), "{said}");
}

fn ring_and_perftest(lab: &mut Lab) {
    lab.restart_switch(3);
    let server = lab.ip(0);
    let test = "ib_write_bw";
    serve(&mut lab.machines[0], test);
    let client = format!("{} {server} >/run/client 2>&1 & echo", perftest(test));
    lab.machines[1].run(&client, LONG).unwrap();
    let said = lab.sum(3, "--elements 100000 --rounds 5");
    assert!(said.iter().all(|it| it.contains("5 sums")), "{said:?}");
    served(&mut lab.machines[0], test);
    let report = lab.restart_switch(3);
    assert!(report.netreduce.unwrap().rings[0].counters.sums > 0);
}

fn member_dies(lab: &mut Lab) {
    lab.restart_switch(3);
    for rank in 0..3 {
        let command = lab.member(rank, 3, "--elements 100000 --rounds 100000");
        let command = if rank == 1 {
            format!("({command} >/run/ring 2>&1 & sleep 3; kill -9 $!; cat /run/ring)")
        } else {
            command
        };
        lab.machines[rank].start(&command).unwrap();
    }
    let said = lab.ends(3);
    assert!(said[1].as_ref().unwrap().contains("epoch"), "{said:?}");
    for rank in [0, 2] {
        let said = said[rank].as_ref().unwrap_err();
        let why = format!("ring 1: rank {rank}: rank 1 has died");
        assert!(said.contains(&why), "{said}");
    }
    for said in lab.sum(3, "--elements 100000 --rounds 3") {
        assert!(said.contains("3 sums"), "{said}");
    }
}

fn switch_restarts(lab: &mut Lab) {
    lab.restart_switch(2);
    lab.start(2, "--elements 100000 --rounds 100000");
    std::thread::sleep(Duration::from_secs(5));
    lab.cluster.kill_switch().unwrap();
    let config = lab.config(2);
    lab.cluster.start_switch_with(&config).unwrap();
    for (rank, said) in lab.ends(2).into_iter().enumerate() {
        let said = said.unwrap_err();
        assert!(said.contains(&format!("ring 1: rank {rank}: ")), "{said}");
        assert!(said.contains("retry counter exceeded"), "{said}");
    }
    for said in lab.sum(2, "--elements 100000 --rounds 3") {
        assert!(said.contains("3 sums"), "{said}");
    }
}

/// By a ring, whose transport is the kernel's here (`rdma_rxe`), and by sockets. It is the
/// emulator's CPU time, of what more rounds take.
fn cpu_of_hosts(lab: &mut Lab) {
    lab.restart_switch(2);
    lab.cluster.start_ps(0).unwrap();
    let job = lab.config(0).jobs.remove(0);
    let digits = job.key.as_bytes().iter();
    let digits = digits.fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let switch = lab.config(0).address.ip;
    let sum = |rounds: u32| format!("--synthetic --elements 500K --repeat {rounds}");
    let ring = |lab: &Lab, rank: usize, rounds| {
        format!(
            "echo {KEY} | tally-agent ring --ring 1 --key-file - --rank {rank} --members 2 \
             --address {} --coordinator {}:4790 {} --output /run/sum",
            lab.ip(rank),
            lab.ip(0),
            sum(rounds)
        )
    };
    let sockets = |lab: &Lab, rank: usize, rounds| {
        format!(
            "umask 077; echo '{{\"switch\": {{\"address\": \"{switch}\"}}, \"job\": {{\"id\": {}, \
             \"key\": \"{digits}\", \"workers\": 2, \"rank\": {rank}}}, \"transport\": \
             {{\"type\": \"udp\", \"bind\": \"{}:0\"}}}}' >/run/worker.json; \
             tally-agent allreduce --config /run/worker.json --arithmetic native {} --output /run/sum",
            job.id,
            lab.ip(rank),
            sum(rounds)
        )
    };
    let [few, many] = [1, 5];
    let mut cost = |command: &dyn Fn(&Lab, usize, u32) -> String| {
        let mut took = |rounds| {
            let before = lab.machines[0].cpu_time().unwrap();
            for rank in 0..2 {
                let command = command(lab, rank, rounds);
                lab.machines[rank].start(&command).unwrap();
            }
            lab.ends(2).into_iter().for_each(|said| drop(said.unwrap()));
            lab.machines[0].cpu_time().unwrap() - before
        };
        let more = took(few);
        let more = took(many).saturating_sub(more);
        let gbit = f64::from(many - few) * 500_000.0 * 32.0 / 1e9;
        more.as_secs_f64() / gbit
    };
    let [ring, sockets] = [cost(&ring), cost(&sockets)];
    let ratio = ring / sockets;
    println!("CPU s a Gbit: ring {ring:.2}, sockets {sockets:.2}; ratio {ratio:.2}");
    assert!(ring > 0.0 && sockets > 0.0);
}

#[test]
#[ignore = "boots virtual machines: ./test roce"]
fn sums_over_links_that_lose_packets_are_exact() {
    let _alone = alone();
    let mut lab = Lab::boot(3, Some(0.005));
    lab.restart_switch(3);
    for said in lab.sum(3, "--elements 100000 --rounds 3") {
        assert!(said.contains("3 sums"), "{said}");
    }
    let losses = lab.cluster.wire_losses().unwrap();
    let lost: u64 = losses
        .iter()
        .map(|it| it.to_switch.long + it.to_host.long)
        .sum();
    assert!(lost > 0, "{losses:?}");
    // Retransmissions are in no sum.
    let report = lab.restart_switch(0).netreduce.unwrap();
    let bytes = OPENING_BYTES + 3 * 400_000;
    assert_eq!(report.rings[0].counters.sum_bytes, bytes, "{report}");
    assert!(report.counters["sums_again"] > 0, "{report}");
}
