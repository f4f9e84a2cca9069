//! The system's own subscriptions. They behave as all others, but only the system creates them.
//!
//! `_notices` delivers notices to the horn. It is created at the start of a process. An operator's changes to its run (a pause, a seek)
//! stay.

use whimbrel_model::SubscriptionSpec;
use whimbrel_model::push::{HORN_URL, NOTICES_SUBSCRIPTION, NOTICES_TOPIC};
use whimbrel_model::subscription::{Endpoint, GonePolicy, Mode, OnExhausted, Ordering, RetryPolicy, Start};

use super::change::SecretChange;
use super::error::SubscriptionError;
use super::registry::SubscriptionRegistry;

/// The most notices that are delivered to horns concurrently.
const NOTICES_CONCURRENCY: u32 = 64;
/// Timeout for all devices of one user, which are called concurrently. It exceeds the horn's timeout for one device.
const NOTICE_WITHIN_MS: u64 = 30_000;
/// After this number of retries a notice becomes a dead letter, 1 h 45 min after the first attempt.
const NOTICE_RETRIES: u32 = 6;
const NOTICE_RETRY_SCHEDULE_MS: [u64; 4] = [5_000, 30_000, 300_000, 1_800_000];
/// Zero: the subscription is never disabled automatically, because no notifications would be sent any more. Each notice expires or
/// becomes a dead letter.
const NEVER_MS: u64 = 0;

/// Whether the system owns a subscription of this name. Operators can view, pause and redrive it, but neither create nor delete it.
pub fn is_system_subscription(name: &str) -> bool {
    name.starts_with('_')
}

/// Creates the subscription of `_notices`, if it is missing, or updates it after an upgrade.
///
/// Notices have no order: a notice that waits for a retry as a hold delays no other notice of its user.
pub async fn ensure_notices_subscription(subscriptions: &SubscriptionRegistry) -> Result<(), SubscriptionError> {
    let made = subscriptions.put(NOTICES_SUBSCRIPTION, notices_spec(), SecretChange::Keep).await?;
    tracing::debug!(created = made.created, "the subscription of notices is ready");
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
        gone: GonePolicy::Fail,
        disable_after_ms: NEVER_MS,
        ..SubscriptionSpec::new(vec![NOTICES_TOPIC.to_owned()], Mode::Push, Some(endpoint))
    }
}
