//! The oracle of the fuzz target `forwarding` on random scripts and on its seeds.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test forwarding` repeats one random script.

mod common;

use common::forwarding::{Summary, run};
use common::{Rng, seeds};

#[test]
fn random_scripts() {
    let mut all = Summary::default();
    for seed in seeds(2000) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let len = rng.below(900);
        let script: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        let s = run(&script);
        all.forwarded += s.forwarded;
        all.flooded += s.flooded;
        all.answered += s.answered;
        all.claims += s.claims;
        all.hidden += s.hidden;
        all.members += s.members;
        all.other_macs += s.other_macs;
        all.others += s.others;
    }
    println!("{all:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That scripts get somewhere.
        assert!(all.forwarded > 500 && all.flooded > 500, "{all:?}");
        assert!(all.claims > 1000 && all.hidden > 500, "{all:?}");
        assert!(all.members > 500, "{all:?}");
        assert!(all.other_macs > 150, "{all:?}");
    }
}

/// A frame from port 5, the hostile host's, to host 1 (a member) from host 5, behind `wraps`.
fn hostile(wraps: &[&[u8]], payload: &[u8]) -> Vec<u8> {
    let head = [4, 5, 1, 5, wraps.len() as u8];
    // No mutations, and not cut off.
    [&head, &wraps.concat()[..], payload, &[0, 0]].concat()
}

/// The seeds of the fuzz target, with the claims that are in each.
fn stories() -> Vec<(&'static str, Vec<u8>, u64)> {
    // Wraps: a tag of 802.1Q, 802.1ad and 0x9100, and a SNAP header. Payloads: a datagram from the
    // switch to host 1, one of host 5 to the group, an ICMP error, an ARP answer.
    let priority: &[u8] = &[0, 0, 0];
    let (service, old, snap) = (&[1, 0xe0, 0][..], &[2, 0, 5][..], &[5][..]);
    // Its quote is in a later fragment: nothing says what it is about.
    let fragment = &[2, 4, 3, 1, 0, 0, 1, 1][..];
    let (from_switch, to_group) = (&[0, 0, 0, 0, 1][..], &[0, 0, 0, 3, 4][..]);
    let error = &[2, 0, 3, 1, 0, 0, 1, 0][..];
    let answer = &[3, 1, 5, 0, 1, 1][..];
    let claims = [from_switch, to_group, error, answer];
    let all = |wraps: &[&[u8]]| claims.map(|payload| hostile(wraps, payload)).concat();
    vec![
        ("plain", all(&[]), 4),
        ("fragment", hostile(&[priority], fragment), 1),
        ("priority-tags", all(&[priority, priority]), 4),
        ("every-tag", all(&[priority, service, old]), 4),
        ("snap", all(&[snap, priority]), 4),
        ("sixteen-tags", all(&[priority; 16]), 4),
        ("seventeen-tags", all(&[priority; 17]), 0),
        // Host 2's address from port 5; then job 0 is released, and it passes.
        (
            "member",
            vec![
                4, 5, 1, 2, 0, 0, 0, 0, 2, 1, 0, 0, 2, 0, 4, 5, 1, 2, 0, 0, 0, 0, 2, 1, 0, 0,
            ],
            0,
        ),
        // A datagram to the switch's address, and a fragment of one, but to host 1's MAC: plain and
        // behind headers.
        (
            "own-address",
            [&[][..], &[priority], &[service, old], &[snap, priority]]
                .map(|wraps| {
                    let later_fragment = &[0, 0, 5, 1, 0];
                    [&[0, 0, 0, 1, 0][..], later_fragment].map(|to_own| hostile(wraps, to_own))
                })
                .concat()
                .concat(),
            0,
        ),
        // ARP requests for the switch, by broadcast and to its MAC; an ordinary frame to host 1.
        (
            "answers",
            [
                &[4, 5, 7, 5, 0, 3, 0, 5, 3, 13, 0, 0, 0][..],
                &[4, 5, 0, 5, 0, 3, 0, 5, 3, 13, 0, 0, 0],
                &hostile(&[priority], &[0, 0, 0, 3, 1]),
            ]
            .concat(),
            0,
        ),
    ]
}

/// `TALLY_BLESS=1` writes the files.
#[test]
fn the_seeds_of_the_fuzz_target_are_these() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/forwarding");
    for (name, story, claims) in stories() {
        let summary = run(&story);
        assert_eq!(summary.claims, claims, "{name}: {summary:?}");
        let path = format!("{dir}/{name}");
        if std::env::var("TALLY_BLESS").is_ok() {
            std::fs::write(&path, &story).expect("a writable checkout");
        }
        assert_eq!(std::fs::read(&path).ok(), Some(story), "{path}");
    }
}

#[test]
fn seeds_reach_what_they_are_for() {
    let story = |wanted| {
        let story = stories().into_iter().find(|(name, ..)| *name == wanted);
        run(&story.expect("a story").1)
    };
    assert_eq!(story("sixteen-tags").hidden, 4);
    assert_eq!(story("seventeen-tags").others, 4);
    let own_address = story("own-address");
    assert_eq!(own_address.other_macs, 8, "{own_address:?}");
    let member = story("member");
    assert_eq!((member.members, member.flooded), (1, 1), "{member:?}");
    let answers = story("answers");
    assert_eq!((answers.answered, answers.forwarded), (2, 1), "{answers:?}");
}
