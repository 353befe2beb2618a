//! Frames as a device hands them to the kernel, with its word on what is still to be done about
//! them: also such as come from a veth pair only where the kernel has what makes them. Needs root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Receiver, frame, ip, is_root, new_pool, receive, silence, skipped, tagged};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use tally_packet::{Ready, open, superframes};
use tally_wire::frame::{UDP_END, internet_checksum};

/// Where a transport's header begins behind Ethernet and IPv4, or IPv6.
const BEHIND_IPV4: usize = 34;
const BEHIND_IPV6: usize = 54;
/// Where the checksum is in one of UDP, and of TCP.
const OF_UDP: usize = 6;
const OF_TCP: usize = 16;

const GSO_UDP_L4: u8 = 5;
/// One long datagram, to be cut into fragments. Packet sockets receive none.
const GSO_UDP_FRAGMENTS: u8 = 3;

/// A device of which we are the wire; gone with the value.
struct Tap(File, String);

impl Tap {
    /// `None` where there are none.
    fn new() -> Option<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open("/dev/net/tun").ok()?;
        let name = format!("tt{}", std::process::id() % 100_000);
        // SAFETY: all fields are numbers.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: a request of the kind that it wants, with a name that ends with zero.
        let ret = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
        silence(&name);
        ip(&["link", "set", &name, "mtu", "9000", "up"]);
        Some(Self(file, name))
    }

    /// A frame whose checksum, `at` behind `start`, is open; a superframe if `gso` says its kind
    /// and length of datagrams.
    fn deliver(&mut self, frame: &[u8], start: usize, at: usize, gso: Option<(u8, usize)>) {
        const CHECKSUM_OPEN: u8 = 1;
        let (kind, datagram_bytes) = gso.unwrap_or_default();
        let mut all = vec![CHECKSUM_OPEN, kind];
        for number in [start + 8, datagram_bytes, start, at] {
            all.extend((number as u16).to_ne_bytes());
        }
        all.extend(frame);
        // A kernel refuses some of what contradicts itself.
        let written = self.0.write(&all).ok();
        assert!(written == Some(all.len()) || gso.is_some());
    }
}

#[test]
fn what_a_device_leaves_to_others_is_done() {
    if !is_root() {
        skipped("packet sockets need root");
        return;
    }
    let Some(mut tap) = Tap::new() else {
        skipped("no /dev/net/tun");
        return;
    };
    let (_eal, pool) = new_pool();
    {
        let mut ready = Ready::new().unwrap();
        let (rx, _tx) = open(&tap.1, &pool, &mut ready).unwrap();
        let mut rx = Receiver { rx, ready };
        open_checksums_are_finished(&mut tap, &mut rx);
        superframes_with_a_tag_are_refused(&mut tap, &mut rx);
        superframes_without_a_name_are_counted(&mut tap, &mut rx);
        superframes_that_contradict_themselves_are_refused(&mut tap, &mut rx);
        assert_eq!(rx.rx.no_buffer(), 0);
    }
    assert!(pool.is_whole());
}

/// The sum of a pseudo header over IPv4 or IPv6, for a transport that begins at `start`.
fn pseudo(frame: &[u8], start: usize) -> u16 {
    let (addresses, protocol) = match start {
        BEHIND_IPV4 => (&frame[26..34], frame[23]),
        _ => (&frame[22..54], frame[20]),
    };
    let length = (frame.len() - start) as u16;
    let mut sum = addresses.to_vec();
    sum.extend([0, protocol]);
    sum.extend(length.to_be_bytes());
    !internet_checksum(&sum)
}

/// A frame of a protocol over IPv6.
fn over_ipv6(protocol: u8, bytes: usize) -> Vec<u8> {
    let f = frame(1, bytes, 3);
    let length = ((f.len() - BEHIND_IPV4) as u16).to_be_bytes();
    let ip = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
    let addresses = [[0xfd; 16], [0xfe; 16]].concat();
    [&f[..12], &[0x86, 0xdd], &ip, &addresses, &f[BEHIND_IPV4..]].concat()
}

/// With a tag the kernel says where the checksum is in the frame without it, and we have to put
/// both right.
fn open_checksums_are_finished(tap: &mut Tap, rx: &mut Receiver) {
    let unsupported = rx.rx.unsupported();
    for bytes in [22, 23, 1046, 8000] {
        let udp = frame(1, bytes, 3);
        let mut tcp = udp.clone();
        tcp[23] = 6;
        let cases = [
            (udp, BEHIND_IPV4, OF_UDP),
            (tcp, BEHIND_IPV4, OF_TCP),
            (over_ipv6(17, bytes), BEHIND_IPV6, OF_UDP),
            (over_ipv6(6, bytes), BEHIND_IPV6, OF_TCP),
        ];
        for (mut f, start, at) in cases {
            let field = start + at..start + at + 2;
            let sum = pseudo(&f, start);
            f[field.clone()].copy_from_slice(&sum.to_be_bytes());
            tap.deliver(&f, start, at, None);
            let one = tagged(&f, 0x8100, 5);
            tap.deliver(&one, start + 4, at, None);
            let two = tagged(&one, 0x88a8, 7);
            tap.deliver(&two, start + 8, at, None);
            // What it is to be. UDP over IPv4 does without.
            let mut whole = f.clone();
            if (start, at) == (BEHIND_IPV4, OF_UDP) {
                whole[field].fill(0);
            } else {
                let checksum = internet_checksum(&f[start..]);
                whole[field].copy_from_slice(&checksum.to_be_bytes());
                assert_eq!(internet_checksum(&whole[start..]), pseudo(&f, start));
            }
            let one = tagged(&whole, 0x8100, 5);
            let two = tagged(&one, 0x88a8, 7);
            let got = receive(rx, 3);
            assert!(got[0] == whole, "{bytes} {start} {at}");
            assert!(got[1] == one, "{bytes} {start} {at}, with a tag");
            let mut expected = two;
            if (start, at) == (BEHIND_IPV4, OF_UDP) {
                // Behind another tag it is not known as IPv4, so it is finished.
                let checksum = internet_checksum(&f[start..]);
                expected[start + 8 + at..][..2].copy_from_slice(&checksum.to_be_bytes());
            }
            assert!(got[2] == expected, "{bytes} {start} {at}, with two");
        }
    }
    assert_eq!(rx.rx.unsupported(), unsupported);
}

fn superframes_with_a_tag_are_refused(tap: &mut Tap, rx: &mut Receiver) {
    if !superframes() {
        skipped("this kernel has no superframes on packet sockets");
        return;
    }
    let (bytes, n) = (1046, 7);
    let whole = frame(1, bytes * n, 3);
    let gso = Some((GSO_UDP_L4, bytes));
    let unsupported = rx.rx.unsupported();
    for tag in [0x8100, 0x88a8] {
        let f = tagged(&whole, tag, 5);
        tap.deliver(&f, BEHIND_IPV4 + 4, OF_UDP, gso);
    }
    assert_eq!(receive(rx, 0).len(), 0);
    tap.deliver(&whole, BEHIND_IPV4, OF_UDP, gso);
    let got = receive(rx, n);
    assert_eq!(got.len(), n);
    for (frame, datagram) in got.iter().zip(whole[UDP_END..].chunks(bytes)) {
        assert!(frame[UDP_END..] == *datagram);
    }
    assert_eq!(rx.rx.unsupported(), unsupported + 2);
}

/// The kernel takes such a frame from the socket and has no word for it: the error is all that is
/// seen of it.
fn superframes_without_a_name_are_counted(tap: &mut Tap, rx: &mut Receiver) {
    let before = rx.rx.unsupported();
    let one = frame(1, 1046, 4);
    let fragmented = frame(1, 7 * 1048, 3);
    for n in 1..=3 {
        // First, in the middle, and last of what is received together.
        for at in 0..=2 {
            for place in 0..=2 {
                if place == at {
                    let gso = Some((GSO_UDP_FRAGMENTS, 1048));
                    tap.deliver(&fragmented, BEHIND_IPV4, OF_UDP, gso);
                } else {
                    tap.deliver(&one, BEHIND_IPV4, OF_UDP, None);
                }
            }
            assert!(receive(rx, 2) == [one.clone(), one.clone()], "{n} {at}");
        }
        assert_eq!(rx.rx.unsupported(), before + 3 * n);
    }
}

/// A hostile neighbour on the other end of a veth pair can say what it likes.
fn superframes_that_contradict_themselves_are_refused(tap: &mut Tap, rx: &mut Receiver) {
    const GSO_TCP4: u8 = 1;
    const GSO_TCP6: u8 = 4;
    if !superframes() {
        skipped("this kernel has no superframes on packet sockets");
        return;
    }
    rx.rx.forward_superframes([10, 84, 0, 254].into());
    let mut tcp = frame(1, 20_000, 3);
    tcp[23] = 6;
    tcp[46] = 0x50;
    let sum = pseudo(&tcp, BEHIND_IPV4);
    tcp[50..52].copy_from_slice(&sum.to_be_bytes());
    let ordinary = frame(1, 90, 4);
    let mut deliver = |f: &[u8], start, at, gso| {
        tap.deliver(f, start, at, Some(gso));
        tap.deliver(&ordinary, BEHIND_IPV4, OF_UDP, None);
        let got = receive(rx, 1);
        // The ordinary frame behind it, with a checksum: it is not to the switch.
        assert!(got[0][UDP_END..] == ordinary[UDP_END..]);
        assert_ne!(got[0][40..42], [0, 0]);
    };
    let changed = |at: usize, value: u8| {
        let mut f = tcp.clone();
        f[at] = value;
        f
    };
    // Lengths of IPv4 and of TCP's header, a fragment, another protocol.
    for (at, value) in [(16, 1), (14, 0x4f), (46, 0x40), (20, 0x20), (23, 17)] {
        let gso = (GSO_TCP4, 1400);
        deliver(&changed(at, value), BEHIND_IPV4, OF_TCP, gso);
    }
    deliver(&tcp, BEHIND_IPV4 + 2, OF_TCP, (GSO_TCP4, 1400));
    deliver(&tcp, BEHIND_IPV4, OF_UDP, (GSO_TCP4, 1400));
    deliver(&tcp, BEHIND_IPV4, OF_TCP, (GSO_TCP6, 1400));
    deliver(&tcp, BEHIND_IPV4, OF_UDP, (GSO_UDP_L4, 1400));
    // Too many frames, and such as no port takes.
    deliver(&tcp, BEHIND_IPV4, OF_TCP, (GSO_TCP4, 30));
    deliver(&tcp, BEHIND_IPV4, OF_TCP, (GSO_TCP4, 15_000));
    // An extension header.
    let mut extended = over_ipv6(0, 20_000);
    extended[54] = 6;
    deliver(&extended, BEHIND_IPV6 + 8, OF_TCP, (GSO_TCP6, 1400));
}
