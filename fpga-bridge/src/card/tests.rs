use super::*;
use std::collections::BTreeMap;
use tally_engine::{PortId, Uplink};

const OWN: Own = Own {
    mac: Mac([0x02, 0, 0, 0, 0xfe, 1]),
    ip: Ipv4Addr::new(10, 0, 0, 254),
    base_port: 5000,
    shards: 2,
};

/// What the card was told of a member.
type Told = [u32; 6];

/// Registers as a card has them.
struct Fake {
    registers: BTreeMap<u16, u32>,
    members: BTreeMap<(u32, u32), Told>,
    /// Number and epoch by place.
    live: BTreeMap<u32, (u32, u32)>,
    unloaded: Vec<u32>,
    latched: u64,
    /// Reads of STATUS for which a command takes.
    busy: u32,
    /// What goes wrong.
    fault: Fault,
    accesses: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// This register reads so.
    Reads(u16, u32),
    /// Everything reads so.
    All(u32),
    /// What is read is something else each time.
    Noise(u32),
    /// Writes to this register are lost.
    Loses(u16),
    /// Nothing works after so many accesses.
    Ends(usize),
}

impl Fake {
    fn new() -> Self {
        let registers = BTreeMap::from([
            (at::ID, at::ID_VALUE),
            (at::INTERFACE, at::INTERFACE_VALUE),
            (at::SLOTS, 1024),
            (at::PAYLOAD_BYTES, 1024),
            (at::JOBS, 2),
            (at::MEMBERS, 4),
            (at::RING, 512),
            (at::FEATURES, 1),
            (at::CLOCK_KHZ, 250_000),
            (at::UPTIME, 0),
        ]);
        Self {
            registers,
            members: BTreeMap::new(),
            live: BTreeMap::new(),
            unloaded: Vec::new(),
            latched: 0,
            busy: 3,
            fault: Fault::None,
            accesses: 0,
        }
    }

    fn with(fault: Fault) -> Self {
        Self {
            fault,
            ..Self::new()
        }
    }

    fn get(&self, address: u16) -> u32 {
        self.registers.get(&address).copied().unwrap_or(0)
    }

    fn count(&mut self) -> Result<(), CardError> {
        self.accesses += 1;
        match self.fault {
            Fault::Ends(after) if self.accesses > after => Err(CardError::Closed),
            _ => Ok(()),
        }
    }
}

impl Window for Fake {
    fn read(&mut self, address: u16) -> Result<u32, CardError> {
        self.count()?;
        match self.fault {
            Fault::All(value) => return Ok(value),
            Fault::Reads(at, value) if at == address => return Ok(value),
            Fault::Noise(seed) => {
                let noise = seed.wrapping_mul(0x9e37_79b9).rotate_left(7) ^ u32::from(address);
                self.fault = Fault::Noise(noise);
                return Ok(noise);
            }
            _ => {}
        }
        let counter = address.wrapping_sub(at::COUNTERS_AT) / 4;
        Ok(match address {
            at::STATUS => {
                self.busy = self.busy.saturating_sub(1);
                u32::from(self.busy > 0)
            }
            at::UPTIME => {
                *self.registers.entry(address).or_default() += 1;
                self.get(address)
            }
            at::COUNTERS_AT.. => {
                // Each counter has its own value, of both words.
                let value = self.latched * u64::from(counter / 2 + 1);
                (value >> (32 * (counter % 2))) as u32
            }
            _ => self.get(address),
        })
    }

    fn write(&mut self, address: u16, value: u32) -> Result<(), CardError> {
        self.count()?;
        if self.fault == Fault::Loses(address) {
            return Ok(());
        }
        let place = self.get(at::JOB_SELECT);
        let is_command = matches!(address, at::JOB_COMMAND | at::MEMBER_COMMAND);
        assert!(self.busy == 0 || !is_command, "a command while it clears");
        match address {
            at::JOB_COMMAND if value == at::BIT_JOB_LOAD => {
                let job = (self.get(at::JOB_NUMBER), self.get(at::JOB_EPOCH));
                self.live.insert(place, job);
                self.busy = 2;
            }
            at::JOB_COMMAND => {
                assert_eq!(value, at::BIT_JOB_UNLOAD);
                self.live.remove(&place);
                self.unloaded.push(place);
                self.busy = 5;
            }
            at::MEMBER_COMMAND => {
                let told = [
                    at::MEMBER_MAC_HIGH,
                    at::MEMBER_MAC_LOW,
                    at::MEMBER_IP,
                    at::MEMBER_UDP_PORT,
                    at::MEMBER_PORT,
                    at::MEMBER_CHILD,
                ];
                let told = told.map(|register| self.get(register));
                self.members
                    .insert((place, self.get(at::MEMBER_SELECT)), told);
            }
            at::COUNTER_SNAPSHOT => self.latched += 0x1_0000_0001,
            at::CONTROL => {
                self.registers.insert(address, value & at::BIT_ENABLE);
                if value & at::BIT_CLEAR_ALL != 0 {
                    self.live.clear();
                    self.busy = 5;
                }
            }
            _ => {
                self.registers.insert(address, value);
            }
        }
        Ok(())
    }
}

fn member(n: u8, port: u16) -> Member {
    Member {
        port: PortId(port),
        mac: Mac([0x02, 0, 0, 0, 1, n]),
        ip: Ipv4Addr::new(10, 0, 0, n),
        udp_port: 6000 + u16::from(n),
    }
}

fn roster(job: u16, epoch: u16, workers: u8) -> Roster {
    let members = (0..workers).map(|n| member(n, u16::from(n % 3))).collect();
    let secret = tally_wire::EpochSecret::new([7; 16]);
    Roster::new(JobId(job), Epoch(epoch), secret, 16, members, member(99, 3))
}

fn open() -> Card<Fake> {
    Card::open(Fake::new()).expect("it is a card")
}

#[test]
fn a_card_says_what_it_has() {
    let card = open();
    let has = card.capabilities();
    assert_eq!((has.slots, has.payload_bytes), (1024, 1024));
    assert_eq!((has.jobs, has.members, has.ring), (2, 4, 512));
    assert_eq!((has.f32, has.clock_khz, has.window()), (true, 250_000, 256));
    assert_eq!(card.loaded().count(), 0);
}

#[test]
fn it_is_told_who_the_switch_is_before_it_is_let_go() {
    let mut card = open();
    assert_eq!(card.window.get(at::CONTROL), 0);
    card.set_own(&OWN).expect("it takes it");
    let fake = &card.window;
    assert_eq!(fake.get(at::OWN_MAC_HIGH), 0x0200);
    assert_eq!(fake.get(at::OWN_MAC_LOW), 0x0000_fe01);
    assert_eq!(fake.get(at::OWN_IP), 0x0a00_00fe);
    assert_eq!((fake.get(at::BASE_PORT), fake.get(at::SHARDS)), (5000, 2));
    assert_eq!(fake.get(at::CONTROL), 1);
}

#[test]
fn a_job_is_loaded_with_its_members() {
    let mut card = open();
    assert_eq!(card.load(&roster(7, 3, 4)).expect("it fits"), Place(0));
    assert_eq!(card.load(&roster(9, 1, 2)).expect("it fits"), Place(1));
    let fake = &card.window;
    assert_eq!(fake.live, BTreeMap::from([(0, (7, 3)), (1, (9, 1))]));
    assert_eq!(fake.members.len(), 5 + 3);
    assert_eq!(
        fake.members[&(0, 2)],
        [0x0200, 0x0102, 0x0a00_0002, 6002, 2, 0]
    );
    assert_eq!(
        fake.members[&(1, 255)],
        [0x0200, 0x0163, 0x0a00_0063, 6099, 3, 0]
    );
    assert_eq!(
        (fake.get(at::JOB_WORKERS), fake.get(at::JOB_PORTS)),
        (2, 0b11)
    );
    assert_eq!((fake.get(at::JOB_UNITS), fake.get(at::JOB_EPOCH)), (16, 1));
    assert_eq!(fake.get(at::JOB_HASH), 9_u32.wrapping_mul(0x9e37_79b9) >> 7);
    let there: Vec<_> = card.loaded().collect();
    assert_eq!(there, [(JobId(7), Epoch(3)), (JobId(9), Epoch(1))]);
    // A third one has no place.
    let error = card.load(&roster(8, 1, 2)).expect_err("full");
    assert!(!error.is_failure(), "{error}");
    assert!(error.to_string().contains("2 places"), "{error}");
    // The first one goes, and the third one gets its place.
    card.unload(JobId(7)).expect("it goes");
    assert_eq!(card.window.unloaded, [0]);
    assert_eq!(card.load(&roster(8, 1, 2)).expect("it fits"), Place(0));
    card.unload(JobId(1000)).expect("it was not there");
    assert_eq!(card.window.unloaded, [0]);
}

/// Flags of sums on DATA are theirs (TR-7).
#[test]
fn child_switches_are_told_apart_from_workers() {
    let mut card = open();
    let in_tree = roster(7, 3, 4).with_switches(0b1010);
    card.load(&in_tree).expect("it fits");
    card.load(&roster(9, 1, 2)).expect("it fits");
    let children: Vec<_> = (card.window.members.iter())
        .filter(|(_, told)| told[5] == at::BIT_MEMBER_CHILD)
        .map(|(member, _)| *member)
        .collect();
    assert_eq!(children, [(0, 1), (0, 3)]);
}

#[test]
fn an_epoch_keeps_its_place_and_another_begins_in_a_clear_one() {
    let mut card = open();
    card.load(&roster(7, 3, 2)).expect("it fits");
    let mut again = roster(7, 3, 2);
    again.servers[0].ip = Ipv4Addr::new(10, 9, 9, 9);
    card.load(&again).expect("only addresses");
    assert_eq!(card.window.unloaded, []);
    assert_eq!(card.window.members[&(0, 255)][2], 0x0a09_0909);
    card.load(&roster(7, 4, 2)).expect("another epoch");
    assert_eq!(card.window.unloaded, [0]);
    assert_eq!(card.window.live[&0], (7, 4));
}

#[test]
fn what_does_not_fit_is_not_tried() {
    let mut card = open();
    let mut far = roster(1, 1, 2);
    far.workers[1].port = PortId(16);
    let mut far_ps = roster(1, 1, 2);
    far_ps.servers[0].port = PortId(16);
    let mut long = roster(1, 1, 2);
    long.units = 17;
    let before = card.window.accesses;
    let below = roster(1, 1, 2).with_uplink(Uplink {
        parent: member(9, 2),
        rank: Rank(0),
        shards: 1,
    });
    for unfit in [roster(1, 1, 1), roster(1, 1, 5), far, far_ps, long, below] {
        let error = card.load(&unfit).expect_err("it does not fit");
        assert!(!error.is_failure(), "{error}");
        assert!(card.fits(&unfit).is_err());
    }
    assert_eq!(card.window.accesses, before);
    assert_eq!(card.fits(&roster(1, 1, 4)), Ok(()));
}

#[test]
fn counters_have_both_halves_and_their_names() {
    let mut card = open();
    let first = card.counters().expect("it counts");
    assert_eq!(first.get("contributions"), Some(0x1_0000_0001));
    let second = card.counters().expect("it counts");
    assert_eq!(second.get("contributions"), Some(0x2_0000_0002));
    assert_eq!(second.get("slots_taken"), Some(0x4_0000_0004));
    assert_eq!(second.get("no such"), None);
    let parts = second.named().count() + second.drops().count() + second.stream().count();
    assert_eq!(
        (parts, second.iter().count()),
        (COUNTERS.len(), COUNTERS.len())
    );
    assert!(
        second
            .drops()
            .any(|(name, value)| name == "late" && value > 0)
    );
}

#[test]
fn all_jobs_go_at_once_and_the_card_still_knows_the_switch() {
    let mut card = open();
    card.set_own(&OWN).expect("it takes it");
    card.load(&roster(7, 3, 2)).expect("it fits");
    card.unload_all().expect("it clears");
    assert!(card.window.live.is_empty());
    assert_eq!(card.loaded().count(), 0);
    card.alive().expect("it is as before");
}

#[test]
fn other_devices_are_no_cards() {
    for value in [0, u32::MAX, 1, at::ID_VALUE.swap_bytes()] {
        let Err(error) = Card::open(Fake::with(Fault::All(value))) else {
            panic!("{value:#x} is a card");
        };
        assert!(
            matches!(error, CardError::NotACard { found } if found == value),
            "{error}"
        );
    }
    let Err(error) = Card::open(Fake::with(Fault::Reads(at::INTERFACE, 1))) else {
        panic!("another version");
    };
    assert!(error.to_string().contains("version 1"), "{error}");
}

#[test]
fn capabilities_that_cannot_be_are_refused() {
    let lies = [
        (at::SLOTS, 0),
        (at::SLOTS, 1000),
        (at::SLOTS, 1 << 31),
        (at::PAYLOAD_BYTES, 0),
        (at::PAYLOAD_BYTES, 100),
        (at::PAYLOAD_BYTES, 1 << 20),
        (at::JOBS, 0),
        (at::JOBS, u32::MAX),
        (at::MEMBERS, 1),
        (at::MEMBERS, 65),
        (at::RING, 1),
        (at::RING, 3),
        (at::FEATURES, 2),
        (at::CLOCK_KHZ, 0),
        (at::STATUS, 4),
        (at::STATUS, u32::MAX),
    ];
    for (register, value) in lies {
        let Err(error) = Card::open(Fake::with(Fault::Reads(register, value))) else {
            panic!("{register:#x} {value}");
        };
        assert!(matches!(error, CardError::Nonsense { .. }), "{error}");
    }
}

#[test]
fn a_card_that_never_stops_clearing_is_given_up() {
    let since = Instant::now();
    let Err(error) = Card::open(Fake::with(Fault::Reads(at::STATUS, 1))) else {
        panic!("it is still clearing");
    };
    assert!(matches!(error, CardError::Clearing { .. }), "{error}");
    assert!(since.elapsed() < CLEARING * 4);
}

#[test]
fn a_card_that_finds_fault_with_itself_has_failed() {
    let mut card = open();
    card.alive().expect("as yet");
    card.window.fault = Fault::Reads(at::STATUS, 2);
    assert!(matches!(card.alive(), Err(CardError::Fault)));
    let error = card.load(&roster(1, 1, 2)).expect_err("a fault");
    assert!(error.is_failure());
}

#[test]
fn time_that_stands_still_is_seen() {
    let mut card = open();
    card.alive().expect("it lives");
    let stands = card.window.get(at::UPTIME);
    card.window.fault = Fault::Reads(at::UPTIME, stands);
    card.alive().expect("not for long yet");
    std::thread::sleep(STILL);
    assert!(matches!(card.alive(), Err(CardError::Stopped { .. })));
    card.window.fault = Fault::None;
    card.alive().expect("it has moved");
}

#[test]
fn a_reset_is_seen() {
    let mut card = open();
    card.set_own(&OWN).expect("it takes it");
    card.window.registers.insert(at::UPTIME, 1000);
    card.alive().expect("it lives");
    let mut reset = Fake::new();
    reset.registers.insert(at::UPTIME, 10);
    card.window = reset;
    assert!(matches!(
        card.alive(),
        Err(CardError::Reset {
            before: 1001,
            now: 11
        })
    ));
    // One that has been up for long when it is asked.
    let mut reset = Fake::new();
    reset.registers.insert(at::UPTIME, 5000);
    card.window = reset;
    assert!(matches!(card.alive(), Err(CardError::Forgot { .. })));
    // 49 days.
    let mut card = open();
    card.window.registers.insert(at::UPTIME, u32::MAX - 1);
    card.alive().expect("it lives");
    card.window.registers.insert(at::UPTIME, 3);
    card.alive().expect("it has wrapped");
}

#[test]
fn writes_that_are_lost_are_seen() {
    for register in [at::OWN_MAC_LOW, at::OWN_IP, at::SHARDS, at::CONTROL] {
        let mut card = open();
        card.window.fault = Fault::Loses(register);
        let error = card.set_own(&OWN).expect_err("it was lost");
        assert!(matches!(error, CardError::Forgot { .. }), "{error}");
        assert!(error.to_string().contains(&name_of(register)), "{error}");
    }
    for register in [at::JOB_NUMBER, at::JOB_WORKERS, at::JOB_HASH] {
        let mut card = open();
        card.window.fault = Fault::Loses(register);
        assert!(card.load(&roster(7, 1, 2)).is_err());
        assert!(card.window.live.is_empty(), "nothing is live");
        assert_eq!(card.loaded().count(), 0);
    }
}

/// Any answer of a card, and silence at any point: an error, in bounded time.
#[test]
fn hostile_cards_are_errors() {
    let calls = |card: &mut Card<Fake>| -> Result<(), CardError> {
        card.set_own(&OWN)?;
        card.load(&roster(7, 3, 4))?;
        card.load(&roster(7, 4, 4))?;
        card.alive()?;
        card.counters()?;
        card.unload_all()
    };
    let mut whole = open();
    calls(&mut whole).expect("a good one");
    let all = whole.window.accesses;
    for after in 0..all {
        let outcome = Card::open(Fake::with(Fault::Ends(after)));
        let error = outcome
            .and_then(|mut card| calls(&mut card))
            .expect_err("it ends");
        assert!(matches!(error, CardError::Closed), "{error}");
    }
    for seed in 1..200 {
        let mut card = open();
        card.window.fault = Fault::Noise(seed);
        assert!(calls(&mut card).is_err(), "{seed}");
        assert!(
            Card::open(Fake::with(Fault::Noise(seed))).is_err(),
            "{seed}"
        );
    }
    for value in [0, 1, u32::MAX] {
        let mut card = open();
        card.window.fault = Fault::All(value);
        assert!(calls(&mut card).is_err());
        assert!(card.alive().is_err());
    }
}
