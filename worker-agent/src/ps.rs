//! The parameter server: all its jobs in one loop over one link.

use crate::config::PsConfig;
use crate::error::AgentError;
use crate::link::loss::{Loss, Lossy};
use crate::link::{Link, open_link};
use crate::report::ps_job;
use crate::session::{Clock, instance};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_endpoint::{Ps, PsEvent, Time};
use tally_kernels::Kernels;
use tally_program::service::{self, Watchdog};
use tally_schema::agent::report::PsReport;
use tally_wire::header::field;
use tally_wire::{JobId, Mac};

/// How long to wait at most before looking at the stop flag again.
const IDLE_MAX: Duration = Duration::from_millis(50);

/// Serves the jobs of `config` until `stop` becomes true, and tells `observe` what happens.
///
/// # Errors
/// If there is no link, or no more.
pub fn serve(
    config: &PsConfig,
    loss: Option<Loss>,
    observe: &mut dyn FnMut(JobId, PsEvent),
    stop: &AtomicBool,
) -> Result<PsReport, AgentError> {
    let link = open_link(&config.transport, config.switch, None, None)?;
    match loss {
        Some(loss) => over(Lossy::new(link, loss), config, observe, stop),
        None => over(link, config, observe, stop),
    }
}

fn over(
    mut link: impl Link,
    config: &PsConfig,
    observe: &mut dyn FnMut(JobId, PsEvent),
    stop: &AtomicBool,
) -> Result<PsReport, AgentError> {
    let clock = Clock::start();
    let kernels = Kernels::best();
    let mut sessions = Vec::with_capacity(config.jobs.len());
    for job in &config.jobs {
        let mut session =
            tally_endpoint::PsConfig::new(JobId(job.id), job.key.clone(), instance()?);
        session.port = config.switch.port;
        sessions.push(Ps::new(clock.now(), session, kernels));
    }
    service::ready(&format!("serving {} jobs", sessions.len()));
    let mut watchdog = Watchdog::from_environment();
    let mut leaving = false;
    while !sessions.iter().all(Ps::is_closed) {
        watchdog.alive(Instant::now());
        let now = clock.now();
        let received = link.receive(&mut |ecn, datagram| {
            if let Some(session) = session_of(&mut sessions, datagram) {
                session.handle_datagram(now, ecn, datagram);
            }
        })?;
        link.pin(switch_mac(&sessions, now));
        let stopped = stop.load(Ordering::Relaxed);
        for session in &mut sessions {
            if stopped && !leaving {
                session.leave(now);
            }
            if session.poll_timeout().is_some_and(|at| at <= now) {
                session.handle_timeout(now);
            }
        }
        if stopped && !leaving {
            service::stopping();
        }
        leaving = stopped;
        let now = clock.now();
        let mut turn = sessions.iter_mut();
        let mut current = turn.next();
        let sent = link.send(&mut |out| {
            while let Some(session) = &mut current {
                if let Some(transmit) = session.poll_transmit(now, out) {
                    return Some(transmit);
                }
                current = turn.next();
            }
            None
        })?;
        for session in &mut sessions {
            while let Some(event) = session.poll_event() {
                observe(session.job(), event);
            }
        }
        if received == 0 && sent == 0 {
            let next = sessions.iter().filter_map(Ps::poll_timeout).min();
            let until = next.map_or(IDLE_MAX, |at| at.since(now));
            link.wait(until.min(IDLE_MAX), Duration::ZERO, None)?;
        }
    }
    let report = |s: &Ps| ps_job(s.job().0, s.stats());
    Ok(PsReport {
        seconds: clock.now().since(Time(0)).as_secs_f64(),
        jobs: sessions.iter().map(report).collect(),
        loss: link.losses(),
    })
}

/// The switch's MAC, if the ACCEPTs of all jobs that have one agree: each is under its own job's
/// key, and no key's holder may redirect other jobs' frames.
fn switch_mac(sessions: &[Ps], now: Time) -> Option<Mac> {
    let mut macs = sessions.iter().filter_map(|it| it.switch_mac(now));
    let first = macs.next()?;
    macs.all(|mac| mac == first).then_some(first)
}

/// The session of the job that the datagram names, if it names one of ours.
fn session_of<'a>(sessions: &'a mut [Ps], datagram: &[u8]) -> Option<&'a mut Ps> {
    let job = JobId(u16::from_be_bytes(*datagram.get(field::JOB)?.as_array()?));
    sessions.iter_mut().find(|s| s.job() == job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkError;
    use std::net::Ipv4Addr;
    use std::os::fd::BorrowedFd;
    use tally_endpoint::{Ecn, Transmit};
    use tally_wire::control::{DATAGRAM_BYTES, State};
    use tally_wire::header::HEADER_BYTES;
    use tally_wire::{Accept, Epoch, Header, Key, Kind};

    const KEY: [u8; 16] = *b"sixteen bytes or";
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn accept(instance: u64, mac: Mac) -> Accept {
        Accept {
            instance,
            challenge: 1,
            state: State::Waiting,
            workers: 2,
            units: 1,
            shards: 1,
            base_port: 31_249,
            window: 4,
            joined: 0,
            left: 0,
            ps: true,
            group: Ipv4Addr::new(239, 84, 0, 7),
            behind: None,
            mac,
            salt: 5,
            wrapped: None,
        }
    }

    /// A switch that answers every control frame with ACCEPT, and stops the server once a MAC is
    /// pinned.
    struct Accepting<'a> {
        answers: Vec<[u8; DATAGRAM_BYTES]>,
        pinned: &'a mut Vec<Mac>,
        stop: &'a AtomicBool,
    }

    impl Link for Accepting<'_> {
        fn send(
            &mut self,
            fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
        ) -> Result<usize, LinkError> {
            let mut out = [0; 1024];
            let mut sent = 0;
            while fill(&mut out).is_some() {
                sent += 1;
                let header = Header::parse(&out[..DATAGRAM_BYTES]).unwrap();
                // JOIN and LEAVE begin with the instance.
                let instance = u64::from_be_bytes(*out[HEADER_BYTES..].first_chunk().unwrap());
                let mut answer = [0; DATAGRAM_BYTES];
                let header = Header {
                    kind: Kind::Accept,
                    epoch: Epoch(9),
                    ..header
                };
                header.emit(&mut answer);
                accept(instance, MAC).emit(&mut answer);
                Key::new(&KEY).unwrap().seal(&mut answer);
                self.answers.push(answer);
            }
            Ok(sent)
        }

        fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
            let answers = self.answers.drain(..);
            Ok(answers.map(|answer| take(Ecn::Ect0, &answer)).count())
        }

        fn wait(
            &mut self,
            timeout: Duration,
            _: Duration,
            _: Option<BorrowedFd<'_>>,
        ) -> Result<(), LinkError> {
            std::thread::sleep(timeout);
            Ok(())
        }

        fn pin(&mut self, switch_mac: Option<Mac>) {
            self.pinned.extend(switch_mac);
            self.stop.store(!self.pinned.is_empty(), Ordering::Relaxed);
        }
    }

    #[test]
    fn the_mac_that_accept_gives_is_pinned() {
        let text = format!(
            r#"{{"switch": {{"address": "10.84.0.254"}}, "transport": {{"type": "udp", "bind": "10.84.0.2:0"}},
                "jobs": [{{"id": 7, "key": "{}"}}]}}"#,
            KEY.map(|byte| format!("{byte:02x}")).concat()
        );
        let config: PsConfig = tally_config::parse("ps.json", text.as_bytes()).unwrap();
        let (mut pinned, stop) = (Vec::new(), AtomicBool::new(false));
        let link = Accepting {
            answers: Vec::new(),
            pinned: &mut pinned,
            stop: &stop,
        };
        over(link, &config, &mut |_, _| {}, &stop).unwrap();
        assert!(!pinned.is_empty() && pinned.iter().all(|mac| *mac == MAC));
    }

    #[test]
    fn jobs_that_disagree_about_the_mac_pin_none() {
        let key = Key::new(&KEY).unwrap();
        let seated = |job, mac| {
            let config = tally_endpoint::PsConfig::new(JobId(job), key.clone(), 1);
            Ps::seated(Time(0), config, Kernels::best(), Epoch(9), accept(1, mac))
        };
        let config = tally_endpoint::PsConfig::new(JobId(6), key.clone(), 1);
        let mut sessions = vec![Ps::new(Time(0), config, Kernels::best())];
        assert_eq!(switch_mac(&sessions, Time(0)), None);
        sessions.extend([seated(7, MAC), seated(8, MAC)]);
        assert_eq!(switch_mac(&sessions, Time(0)), Some(MAC));
        sessions.push(seated(9, OTHER));
        assert_eq!(switch_mac(&sessions, Time(0)), None);
    }
}
