//! Who may keep one more buffer.
//!
//! Sessions share what a shard may keep, first come, first served, but for a part that each is sure
//! of: half of everything, divided by the number of sessions that there can be. A session that
//! rests with results in many slots, or whose workers wait for a dead one, cannot leave the others
//! without any.

/// The buffers of a shard. A session's own count is the session's; it is an argument here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    held: u32,
    /// Of which each session is sure.
    share: u32,
    kept: u32,
    /// What sessions are sure of and do not use.
    reserved: u32,
}

impl Room {
    /// Room for `held` buffers of up to so many sessions.
    pub(super) fn new(held: u32, sessions: usize) -> Self {
        let sessions = sessions as u32;
        let share = held / 2 / sessions;
        Self {
            held,
            share,
            kept: 0,
            reserved: share * sessions,
        }
    }

    /// Buffers of all sessions.
    pub(super) fn kept(&self) -> u32 {
        self.kept
    }

    /// Counts one more buffer of a session that has `own`, if it may keep one.
    #[inline]
    pub(super) fn keep(&mut self, own: &mut u32) -> bool {
        if *own < self.share {
            self.reserved -= 1;
        } else if self.kept + self.reserved >= self.held {
            return false;
        }
        *own += 1;
        self.kept += 1;
        true
    }

    /// Counts one buffer less of a session that has `own`.
    #[inline]
    pub(super) fn free(&mut self, own: &mut u32) {
        *own -= 1;
        self.kept -= 1;
        if *own < self.share {
            self.reserved += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(room: &mut Room, own: &mut u32) -> u32 {
        let mut taken = 0;
        while room.keep(own) {
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_greedy_session_leaves_the_others_their_share() {
        let mut room = Room::new(100, 5);
        let mut own = [0; 5];
        assert_eq!(take_all(&mut room, &mut own[0]), 60);
        for other in &mut own[1..] {
            assert_eq!(take_all(&mut room, other), 10);
        }
        assert_eq!(room.kept(), 100);
        assert_eq!(own, [60, 10, 10, 10, 10]);
    }

    #[test]
    fn what_is_freed_can_be_kept_again() {
        let mut room = Room::new(100, 2);
        let mut own = [0; 2];
        take_all(&mut room, &mut own[0]);
        take_all(&mut room, &mut own[1]);
        assert_eq!(own, [75, 25]);
        for _ in 0..5 {
            room.free(&mut own[1]);
        }
        assert_eq!(take_all(&mut room, &mut own[0]), 0, "the other's share");
        assert_eq!(take_all(&mut room, &mut own[1]), 5);
        for _ in 0..75 {
            room.free(&mut own[0]);
        }
        assert_eq!(take_all(&mut room, &mut own[1]), 50);
        assert_eq!(take_all(&mut room, &mut own[0]), 25);
    }

    #[test]
    fn too_little_to_divide_is_first_come_first_served() {
        let mut room = Room::new(3, 2);
        let mut own = [0; 2];
        assert_eq!(take_all(&mut room, &mut own[0]), 3);
        assert_eq!(take_all(&mut room, &mut own[1]), 0);
        let mut room = Room::new(1, 2);
        assert_eq!(take_all(&mut room, &mut own[0]), 1);
        let mut room = Room::new(0, 2);
        assert_eq!(take_all(&mut room, &mut own[0]), 0);
    }
}
