//! Room for bodies in memory. Where a window has partitions of retries, they have a part of the room of their own: what is fresh may
//! have to wait for them, and must then not be what they wait for.

/// The part of the room that is for retries, where there are any: one in so many.
const RETRIES_PART: usize = 4;

/// Bytes of bodies in memory. Each of the two kinds goes beyond its room by one message at most.
#[derive(Debug)]
pub(super) struct Bodies {
    most: usize,
    fresh: usize,
    retries: usize,
    retry_partitions: usize,
}

impl Bodies {
    pub fn new(most: usize) -> Self {
        Self { most, fresh: 0, retries: 0, retry_partitions: 0 }
    }

    pub fn opened(&mut self, is_retry: bool) {
        self.retry_partitions += usize::from(is_retry);
    }

    pub fn closed(&mut self, is_retry: bool) {
        self.retry_partitions -= usize::from(is_retry);
    }

    /// What the bodies of one kind take.
    pub fn of(&mut self, is_retry: bool) -> &mut usize {
        if is_retry { &mut self.retries } else { &mut self.fresh }
    }

    pub fn all(&self) -> usize {
        self.fresh + self.retries
    }

    pub fn room(&self, is_retry: bool) -> usize {
        self.share(is_retry).saturating_sub(if is_retry { self.retries } else { self.fresh })
    }

    pub fn have_room(&self, is_retry: bool) -> bool {
        self.room(is_retry) > 0
    }

    /// Room for what comes next. Half of all is for bodies that are wanted again, while there are any.
    pub fn room_to_read(&self, is_retry: bool, are_wanted_again: bool) -> usize {
        let kept = if are_wanted_again { self.share(is_retry) / 2 } else { 0 };
        self.room(is_retry).saturating_sub(kept)
    }

    fn share(&self, is_retry: bool) -> usize {
        let of_retries = if self.retry_partitions > 0 { (self.most / RETRIES_PART).max(1) } else { 0 };
        if is_retry { of_retries } else { self.most - of_retries }
    }
}
