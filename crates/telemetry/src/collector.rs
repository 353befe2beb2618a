//! From `tracing` to the ring and the queue.

use crate::limiter::{EVERY, Key, Limiter};
use crate::queue::{Next, Queue};
use crate::ring::Ring;
use crate::writer::Writer;
use crate::{Level, LogFormat, Program};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tally_schema::event::Event;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Bytes of a text or a field's value; the rest is cut off.
const TEXT_MAX: usize = 2048;
/// Fields of an event; further ones are left out.
const FIELDS_MAX: usize = 32;
/// Where our own events come from: module paths begin with it.
const OWN: &str = "tally";

/// What all threads of the process share.
pub(crate) struct Hub {
    name: OnceLock<&'static str>,
    format: AtomicU8,
    level: AtomicU8,
    limits: Mutex<Limits>,
    pub(crate) queue: Queue<Arc<Event>>,
    pub(crate) left_out: AtomicU64,
}

#[derive(Debug, Default)]
struct Limits {
    limiter: Limiter,
    ring: Ring,
    number: u64,
    /// Events by kind and level, with those left out.
    by_kind: BTreeMap<(String, Level), u64>,
}

const FORMATS: [LogFormat; 4] = [
    LogFormat::Auto,
    LogFormat::Text,
    LogFormat::Json,
    LogFormat::Journal,
];

/// That of the process.
pub(crate) fn hub() -> &'static Hub {
    static HUB: OnceLock<Hub> = OnceLock::new();
    HUB.get_or_init(|| Hub {
        name: OnceLock::new(),
        format: AtomicU8::new(LogFormat::Auto as u8),
        level: AtomicU8::new(Level::Info as u8),
        limits: Mutex::default(),
        queue: Queue::new(),
        left_out: AtomicU64::new(0),
    })
}

pub(crate) fn start(program: Program) {
    let hub = hub();
    hub.set_format(program.format);
    hub.set_level(program.level);
    if hub.name.set(program.name).is_err() {
        return;
    }
    let subscriber = tracing_subscriber::registry().with(Collector { hub });
    // Another subscriber is there only in a program that embeds this one, and has its events.
    let _ = tracing::subscriber::set_global_default(subscriber);
    // Without a thread there is no log, and the program keeps running.
    let writer = move || write(hub, &mut Writer::new(program.name));
    let _ = std::thread::Builder::new().name("log".into()).spawn(writer);
}

/// Writes events for as long as the program runs.
fn write(hub: &Hub, writer: &mut Writer) -> ! {
    loop {
        match hub.queue.next(EVERY) {
            Next::Event(event) => writer.write(hub.format(), &event),
            Next::Dropped(n) => {
                let text = format!("{n} lines of this log were dropped: it was not read");
                writer.write(hub.format(), &own(Level::Warn, text, BTreeMap::new()));
            }
            Next::Nothing => {}
        }
        let told = hub.limits().limiter.left_out(Instant::now());
        for (key, n) in told {
            let fields = [
                ("left_out", n.to_string()),
                ("of", key.kind.clone()),
                ("reason", key.reason.clone()),
                ("port", key.port.clone()),
            ];
            let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            let event = own(Level::Info, key.left_out(n), fields.collect());
            writer.write(hub.format(), &event);
        }
    }
}

/// What the log says of itself.
fn own(level: Level, text: String, fields: BTreeMap<String, String>) -> Event {
    Event {
        number: 0,
        time: now(),
        level,
        kind: "log".into(),
        text,
        fields,
    }
}

/// Seconds since 1970, in whole milliseconds.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_millis() as f64 / 1000.0)
}

impl Hub {
    pub(crate) fn set_format(&self, format: LogFormat) {
        self.format.store(format as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    fn format(&self) -> LogFormat {
        FORMATS[usize::from(self.format.load(Ordering::Relaxed))]
    }

    pub(crate) fn level(&self) -> Level {
        Level::ALL[usize::from(self.level.load(Ordering::Relaxed))]
    }

    pub(crate) fn recent(&self) -> Vec<Event> {
        self.limits().ring.all()
    }

    /// Events by kind and level, with those left out.
    pub(crate) fn by_kind(&self) -> BTreeMap<(String, Level), u64> {
        self.limits().by_kind.clone()
    }

    pub(crate) fn declare(&self, kinds: &[(&str, Level)]) {
        let mut limits = self.limits();
        for (kind, level) in kinds {
            let kind = ((*kind).to_owned(), *level);
            limits.by_kind.entry(kind).or_default();
        }
    }

    /// Also after a thread panicked in it, it is what it was.
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the event and has it written, if its kind may say it.
    fn say(&self, mut event: Event) {
        let mut limits = self.limits();
        let kind = (event.kind.clone(), event.level);
        *limits.by_kind.entry(kind).or_default() += 1;
        if !event.kind.is_empty() {
            let field = |name| event.fields.get(name).cloned().unwrap_or_default();
            let key = Key {
                kind: event.kind.clone(),
                reason: field("reason"),
                port: field("port"),
            };
            if !limits.limiter.may_say(Instant::now(), key) {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        limits.number += 1;
        event.number = limits.number;
        let event = Arc::new(event);
        limits.ring.push(Arc::clone(&event));
        // Under the lock, so that events are written in the order of their numbers.
        self.queue.push(event);
    }
}

/// The layer below `tracing`'s macros.
struct Collector {
    hub: &'static Hub,
}

const fn level_of(level: tracing::Level) -> Level {
    match level {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        _ => Level::Debug,
    }
}

impl<S: Subscriber> Layer<S> for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let is_own = metadata.target().starts_with(OWN);
        if !metadata.is_event() || (!is_own && level_of(*metadata.level()) > Level::Warn) {
            return Interest::never();
        }
        // The level may change.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let level = level_of(*metadata.level());
        let is_own = metadata.target().starts_with(OWN);
        let is_trace = *metadata.level() == tracing::Level::TRACE;
        metadata.is_event()
            && !is_trace
            && (is_own || level <= Level::Warn)
            && level <= self.hub.level()
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut of = Event {
            time: now(),
            level: level_of(*event.metadata().level()),
            ..Event::default()
        };
        event.record(&mut Fields(&mut of));
        if !event.metadata().target().starts_with(OWN) {
            of.kind = "library".into();
        }
        self.hub.say(of);
    }
}

/// The fields of an event, as it is to have them.
struct Fields<'a>(&'a mut Event);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let value = one_line(value);
        match field.name() {
            "message" => self.0.text = value,
            "kind" => self.0.kind = value,
            // An empty field says nothing.
            _ if value.is_empty() => {}
            name if self.0.fields.len() < FIELDS_MAX => {
                self.0.fields.insert(name.to_owned(), value);
            }
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Without line breaks and control characters: names come from elsewhere, and an event remains one
/// line, which commands no terminal.
fn one_line(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut line = text[..end].replace(|c: char| c.is_control(), " ");
    if end < text.len() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log belongs to the process, so this is one test.
    #[test]
    fn events_have_their_fields_limits_and_levels() {
        start(Program {
            name: "test",
            format: LogFormat::Text,
            level: Level::Info,
        });
        let (job, mac) = (7, "02:00:00:00:00:01");
        tracing::warn!(kind = "refused", reason = "bad-key", port = "p\u{1b}[2J0", job, mac = %mac, empty = "",
            "job {job}: JOIN\nrefused");
        let event = crate::recent().pop().unwrap();
        assert_eq!(event.kind, "refused");
        assert_eq!(event.level, Level::Warn);
        assert_eq!(event.text, "job 7: JOIN refused");
        let fields: Vec<_> = event
            .fields
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        assert_eq!(
            fields,
            [
                "job=7",
                "mac=02:00:00:00:00:01",
                "port=p [2J0",
                "reason=bad-key"
            ]
        );
        assert!(event.time > 1.7e9 && event.number > 0);

        // A flood is left out and counted, and hides no other.
        for _ in 0..100 {
            tracing::info!(kind = "flood", "again");
        }
        crate::line("other", "heard");
        let recent = crate::recent();
        assert_eq!(recent.last().unwrap().text, "heard");
        let flood = recent.iter().filter(|event| event.kind == "flood").count();
        assert_eq!(flood, 16);
        assert_eq!(crate::left_out(), 84);
        let by_kind = hub().by_kind();
        assert_eq!(by_kind[&("flood".to_owned(), Level::Info)], 100);
        assert!(recent.is_sorted_by_key(|event| event.number));

        // What the level does not have is not kept, and neither is what libraries chatter.
        tracing::debug!(kind = "detail", "not said");
        tracing::info!(target: "hyper::proto", "not ours");
        assert_eq!(crate::recent().last().unwrap().text, "heard");
        tracing::warn!(target: "hyper::proto", "ours");
        assert_eq!(crate::recent().last().unwrap().kind, "library");
        crate::configure(crate::LogSection {
            format: LogFormat::Text,
            level: Some(Level::Debug),
        });
        tracing::debug!(kind = "detail", "said");
        assert_eq!(crate::recent().last().unwrap().text, "said");

        let long = "é".repeat(3000);
        crate::line("long", long);
        let text = crate::recent().pop().unwrap().text;
        assert!(
            text.len() <= TEXT_MAX + 3 && text.ends_with("é…"),
            "{}",
            text.len()
        );
        crate::flush(std::time::Duration::from_secs(5));
    }
}
