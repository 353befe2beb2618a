//! The switch over HTTP: metrics, its report, and a page for people.

use crate::control::request::ControlHandle;
use std::io;
use tally_schema::event::MetricsSection;
use tally_telemetry::http::{Listener, Server, Snapshot, Source};

/// One file, without anything from elsewhere. Its script takes `/report.json` once a second.
const PAGE: &str = include_str!("page.html");

/// What the control thread says of the switch.
struct Switch(ControlHandle);

impl Source for Switch {
    fn snapshot(&self) -> Option<Snapshot> {
        let report = self.0.report().ok()?;
        Some(Snapshot {
            families: report.families(),
            json: report.json(),
        })
    }

    fn page(&self) -> Option<&'static str> {
        Some(PAGE)
    }
}

/// Takes the address of the configuration, if there is one.
///
/// # Errors
/// If it cannot, with key and address.
pub fn listen(section: Option<&MetricsSection>) -> io::Result<Option<Listener>> {
    let Some(section) = section else {
        return Ok(None);
    };
    let named = |error: io::Error| {
        let listen = section.listen;
        io::Error::new(error.kind(), format!("metrics.listen {listen}: {error}"))
    };
    Listener::bind(section).map(Some).map_err(named)
}

/// Serves a running switch until the server is dropped.
///
/// # Errors
/// If the system gives no thread.
pub fn start(listener: Listener, handle: ControlHandle) -> io::Result<Server> {
    Server::start(listener, Switch(handle))
}
