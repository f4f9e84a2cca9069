//! Rate limit for page reads of all seats on this node, so that many simultaneous reconnects do not overload the store.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Unused capacity accumulates for at most this long and may be spent in one burst.
const BURST: Duration = Duration::from_millis(50);

pub(super) struct PageRateLimit {
    each: Duration,
    next: Mutex<Option<Instant>>,
}

impl PageRateLimit {
    pub fn new(per_second: u32) -> Self {
        Self { each: Duration::from_secs(1) / per_second.max(1), next: Mutex::default() }
    }

    /// Waits until the next read is allowed.
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
    async fn reads_beyond_a_small_burst_are_limited_to_the_rate() {
        let page_rate = PageRateLimit::new(100);
        tokio::time::advance(Duration::from_secs(1)).await;
        let began = Instant::now();
        for _ in 0..105 {
            page_rate.turn().await;
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(900) && took <= Duration::from_millis(1_100), "{took:?}");
    }
}
