//! The space for bodies in memory. Partitions of retries have a share of their own. New messages may have to wait for retries, so they
//! must not take the space that retries need.

/// Retries get 1/4 of the space, if there are partitions of retries.
const RETRIES_PART: usize = 4;

/// Bytes of bodies in memory. New messages and retries each exceed their share by at most one message.
#[derive(Debug)]
pub(super) struct BodyBudget {
    most: usize,
    fresh: usize,
    retries: usize,
    retry_partitions: usize,
}

impl BodyBudget {
    pub fn new(most: usize) -> Self {
        Self { most, fresh: 0, retries: 0, retry_partitions: 0 }
    }

    pub fn opened(&mut self, is_retry: bool) {
        self.retry_partitions += usize::from(is_retry);
    }

    pub fn closed(&mut self, is_retry: bool) {
        self.retry_partitions -= usize::from(is_retry);
    }

    /// The bytes of one kind of bodies.
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

    /// The space for the next messages. While dropped bodies are requested again, half of the share is kept for them.
    pub fn room_to_read(&self, is_retry: bool, are_wanted_again: bool) -> usize {
        let kept = if are_wanted_again { self.share(is_retry) / 2 } else { 0 };
        self.room(is_retry).saturating_sub(kept)
    }

    fn share(&self, is_retry: bool) -> usize {
        let of_retries = if self.retry_partitions > 0 { (self.most / RETRIES_PART).max(1) } else { 0 };
        if is_retry { of_retries } else { self.most - of_retries }
    }
}
