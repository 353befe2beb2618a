use super::*;

const LIMIT: Duration = Duration::from_millis(1000);
const STEP: Duration = Duration::from_millis(250);

fn link(switch: &str, alive: bool) -> FabricLinkReport {
    FabricLinkReport {
        switch: switch.to_owned(),
        alive,
        ..FabricLinkReport::default()
    }
}

/// A leaf and a spine with one link, looked at every 250 ms.
struct Pairing {
    watch: Watch,
    now: Duration,
}

impl Pairing {
    fn new() -> Self {
        let watch = Watch::new(LIMIT, STEP);
        let now = Duration::ZERO;
        Self { watch, now }
    }

    /// A look: whether each answers, and what it reports of the link.
    fn see(&mut self, leaf: Option<bool>, spine: Option<bool>) -> Vec<String> {
        self.now += STEP;
        let leaf = leaf.map(|alive| [link("spine", alive)]);
        let spine = spine.map(|alive| [link("leaf", alive)]);
        let seen = |name, links| Seen {
            name,
            links,
            is_unknown: false,
        };
        let switches = [
            seen("leaf", leaf.as_ref().map(|it| &it[..])),
            seen("spine", spine.as_ref().map(|it| &it[..])),
        ];
        let links = [pair("spine", "leaf")];
        let changes = self.watch.see(self.now, &switches, &links);
        changes.iter().map(ToString::to_string).collect()
    }

    /// Looks until something changes: after how many.
    fn until(&mut self, leaf: Option<bool>, spine: Option<bool>) -> (usize, Vec<String>) {
        for looks in 1..1000 {
            let changes = self.see(leaf, spine);
            if !changes.is_empty() {
                return (looks, changes);
            }
        }
        panic!("nothing changes");
    }

    fn many(&mut self, looks: usize, leaf: Option<bool>, spine: Option<bool>) {
        for _ in 0..looks {
            assert_eq!(self.see(leaf, spine), [""; 0]);
        }
    }
}

const UP: Option<bool> = Some(true);
const DEAD_LINK: Option<bool> = Some(false);

#[test]
fn a_switch_that_is_silent_for_the_limit_is_down_and_up_with_its_first_answer() {
    let mut it = Pairing::new();
    it.many(60, UP, UP);
    let (looks, changes) = it.until(DEAD_LINK, None);
    assert_eq!(looks, 4);
    assert_eq!(changes, ["switch spine: down, no answer for 1.0 s"]);
    assert!(it.watch.is_down("spine") && it.watch.is_dead("spine"));
    assert!(!it.watch.is_down("leaf"));
    let (looks, changes) = it.until(DEAD_LINK, DEAD_LINK);
    assert_eq!(
        (looks, &changes[..]),
        (1, &["switch spine: up".to_owned()][..])
    );
    assert!(it.watch.is_link_down(&pair("leaf", "spine")));
    assert_eq!(it.see(UP, UP), ["link leaf - spine: up"]);
}

#[test]
fn a_short_restart_is_no_death() {
    let mut it = Pairing::new();
    it.many(3, UP, UP);
    it.many(3, DEAD_LINK, None);
    it.many(1, UP, UP);
    it.many(3, DEAD_LINK, None);
    it.many(1, UP, UP);
}

#[test]
fn a_switch_with_a_live_link_is_down_and_not_dead() {
    let mut it = Pairing::new();
    it.many(3, UP, UP);
    let (_, changes) = it.until(UP, None);
    let expected = "switch spine: down, no answer for 1.0 s; leaf reports a live link to it: its \
                    running jobs stay";
    assert_eq!(changes, [expected]);
    assert!(it.watch.is_down("spine") && !it.watch.is_dead("spine"));
    let changes = it.see(DEAD_LINK, None);
    assert_eq!(
        changes,
        ["switch spine: dead, no switch has a live link to it"]
    );
    assert!(it.watch.is_dead("spine"));
}

#[test]
fn one_end_is_enough_for_a_link_that_is_down() {
    let mut it = Pairing::new();
    it.many(3, UP, UP);
    let (looks, changes) = it.until(UP, DEAD_LINK);
    assert_eq!(looks, 4);
    assert_eq!(
        changes,
        ["link leaf - spine: down, spine reports it as dead"]
    );
    assert!(!it.watch.is_down("spine"));
}

#[test]
fn what_flaps_stays_down_longer_each_time() {
    let mut it = Pairing::new();
    it.many(60, UP, UP);
    let mut held = Vec::new();
    for _ in 0..8 {
        it.until(UP, DEAD_LINK);
        held.push(it.until(UP, UP).0);
    }
    // 1 s, 2 s, 4 s, ... up to 30 s.
    assert_eq!(held, [1, 5, 9, 17, 33, 65, 121, 121]);
    // A link that flaps within the hold does not come up.
    it.until(UP, DEAD_LINK);
    for _ in 0..10 {
        it.many(100, UP, UP);
        it.many(1, UP, DEAD_LINK);
    }
    // Steady again, it has no hold.
    assert_eq!(it.until(UP, UP).0, 121);
    it.many(60, UP, UP);
    it.until(UP, DEAD_LINK);
    assert_eq!(it.until(UP, UP).0, 1);
}

#[test]
fn time_in_which_the_controller_did_not_look_does_not_count() {
    let mut it = Pairing::new();
    it.many(3, UP, UP);
    it.now += Duration::from_secs(20);
    let (looks, _) = it.until(DEAD_LINK, None);
    assert_eq!(looks, 4);
}

#[test]
fn nothing_is_settled_before_all_are_seen_or_missed() {
    let mut watch = Watch::new(LIMIT, STEP);
    let links = [pair("a", "b")];
    let reported = [link("b", true)];
    let seen = |name, links| Seen {
        name,
        links,
        is_unknown: false,
    };
    let switches = [seen("a", Some(&reported[..])), seen("b", None)];
    assert!(!watch.is_settled(&switches, &links));
    for look in 1..=5u32 {
        watch.see(STEP * look, &switches, &links);
        assert_eq!(watch.is_settled(&switches, &links), look == 5, "{look}");
    }
    // The fault of the controller is that of no switch.
    let mut watch = Watch::new(LIMIT, STEP);
    let unknown = [Seen {
        is_unknown: true,
        ..seen("a", None)
    }];
    for look in 1..=100u32 {
        assert_eq!(watch.see(STEP * look, &unknown, &[]), []);
    }
    assert!(!watch.is_settled(&unknown, &[]));
}
