use super::*;
use proptest::prelude::*;

const T0: Time = Time(0);

fn table(workers_window: u16) -> Table {
    Table::new(workers_window, 64, Kernels::best())
}

fn f32_payload(value: f32) -> Vec<u8> {
    value.to_le_bytes().repeat(16)
}

/// What worker `rank` contributes; magnitudes differ, so that the order of addition shows.
fn contribution(rank: u8) -> f32 {
    1.0e8f32.powi(i32::from(rank % 3) - 1) * (f32::from(rank) + 0.1)
}

fn fold(ranks: u8) -> f32 {
    (1..ranks).fold(contribution(0), |sum, r| sum + contribution(r))
}

#[test]
fn integers_of_disjoint_partials_are_summed() {
    let mut t = table(4);
    let slot = t.find_or_take(T0, FragmentId(9), Element::I32, 0).unwrap();
    let payload = |v: i32| v.to_be_bytes().repeat(16);
    assert_eq!(t.merge(slot, 0b0011, &payload(3)), Merged::New);
    assert_eq!(t.merge(slot, 0b0010, &payload(9)), Merged::Duplicate);
    assert_eq!(
        t.merge(slot, 0b1110, &payload(9)),
        Merged::Overlap { missing: 0b1100 }
    );
    assert_eq!(t.merge(slot, 0b1100, &payload(-5)), Merged::New);
    assert_eq!(t.entries[slot].result(), None);
    t.complete(slot);
    assert_eq!(t.entries[slot].result(), Some(&payload(-2)[..]));
}

#[test]
fn saturation_is_remembered() {
    let mut t = table(4);
    let slot = t.find_or_take(T0, FragmentId(0), Element::I32, 0).unwrap();
    let payload = i32::MAX.to_be_bytes().repeat(16);
    t.merge(slot, 1, &payload);
    assert!(!t.entries[slot].overflow);
    t.merge(slot, 2, &payload);
    assert!(t.entries[slot].overflow);
}

#[test]
fn newer_fragments_evict_and_older_ones_are_late() {
    let mut t = table(2);
    assert_eq!(t.slots(), 8);
    let mut take = |n: u32| t.find_or_take(T0, FragmentId(n), Element::Scale, 0);
    assert_eq!(take(u32::MAX), Some(7));
    assert_eq!(take(7), Some(7), "across the wrap");
    assert_eq!(take(u32::MAX), None);
    assert_eq!(take(15), Some(7));
    assert_eq!(take(7), None);
    assert_eq!(
        take(15 + (1 << 31) + 8),
        Some(7),
        "half a turn later it is not late"
    );
}

#[test]
fn buffers_are_reused() {
    let mut t = table(1);
    for n in 0..100 {
        let slot = t.find_or_take(T0, FragmentId(n), Element::F32, 0).unwrap();
        for rank in [3, 1, 2, 0] {
            t.merge(slot, 1 << rank, &f32_payload(contribution(rank)));
        }
        t.complete(slot);
    }
    let held = t.entries.iter().filter(|e| e.sum.is_some()).count();
    assert!(held + t.spare.len() <= 4 + 4, "{held} + {}", t.spare.len());
}

proptest! {
    /// Whatever folds and single contributions come in whatever order, however often: once all
    /// are there, the bits are those of the fold in rank order.
    #[test]
    fn f32_is_folded_in_rank_order(
        workers in 1u8..=8,
        partials in prop::collection::vec((any::<bool>(), 0u8..8), 0..40),
    ) {
        let mut t = table(4);
        let slot = t.find_or_take(T0, FragmentId(0), Element::F32, 0).unwrap();
        let mut have = 0u64;
        let all = (0..workers).map(|r| (false, r));
        for (is_fold, rank) in partials.into_iter().filter(|p| p.1 < workers).chain(all) {
            let (bitmap, value) = if is_fold {
                ((2u64 << rank) - 1, fold(rank + 1))
            } else {
                (1 << rank, contribution(rank))
            };
            let merged = t.merge(slot, bitmap, &f32_payload(value));
            let news = bitmap & !have != 0;
            // A longer fold of what is here one by one is welcome, but need not be.
            prop_assert!(!news || merged == Merged::New);
            have |= bitmap;
            prop_assert_eq!(t.entries[slot].have, have);
        }
        t.complete(slot);
        let want = f32_payload(fold(workers));
        prop_assert_eq!(t.entries[slot].result(), Some(&want[..]));
    }
}
