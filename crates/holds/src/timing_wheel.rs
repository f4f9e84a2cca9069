//! A hierarchical timing wheel with slots of one millisecond.
//!
//! Three levels of 256 slots, 1 ms, 256 ms and 65.5 s wide, reach about 4.6 hours ahead. Later entries wait in a list and move to the
//! levels when their time is near. An entry moves down at most twice. There is no search for an entry: the caller that pops one checks
//! whether it is still valid. Times are in milliseconds; an entry that is not later than `now` is ready at once.

use std::collections::VecDeque;

const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 3;

#[derive(Debug)]
pub struct TimingWheel<T> {
    /// Entries at or before this time are ready.
    now: i64,
    ready: VecDeque<(i64, T)>,
    levels: [Level<T>; LEVELS],
    beyond: Vec<(i64, T)>,
    len: usize,
}

#[derive(Debug)]
struct Level<T> {
    slots: Vec<Vec<(i64, T)>>,
    occupied: [u64; SLOTS / 64],
}

impl<T> Level<T> {
    fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), occupied: [0; SLOTS / 64] }
    }

    fn push(&mut self, slot: usize, entry: (i64, T)) {
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.slots[slot].push(entry);
    }

    fn take(&mut self, slot: usize) -> Vec<(i64, T)> {
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        std::mem::take(&mut self.slots[slot])
    }

    fn is_occupied(&self, slot: usize) -> bool {
        self.occupied[slot / 64] & 1 << (slot % 64) != 0
    }

    fn next_occupied(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.occupied.get(word)? & u64::MAX << (from % 64);
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.occupied.get(word)?;
        }
    }

    fn last_occupied(&self) -> Option<usize> {
        let word = self.occupied.iter().rposition(|bits| *bits != 0)?;
        Some(word * 64 + 63 - self.occupied[word].leading_zeros() as usize)
    }
}

impl<T> TimingWheel<T> {
    pub fn new(now: i64) -> Self {
        let levels = std::array::from_fn(|_| Level::new());
        Self { now, ready: VecDeque::new(), levels, beyond: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn insert(&mut self, due: i64, entry: T) {
        self.len += 1;
        self.place(due, entry);
    }

    /// Puts back an entry that was popped and not used. If it is due, it precedes all ready entries.
    pub fn put_back(&mut self, due: i64, entry: T) {
        self.len += 1;
        if due > self.now {
            self.place(due, entry);
        } else {
            self.ready.push_front((due, entry));
        }
    }

    fn place(&mut self, due: i64, entry: T) {
        if due <= self.now {
            self.ready.push_back((due, entry));
            return;
        }
        // The lowest level whose current round contains the time.
        for (level, place) in self.levels.iter_mut().enumerate() {
            let shift = SLOT_BITS * level as u32;
            if due >> (shift + SLOT_BITS) == self.now >> (shift + SLOT_BITS) {
                place.push((due >> shift) as usize & (SLOTS - 1), (due, entry));
                return;
            }
        }
        self.beyond.push((due, entry));
    }

    /// Takes the next entry that is due at `now` or before, in due order.
    pub fn pop(&mut self, now: i64) -> Option<(i64, T)> {
        self.advance(now);
        let popped = self.ready.pop_front()?;
        self.len -= 1;
        Some(popped)
    }

    /// A time before which nothing is due; `None` if the wheel is empty. It is exact within the current 256 ms.
    pub fn next(&self) -> Option<i64> {
        if let Some((due, _)) = self.ready.front() {
            return Some(*due);
        }
        for (level, place) in self.levels.iter().enumerate() {
            let shift = SLOT_BITS * level as u32;
            let from = (self.now >> shift) as usize & (SLOTS - 1);
            if let Some(slot) = place.next_occupied(from) {
                let round = self.now >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
                return Some((round | (slot as i64) << shift).max(self.now));
            }
        }
        self.beyond.iter().map(|(due, _)| *due).min()
    }

    fn advance(&mut self, to: i64) {
        while self.now < to {
            if self.len == self.ready.len() {
                self.now = to;
                return;
            }
            // The next millisecond to process: an occupied slot, or the end of this round.
            let slot = self.now as usize & (SLOTS - 1);
            let next_slot = self.levels[0].next_occupied(slot + 1).unwrap_or(SLOTS);
            let next = (self.now - slot as i64) + next_slot as i64;
            if next > to {
                self.now = to;
                return;
            }
            self.now = next;
            if next_slot == SLOTS {
                self.descend();
            }
            let slot = self.now as usize & (SLOTS - 1);
            if self.levels[0].is_occupied(slot) {
                self.ready.extend(self.levels[0].take(slot));
            }
        }
    }

    /// Starts a round of the first level: the entries of the round move down from the upper levels.
    fn descend(&mut self) {
        let is_round = |now: i64, level: usize| now & ((1 << (SLOT_BITS * level as u32)) - 1) == 0;
        if is_round(self.now, LEVELS) {
            for (due, entry) in std::mem::take(&mut self.beyond) {
                self.place(due, entry);
            }
        }
        let now = self.now;
        for level in (1..LEVELS).rev().filter(|level| is_round(now, *level)) {
            let slot = (now >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1);
            for (due, entry) in self.levels[level].take(slot) {
                self.place(due, entry);
            }
        }
    }

    /// Takes the latest occupied slot: the time from which on the wheel is now empty, and the slot's entries. It takes no ready entry.
    pub fn pop_latest(&mut self) -> Option<(i64, Vec<(i64, T)>)> {
        if let Some(from) = self.beyond.iter().map(|(due, _)| *due).min() {
            let taken = std::mem::take(&mut self.beyond);
            self.len -= taken.len();
            return Some((from, taken));
        }
        for level in (0..LEVELS).rev() {
            if let Some(slot) = self.levels[level].last_occupied() {
                let taken = self.levels[level].take(slot);
                self.len -= taken.len();
                let shift = SLOT_BITS * level as u32;
                let round = self.now >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
                return Some((round | (slot as i64) << shift, taken));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_popped_early_and_next_returns_the_next_time() {
        let mut wheel = TimingWheel::new(1_000);
        wheel.insert(1_003, 'b');
        wheel.insert(1_001, 'a');
        assert_eq!(wheel.next(), Some(1_001));
        assert_eq!(wheel.pop(1_000), None);
        assert_eq!(wheel.pop(1_002), Some((1_001, 'a')));
        assert_eq!(wheel.pop(1_002), None);
        assert_eq!(wheel.pop(1_003), Some((1_003, 'b')));
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn an_entry_that_is_put_back_comes_first() {
        let mut wheel = TimingWheel::new(0);
        wheel.insert(1, 'a');
        wheel.insert(1, 'b');
        let (due, entry) = wheel.pop(5).unwrap();
        wheel.put_back(due, entry);
        assert_eq!(wheel.pop(5), Some((1, 'a')));
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn an_entry_put_back_before_its_time_does_not_come_early() {
        let mut wheel = TimingWheel::new(0);
        wheel.put_back(7, 'a');
        assert_eq!(wheel.pop(6), None);
        assert_eq!(wheel.pop(7), Some((7, 'a')));
    }

    proptest! {
        /// Compares the wheel with a list that is searched completely each time.
        #[test]
        fn it_behaves_like_a_sorted_list(
            start in -1_000_000i64..1_000_000,
            steps in proptest::collection::vec((0u8..4, 0i64..40_000_000, 0i64..70_000), 1..120),
        ) {
            let (mut wheel, mut list, mut now) = (TimingWheel::new(start), Vec::<(i64, usize)>::new(), start);
            for (number, (kind, far, near)) in steps.into_iter().enumerate() {
                match kind {
                    0 => { wheel.insert(now + far, number); list.push((now + far, number)); }
                    1 => { wheel.insert(now + near - 100, number); list.push((now + near - 100, number)); }
                    2 => {
                        let Some((from, taken)) = wheel.pop_latest() else { continue };
                        let mut taken: Vec<_> = taken.into_iter().collect();
                        taken.sort_unstable();
                        let mut gone: Vec<_> = list.iter().copied().filter(|(due, _)| *due >= from && *due > now).collect();
                        gone.sort_unstable();
                        prop_assert_eq!(&taken, &gone);
                        list.retain(|entry| !gone.contains(entry));
                    }
                    _ => {
                        now += if far % 2 == 0 { near } else { far };
                        let mut popped = Vec::new();
                        while let Some(entry) = wheel.pop(now) { popped.push(entry); }
                        let mut due: Vec<_> = list.iter().copied().filter(|(due, _)| *due <= now).collect();
                        list.retain(|(due, _)| *due > now);
                        prop_assert!(popped.is_sorted_by_key(|(due, _)| (*due).max(now - near.max(far))), "in due order after one advance");
                        popped.sort_unstable();
                        due.sort_unstable();
                        prop_assert_eq!(popped, due);
                    }
                }
                prop_assert_eq!(wheel.len(), list.len());
                let earliest = list.iter().map(|(due, _)| *due).min();
                prop_assert_eq!(wheel.next().is_some(), earliest.is_some());
                if let (Some(next), Some(earliest)) = (wheel.next(), earliest) {
                    prop_assert!(next <= earliest.max(now), "{next} {earliest}");
                }
            }
        }
    }
}
