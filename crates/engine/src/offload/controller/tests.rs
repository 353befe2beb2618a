use super::*;
use crate::{Member, PortId, Uplink};
use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use tally_wire::{EpochSecret, Mac, Rank};

/// What a card was told, and how it fails.
#[derive(Default)]
struct State {
    loaded: Vec<(JobId, Epoch)>,
    fault: Option<&'static str>,
}

struct Fake(Rc<RefCell<State>>);

impl Fake {
    fn check(&self) -> Result<(), String> {
        self.0.borrow().fault.map_or(Ok(()), |why| Err(why.into()))
    }
}

impl Registers for Fake {
    fn places(&self) -> usize {
        2
    }

    fn ring(&self) -> u32 {
        64
    }

    fn fits(&self, roster: &Roster) -> Result<(), String> {
        match roster.job.0 {
            100.. => Err("too large".into()),
            _ => Ok(()),
        }
    }

    fn load(&mut self, roster: &Roster) -> Result<bool, String> {
        self.check()?;
        let loaded = &mut self.0.borrow_mut().loaded;
        loaded.retain(|(job, _)| *job != roster.job);
        loaded.push((roster.job, roster.epoch));
        Ok(true)
    }

    fn unload(&mut self, job: JobId) -> Result<(), String> {
        self.check()?;
        self.0
            .borrow_mut()
            .loaded
            .retain(|(other, _)| *other != job);
        Ok(())
    }

    fn alive(&mut self) -> Result<(), String> {
        self.check()
    }

    fn count(&mut self) -> Result<(), String> {
        self.check()
    }
}

fn roster(job: u16, epoch: u16) -> Arc<Roster> {
    let member = |n: u8| Member {
        port: PortId(n.into()),
        mac: Mac([2, 0, 0, 0, 0, n]),
        ip: Ipv4Addr::new(10, 0, 0, n),
        udp_port: 9,
    };
    let workers = vec![member(1), member(2)];
    let secret = EpochSecret::new([7; 16]);
    Arc::new(Roster::new(
        JobId(job),
        Epoch(epoch),
        secret,
        1,
        workers,
        member(3),
    ))
}

struct Rig {
    controller: Controller<Fake>,
    card: Rc<RefCell<State>>,
    now: Time,
    /// Whether probes come back.
    answers: bool,
}

impl Rig {
    fn new(jobs: Jobs) -> Self {
        let config = ControllerConfig {
            jobs,
            window: 32,
            frame_bytes: 2000,
            eligible: (0..200).map(JobId).collect(),
        };
        Self {
            controller: Controller::new(Time(0), config),
            card: Rc::default(),
            now: Time(0),
            answers: true,
        }
    }

    fn list(jobs: &[u16]) -> Self {
        Self::new(Jobs::List(jobs.iter().copied().map(JobId).collect()))
    }

    /// The next requests that are not probes; `Open` is carried out.
    fn requests(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some(request) = self.controller.poll_request() {
            match request {
                Request::Open => {
                    let fake = Fake(Rc::clone(&self.card));
                    let opened = fake.check().map(|()| fake);
                    self.card.borrow_mut().loaded.clear();
                    self.controller.opened(self.now, opened);
                }
                Request::Probe(number) if self.answers => self.controller.handle_probe(number),
                Request::Probe(_) => {}
                request => requests.push(request),
            }
        }
        requests
    }

    /// Lets the next timeout come.
    fn tick(&mut self) -> Vec<Request> {
        self.now = self.controller.poll_timeout().unwrap_or(self.now);
        self.controller.handle_timeout(self.now, 0);
        self.requests()
    }

    fn bind(&mut self, job: u16, epoch: u16) -> Vec<Request> {
        self.controller.bind(self.now, roster(job, epoch));
        self.requests()
    }

    fn moved(&mut self, all: bool) -> Vec<Request> {
        self.controller.moved(self.now, all);
        self.requests()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.controller.poll_event()).collect()
    }

    /// Until the card works.
    fn start(&mut self) -> Vec<Request> {
        for _ in 0..2 {
            assert_eq!(self.tick(), []);
        }
        let requests = self.tick();
        assert_eq!(self.events(), [Event::Working]);
        requests
    }

    fn loaded(&self) -> Vec<(JobId, Epoch)> {
        self.card.borrow().loaded.clone()
    }
}

const fn moves(job: u16, epoch: u16) -> Request {
    Request::Move(JobId(job), Epoch(epoch))
}

#[test]
fn jobs_of_a_list_are_loaded_and_moved_one_after_the_other_until_places_are_taken() {
    let mut rig = Rig::list(&[7, 100, 8, 9]);
    for job in [9, 8, 7, 100, 6] {
        assert_eq!(rig.bind(job, 1), []);
    }
    assert_eq!(rig.tick(), []);
    assert_eq!(rig.tick(), []);
    assert_eq!(rig.tick(), [moves(7, 1)]);
    assert_eq!(rig.loaded(), [(JobId(7), Epoch(1))]);
    assert_eq!(
        rig.controller.poll_timeout(),
        None,
        "it waits for the cores"
    );
    assert_eq!(rig.moved(true), [moves(8, 1)]);
    assert_eq!(rig.moved(true), []);
    let unfit = Event::Unfit(JobId(100), "too large".into());
    let offloaded = [7, 8].map(|job| Event::Offloaded(JobId(job)));
    let [first, second] = offloaded;
    assert_eq!(rig.events(), [Event::Working, unfit, first, second]);
    // A place is free again.
    rig.controller.unbind(rig.now, JobId(7));
    assert_eq!(rig.requests(), [moves(9, 1)]);
}

#[test]
fn a_job_whose_epoch_has_ended_meanwhile_is_taken_back_and_not_tried_at_once() {
    let mut rig = Rig::list(&[7]);
    rig.bind(7, 1);
    assert_eq!(rig.start(), [moves(7, 1)]);
    assert_eq!(rig.moved(false), [Request::MoveBack(JobId(7))]);
    assert_eq!(rig.moved(true), []);
    assert_eq!(rig.loaded(), []);
    assert_eq!(rig.bind(7, 2), [moves(7, 2)]);
}

#[test]
fn what_comes_while_the_controller_waits_is_heard_afterwards() {
    let mut rig = Rig::list(&[7]);
    rig.bind(7, 1);
    rig.start();
    // The next epoch begins in software, with any answer of the cores for the last one.
    assert_eq!(rig.bind(7, 2), []);
    assert_eq!(rig.loaded(), [(JobId(7), Epoch(1))]);
    assert_eq!(rig.moved(true), [moves(7, 2)]);
    assert_eq!(rig.loaded(), [(JobId(7), Epoch(2))]);
}

#[test]
fn members_that_move_are_loaded_and_nothing_is_asked_of_the_cores() {
    let mut rig = Rig::list(&[7]);
    rig.bind(7, 1);
    rig.start();
    assert_eq!(rig.moved(true), []);
    assert_eq!(rig.bind(7, 1), []);
    assert_eq!(rig.loaded(), [(JobId(7), Epoch(1))]);
}

#[test]
fn a_card_that_fails_loses_its_jobs_at_once_and_gets_them_again_after_a_backoff() {
    for is_blind in [true, false] {
        let mut rig = Rig::list(&[7]);
        rig.bind(7, 1);
        rig.start();
        rig.moved(true);
        rig.events();
        let since = rig.now;
        if is_blind {
            rig.card.borrow_mut().fault = Some("no answer");
        } else {
            rig.answers = false;
        }
        let back = std::iter::repeat_with(|| rig.tick())
            .take(8)
            .find(|r| !r.is_empty());
        assert_eq!(back, Some(vec![Request::MoveAllBack]), "blind: {is_blind}");
        assert!(rig.now.since(since) <= 8 * TICK);
        // Until the cores have answered, the jobs are the card's.
        assert_eq!(rig.controller.jobs().count(), 1);
        assert_eq!(rig.moved(true), []);
        assert_eq!(rig.controller.jobs().count(), 0);
        let events = rig.events();
        let [Event::Failed(_, jobs)] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!(jobs, &[JobId(7)]);
        rig.card.borrow_mut().fault = None;
        rig.answers = true;
        let failed = rig.now;
        assert_eq!(rig.start(), [moves(7, 1)]);
        assert!(rig.now.since(failed) >= Duration::from_millis(500));
    }
}

#[test]
fn an_absent_card_is_looked_for_each_second_and_disturbs_no_job() {
    let mut rig = Rig::list(&[7]);
    rig.card.borrow_mut().fault = Some("no such file");
    rig.bind(7, 1);
    for second in 0..5 {
        assert_eq!(rig.tick(), []);
        assert_eq!(rig.now, Time(second * 1_000_000_000));
        assert_eq!(rig.events(), [Event::Absent("no such file".into())]);
    }
    // Nor does one whose data path never answers.
    rig.card.borrow_mut().fault = None;
    rig.answers = false;
    for _ in 0..20 {
        assert_eq!(rig.tick(), []);
    }
    assert!(!rig.controller.is_working());
}

#[test]
fn the_busiest_jobs_are_asked_for_and_moved() {
    let mut rig = Rig::new(Jobs::Auto);
    rig.bind(7, 1);
    let mut counts = BTreeMap::from([(JobId(7), 0)]);
    let mut requests = rig.start();
    for _ in 0..100 {
        while requests == [Request::Arrivals] {
            *counts.entry(JobId(7)).or_default() += 1000;
            rig.controller.arrivals(rig.now, &counts);
            requests = rig.requests();
        }
        if requests == [moves(7, 1)] {
            return;
        }
        requests = rig.tick();
    }
    panic!("job 7 was never offloaded");
}

#[test]
fn jobs_with_too_large_a_window_or_frames_do_not_fit() {
    let mut rig = Rig::list(&[7]);
    rig.controller.config.window = 33;
    rig.bind(7, 1);
    assert_eq!(rig.tick(), []);
    assert_eq!(rig.tick(), []);
    assert_eq!(rig.tick(), []);
    let why = &rig.controller.unfit()[&JobId(7)];
    assert!(why.contains("33") && why.contains("32 at most"), "{why}");
    let mut rig = Rig::list(&[7]);
    rig.controller.config.frame_bytes = 100;
    rig.bind(7, 1);
    for _ in 0..3 {
        assert_eq!(rig.tick(), []);
    }
    let why = &rig.controller.unfit()[&JobId(7)];
    assert!(why.contains("128 bytes"), "{why}");
}

#[test]
fn the_root_of_a_tree_is_offloaded_and_a_switch_with_a_parent_is_not() {
    let in_tree = Roster::clone(&roster(7, 1)).with_switches(0b10);
    let mut rig = Rig::list(&[7]);
    rig.controller.bind(rig.now, Arc::new(in_tree.clone()));
    let mut requests = Vec::new();
    for _ in 0..3 {
        requests.extend(rig.tick());
    }
    assert_eq!(requests, [Request::Move(JobId(7), Epoch(1))]);
    assert!(rig.controller.unfit().is_empty());
    let uplink = Uplink {
        parent: in_tree.workers[0],
        rank: Rank(0),
        shards: 1,
    };
    for below in [in_tree.clone(), in_tree.with_switches(0)] {
        let mut rig = Rig::list(&[7]);
        let below = below.with_uplink(uplink);
        rig.controller.bind(rig.now, Arc::new(below));
        for _ in 0..3 {
            assert_eq!(rig.tick(), []);
        }
        let why = &rig.controller.unfit()[&JobId(7)];
        assert!(why.contains("parent switch at 10.0.0.1"), "{why}");
    }
}

#[test]
fn a_job_with_several_parameter_servers_stays_in_software_and_says_why() {
    let plain = (*roster(7, 1)).clone();
    let servers = vec![plain.servers[0]; 2];
    let mut rig = Rig::list(&[7]);
    // Nor does its configuration let it go there: the reason is that, not another one.
    let none = BTreeSet::new();
    rig.controller.set_jobs(rig.now, None, none);
    rig.controller
        .bind(rig.now, Arc::new(plain.with_servers(servers)));
    for _ in 0..3 {
        assert_eq!(rig.tick(), []);
    }
    let why = &rig.controller.unfit()[&JobId(7)];
    assert!(why.contains("2 parameter servers"), "{why}");
}
