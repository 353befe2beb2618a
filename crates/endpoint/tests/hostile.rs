//! Arbitrary bytes come in: no panic, and no result that is not one.

mod common;

use common::{Plan, Rng, World, expected};
use proptest::prelude::*;
use std::time::Duration;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Ecn, Epoch, Flags, FragmentId, Header, Kind, Rank};

/// Frames near the good ones: a header with fields from small sets, and some bytes flipped.
fn nearly_good(rng: &mut Rng) -> Vec<u8> {
    let kind = Kind::ALL[rng.below(10) as usize];
    let units = [0, 1, 2][rng.below(3) as usize];
    let mut f = vec![0; HEADER_BYTES + 64 * units];
    rng.next()
        .to_le_bytes()
        .iter()
        .cycle()
        .zip(&mut f)
        .for_each(|(r, b)| *b = *r);
    f[0] = 0x10 | kind as u8;
    f[1] = [
        0,
        0,
        Flags::RESEND.0,
        Flags::OVERFLOW.0,
        Flags::FROM_PS.0,
        Flags::FINISHED.0,
    ][rng.below(6) as usize];
    f[3] = rng.below(8) as u8;
    f[4..6].copy_from_slice(&7u16.to_be_bytes());
    f[6..8].copy_from_slice(&[0, [0, 41, 42][rng.below(3) as usize]]);
    let n = [0u32, 1, 8, 70, u32::MAX, 1 << 31][rng.below(6) as usize];
    f[8..12].copy_from_slice(&n.wrapping_add(rng.below(12) as u32).to_be_bytes());
    f[12] = [0, 1, 2, 254, 255][rng.below(5) as usize];
    f[13] = units as u8;
    f[14..22]
        .copy_from_slice(&[0u64, 1, 2, 3, 4, 5, 7, 1 << 63][rng.below(8) as usize].to_be_bytes());
    if rng.chance(100) {
        let at = rng.below(f.len() as u64) as usize;
        f[at] ^= 1 << rng.below(8);
    }
    f
}

/// Results and answers that the sessions would have to believe, had they come from the switch.
fn is_harmless(f: &[u8]) -> bool {
    let Ok(h) = Header::parse(f) else { return true };
    let forged = matches!(h.kind, Kind::Result | Kind::Partial) || h.flags.has(Flags::FINISHED);
    !forged || h.epoch != Epoch(41) || h.rank == Rank(2) && h.fragment == FragmentId(1 << 31)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_never_panic(seed in any::<u64>(), noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut world = World::new(&Plan::quiet(3));
        world.submit(100);
        let mut rng = Rng(seed);
        for _ in 0..200 {
            let end = world.now.after(Duration::from_micros(rng.below(300)));
            while world.step(end) {}
            let f = nearly_good(&mut rng);
            world.inject(0, &f);
            world.ps.handle_datagram(world.now, Ecn::Ect0, &f);
            world.inject(1, &noise);
            world.ps.handle_datagram(world.now, Ecn::Ect0, &noise);
        }
    }

    #[test]
    fn forged_frames_change_no_result(seed in any::<u64>()) {
        let mut world = World::new(&Plan::quiet(3));
        world.submit(100);
        world.finish();
        let mut rng = Rng(seed);
        for _ in 0..300 {
            let end = world.now.after(Duration::from_micros(rng.below(100)));
            while world.step(end) {}
            let f = nearly_good(&mut rng);
            if is_harmless(&f) {
                world.inject(rng.below(3) as usize, &f);
                world.ps.handle_datagram(world.now, Ecn::Ect0, &f);
            }
        }
        world.run_to_end(Duration::from_secs(60));
        world.assert_right(100);
        prop_assert_eq!(expected(3, 0).len(), 64);
    }
}
