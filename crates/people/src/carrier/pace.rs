//! How fast pages are read for all seats of this node together: when many come back at once, the store is not asked for all at once.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Pages that may be read at once before the pace is kept, as a part of a second's.
const BURST: Duration = Duration::from_millis(50);

pub(super) struct Pace {
    each: Duration,
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub fn new(per_second: u32) -> Self {
        Self { each: Duration::from_secs(1) / per_second.max(1), next: Mutex::default() }
    }

    /// Waits for its turn.
    pub async fn turn(&self) {
        let now = Instant::now();
        let at = {
            let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let at = next.map_or(now, |next| next.max(now.checked_sub(BURST).unwrap_or(now)));
            *next = Some(at + self.each);
            at
        };
        if at > now {
            sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_let_through_at_the_pace_and_a_few_at_once() {
        let pace = Pace::new(100);
        tokio::time::advance(Duration::from_secs(1)).await;
        let began = Instant::now();
        for _ in 0..105 {
            pace.turn().await;
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(900) && took <= Duration::from_millis(1_100), "{took:?}");
    }
}
