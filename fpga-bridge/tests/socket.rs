//! What a driver gets from register sockets that do not behave.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tally_bridge::protocol::{BYTES, Operation, Request};
use tally_bridge::{Card, CardError, Socket, Window, registers};

/// Longer than any call may take that ends for want of an answer.
const SOON: Duration = Duration::from_millis(600);

struct Server {
    _folder: tempfile::TempDir,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves one connection.
    fn new(serve: impl FnOnce(UnixStream) + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let thread = thread::spawn(move || serve(listener.accept().unwrap().0));
        Self {
            _folder: folder,
            path,
            thread: Some(thread),
        }
    }

    /// Answers each request so.
    fn answering(mut answer: impl FnMut(Request) -> Vec<u8> + Send + 'static) -> Self {
        Self::new(move |mut stream| {
            let mut bytes = [0; BYTES];
            while stream.read_exact(&mut bytes).is_ok() {
                let answer = answer(Request::parse(bytes).unwrap());
                if answer.is_empty() || stream.write_all(&answer).is_err() {
                    return;
                }
            }
        })
    }

    fn connect(&self) -> Socket {
        Socket::connect(&self.path).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn many_requests_are_on_their_way_at_a_time() {
    let mut written = Vec::new();
    let server = Server::answering(move |request| {
        let value = match request.operation {
            Operation::Read => u32::from(request.address) * 3,
            Operation::Write => {
                written.push((request.address, request.value));
                request.value
            }
        };
        request.reply(Some(value)).to_vec()
    });
    let mut socket = server.connect();
    assert_eq!(socket.read(0x44).unwrap(), 0x44 * 3);
    socket.write(0x44, 7).unwrap();
    // More than may be on their way at a time.
    let addresses: Vec<u16> = (0..2000).map(|n| n * 4).collect();
    let mut values = vec![5];
    socket.read_all(&addresses, &mut values).unwrap();
    assert_eq!(values.len(), 2001);
    assert!(
        values[1..]
            .iter()
            .zip(&addresses)
            .all(|(&v, &a)| v == u32::from(a) * 3)
    );
    let writes: Vec<_> = addresses.iter().map(|&a| (a, u32::MAX)).collect();
    socket.write_all(&writes).unwrap();
    socket.read_all(&[], &mut values).unwrap();
    socket.write_all(&[]).unwrap();
}

#[test]
fn a_refused_access_is_named() {
    let server = Server::answering(|request| request.reply(None).to_vec());
    let mut socket = server.connect();
    let error = socket.write(registers::JOB_COMMAND, 1).unwrap_err();
    assert!(matches!(error, CardError::Refused { .. }));
    assert!(error.to_string().contains("JOB_COMMAND"), "{error}");
}

#[test]
fn silence_ends_in_time() {
    // Reads everything, and says nothing.
    let server = Server::new(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut socket = server.connect();
    let since = Instant::now();
    let error = socket.read(registers::UPTIME).unwrap_err();
    assert!(matches!(error, CardError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("UPTIME"), "{error}");
    assert!(since.elapsed() < SOON);
    // A late answer would be taken for that of another request.
    let since = Instant::now();
    assert!(socket.read(registers::ID).is_err());
    assert!(since.elapsed() < SOON / 4);
    drop(socket);
}

#[test]
fn answers_in_drops_end_in_time() {
    let server = Server::new(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let bytes = [0x81, 0, 0, 0, 1, 2, 3];
        for byte in bytes.iter().cycle().take(1000) {
            // Never a whole answer in time.
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(60));
        }
    });
    let mut socket = server.connect();
    let since = Instant::now();
    assert!(matches!(socket.read(0), Err(CardError::Silent { .. })));
    assert!(since.elapsed() < SOON);
    drop(socket);
}

#[test]
fn a_reader_that_stops_reading_ends_in_time() {
    let server = Server::new(|mut stream| {
        // Until the other side has gone.
        thread::sleep(SOON * 2);
        let _ = stream.read(&mut [0; 1]);
    });
    let mut socket = server.connect();
    let since = Instant::now();
    assert!(socket.write_all(&[(0, 0); 512]).is_err());
    assert!(since.elapsed() < SOON);
}

#[test]
fn a_connection_that_ends_is_seen_at_once() {
    for part in 0..BYTES {
        let server = Server::new(move |mut stream| {
            let mut bytes = [0; BYTES];
            stream.read_exact(&mut bytes).unwrap();
            let reply = Request::parse(bytes).unwrap().reply(Some(1));
            stream.write_all(&reply[..part]).unwrap();
        });
        let mut socket = server.connect();
        let since = Instant::now();
        let error = socket.read(registers::ID).unwrap_err();
        assert!(matches!(error, CardError::Closed), "{error}");
        assert!(since.elapsed() < SOON / 4);
        assert!(matches!(socket.write(0, 0), Err(CardError::Closed)));
    }
}

#[test]
fn other_answers_are_no_answers() {
    let answers: [fn(Request) -> Vec<u8>; 5] = [
        |request| {
            let address = request.address ^ 4;
            Request { address, ..request }.reply(Some(1)).to_vec()
        },
        |request| {
            let operation = match request.operation {
                Operation::Read => Operation::Write,
                Operation::Write => Operation::Read,
            };
            Request {
                operation,
                ..request
            }
            .reply(Some(1))
            .to_vec()
        },
        |_| vec![0xff; BYTES],
        |_| b"HTTP/1.1".to_vec(),
        |request| request.emit().to_vec(),
    ];
    for answer in answers {
        let server = Server::answering(answer);
        let mut socket = server.connect();
        let error = socket.read(registers::ID).unwrap_err();
        assert!(matches!(error, CardError::Protocol { .. }), "{error}");
        assert!(socket.read(registers::ID).is_err(), "for good");
        assert!(Card::open(socket).is_err());
    }
}

#[test]
fn a_missing_card_is_reported_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.sock");
    let fails = |path: &PathBuf| match Socket::connect(path) {
        Ok(_) => panic!("no card listens"),
        Err(error) => error.to_string(),
    };
    assert!(fails(&path).contains("tally-card run"), "{}", fails(&path));
    // Left by a card that crashed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(fails(&path).contains("tally-card run"), "{}", fails(&path));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(fails(&file).contains("file"));
    let long = folder.path().join("x".repeat(200));
    assert!(fails(&long).contains("cannot reach"));
}

#[test]
fn a_full_queue_of_others_ends_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let since = Instant::now();
    let mut sockets = Vec::new();
    let error = loop {
        match Socket::connect(&path) {
            Ok(socket) => sockets.push(socket),
            Err(error) => break error,
        }
        assert!(sockets.len() < 100_000, "a queue without end");
    };
    assert!(matches!(error, CardError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("one driver"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(20));
}
