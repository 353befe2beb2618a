use super::*;
use proptest::prelude::*;

const T0: Time = Time(0);

fn table(workers_window: u16) -> Table {
    Table::new(workers_window, 64, Kernels::best(), Part::ONLY)
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

#[test]
fn sub_32_bit_types_are_folded_once_all_are_there() {
    // 2048 + 1 + 1 in f16, where 2049 is not: each step rounded would leave 2048.
    let halves = |bits: u16| bits.to_le_bytes().repeat(32);
    let mut t = table(4);
    let slot = t.find_or_take(T0, FragmentId(0), Element::F16, 0).unwrap();
    for (rank, bits) in [(2, 0x3c00), (0, 0x6800), (1, 0x3c00)] {
        assert_eq!(t.merge(slot, 1 << rank, &halves(bits)), Merged::New);
        assert_eq!(t.merge(slot, 1 << rank, &halves(bits)), Merged::Duplicate);
        assert!(t.entries[slot].sum.is_none());
    }
    t.complete(slot);
    assert_eq!(t.entries[slot].result(), Some(&halves(0x6801)[..]));

    // Larger than it may be on the way, and not in the end.
    let ints = |value: i16| value.to_be_bytes().repeat(32);
    for (last, sum, overflow) in [(-30_000, 30_000, false), (1, i16::MAX, true)] {
        let fragment = FragmentId(sum as u32);
        let slot = t.find_or_take(T0, fragment, Element::I16, 0).unwrap();
        for (rank, value) in [(1, last), (0, 30_000), (2, 30_000)] {
            t.merge(slot, 1 << rank, &ints(value));
        }
        t.complete(slot);
        assert_eq!(t.entries[slot].result(), Some(&ints(sum)[..]));
        assert_eq!(t.entries[slot].overflow, overflow);
    }
}

#[test]
fn the_switch_may_send_a_narrow_sum_of_all() {
    let mut t = table(4);
    for (n, element) in (0..).zip(Element::ALL.into_iter().filter(|e| e.is_narrow())) {
        let slot = t.find_or_take(T0, FragmentId(n), element, 0).unwrap();
        t.merge(slot, 0b010, &[1; 64]);
        assert_eq!(t.merge(slot, 0b111, &[9; 64]), Merged::New);
        assert_eq!(t.merge(slot, 0b100, &[1; 64]), Merged::Duplicate);
        t.complete(slot);
        assert_eq!(t.entries[slot].result(), Some(&[9; 64][..]), "{element:?}");
        assert!(t.entries[slot].ahead.is_empty());
    }
}

proptest! {
    /// Contributions of sub-32-bit types in any order have one sum: that of the kernels in rank
    /// order.
    #[test]
    fn sub_32_bit_types_are_folded_in_rank_order(
        order in Just((0u8..9).collect::<Vec<_>>()).prop_shuffle(),
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 64), 9),
    ) {
        let mut t = table(4);
        let k = Kernels::best();
        for (n, element) in (0..).zip(Element::ALL.into_iter().filter(|e| e.is_narrow())) {
            let slot = t.find_or_take(T0, FragmentId(n), element, 0).unwrap();
            for &rank in &order {
                t.merge(slot, 1 << rank, &payloads[usize::from(rank)]);
            }
            t.complete(slot);
            let mut sum = payloads[0].clone();
            let rest: Vec<&[u8]> = payloads[1..].iter().map(Vec::as_slice).collect();
            let overflow = match element {
                Element::F16 => { k.fold_f16(&mut sum, &rest); false }
                Element::Bf16 => { k.fold_bf16(&mut sum, &rest); false }
                Element::I16 => k.fold_i16(&mut sum, &rest),
                _ => k.fold_i8(&mut sum, &rest),
            };
            prop_assert_eq!(t.entries[slot].result(), Some(&sum[..]));
            prop_assert_eq!(t.entries[slot].overflow, overflow);
        }
    }

    /// Folds and single contributions in any order, any number of times: once all are there, the
    /// bits are those of the fold in rank order.
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

#[test]
fn a_part_has_its_share_of_the_slots_and_the_span_of_all() {
    let part = Part::new(1, 4).unwrap();
    let mut t = Table::new(16, 64, Kernels::best(), part);
    assert_eq!((t.slots(), table(16).slots()), (16, 64));
    assert_eq!(
        Table::new(1, 64, Kernels::best(), Part::new(15, 16).unwrap()).slots(),
        1
    );
    // Four windows of all fragments, 64, find room at once, also where numbers wrap.
    let fragment = |n: u32| FragmentId(0xffff_ffe1_u32.wrapping_add(n));
    for n in (0..64).step_by(4) {
        assert!(part.has(fragment(n)));
        let slot = t.find_or_take(T0, fragment(n), Element::I32, 0);
        assert!(slot.is_some());
    }
    assert!((0..64).step_by(4).all(|n| t.find(fragment(n)).is_some()));
    // The next one takes the place of the first, which is late from then on.
    assert!(t.find_or_take(T0, fragment(64), Element::I32, 0).is_some());
    assert!(t.find(fragment(0)).is_none());
    assert!(t.find_or_take(T0, fragment(0), Element::I32, 0).is_none());
}
