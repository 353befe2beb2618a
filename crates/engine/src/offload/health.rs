//! Whether a card's data path answers, and how long a failed card is left alone.

use super::{Probe, tags};
use std::time::Duration;
use tally_wire::Mac;
use tally_wire::field::ethernet;

/// Time between two checks of the card.
pub const TICK: Duration = Duration::from_millis(50);
/// Ticks without any frame from the card after which it has failed.
pub(super) const SILENT_TICKS: u32 = 6;
/// Ticks without an answer to a probe after which it has failed, also if other frames come.
pub(super) const PROBE_TICKS: u32 = 40;
/// Shortest and longest backoff after a failure.
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Uptime after which the backoff begins anew.
const PROVEN: Duration = Duration::from_secs(10);
/// Source of probes. Not the switch: the card drops frames from the address that it has itself.
const PROBE_SOURCE: Mac = Mac([2, 0x54, 0x43, 2, 0xff, 0xfe]);

/// The probe with this number.
#[must_use]
pub fn probe(number: u16) -> Probe {
    let mut frame = [0; 60];
    frame[ethernet::DST].copy_from_slice(&tags::probe_mac(number).0);
    frame[ethernet::SRC].copy_from_slice(&PROBE_SOURCE.0);
    frame[ethernet::ETHERTYPE].copy_from_slice(&tags::PROBE_ETHERTYPE.to_be_bytes());
    frame
}

/// Backoff between failures of a card.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF)
    }
}

impl Backoff {
    /// The card has failed after this uptime: the time until it is tried again.
    pub(super) fn after(&mut self, uptime: Duration) -> Duration {
        if uptime > PROVEN {
            self.0 = BACKOFF;
        }
        let wait = self.0;
        self.0 = (wait * 2).min(BACKOFF_MAX);
        wait
    }
}

/// The card's data path, as probes show it.
///
/// Time is counted in ticks, which the controller's thread makes: a machine that does not run the
/// thread for a while has not lost a card. While frames come from the card, an answer may take
/// longer: many frames are before the probe.
#[derive(Debug, Default)]
pub(super) struct DataPath {
    /// The last probe.
    number: u16,
    /// Ticks for which it has been in flight.
    in_flight: Option<u32>,
    silent: u32,
    pulse: u64,
}

impl DataPath {
    /// Forgets the probe in flight, of a card that has failed. Its number is not used again soon,
    /// so a late answer to it is not taken for one of the next probe.
    pub(super) fn restart(&mut self) {
        self.in_flight = None;
        self.silent = 0;
    }

    /// A probe with this number has come back.
    pub(super) fn answer(&mut self, number: u16) {
        if number == self.number {
            self.in_flight = None;
        }
    }

    /// Whether the last probe has come back.
    pub(super) fn has_answered(&self) -> bool {
        self.in_flight.is_none()
    }

    /// A tick, at which so many frames have come from the card. The number of the probe to send, if
    /// any.
    ///
    /// # Errors
    /// The data path has failed.
    pub(super) fn tick(&mut self, pulse: u64) -> Result<Option<u16>, String> {
        let moved = pulse != self.pulse;
        self.pulse = pulse;
        let Some(ticks) = &mut self.in_flight else {
            self.number = self.number.wrapping_add(1);
            self.in_flight = Some(0);
            self.silent = 0;
            return Ok(Some(self.number));
        };
        *ticks += 1;
        self.silent = if moved { 0 } else { self.silent + 1 };
        if self.silent < SILENT_TICKS && *ticks < PROBE_TICKS {
            return Ok(None);
        }
        let ms = u128::from(*ticks) * TICK.as_millis();
        Err(format!("its data path has not answered for {ms} ms"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_path_that_answers_is_asked_again_each_tick() {
        let mut path = DataPath::default();
        assert_eq!(path.tick(0), Ok(Some(1)));
        for number in 1..100 {
            path.answer(number);
            assert_eq!(path.tick(number.into()), Ok(Some(number + 1)));
        }
    }

    #[test]
    fn a_silent_one_has_failed_soon_and_a_busy_one_later() {
        let mut path = DataPath::default();
        path.tick(0).unwrap();
        for _ in 1..SILENT_TICKS {
            assert_eq!(path.tick(0), Ok(None));
        }
        path.answer(7);
        let why = path.tick(0).unwrap_err();
        assert!(why.contains("300 ms"), "{why}");

        let mut path = DataPath::default();
        path.tick(0).unwrap();
        for frames in 1..PROBE_TICKS {
            assert_eq!(path.tick(frames.into()), Ok(None));
        }
        let why = path.tick(1000).unwrap_err();
        assert!(why.contains("2000 ms"), "{why}");
    }

    #[test]
    fn a_late_answer_of_a_failed_card_is_no_answer_of_the_next() {
        let mut path = DataPath::default();
        assert_eq!(path.tick(0), Ok(Some(1)));
        path.restart();
        assert_eq!(path.tick(0), Ok(Some(2)));
        path.answer(1);
        assert!(!path.has_answered());
        path.answer(2);
        assert!(path.has_answered());
    }

    #[test]
    fn a_card_that_fails_again_and_again_is_left_alone_for_longer() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.after(TICK).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.after(PROVEN + TICK), BACKOFF, "it had worked");
        assert_eq!(backoff.after(PROVEN), 2 * BACKOFF);
    }

    #[test]
    fn a_probe_is_as_long_as_the_shortest_frame_and_says_its_number() {
        let frame = probe(0x1234);
        assert_eq!(
            tags::probe_of(Mac(*frame.first_chunk().unwrap())),
            Some(0x1234)
        );
        assert_eq!(frame[12..14], [0x88, 0xb5]);
    }
}
