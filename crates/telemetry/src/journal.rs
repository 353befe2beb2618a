//! Events as fields for systemd's journal, by its native protocol: one datagram an event.
//!
//! `tracing-journald` does the same in the thread that says the event, and waits there while the
//! journal does not read. Here only the writer's thread may wait.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_schema::event::Event;

const SOCKET: &str = "/run/systemd/journal/socket";
/// A journal that reads nothing for longer loses the event.
const PATIENCE: Duration = Duration::from_secs(1);
/// Names of fields, so that they are no others' in the journal.
const PREFIX: &str = "TALLY_";

pub(crate) struct Journal {
    path: PathBuf,
    socket: Option<UnixDatagram>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            path: SOCKET.into(),
            socket: None,
        }
    }
}

impl Journal {
    /// Sends it; false if there is no journal, or it does not take it.
    pub(crate) fn send(&mut self, program: &str, event: &Event) -> bool {
        let datagram = datagram(program, event);
        // A journal that was restarted has another socket at the same path.
        for _ in 0..2 {
            if self.socket.is_none() {
                self.socket = connect(&self.path).ok();
            }
            let Some(socket) = &self.socket else {
                return false;
            };
            if socket.send(&datagram).is_ok() {
                return true;
            }
            self.socket = None;
        }
        false
    }
}

fn connect(path: &Path) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect(path)?;
    Ok(socket)
}

/// `NAME=value` lines. Values have no line breaks.
fn datagram(program: &str, event: &Event) -> Vec<u8> {
    let mut text = format!(
        "MESSAGE={}\nPRIORITY={}\nSYSLOG_IDENTIFIER={program}\n{PREFIX}EVENT={}\n",
        event.text,
        event.level.priority(),
        event.number
    );
    if !event.kind.is_empty() {
        text.push_str(&format!("{PREFIX}KIND={}\n", event.kind));
    }
    for (name, value) in &event.fields {
        // Names are those of the code: letters, digits and `_`.
        text.push_str(&format!("{PREFIX}{}={value}\n", name.to_uppercase()));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn events_are_fields_and_a_journal_that_comes_back_is_found() {
        let folder = std::env::temp_dir().join(format!("tally-journal-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let mut journal = Journal {
            path: path.clone(),
            socket: None,
        };
        let event = Event {
            number: 9,
            level: Level::Warn,
            kind: "lost".into(),
            text: "job 7: rank 1 lost".into(),
            fields: [("mac".to_owned(), "02::1".to_owned())].into(),
            ..Event::default()
        };
        assert!(!journal.send("tally-switch", &event), "no journal");
        for _ in 0..2 {
            let _ = std::fs::remove_file(&path);
            let server = UnixDatagram::bind(&path).unwrap();
            assert!(journal.send("tally-switch", &event));
            let mut bytes = [0; 512];
            let n = server.recv(&mut bytes).unwrap();
            assert_eq!(
                String::from_utf8_lossy(&bytes[..n]),
                "MESSAGE=job 7: rank 1 lost\nPRIORITY=4\nSYSLOG_IDENTIFIER=tally-switch\n\
                 TALLY_EVENT=9\nTALLY_KIND=lost\nTALLY_MAC=02::1\n"
            );
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
