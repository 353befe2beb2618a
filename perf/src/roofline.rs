//! The bound of any program on one core: a frame received and sent, and its payload read once.
//!
//! `macswap` measures receiving and sending. This measures the rest: the time to sum a payload in
//! one pass with those of the other workers, from the memory that a poll iteration of the switch
//! receives. The best trial counts, so that other load of the machine does not lower the roof.

use anyhow::{Result, bail};
use std::hint::black_box;
use std::time::{Duration, Instant};
use tally_kernels::Kernels;
use tally_switch::datapath::{BURST, burst_after};
use tally_testkit::replay::WORKERS;

/// Trials, and how long each lasts at least.
const TRIALS: u32 = 15;
const TRIAL: Duration = Duration::from_millis(10);

/// Frames of each port in a poll iteration of a switch whose ports always have more, for frames of
/// this size.
fn burst_frames(frame_bytes: usize) -> usize {
    let bytes = |frames: usize| (frames * usize::from(WORKERS) * frame_bytes) as u64;
    let mut frames = BURST;
    loop {
        let next = burst_after(frames, bytes(frames));
        if next >= frames {
            return frames;
        }
        frames = next;
    }
}

/// Nanoseconds for each payload.
///
/// # Errors
/// If no kernel sums this element type.
pub fn sum_ns(cpu: usize, payload_bytes: u16, frame_bytes: usize, element: &str) -> Result<f64> {
    let element = element.to_owned();
    // On a thread of its own, which is on the CPU of the programs that are compared.
    let thread = std::thread::spawn(move || {
        core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
        measure(usize::from(payload_bytes), frame_bytes, &element)
    });
    match thread.join() {
        Ok(ns) => ns,
        Err(_) => bail!("the thread that sums payloads panicked"),
    }
}

fn measure(payload_bytes: usize, frame_bytes: usize, element: &str) -> Result<f64> {
    let kernels = Kernels::best();
    let workers = usize::from(WORKERS);
    let fragments = burst_frames(frame_bytes);
    // As in a pool of frames: payloads apart by a frame and its descriptor, on 64-byte boundaries.
    let stride = (frame_bytes + 256).next_multiple_of(64);
    let mut memory = vec![0_u8; stride * fragments * workers + 64];
    let start = memory.as_ptr().align_offset(64);
    let fold = |sum: &mut [u8], others: &[&[u8]]| {
        match element {
            "i32" => drop(black_box(kernels.sum_i32_many(sum, others))),
            "f32" => kernels.sum_f32_many(sum, others),
            "f16" => kernels.fold_f16(sum, others),
            "bf16" => kernels.fold_bf16(sum, others),
            "i16" => drop(black_box(kernels.fold_i16(sum, others))),
            "i8" => drop(black_box(kernels.fold_i8(sum, others))),
            _ => bail!("no sums of {element}"),
        }
        Ok(())
    };
    let mut best = f64::MAX;
    for _ in 0..TRIALS {
        let mut payloads = 0;
        let begun = Instant::now();
        while begun.elapsed() < TRIAL {
            for fragment in memory[start..].chunks_exact_mut(stride * workers) {
                let (first, rest) = fragment.split_at_mut(stride);
                let others: Vec<_> = rest
                    .chunks_exact(stride)
                    .map(|other| &other[..payload_bytes])
                    .collect();
                fold(&mut first[..payload_bytes], &others)?;
            }
            payloads += fragments * workers;
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / payloads as f64);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_switch::datapath::BURST_MIN;

    #[test]
    fn more_bytes_take_longer_and_all_types_are_summed() {
        let [small, large] =
            [256_u16, 8192].map(|bytes| sum_ns(0, bytes, usize::from(bytes) + 64, "i32").unwrap());
        assert!(small > 0.0 && large > small, "{small} {large}");
        for element in ["f32", "f16", "bf16", "i16", "i8"] {
            assert!(sum_ns(0, 64, 128, element).unwrap() > 0.0);
        }
        assert!(sum_ns(0, 64, 128, "u64").is_err());
    }

    #[test]
    fn a_turn_holds_fewer_of_longer_frames() {
        assert_eq!(burst_frames(320), BURST);
        assert_eq!(burst_frames(8256), BURST_MIN);
    }
}
