//! What the design promises by its construction.

#![allow(clippy::unwrap_used)]

use tally_card::measure;

#[test]
fn traffic_is_taken_above_100_gbit_per_s_and_a_kib_in_17_cycles() {
    let measurement = measure::run().unwrap();
    println!("{}", measurement.table());
    for row in &measurement.rows {
        let name = format!("{} of {} bytes", row.traffic, row.payload_bytes);
        if row.amplifies {
            // No more goes in while what a short frame evicted leaves.
            assert!(row.gbit_per_s > 60.0, "{name}: {} Gbit/s", row.gbit_per_s);
            continue;
        }
        // Each waits for the rounded sum of the one before, which the shortest payloads do not
        // hide.
        let is_short = row.traffic == "burst-f32" && row.payload_bytes == 64;
        let least = if is_short { 45.0 } else { 100.0 };
        assert!(row.gbit_per_s > least, "{name}: {} Gbit/s", row.gbit_per_s);
        if row.beats_per_frame == 17.0 {
            assert_eq!(row.cycles_per_frame, 17.0, "{name}");
        }
    }
}
