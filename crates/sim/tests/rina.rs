//! Rina's deployment sweep: the steps and shares of the paper, and the times of the model.

#![allow(clippy::unwrap_used)]

use tally_sim::rina::fabric::Shape;
use tally_sim::rina::rings::Transfer;
use tally_sim::rina::sweep::{PAPER, Row, Scheme, sweep, targets};

const BYTES: u64 = 32 << 20;

fn rows(window_bytes: u64) -> Vec<Row> {
    let shapes = PAPER.map(|(summing, ..)| Shape {
        racks: 8,
        workers: 8,
        summing,
        rate_gbit: 100.0,
        delay_ns: 1000,
        oversubscription: 1.0,
    });
    let transfer = Transfer {
        bytes: BYTES,
        segment_bytes: 64 << 10,
        window_bytes,
    };
    sweep(&shapes, &Scheme::ALL, transfer, 2).unwrap()
}

#[test]
fn the_sweep_has_the_steps_of_the_paper_and_the_times_of_the_model() {
    let rows = rows(1 << 20);
    for target in targets(&rows) {
        assert_eq!(target.met, Some(true), "{target}");
    }
    for (summing, steps, _) in PAPER {
        let rina = rows
            .iter()
            .find(|row| row.scheme == Scheme::Rina && row.summing == summing);
        assert_eq!(rina.unwrap().steps, steps);
    }
    // Replacing racks helps a parameter server little, and an agent's link carries it all.
    let ms = |scheme, summing| {
        let found = |row: &&Row| row.scheme == scheme && row.summing == summing;
        rows.iter().find(found).unwrap().ms
    };
    assert!(ms(Scheme::TreePs, 4) > 15.0 * ms(Scheme::RinaAgents, 4));
    assert!(ms(Scheme::RinaAgent, 8) > 1.6 * ms(Scheme::RinaAgents, 8));
}

#[test]
fn a_window_of_a_segment_slows_a_ring_and_breaks_no_sum() {
    let narrow = rows(64 << 10);
    let wide = rows(1 << 20);
    for (narrow, wide) in narrow.iter().zip(&wide) {
        assert!(narrow.ms >= 0.99 * wide.ms, "{narrow:?} {wide:?}");
    }
    let of = |rows: &[Row]| {
        rows.iter()
            .find(|row| row.scheme == Scheme::Ring)
            .unwrap()
            .ms
    };
    assert!(of(&narrow) > 1.1 * of(&wide));
}
