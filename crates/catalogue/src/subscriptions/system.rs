//! The subscriptions of the system itself: everything about them is as with any other, but only the system makes them.
//!
//! `_notices` hands notices to the horn. It is made at the start of a process; what an operator did to its run (a pause, a seek) stays.

use whimbrel_model::SubscriptionSpec;
use whimbrel_model::push::{HORN_URL, NOTICES_SUBSCRIPTION, NOTICES_TOPIC};
use whimbrel_model::subscription::{Endpoint, Gone, Mode, OnExhausted, Ordering, RetryPolicy, Start};

use super::changing::SecretWish;
use super::error::SubscriptionError;
use super::registry::Subscriptions;

/// Notices that are handed to horns at one time.
const NOTICES_CONCURRENCY: u32 = 64;
/// For all devices of one user, who are called at the same time: more than a horn gives one of them.
const NOTICE_WITHIN_MS: u64 = 30_000;
/// After so many retries a notice is a dead letter, an hour and three quarters after the first attempt.
const NOTICE_RETRIES: u32 = 6;
const NOTICE_RETRY_SCHEDULE_MS: [u64; 4] = [5_000, 30_000, 300_000, 1_800_000];
/// It is never disabled by itself, which is what zero means: nobody would be woken any more, and each notice ends by its own expiry or as
/// a dead letter.
const NEVER_MS: u64 = 0;

/// Whether a subscription of that name is the system's own: people look at it, pause it, redrive it, and neither make nor delete it.
pub fn is_system_subscription(name: &str) -> bool {
    name.starts_with('_')
}

/// Makes the subscription that reads `_notices`, where it is not there yet or was made by an older version.
///
/// Notices have no order among them: one that comes back later waits as a hold, and holds no other of its user up.
pub async fn ensure_notices_subscription(subscriptions: &Subscriptions) -> Result<(), SubscriptionError> {
    let made = subscriptions.put(NOTICES_SUBSCRIPTION, notices_spec(), SecretWish::Keep).await?;
    tracing::debug!(created = made.created, "notices go to the horn");
    Ok(())
}

fn notices_spec() -> SubscriptionSpec {
    let endpoint = Endpoint {
        url: Some(HORN_URL.to_owned()),
        timeout_ms: NOTICE_WITHIN_MS,
        connect_timeout_ms: None,
        headers: Vec::new(),
    };
    SubscriptionSpec {
        ordering: Ordering::None,
        concurrency: NOTICES_CONCURRENCY,
        retry: RetryPolicy { times: NOTICE_RETRIES, schedule_ms: NOTICE_RETRY_SCHEDULE_MS.to_vec() },
        on_exhausted: OnExhausted::DeadLetter,
        start: Start::Earliest,
        gone: Gone::Fail,
        disable_after_ms: NEVER_MS,
        ..SubscriptionSpec::new(vec![NOTICES_TOPIC.to_owned()], Mode::Push, Some(endpoint))
    }
}
