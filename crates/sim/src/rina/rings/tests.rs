use super::*;
use tally_rina::model::{Algorithm, RackShape, Rates, seconds};

fn shape(summing: usize) -> Shape {
    Shape {
        racks: 4,
        workers: 4,
        summing,
        rate_gbit: 100.0,
        delay_ns: 1000,
        oversubscription: 1.0,
    }
}

const TRANSFER: Transfer = Transfer {
    bytes: 16 << 20,
    segment_bytes: 16 << 10,
    window_bytes: 256 << 10,
};

fn model(shape: &Shape, algorithm: Algorithm) -> f64 {
    let racks: Vec<_> = (0..shape.racks)
        .map(|rack| RackShape {
            workers: shape.workers,
            sums: shape.sums(rack),
        })
        .collect();
    let rates = Rates {
        link_bytes_per_s: shape.rate_gbit / 8.0 * 1e9,
        step_s: 4e-6,
    };
    seconds(algorithm, &racks, rates, TRANSFER.bytes).unwrap()
}

#[test]
fn each_scheme_has_exact_sums_and_the_time_of_the_model() {
    for summing in 0..=4 {
        let shape = shape(summing);
        for forwarder in [
            Forwarder::Switch,
            Forwarder::Agents(1),
            Forwarder::Agents(4),
        ] {
            let outcome = rina(shape, TRANSFER, forwarder).unwrap();
            let model = model(&shape, Algorithm::Rina(forwarder));
            let ratio = outcome.seconds / model;
            assert!(
                (0.85..1.1).contains(&ratio),
                "{summing} {forwarder:?} {ratio}"
            );
            assert_eq!(outcome.steps, 2 * (shape.members() - 1));
        }
    }
    let levels = hierarchical(shape(0), TRANSFER).unwrap();
    let ratio = levels.seconds / model(&shape(0), Algorithm::Hierarchical);
    assert!((0.85..1.1).contains(&ratio), "hierarchical {ratio}");
}

#[test]
fn a_step_without_pipelining_takes_its_delay_and_its_chunk() {
    // Each chunk is one segment, and all workers are in one rack: two links a step.
    let shape = Shape {
        racks: 1,
        workers: 8,
        ..shape(0)
    };
    let transfer = Transfer {
        bytes: 8 << 20,
        segment_bytes: 1 << 20,
        window_bytes: 8 << 20,
    };
    let ring = rina(shape, transfer, Forwarder::Switch).unwrap();
    let expected = 14.0 * (2e-6 + f64::from(1 << 20) / 12.5e9);
    assert!(
        (ring.seconds / expected - 1.0).abs() < 1e-6,
        "{ring:?} {expected}"
    );
}
