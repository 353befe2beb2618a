use super::*;
use proptest::prelude::*;
use tally_wire::{AuthTag, Element, Epoch, Flags, FragmentId, JobId, Rank};

fn queue(frames: u32, mark_frames: u32, guard: u32) -> PortQueue<(usize, u32)> {
    PortQueue::new(QueueConfig {
        frames,
        mark_frames,
        guard,
    })
}

#[test]
fn the_class_is_the_priority_but_for_frames_that_others_wait_for() {
    assert_eq!(class_of(0), 0);
    assert_eq!(class_of(31), 0);
    assert_eq!(class_of(32), 1);
    assert_eq!(class_of(255), 7);
    for kind in Kind::ALL {
        let header = Header {
            kind,
            flags: Flags::NONE,
            priority: 100,
            element: Element::None,
            job: JobId(1),
            epoch: Epoch(1),
            fragment: FragmentId(0),
            rank: Rank(0),
            units: 0,
            bitmap: 0,
            tag: AuthTag::NONE,
        };
        let expected = if kind.has_elements() { 3 } else { 7 };
        assert_eq!(class_of_header(&header), expected, "{kind:?}");
    }
}

#[test]
fn what_waits_in_lower_classes_does_not_make_a_queue_long() {
    let mut q = queue(10, 3, 31);
    for n in 0..3 {
        q.push(2, (2, n)).unwrap();
    }
    let long: Vec<_> = (0..CLASSES).map(|class| q.is_long(class)).collect();
    assert_eq!(long, [true, true, true, false, false, false, false, false]);
    q.pop().unwrap();
    assert!(!q.is_long(0));
}

#[test]
fn a_superframe_counts_as_what_it_becomes() {
    // The number of a frame is what it counts as.
    let mut q: PortQueue<(usize, u32)> = PortQueue::weighing(
        QueueConfig {
            frames: 100,
            mark_frames: 60,
            guard: 31,
        },
        |frame| frame.1,
    );
    q.push(2, (2, 45)).unwrap();
    assert!(!q.is_long(2));
    q.push(2, (2, 45)).unwrap();
    assert!(q.is_long(2) && !q.is_long(3));
    // It joins a class that is not full yet, and another finds it full.
    q.push(2, (2, 45)).unwrap();
    assert_eq!(q.push(2, (2, 45)), Err((2, 45)));
    assert_eq!(q.push(2, (2, 1)), Err((2, 1)));
    q.push(0, (0, 1)).unwrap();
    let counters = *q.counters();
    assert_eq!(counters.tx_dropped_by_class[2], 46);
    assert_eq!(counters.queue_frames_max, 136);
    assert_eq!(q.len(), 4);
    // 45 of a class above are more than the guard lets pass.
    assert_eq!(q.pop(), Some((2, 45)));
    assert_eq!(q.pop(), Some((0, 1)));
    let mut out = Vec::new();
    q.pop_burst(&mut out, 5);
    assert_eq!(out, [(2, 45); 2]);
    assert!(q.is_empty() && !q.is_long(0));
    assert_eq!(q.extra, [0; CLASSES]);
}

#[test]
fn a_queue_that_marks_at_eight_times_its_bound_never_marks() {
    let mut q = queue(4, 4 * CLASSES as u32, 31);
    for class in (0..CLASSES).rev() {
        for n in 0..4 {
            assert!(!q.is_long(class));
            q.push(class, (class, n)).unwrap();
        }
    }
}

#[test]
fn with_all_classes_waiting_each_has_its_share() {
    let guard = 31;
    let mut q = queue(4, 64, guard);
    let mut served = [0u32; CLASSES];
    let rounds = 1 << 16;
    for n in 0..rounds {
        for class in 0..CLASSES {
            while q.classes[class].len() < 2 {
                q.push(class, (class, n)).unwrap();
            }
        }
        served[q.pop().unwrap().0] += 1;
    }
    for class in 0..CLASSES - 1 {
        let above: u32 = served[class + 1..].iter().sum();
        assert!(
            (above / guard).abs_diff(served[class]) <= 1,
            "class {class}: {served:?}"
        );
    }
    assert!(served[0] >= rounds / (guard + 1), "{served:?}");
    assert!(served[7] > rounds * 79 / 100, "{served:?}");
}

/// The scheduler as its documentation says it, without bits: all frames that wait, in the order in
/// which they came, and for each class when it may be due.
#[derive(Default)]
struct Model {
    waiting: Vec<(usize, u32)>,
    passed: [u32; CLASSES],
}

impl Model {
    fn count(&self, classes: impl Fn(usize) -> bool) -> usize {
        self.waiting.iter().filter(|f| classes(f.0)).count()
    }

    fn pop(&mut self, guard: u32) -> Option<(usize, u32)> {
        let due = (0..CLASSES).find(|&c| self.passed[c] >= guard);
        let class = due.or_else(|| self.waiting.iter().map(|f| f.0).max())?;
        let at = self.waiting.iter().position(|f| f.0 == class)?;
        let frame = self.waiting.remove(at);
        self.passed[class] = 0;
        for below in 0..class {
            if self.count(|c| c == below) > 0 {
                self.passed[below] += 1;
            }
        }
        Some(frame)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Pop,
    Burst(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..CLASSES).prop_map(Op::Push),
        2 => prop_oneof![Just(0usize), Just(5), Just(7)].prop_map(Op::Push),
        3 => Just(Op::Pop),
        1 => (0..12usize).prop_map(Op::Burst),
    ];
    proptest::collection::vec(op, 0..600)
}

proptest! {
    #[test]
    fn it_does_what_the_model_does(ops in ops(), frames in 1..20u32, mark in 1..30u32, guard in 1..9u32) {
        let mut q = queue(frames, mark, guard);
        let mut model = Model::default();
        let mut dropped = [0; CLASSES];
        let mut max = 0;
        let capacity = q.classes.each_ref().map(VecDeque::capacity);
        for (n, op) in (0..).zip(ops) {
            match op {
                Op::Push(class) => {
                    let long = model.count(|c| c >= class) >= mark as usize;
                    prop_assert_eq!(q.is_long(class), long);
                    if model.count(|c| c == class) < frames as usize {
                        prop_assert_eq!(q.push(class, (class, n)), Ok(()));
                        model.waiting.push((class, n));
                        max = max.max(model.waiting.len() as u32);
                    } else {
                        prop_assert_eq!(q.push(class, (class, n)), Err((class, n)));
                        dropped[class] += 1;
                    }
                }
                Op::Pop => prop_assert_eq!(q.pop(), model.pop(guard)),
                Op::Burst(max) => {
                    let mut burst = vec![(9, 9)];
                    q.pop_burst(&mut burst, max);
                    let expected: Vec<_> = [(9, 9)]
                        .into_iter()
                        .chain((0..max).map_while(|_| model.pop(guard)))
                        .collect();
                    prop_assert_eq!(burst, expected);
                }
            }
            prop_assert_eq!(q.len(), model.waiting.len());
            prop_assert_eq!(q.is_empty(), model.waiting.is_empty());
        }
        // Nothing is lost, and what is left leaves in order.
        while let Some(frame) = model.pop(guard) {
            prop_assert_eq!(q.pop(), Some(frame));
        }
        prop_assert_eq!(q.pop(), None);
        prop_assert_eq!(q.counters().tx_dropped_by_class, dropped);
        prop_assert_eq!(q.counters().queue_frames_max, max);
        prop_assert_eq!(q.classes.each_ref().map(VecDeque::capacity), capacity, "allocated");
    }

    /// Both halves of what the guard promises, under random arrivals, for all classes at once. It
    /// looks only at what leaves and what waits.
    #[test]
    fn the_guard_holds_its_bounds(ops in ops(), guard in 1..9u32) {
        let mut q = queue(100, 64, guard);
        // Frames from above since the class was last served or began to wait.
        let mut above = [0u32; CLASSES];
        let mut last = [None; CLASSES];
        for (n, op) in (0..).zip(ops) {
            let pops = match op {
                Op::Push(class) => {
                    // Full: no matter here.
                    let _ = q.push(class, (class, n));
                    continue;
                }
                Op::Pop => 1,
                Op::Burst(max) => max,
            };
            for _ in 0..pops {
                let waits = q.classes.each_ref().map(|class| !class.is_empty());
                let Some((class, n)) = q.pop() else { break };
                prop_assert!(last[class] < Some(n), "first in, first out");
                last[class] = Some(n);
                if waits[class + 1..].contains(&true) {
                    prop_assert_eq!(above[class], guard, "a higher class waited");
                }
                above[class] = 0;
                for below in (0..class).filter(|&c| waits[c]) {
                    above[below] += 1;
                    prop_assert!(above[below] <= guard, "class {} starves", below);
                }
            }
        }
    }
}
