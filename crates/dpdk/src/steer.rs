//! Flow rules: a NIC puts what concerns one data core into that core's queue.
//!
//! # How it works
//!
//! [`Port::steer_udp`] asks the driver for one rule for each queue: UDP datagrams to `first + q` go
//! to queue q. It asks for them with the IPv4 address first and without it then, because some
//! drivers take only the one and some only the other. Every rule is validated before the first is
//! made, and if one can't be made those before it are taken back: a port has all of its rules or
//! none.
//!
//! # The catches
//!
//! - A driver may say yes to a rule and fail to make it. `net_tap` leaves its rules to the kernel,
//!   which needs `sch_multiq`, `cls_flower` and `act_skbedit` for them.
//! - What matches no rule arrives as without rules: in queue 0, or spread by RSS.

use std::ffi::{CStr, c_char};
use std::net::Ipv4Addr;

use dpdk_sys as sys;

use crate::eal::control;
use crate::error::{Errno, Error};
use crate::port::{Port, Started};

/// Longer words of a driver are cut.
const WHY_BYTES: usize = 128;

impl Port<Started> {
    /// Steers UDP datagrams to `ip`, port `first + q`, into queue q, for all receive queues.
    /// Returns how many rules that took.
    ///
    /// # Errors
    ///
    /// [`Error::Rule`] if the driver does not take one of them. Then it has none.
    pub fn steer_udp(&self, ip: Ipv4Addr, first: u16) -> Result<u16, Error> {
        let _control = control();
        self.steer(u32::from_ne_bytes(ip.octets()), first)
            .or_else(|error| self.steer(0, first).map_err(|_| error))
    }

    fn steer(&self, ip: u32, first: u16) -> Result<u16, Error> {
        let queues = self.rx_queues();
        for make in [false, true] {
            for queue in 0..queues {
                let udp_port = first + queue;
                let rule = sys::tally_udp_rule {
                    ip,
                    udp_port,
                    queue,
                };
                if let Err(why) = self.ask(&rule, make) {
                    if make {
                        // SAFETY: the port is started; all its rules are ours.
                        unsafe { sys::tally_rules_flush(self.id().0) };
                    }
                    return Err(Error::Rule {
                        subject: self.name(),
                        udp_port,
                        why,
                    });
                }
            }
        }
        Ok(queues)
    }

    fn ask(&self, rule: &sys::tally_udp_rule, make: bool) -> Result<(), String> {
        let mut why = [0 as c_char; WHY_BYTES];
        // SAFETY: the port is started; the rule is read during the call, which leaves a string in
        // `why` that fits. A driver's message is a constant of its own.
        let ret = unsafe {
            sys::tally_udp_rule_apply(self.id().0, rule, make, why.as_mut_ptr(), WHY_BYTES)
        };
        if ret >= 0 {
            return Ok(());
        }
        // SAFETY: the call has left a string there.
        let words = unsafe { CStr::from_ptr(why.as_ptr()) }.to_string_lossy();
        Err(if words.is_empty() {
            Errno(-ret).to_string()
        } else {
            format!("{words} ({})", Errno(-ret))
        })
    }
}
