//! Every driver that Tally names is there at run time, and `net_af_packet` carries frames over a
//! pair of veth interfaces, jumbo frames too. The latter needs root.

mod common;

use std::process::Command;

use common::{frame, in_two, is_root, pattern, pool, skipped, wait_until};
use tally_dpdk::{
    Eal, EalConfig, Error, Mbuf, Mempool, MempoolConfig, Port, PortConfig, StartedPort,
};

#[test]
fn drivers() {
    let eal = Eal::init(&EalConfig::no_huge(128)).expect("the EAL starts");
    plugins(&eal);
    if is_root() {
        af_packet(&eal);
    } else {
        skipped("net_af_packet between veth interfaces needs root");
    }
}

/// Made, or refused by the driver itself: no such driver is another error.
fn plugins(eal: &Eal) {
    let folder = std::env::temp_dir();
    let vhost = format!(
        "iface={}/tally-vhost-{}",
        folder.display(),
        std::process::id()
    );
    let unknown = errno(Port::vdev(eal, "net_nonsense0", "").map(drop));
    for (name, arguments) in [
        ("net_af_packet9", ""),
        ("net_af_xdp9", ""),
        ("net_memif9", "id=9,role=nonsense"),
        ("net_null9", ""),
        ("net_pcap9", "rx_pcap=/nonexistent/file"),
        ("net_ring9", ""),
        ("net_tap9", "iface=a-name-that-is-too-long-for-linux"),
        ("net_vhost9", vhost.as_str()),
    ] {
        let made = errno(Port::vdev(eal, name, arguments).map(drop));
        assert!(made.is_none() || made != unknown, "{name}: {made:?}");
    }
}

fn errno(outcome: Result<(), Error>) -> Option<i32> {
    match outcome {
        Err(Error::Call { errno, .. }) => Some(errno.0),
        _ => None,
    }
}

/// A pair of interfaces of the kernel's, gone with the value.
struct Veth(String, String);

impl Veth {
    fn new(mtu: u16) -> Self {
        let id = std::process::id() % 100_000;
        let veth = Self(format!("ta{id}"), format!("tb{id}"));
        let mtu = mtu.to_string();
        ip(&[
            "link", "add", &veth.0, "type", "veth", "peer", "name", &veth.1,
        ]);
        for side in [&veth.0, &veth.1] {
            // Keeps the kernel from saying anything of its own on them.
            let off = format!("/proc/sys/net/ipv6/conf/{side}/disable_ipv6");
            let _ = std::fs::write(off, "1");
            ip(&["link", "set", side, "mtu", &mtu, "up"]);
        }
        veth
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip")
        .args(arguments)
        .status()
        .expect("iproute2 is there");
    assert!(status.success(), "ip {arguments:?}");
}

fn af_packet(eal: &Eal) {
    let veth = Veth::new(1500);
    let standard = pool(eal, "standard", 2047, 64);
    carry(eal, &veth, "", &standard, pattern);
    drop(veth);

    let veth = Veth::new(9000);
    let config = MempoolConfig {
        frames: 1023,
        cache_frames: 64,
        frame_bytes_max: 16_384,
        socket: None,
    };
    let jumbo = Mempool::new(eal, "jumbo", &config).expect("memory");
    // A block holds a whole number of frames, and a frame the headers of the ring as well.
    let arguments = "blocksz=16384,framesz=16384,framecnt=256";
    let long = |n: usize| pattern(n).repeat(9000 / 1460 - 1);
    carry(eal, &veth, arguments, &jumbo, long);

    // Told to the driver, a larger MTU is refused.
    let mtu = PortConfig {
        mtu: Some(9000),
        ..PortConfig::default()
    };
    let port = Port::vdev(eal, "net_af_packet0", &format!("iface={}", veth.0)).expect("a port");
    let refused = port.configure(&mtu, std::slice::from_ref(&jumbo));
    assert!(matches!(refused, Err(Error::TooMuch { what: "mtu", .. })));
}

fn carry(
    eal: &Eal,
    veth: &Veth,
    arguments: &str,
    pool: &Mempool,
    content: impl Fn(usize) -> Vec<u8>,
) {
    let config = PortConfig {
        tx_multi_segment: true,
        ..PortConfig::default()
    };
    let start = |name: &str, side: &str| -> StartedPort {
        Port::vdev(eal, name, &format!("iface={side},{arguments}"))
            .expect("a port")
            .configure(&config, std::slice::from_ref(pool))
            .expect("it takes the configuration")
            .start()
            .expect("it starts")
    };
    let mut a = start("net_af_packet0", &veth.0);
    let mut b = start("net_af_packet1", &veth.1);
    let (mut received, mut waiting) = (Vec::with_capacity(64), Vec::with_capacity(64));
    let (mut sent, mut arrived) = (0, 0);
    wait_until("all frames have arrived", || {
        while waiting.len() < 16 && sent + waiting.len() < 500 {
            let mut bytes = content(sent + waiting.len());
            // An ethertype of our own, so that the kernel leaves the frames alone.
            bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
            let frame = pool.alloc_copy(&bytes).expect("a frame");
            waiting.push(if waiting.len() % 3 == 0 {
                in_two(pool, frame).0
            } else {
                frame
            });
        }
        sent += a.tx[0].burst(&mut waiting);
        b.rx[0].burst(&mut received, 32);
        for frame in received.drain(..) {
            if frame.data()[12..14] == [0x88, 0xb5] {
                assert!(
                    frame.data()[14..] == content(arrived)[14..],
                    "frame {arrived}"
                );
                assert_eq!(frame.data().as_ptr().addr() % 64, 0);
                arrived += 1;
            }
        }
        arrived == 500
    });
    assert_eq!(a.port.stats().expect("counters").tx_errors, 0);
    drop((a, b));
    assert!(pool.is_whole());

    // A shared frame: the driver copies and gives up its reference, and ours is untouched.
    let mut a = start("net_af_packet0", &veth.0);
    let held = frame(pool, 1);
    let mut shared: Vec<Mbuf> = vec![held.share()];
    assert_eq!(a.tx[0].burst(&mut shared), 1);
    assert!(held.is_unique());
    assert_eq!(held.data(), pattern(1));
    // So it does with a shared payload.
    let (chain, payload) = in_two(pool, held);
    shared.push(chain);
    assert_eq!(a.tx[0].burst(&mut shared), 1);
    assert!(payload.is_unique());
    assert_eq!(payload.data(), &pattern(1)[52..]);
    drop((a, payload));
    assert!(pool.is_whole());
}
