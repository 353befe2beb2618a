//! RoCEv2 of Linux (`rdma_rxe`) in virtual machines at a real switch: perftest's messages, and
//! rings.
//!
//! Uses the release programs and the image that `./test roce` makes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::path::PathBuf;
use std::time::Duration;
use tally_testkit::cluster::{Cluster, Machine, Spec};

/// A command of an emulated CPU that others share.
const LONG: Duration = Duration::from_secs(120);
/// Messages of perftest, in numbers and bytes, and the longest payload of a packet.
const MESSAGES: u32 = 100;
const MESSAGE_BYTES: u32 = 65_536;
const PATH_MTU: u32 = 1024;

fn cluster(machines: usize) -> (Cluster, Vec<Machine>) {
    let spec = Spec {
        jobs: Vec::new(),
        guests: machines,
        programs: programs(),
        ..Spec::default()
    };
    let cluster = Cluster::start(spec).unwrap();
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
