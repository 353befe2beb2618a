//! A pair of interfaces whose every frame is at the other end.

use super::{ip, silence};
use std::process::Command;
use std::time::{Duration, Instant};

pub const MTU: usize = 9000;

/// A pair of interfaces, gone with the value.
pub struct Veth(pub String, pub String);

impl Veth {
    pub fn new() -> Self {
        let id = std::process::id() % 100_000;
        let veth = Self(format!("tp{id}"), format!("tq{id}"));
        ip(&[
            "link", "add", &veth.0, "type", "veth", "peer", "name", &veth.1,
        ]);
        for side in [&veth.0, &veth.1] {
            silence(side);
            ip(&["link", "set", side, "mtu", &MTU.to_string(), "up"]);
        }
        for side in [&veth.0, &veth.1] {
            until_it_sends(side);
        }
        veth
    }
}

/// The kernel notices a carrier in its own time, and until then drops without a word what is sent.
fn until_it_sends(interface: &str) {
    let state = format!("/sys/class/net/{interface}/operstate");
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::read_to_string(&state).unwrap() != "up\n" {
        assert!(Instant::now() < deadline, "{interface} gets no carrier");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It says so a moment before the queue is there, under a lock that this waits for.
    ip(&["link", "set", interface, "up"]);
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}
