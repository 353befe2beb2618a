//! Silence, as the control thread finds it, with data cores that are slow or stand still.

use super::*;
use crate::control_queue::{ControlSender, control_queue};
use crate::plane::Directory;
use crossbeam_channel::{Receiver, unbounded};
use std::io::Read;
use tally_engine::{DialectCommand, JobConfig, Member, PolicyName, PortId, RegistryConfig};
use tally_kernels::Backend;
use tally_schema::switch::config::{AddressConfig, Config, PortSection};
use tally_wire::control::{DATAGRAM_BYTES, Role, State};
use tally_wire::{
    Accept, AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Join, Key, Kind, Mac, Part,
    Rank, Refuse,
};

const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);
const JOB: JobId = JobId(7);

fn key() -> Key {
    Key::new(&[7; 16]).unwrap()
}

/// A command that asks for SwitchML's sessions.
macro_rules! sessions {
    ($answer:ident) => {
        CoreCommand::Core(Command::Dialect(DialectCommand::Switchml(
            switchml::Command::Sessions(_, $answer),
        )))
    };
}

/// A control thread, and in the test's hands all that its one data core has.
struct Rig {
    to_control: ControlSender,
    orders: Receiver<CoreCommand>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Registry>,
    challenge: u64,
}

impl Rig {
    /// A worker has joined a job that waits for another.
    fn joined() -> Self {
        let (to_control, frames) = control_queue(1);
        let (core, orders) = unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let job = JobConfig {
            id: JOB,
            key: key(),
            workers: 2,
            previous_key: None,
            servers: 1,
            tree: None,
        };
        let config = RegistryConfig {
            base_port: 31_249,
            shards: 1,
            window: 16,
            units: 1,
            member_timeout: MEMBER_TIMEOUT,
            secret: [0; 32],
            mac: Mac([2, 0, 0, 0, 0, 0xfe]),
            fabric: None,
        };
        let (handle, requests) = request::requests();
        let address = AddressConfig::new(config.mac, [10, 0, 0, 254].into());
        let switch = Config::new(address, vec![PortSection::new("net_null0")]);
        let control = Control {
            turns: Turns::default(),
            live: Live::new(&switch, None, handle),
            requests,
            is_in_fabric: false,
            parents: Parents::default(),
            ports: None,
            hangup: Arc::default(),
            growth: GrowthWatch::new(Vec::new()),
            registry: Registry::new(config, vec![job]),
            frames,
            bus: Bus::new(vec![core]),
            card: None,
            socket: None,
            conflicts: None,
            watch: Watch::new(Arc::new(Directory::default()), Vec::new()),
            shape: Shape {
                name: None,
                config_version: Arc::default(),
                policy: PolicyName::Esa,
                kernel: Backend::Scalar,
                slots: 1,
                ways: 1,
                pool_bytes: 0,
                fabric: crate::fabric::FabricBoard::default(),
                board: crate::board::Board::default(),
                cores: Vec::new(),
                switchml: None,
                netreduce: None,
            },
            epoch: Instant::now(),
            stop: Arc::clone(&stop),
        };
        let mut rig = Self {
            to_control,
            orders,
            stop,
            thread: std::thread::spawn(|| control.run()),
            challenge: 0,
        };
        rig.join();
        assert_eq!(rig.answer(), None, "a challenge first");
        rig.join();
        assert_eq!(rig.answer(), Some(State::Waiting));
        rig
    }

    fn join(&self) {
        let join = Join {
            instance: 1,
            challenge: self.challenge,
            role: Role::Worker,
            workers: 2,
            units: 1,
            running: false,
            window: 16,
            shape: [0; 32],
            sent: None,
            awaiting: 0,
            salt: 0,
            tree: None,
            part: Part::ONLY,
        };
        let header = Header {
            kind: Kind::Join,
            flags: Flags::NONE,
            priority: 0,
            element: Element::None,
            job: JOB,
            epoch: Epoch(0),
            fragment: FragmentId(0),
            rank: Rank(0),
            units: 2,
            bitmap: 0,
            tag: AuthTag::NONE,
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        header.emit(&mut *datagram);
        join.emit(&mut *datagram);
        key().seal(&mut *datagram);
        let from = Member {
            port: PortId(0),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            ip: [10, 0, 0, 1].into(),
            udp_port: 4000,
        };
        let frame = ControlFrame {
            from,
            header,
            datagram,
        };
        self.to_control.send(frame).unwrap();
    }

    /// What the switch sends next: the state, or nothing if it is a refusal.
    fn answer(&mut self) -> Option<State> {
        loop {
            let order = self.orders.recv_timeout(Duration::from_secs(5)).unwrap();
            let CoreCommand::Core(Command::Send(_, datagram)) = order else {
                continue;
            };
            return match Header::parse(&*datagram).unwrap().kind {
                Kind::Accept => {
                    let accept = Accept::parse(&*datagram).unwrap();
                    self.challenge = accept.challenge;
                    Some(accept.state)
                }
                _ => {
                    self.challenge = Refuse::parse(&*datagram).unwrap().challenge;
                    None
                }
            };
        }
    }

    /// Polls commands for that long, with `act` when all is to be taken that has arrived.
    fn poll_commands(&self, how_long: Duration, mut act: impl FnMut(&Self)) {
        let end = Instant::now() + how_long;
        while let Ok(order) = self.orders.recv_deadline(end) {
            match order {
                CoreCommand::Drain(done) => {
                    act(self);
                    done(());
                }
                sessions!(answer) => answer(Vec::new()),
                _ => {}
            }
        }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_member_that_is_silent_loses_its_place() {
    let mut rig = Rig::joined();
    rig.poll_commands(MEMBER_TIMEOUT * 2, |_| {});
    rig.join();
    assert_eq!(rig.answer(), None);
    rig.stop();
}

#[test]
fn what_waits_at_the_ports_is_heard_before_a_member_is_lost() {
    let mut rig = Rig::joined();
    let mut waited = 0;
    rig.poll_commands(MEMBER_TIMEOUT * 3, |rig| {
        waited += 1;
        rig.join();
    });
    assert!((1..10).contains(&waited), "asked {waited} times");
    rig.join();
    assert_eq!(rig.answer(), Some(State::Waiting));
    rig.stop();
}

#[test]
fn members_are_not_silent_while_a_data_core_stands_still() {
    let mut rig = Rig::joined();
    std::thread::sleep(MEMBER_TIMEOUT * 3);
    rig.join();
    assert_eq!(rig.answer(), Some(State::Waiting));
    rig.stop();
}

#[test]
fn a_core_that_never_drains_does_not_keep_silence_from_its_end() {
    let mut rig = Rig::joined();
    let end = Instant::now() + MEMBER_TIMEOUT * 3;
    let mut never = Vec::new();
    while let Ok(order) = rig.orders.recv_deadline(end) {
        match order {
            CoreCommand::Drain(done) => never.push(done),
            sessions!(answer) => answer(Vec::new()),
            _ => {}
        }
    }
    rig.join();
    assert_eq!(rig.answer(), None);
    rig.stop();
}

/// What a client gets, read as fast as it can.
fn read(stream: UnixStream) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let mut stream = stream;
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map_or(0, |n| n)
    })
}

#[test]
fn clients_that_do_not_read_hold_up_no_other_and_make_room_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stats");
    let mut socket = StatsSocket::bind(&path, &Access::default()).unwrap();
    // More than a socket holds.
    let report = vec![b'x'; 4 << 20];
    let silent: Vec<_> = (0..CLIENTS_MAX)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    assert!(socket.accept());
    socket.answer(&report);
    let honest = read(UnixStream::connect(&path).unwrap());
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    while !honest.is_finished() {
        assert!(start.elapsed() < CLIENT_PATIENCE * 5, "it hears nothing");
        let before = Instant::now();
        if socket.accept() {
            socket.answer(&report);
        }
        socket.write();
        longest = longest.max(before.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(honest.join().unwrap(), report.len());
    assert!(
        start.elapsed() >= CLIENT_PATIENCE / 2,
        "they had all places"
    );
    assert!(longest < Duration::from_millis(200), "{longest:?}");
    drop(silent);
}

#[test]
fn a_client_that_has_gone_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stats");
    let mut socket = StatsSocket::bind(&path, &Access::default()).unwrap();
    drop(UnixStream::connect(&path).unwrap());
    assert!(socket.accept());
    socket.answer(b"{}");
    socket.write();
    assert!(socket.clients.is_empty());
}

#[test]
fn the_socket_has_its_mode_at_once_and_replaces_only_a_leftover() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stats");
    let access = Access {
        mode: tally_schema::agent::config::Mode(0o640),
        group: None,
    };
    let bind = |access: &Access| StatsSocket::bind(&path, access).map_err(|e| e.to_string());
    // As a crash leaves it.
    drop(UnixListener::bind(&path).unwrap());
    let socket = bind(&access).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
    assert!(bind(&access).is_err_and(|why| why.contains("another switch answers there")));
    drop(socket);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    let group = Some("tally-no-such-group".to_owned());
    let unknown = bind(&Access {
        group,
        ..access.clone()
    })
    .err()
    .unwrap();
    assert!(
        unknown.contains("there is no group `tally-no-such-group`"),
        "{unknown}"
    );
    std::fs::write(&path, "mine").unwrap();
    assert!(bind(&access).is_err_and(|why| why.contains("no socket is there")));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}
