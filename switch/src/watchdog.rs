//! The watchdog: proves to the service manager that the switch works, not only that it exists.
//!
//! A heartbeat is an answer of every data core to a command, and a turn of the control thread
//! since the last proof. The thread has no other work, so that a stuck control thread or data core
//! cannot be hidden by it, and it runs only where `WatchdogSec=` asks for it.

use crate::bus::Bus;
use crate::log;
use crate::messages::CoreCommand;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_program::service::Watchdog;

/// How often the thread looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);

/// Turns of the control thread.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<AtomicU64>);

impl Turns {
    /// Counts one.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Starts the thread if the service manager wants heartbeats. It ends when `stop` is set.
///
/// # Errors
/// If there is no thread.
pub fn start(
    bus: Bus,
    control: Turns,
    stop: Arc<AtomicBool>,
) -> std::io::Result<Option<JoinHandle<()>>> {
    let watchdog = Watchdog::from_environment();
    let Some(every) = watchdog.every() else {
        return Ok(None);
    };
    let named = std::thread::Builder::new().name("watchdog".into());
    named
        .spawn(move || run(&bus, &control, &stop, watchdog, every))
        .map(Some)
}

fn run(bus: &Bus, control: &Turns, stop: &AtomicBool, mut watchdog: Watchdog, every: Duration) {
    let mut seen = None;
    while !stop.load(Ordering::Relaxed) {
        if watchdog.is_due(Instant::now()) {
            match life(bus, control, &mut seen, every) {
                Ok(()) => watchdog.alive(Instant::now()),
                Err(_) if stop.load(Ordering::Relaxed) => return,
                Err(why) => log::line("watchdog", why),
            }
        }
        std::thread::sleep(TICK);
    }
}

/// Whether all threads work; else which does not. Takes `timeout` at most.
fn life(
    bus: &Bus,
    control: &Turns,
    seen: &mut Option<u64>,
    timeout: Duration,
) -> Result<(), String> {
    let answers = bus.ask(CoreCommand::Ping).wait(timeout);
    // All of them are asked before the first failure counts.
    let silent: Vec<_> = answers.enumerate().filter(|(_, it)| it.is_none()).collect();
    let within = timeout.as_secs_f64();
    if let Some((core, _)) = silent.first() {
        return Err(format!(
            "data core {core} has not answered for {within:.1} s: no heartbeat to the service manager"
        ));
    }
    let turns = control.get();
    if seen.replace(turns) == Some(turns) {
        return Err(format!(
            "the control thread has made no turn for {within:.1} s: no heartbeat to the service manager"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;

    #[test]
    fn life_is_an_answer_of_each_core_and_a_turn_of_control() {
        let (to, commands) = unbounded();
        let (other, deaf) = unbounded();
        let answering = std::thread::spawn(move || {
            for command in commands {
                if let CoreCommand::Ping(reply) = command {
                    reply(());
                }
            }
        });
        let (short, mut seen) = (Duration::from_millis(50), None);
        let (alone, both) = (Bus::new(vec![to.clone()]), Bus::new(vec![to, other]));
        let control = Turns::default();
        assert_eq!(life(&alone, &control, &mut seen, short), Ok(()));
        let stuck = life(&alone, &control, &mut seen, short).unwrap_err();
        assert!(stuck.starts_with("the control thread"), "{stuck}");
        control.count();
        assert_eq!(life(&alone, &control, &mut seen, short), Ok(()));
        control.count();
        let silent = life(&both, &control, &mut seen, short).unwrap_err();
        assert!(silent.starts_with("data core 1 "), "{silent}");
        drop((alone, both, deaf));
        answering.join().unwrap();
    }
}
