//! The parameter server: all its jobs in one loop over one link.
//!
//! [`serve()`] is a program's whole life, [`serve_jobs`] the same with jobs that come and go. An
//! agent that has a parameter server runs the same loop on a thread, or, at a DPDK port, takes its
//! turns itself.

use crate::config::{PsConfig, PsJob};
use crate::error::AgentError;
use crate::link::loss::{Loss, Lossy};
use crate::link::{Link, open_link};
use crate::log::Log;
use crate::monitor::PsMonitor;
use crate::report::ps_job;
use crate::session::{Clock, instance};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tally_endpoint::nic::{NicOrder, Turn};
use tally_endpoint::{Ps, PsEvent, Ranks, Time};
use tally_kernels::Kernels;
use tally_schema::agent::report::{PsJobReport, PsReport};
use tally_wire::header::field;
use tally_wire::{JobId, Mac};

/// How long to wait at most before looking at the stop flag again.
const IDLE_MAX: Duration = Duration::from_millis(50);
/// Reports of sessions that left before the end: the last ones of this number.
const LEFT_MAX: usize = 1024;

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
    serve_jobs(config, loss, observe, stop, &mut || None)
}

/// As [`serve()`], and each list that `news` gives takes the place of the jobs before. It is asked
/// in each turn, once there is a link.
///
/// # Errors
/// As of [`serve()`].
pub fn serve_jobs(
    config: &PsConfig,
    loss: Option<Loss>,
    observe: &mut dyn FnMut(JobId, PsEvent),
    stop: &AtomicBool,
    news: &mut dyn FnMut() -> Option<Vec<PsJob>>,
) -> Result<PsReport, AgentError> {
    let link = open_link(&config.transport, config.switch, None, None)?;
    match loss {
        Some(loss) => over(Lossy::new(link, loss), config, observe, stop, news),
        None => over(link, config, observe, stop, news),
    }
}

fn over(
    link: impl Link,
    config: &PsConfig,
    observe: &mut dyn FnMut(JobId, PsEvent),
    stop: &AtomicBool,
    news: &mut dyn FnMut() -> Option<Vec<PsJob>>,
) -> Result<PsReport, AgentError> {
    let mut server = Server::new(link, config)?;
    while !server.is_over() {
        if let Some(jobs) = news() {
            server.set_jobs(jobs)?;
        }
        if stop.load(Ordering::Relaxed) {
            server.stop();
        }
        if !server.turn(observe)? {
            let until = server.idle_for(IDLE_MAX);
            server.link.wait(until, Duration::ZERO, None)?;
        }
    }
    Ok(server.report())
}

/// A parameter server on its link: what there is to do, without waiting.
pub(crate) struct Server<L> {
    link: L,
    clock: Clock,
    kernels: Kernels,
    /// First UDP port of the switch.
    port: u16,
    /// The jobs to serve. One whose session is leaving gets the next when that has left.
    jobs: Vec<PsJob>,
    sessions: Vec<Served>,
    /// Which of them sends next.
    order: NicOrder,
    /// Of sessions that have left before the end.
    left: Vec<PsJobReport>,
    is_stopping: bool,
    /// Where the reports go, if metrics are configured.
    monitor: Option<PsMonitor>,
}

struct Served {
    session: Ps,
    /// What it was opened with.
    job: PsJob,
}

impl<L: Link> Server<L> {
    /// A server that begins to join the jobs of `config`.
    ///
    /// # Errors
    /// If the system gives no random number.
    pub(crate) fn new(link: L, config: &PsConfig) -> Result<Self, AgentError> {
        let mut server = Self {
            link,
            clock: Clock::start(),
            kernels: Kernels::best(),
            port: config.switch.port,
            jobs: config.jobs.clone(),
            sessions: Vec::with_capacity(config.jobs.len()),
            order: NicOrder::default(),
            left: Vec::new(),
            is_stopping: false,
            monitor: PsMonitor::of(config),
        };
        server.open_sessions()?;
        Ok(server)
    }

    /// Serves `jobs` from now on, and leaves all others. A job that is in both lists is not
    /// disturbed; another key is used as soon as the switch has it.
    ///
    /// # Errors
    /// If the system gives no random number.
    pub(crate) fn set_jobs(&mut self, jobs: Vec<PsJob>) -> Result<(), AgentError> {
        self.jobs = jobs;
        let now = self.clock.now();
        for served in &mut self.sessions {
            match self.jobs.iter().find(|it| it.id == served.job.id) {
                None => served.session.leave(now),
                // Another part is another membership: the new one follows once this has left.
                Some(job) if job.part() != served.job.part() => served.session.leave(now),
                Some(job) if *job != served.job => {
                    served.session.set_key(job.key.clone());
                    served.job = job.clone();
                }
                Some(_) => {}
            }
        }
        self.open_sessions()
    }

    /// Opens the session of each job that has none.
    fn open_sessions(&mut self) -> Result<(), AgentError> {
        if self.is_stopping {
            return Ok(());
        }
        for job in &self.jobs {
            if self.sessions.iter().any(|it| it.job.id == job.id) {
                continue;
            }
            let mut config =
                tally_endpoint::PsConfig::new(JobId(job.id), job.key.clone(), instance()?);
            config.port = self.port;
            config.part = job.part();
            self.sessions.push(Served {
                session: Ps::new(self.clock.now(), config, self.kernels),
                job: job.clone(),
            });
        }
        Ok(())
    }

    /// Leaves all jobs.
    pub(crate) fn stop(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            let now = self.clock.now();
            for served in &mut self.sessions {
                served.session.leave(now);
            }
        }
    }

    /// Whether it was told to stop, and has left all jobs.
    pub(crate) fn is_over(&self) -> bool {
        self.is_stopping && self.sessions.is_empty()
    }

    /// Does what there is to do: takes what has come, keeps the timers, sends. Returns false if
    /// there was nothing.
    ///
    /// # Errors
    /// If the link is broken for good.
    pub(crate) fn turn(
        &mut self,
        observe: &mut dyn FnMut(JobId, PsEvent),
    ) -> Result<bool, AgentError> {
        let Self {
            link,
            clock,
            sessions,
            order,
            ..
        } = self;
        let now = clock.now();
        let received = link.receive(&mut |ecn, datagram| {
            if let Some(session) = session_of(sessions, datagram) {
                session.handle_datagram(now, ecn, datagram);
            }
        })?;
        link.pin(switch_mac(sessions.iter().map(|it| &it.session), now));
        for Served { session, .. } in &mut *sessions {
            if session.poll_timeout().is_some_and(|at| at <= now) {
                session.handle_timeout(now);
            }
        }
        let now = clock.now();
        for (at, Served { session, .. }) in sessions.iter().enumerate() {
            if let Some(demand) = session.demand(now) {
                order.offer(at, demand);
            }
        }
        let (mut turn, mut frames) = (order.next(), 0);
        let sent = link.send(&mut |out| {
            while let Some(Turn { at, most }) = turn {
                if frames < most
                    && let Some(transmit) = sessions[at].session.poll_transmit(now, out)
                {
                    frames += 1;
                    return Some(transmit);
                }
                order.sent(frames, frames < most);
                (turn, frames) = (order.next(), 0);
            }
            None
        });
        if turn.is_some() {
            order.sent(frames, false);
        }
        order.end();
        let sent = sent?;
        let mut has_left = false;
        for Served { session, .. } in &mut *sessions {
            while let Some(event) = session.poll_event() {
                observe(session.job(), event);
            }
            has_left |= session.is_closed();
        }
        if has_left {
            let gone = sessions.extract_if(.., |it| it.session.is_closed());
            self.left.extend(gone.map(|it| report(&it.session)));
            let over = self.left.len().saturating_sub(LEFT_MAX);
            self.left.drain(..over);
            self.open_sessions()?;
        }
        if let Some(mut monitor) = self.monitor.take() {
            monitor.look(|| self.report());
            self.monitor = Some(monitor);
        }
        Ok(received > 0 || sent > 0 || has_left)
    }

    /// How long there is nothing to do on account of time, up to `most`.
    pub(crate) fn idle_for(&self, most: Duration) -> Duration {
        let timeouts = self
            .sessions
            .iter()
            .filter_map(|it| it.session.poll_timeout());
        let now = self.clock.now();
        timeouts.min().map_or(most, |at| at.since(now)).min(most)
    }

    /// What was done, by job and in the order in which their sessions ended.
    pub(crate) fn report(&self) -> PsReport {
        let sessions = self.sessions.iter().map(|it| report(&it.session));
        PsReport {
            seconds: self.clock.now().since(Time(0)).as_secs_f64(),
            jobs: self.left.iter().cloned().chain(sessions).collect(),
            loss: self.link.losses(),
        }
    }
}

/// Says in the log what happened to a job; `who` is in front of each line.
pub fn log_event(log: Log, who: &str, job: JobId, event: PsEvent) {
    let job = job.0;
    match event {
        PsEvent::Joined { part } if part.count() > 1 => log.info(format_args!(
            "{who}job {job}: joined as part {} of {}, waiting for workers",
            part.index(),
            part.count()
        )),
        PsEvent::Joined { .. } => {
            log.info(format_args!("{who}job {job}: joined, waiting for workers"));
        }
        PsEvent::Running { epoch, workers } => log.info(format_args!(
            "{who}job {job}: running with {workers} workers, epoch {}",
            epoch.0
        )),
        PsEvent::Ended { epoch } => {
            log.info(format_args!("{who}job {job}: epoch {} has ended", epoch.0));
        }
        PsEvent::Aborted {
            reason,
            rank,
            behind,
        } => {
            let rank = rank.map_or(String::new(), |r| format!(", {r}"));
            let why = match behind {
                Ranks(0) => String::new(),
                behind => format!(", which gave up waiting for {behind}"),
            };
            log.error(format_args!(
                "{who}job {job}: failed: {reason:?}{rank}{why}"
            ));
        }
        PsEvent::Refused(hint) => log.warn(format_args!(
            "{who}job {job}: not taken in: {hint}; trying again"
        )),
        PsEvent::Left => log.info(format_args!("{who}job {job}: left")),
    }
}

fn report(session: &Ps) -> PsJobReport {
    ps_job(session.job().0, session.part(), session.stats())
}

/// The switch's MAC, if the ACCEPTs of all jobs that have one agree: each is under its own job's
/// key, and no key's holder may redirect other jobs' frames.
fn switch_mac<'a>(sessions: impl Iterator<Item = &'a Ps>, now: Time) -> Option<Mac> {
    let mut macs = sessions.filter_map(|it| it.switch_mac(now));
    let first = macs.next()?;
    macs.all(|mac| mac == first).then_some(first)
}

/// The session of the job that the datagram names, if it names one of ours.
fn session_of<'a>(sessions: &'a mut [Served], datagram: &[u8]) -> Option<&'a mut Ps> {
    let job = JobId(u16::from_be_bytes(*datagram.get(field::JOB)?.as_array()?));
    let mut sessions = sessions.iter_mut().map(|it| &mut it.session);
    sessions.find(|s| s.job() == job)
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
            missing_ps: None,
            group: Ipv4Addr::new(239, 84, 0, 7),
            behind: None,
            mac,
            salt: 5,
            wrapped: None,
            place: None,
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
        over(link, &config, &mut |_, _| {}, &stop, &mut || None).unwrap();
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
        assert_eq!(switch_mac(sessions.iter(), Time(0)), None);
        sessions.extend([seated(7, MAC), seated(8, MAC)]);
        assert_eq!(switch_mac(sessions.iter(), Time(0)), Some(MAC));
        sessions.push(seated(9, OTHER));
        assert_eq!(switch_mac(sessions.iter(), Time(0)), None);
    }

    /// A job whose part is another one from now on is left, and joined anew with that.
    #[test]
    fn another_part_is_another_membership() {
        let job = |part| PsJob {
            part,
            parts: 2,
            ..PsJob::new(7, Key::new(&KEY).unwrap())
        };
        let config = PsConfig {
            switch: crate::config::SwitchAddress::new(Ipv4Addr::new(10, 84, 0, 254)),
            jobs: vec![job(0)],
            transport: crate::config::Transport::udp(Ipv4Addr::new(10, 84, 0, 2)),
            log: Default::default(),
            metrics: None,
        };
        let (mut pinned, stop) = (Vec::new(), AtomicBool::new(false));
        let link = Accepting {
            answers: Vec::new(),
            pinned: &mut pinned,
            stop: &stop,
        };
        let mut server = Server::new(link, &config).unwrap();
        let mut events = Vec::new();
        for turn in 0..8 {
            if turn == 3 {
                server.set_jobs(vec![job(1)]).unwrap();
            }
            server.turn(&mut |_, event| events.push(event)).unwrap();
        }
        let joined = |part| PsEvent::Joined {
            part: tally_wire::Part::new(part, 2).unwrap(),
        };
        assert_eq!(events, [joined(0), PsEvent::Left, joined(1)]);
        assert_eq!(server.sessions[0].session.part().index(), 1);
    }
}
