//! The parameter server: all its jobs in one loop over one link.

use crate::allreduce::{Clock, instance, open_link};
use crate::config::PsConfig;
use crate::error::AgentError;
use crate::link::Link;
use crate::link::loss::{Loss, Lossy};
use crate::report::{PsJobReport, PsReport};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tally_endpoint::{Ps, PsEvent};
use tally_kernels::Kernels;
use tally_wire::JobId;

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
    let mut leaving = false;
    while !sessions.iter().all(Ps::is_closed) {
        let now = clock.now();
        let received = link.receive(&mut |ecn, datagram| {
            if let Some(session) = session_of(&mut sessions, datagram) {
                session.handle_datagram(now, ecn, datagram);
            }
        })?;
        let stopped = stop.load(Ordering::Relaxed);
        for session in &mut sessions {
            if stopped && !leaving {
                session.leave(now);
            }
            if session.poll_timeout().is_some_and(|at| at <= now) {
                session.handle_timeout(now);
            }
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
    let report = |s: &Ps| PsJobReport::new(s.job().0, s.stats());
    Ok(PsReport {
        seconds: clock.now().since(tally_endpoint::Time(0)).as_secs_f64(),
        jobs: sessions.iter().map(report).collect(),
        loss: link.losses(),
    })
}

/// The session of the job that the datagram names, if it names one of ours.
fn session_of<'a>(sessions: &'a mut [Ps], datagram: &[u8]) -> Option<&'a mut Ps> {
    let job = JobId(u16::from_be_bytes(*datagram.get(4..)?.first_chunk()?));
    sessions.iter_mut().find(|s| s.job() == job)
}
