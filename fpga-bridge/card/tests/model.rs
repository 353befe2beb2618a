//! The model's own manners, with any RTL.

#![allow(clippy::unwrap_used)]

use tally_card::{Gaps, Model, Size};

/// A frame that is not for the card.
fn ordinary(bytes: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    frame[12..14].copy_from_slice(&0x86dd_u16.to_be_bytes());
    frame
}

#[test]
fn frames_go_in_and_come_out_in_order_with_any_gaps() {
    for gaps in [(0, 0), (200, 0), (0, 200), (128, 128)] {
        let mut model = Model::with(Size::Small, 1);
        let (input, output) = gaps;
        let longer = 128;
        model.set_gaps(
            Gaps {
                input,
                output,
                longer,
            },
            7,
        );
        let frames: Vec<_> = (14..300).map(ordinary).collect();
        for frame in &frames {
            model.offer(frame, false);
        }
        assert_eq!(model.pending(), frames.len());
        model.run(1_000_000);
        assert_eq!(model.fault(), None);
        assert_eq!(model.pending(), 0);
        let mut out = Vec::new();
        while let Some(frame) = model.take() {
            out.push(frame);
        }
        assert!(out == frames, "{} of {} frames", out.len(), frames.len());
        assert_eq!(model.statistics().frames_out, frames.len() as u64);
    }
}

#[test]
fn two_models_live_side_by_side_and_on_other_threads() {
    let mut full = Model::new();
    let mut small = Model::with(Size::Small, 1);
    assert_eq!(full.parameters().slots, 1024);
    small.offer(&ordinary(60), false);
    let out = std::thread::spawn(move || {
        small.run(10_000);
        small.take()
    });
    full.run(100_000);
    assert_eq!(full.take(), None);
    assert_eq!(out.join().unwrap(), Some(ordinary(60)));
}
