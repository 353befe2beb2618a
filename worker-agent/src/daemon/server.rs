//! The parameter server in an agent: the loop of `tally-agent ps` on a thread, or turns of the DPDK
//! port's thread.

use crate::config::{PsConfig, PsJob, Transport};
use crate::error::AgentError;
use crate::link::LinkError;
use crate::link::loss::Loss;
use crate::log::Log;
use crate::ps;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// In front of its lines of the log.
pub(super) const WHO: &str = "parameter server: ";
/// Between two attempts to have a link.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The agent's hold on its parameter server.
pub(super) struct ServerHandle {
    lists: Sender<Vec<PsJob>>,
    stop: Arc<AtomicBool>,
    /// None if the port's thread serves.
    thread: Option<JoinHandle<()>>,
}

/// What the port's thread is to serve.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub(super) struct PortServer {
    pub(super) config: PsConfig,
    pub(super) loss: Option<Loss>,
    pub(super) lists: Receiver<Vec<PsJob>>,
}

impl ServerHandle {
    /// Starts a thread, unless the transport is a DPDK port: its thread gets what is returned.
    ///
    /// # Errors
    /// If there is no thread.
    pub(super) fn start(
        config: PsConfig,
        loss: Option<Loss>,
        log: Log,
    ) -> Result<(Self, Option<PortServer>), AgentError> {
        let (lists, news) = unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let (mut thread, mut of_port) = (None, None);
        if matches!(config.transport, Transport::Udp { .. }) {
            let stopped = stop.clone();
            let spawned = std::thread::Builder::new()
                .name("ps".into())
                .spawn(move || run(config, loss, log, &stopped, &news))
                .map_err(|why| LinkError::system("no thread for the parameter server", why))?;
            thread = Some(spawned);
        } else {
            of_port = Some(PortServer {
                config,
                loss,
                lists: news,
            });
        }
        let handle = Self {
            lists,
            stop,
            thread,
        };
        Ok((handle, of_port))
    }

    /// Serves these jobs from now on.
    pub(super) fn set_jobs(&self, jobs: Vec<PsJob>) {
        // The one that serves lives as long as the agent does.
        let _ = self.lists.send(jobs);
    }

    /// Leaves all jobs, in a moment.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it has left them.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Serves until it is told to stop, also after its link was broken.
fn run(
    mut config: PsConfig,
    loss: Option<Loss>,
    log: Log,
    stop: &AtomicBool,
    news: &Receiver<Vec<PsJob>>,
) {
    while !stop.load(Ordering::Relaxed) {
        let mut observe = |job, event| ps::log_event(log, WHO, job, event);
        let mut last = None;
        let mut next = || {
            let jobs = news.try_iter().last()?;
            last = Some(jobs.clone());
            Some(jobs)
        };
        let Err(error) = ps::serve_jobs(&config, loss, &mut observe, stop, &mut next) else {
            return;
        };
        log.error(format_args!("{WHO}{error}; trying again"));
        config.jobs = news.try_iter().last().or(last).unwrap_or(config.jobs);
        let until = Instant::now() + RETRY_EVERY;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
