//! The register socket: one driver at a time, the next one when it has gone.

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_bridge::name_of;
use tally_bridge::protocol::{BYTES, IN_FLIGHT, Operation, Request};
use tally_bridge::registers::{
    BIT_COUNTER_SNAPSHOT, COUNTER_SNAPSHOT, COUNTERS, COUNTERS_AT, JOBS,
};
use tally_card::Model;

/// Answers that may wait for a driver that does not read them.
const UNREAD_BYTES: usize = 4 * IN_FLIGHT * BYTES;

/// The socket, and who drives the card.
pub struct Registers {
    listener: UnixListener,
    path: PathBuf,
    /// What is said of places for jobs, at most.
    places: u32,
    driver: Option<Driver>,
}

struct Driver {
    stream: UnixStream,
    /// What has come and is not a whole request yet.
    asked: Vec<u8>,
    /// What has not been taken yet.
    answers: Vec<u8>,
}

impl Registers {
    /// Listens at `path`, and says that there are so many places for jobs, at most.
    pub fn bind(path: &Path, mode: u32, places: u32) -> Result<Self> {
        let context = || format!("--registers {}", path.display());
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|it| !it.is_dir()) {
            bail!("{}: there is no folder {}", context(), folder.display());
        }
        if UnixStream::connect(path).is_ok() {
            bail!("{}: another card listens there", context());
        }
        let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket {
            // A card that has crashed left it.
            fs::remove_file(path).with_context(context)?;
        }
        let listener = UnixListener::bind(path).with_context(context)?;
        let registers = Self {
            listener,
            path: path.to_owned(),
            places,
            driver: None,
        };
        registers.listener.set_nonblocking(true)?;
        fs::set_permissions(path, Permissions::from_mode(mode)).with_context(context)?;
        Ok(registers)
    }

    /// Answers all that has been asked, and says how much that was.
    pub fn serve(&mut self, model: &mut Model, log: bool) -> u64 {
        if self.driver.is_none()
            && let Ok((stream, _)) = self.listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            if log {
                eprintln!("tally-card: a driver has connected");
            }
            self.driver = Some(Driver {
                stream,
                asked: Vec::new(),
                answers: Vec::new(),
            });
        }
        let Some(driver) = &mut self.driver else {
            return 0;
        };
        let (answered, outcome) = driver.serve(model, self.places, log);
        if let Err(why) = outcome {
            if log {
                eprintln!("tally-card: the driver has gone: {why}");
            }
            self.driver = None;
        }
        answered
    }

    /// Waits until something is asked, at most so long.
    pub fn wait(&self, at_most: Duration) {
        let who = match &self.driver {
            Some(driver) => driver.stream.as_fd(),
            None => self.listener.as_fd(),
        };
        // Whichever way it ends, the next turn looks.
        let _ = ppoll(
            &mut [PollFd::new(who, PollFlags::POLLIN)],
            Some(TimeSpec::from_duration(at_most)),
            None,
        );
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Driver {
    fn serve(&mut self, model: &mut Model, places: u32, log: bool) -> (u64, io::Result<()>) {
        let mut answered = 0;
        let outcome = self.read().and_then(|()| {
            for &bytes in self.asked.as_chunks::<BYTES>().0 {
                let Some(request) = Request::parse(bytes) else {
                    return Err(io::Error::other("it does not speak as a driver does"));
                };
                let answer = request.reply(perform(model, &request, places, log));
                self.answers.extend(answer);
                answered += 1;
            }
            let whole = self.asked.len() / BYTES * BYTES;
            self.asked.drain(..whole);
            self.write()
        });
        (answered, outcome)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; IN_FLIGHT * BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::Error::other("it has closed the connection")),
            Ok(n) => {
                self.asked.extend_from_slice(&bytes[..n]);
                Ok(())
            }
            Err(error) => pass(error),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.answers.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.answers) {
            Ok(n) => {
                self.answers.drain(..n);
            }
            Err(error) => pass(error)?,
        }
        if self.answers.len() > UNREAD_BYTES {
            return Err(io::Error::other("it does not read its answers"));
        }
        Ok(())
    }
}

/// There is nothing to read, or no room to write.
fn pass(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// What the card says; `None` if it refuses.
fn perform(model: &mut Model, request: &Request, places: u32, log: bool) -> Option<u32> {
    let Request { address, value, .. } = *request;
    let answer = match request.operation {
        Operation::Read if address == JOBS => model.read(address).ok().map(|n| n.min(places)),
        Operation::Read => model.read(address).ok(),
        Operation::Write => model.write(address, value).ok().map(|()| value),
    };
    let is_refused = answer.is_none();
    if log && (is_refused || request.operation == Operation::Write) {
        let outcome = if is_refused { "refused: " } else { "" };
        let register = name_of(address);
        match request.operation {
            Operation::Read => eprintln!("tally-card: {outcome}{register} is read"),
            Operation::Write => eprintln!("tally-card: {outcome}{register} = 0x{value:x}"),
        }
    }
    answer
}

/// All counters of the card, by name.
pub fn counters(model: &mut Model) -> Vec<(&'static str, u64)> {
    if model.write(COUNTER_SNAPSHOT, BIT_COUNTER_SNAPSHOT).is_err() {
        return Vec::new();
    }
    let mut word = |at| model.read(at).map_or(0, u64::from);
    let numbered = (0..).zip(COUNTERS);
    let counter = numbered.map(|(n, (_, name))| {
        let at = COUNTERS_AT + 8 * n;
        (name, word(at) | word(at + 4) << 32)
    });
    counter.collect()
}
