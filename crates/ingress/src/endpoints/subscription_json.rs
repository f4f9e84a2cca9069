//! The JSON of a subscription: its settings, and the status from its owner. Secrets are never shown.

use std::time::Duration;

use serde_json::Map;
use whimbrel_api::subscriptions::{
    DisabledInfo, EndpointInfo, LastErrorInfo, ReplayInfo, RetryInfo, SubscriptionInfo, SubscriptionPartition,
    SubscriptionSettingsInfo, SubscriptionStatusInfo, WorkersInfo,
};
use whimbrel_model::ports::SubscriptionStatus;
use whimbrel_model::subscription::{Rate, RunState, SigningSecret, Start, SubscriptionSpec, WorkerChoice};
use whimbrel_model::{Timestamp, format_duration};

use crate::json_fields::word_of;
use whimbrel_catalogue::subscriptions::Subscription;

/// The number of characters at the end of a secret that are shown.
const SECRET_SHOWN_CHARS: usize = 4;
/// The placeholder of a hidden value.
pub(crate) const HIDDEN: &str = "…";

/// The document of a subscription without its status.
pub(crate) fn settings_document(subscription: &Subscription) -> SubscriptionInfo {
    let stored = &subscription.stored;
    let (state, disabled) = match &stored.state {
        RunState::Active => ("active", None),
        RunState::Paused => ("paused", None),
        RunState::Disabled { reason, at_ms } => {
            ("disabled", Some(DisabledInfo { reason: reason.clone(), at: time(*at_ms) }))
        }
    };
    let replays = stored.replays.iter().map(|replay| ReplayInfo {
        run: replay.run,
        asked_at: time(replay.asked_at_ms),
        key: replay.key.clone(),
        done: None,
        left: None,
    });
    SubscriptionInfo {
        name: subscription.name.to_string(),
        number: stored.number.0,
        state: state.to_owned(),
        disabled,
        created_at: time(stored.created_at_ms),
        run: stored.run,
        settings: settings_of(&stored.spec),
        status: SubscriptionStatusInfo::default(),
        replays: replays.collect(),
        note: None,
        more: Map::new(),
    }
}

/// The document of a subscription with its status.
pub(crate) fn full_document(
    subscription: &Subscription,
    status: Option<Box<SubscriptionStatus>>,
    with_partitions: bool,
) -> SubscriptionInfo {
    let mut document = settings_document(subscription);
    let Some(status) = status else {
        document.status.owner = Some("unreachable".to_owned());
        return document;
    };
    for replay in &mut document.replays {
        if let Some(standing) = status.replays.iter().find(|standing| standing.run == replay.run) {
            (replay.done, replay.left) = (Some(standing.done), Some(standing.left));
        }
    }
    let partitions = status.partitions.into_iter().map(|each| SubscriptionPartition {
        topic: each.topic,
        partition: each.partition,
        watermark: each.watermark,
        read_to: each.read_to,
        end: each.end,
        unfinished: each.unfinished,
    });
    let last_error = status.last_error.map(|error| LastErrorInfo {
        at: time(error.at_ms),
        status: error.status,
        reason: error.reason,
    });
    document.note = (status.unverifiable > 0).then(|| unverifiable_note(status.unverifiable));
    document.status = SubscriptionStatusInfo {
        owner: None,
        lag: Some(status.lag),
        in_flight: Some(status.in_flight),
        parked: Some(status.parked_keys),
        parked_messages: Some(status.parked_messages),
        next_try: status.next_try_ms.map(time),
        retry_holds: Some(status.retry_holds),
        dead_letters: Some(status.dead_letters),
        delivered_rate: Some(status.delivered_rate),
        failed_rate: Some(status.failed_rate),
        concurrency_now: Some(status.concurrency),
        breaker: Some(status.breaker),
        stalled: status.stalled,
        last_error,
        prefetched_bytes: Some(status.prefetched_bytes),
        unverifiable: Some(status.unverifiable).filter(|count| *count > 0),
        partitions: with_partitions.then(|| partitions.collect()),
    };
    document
}

fn unverifiable_note(count: u64) -> String {
    format!(
        "{count} signed callbacks had a payload that is not UTF-8. The Standard Webhooks libraries for JavaScript and Python decode the \
         body first and cannot verify those: use `\"envelope\":\"structured\"`, or verify the raw bytes"
    )
}

fn settings_of(spec: &SubscriptionSpec) -> SubscriptionSettingsInfo {
    let endpoint = spec.endpoint.as_ref().map(|endpoint| EndpointInfo {
        url: endpoint.url.clone(),
        timeout: duration(endpoint.timeout_ms),
        connect_timeout: endpoint.connect_timeout_ms.map(duration),
        headers: endpoint.headers.iter().map(|(name, value)| (name.clone(), shown_value(name, value))).collect(),
    });
    SubscriptionSettingsInfo {
        topics: spec.topics.clone(),
        mode: word_of(&spec.mode),
        endpoint,
        ordering: word_of(&spec.ordering),
        concurrency: spec.concurrency,
        retry: RetryInfo {
            times: spec.retry.times,
            schedule: spec.retry.schedule_ms.iter().copied().map(duration).collect(),
        },
        on_exhausted: word_of(&spec.on_exhausted),
        blocked_sleep: duration(spec.blocked_sleep_ms),
        start: match spec.start {
            Start::Earliest => "earliest".to_owned(),
            Start::Latest => "latest".to_owned(),
            Start::At(ms) => time(ms),
        },
        rate: spec.rate.map(rate),
        filter: spec.filter.clone(),
        envelope: word_of(&spec.envelope),
        secret: spec.secrets.first().map(masked),
        success: spec.success.clone(),
        gone: word_of(&spec.gone),
        disable_after: duration(spec.disable_after_ms),
        lease: duration(spec.lease_ms),
        workers: spec.workers.as_ref().map(workers_document),
    }
}

pub(crate) fn workers_document(choice: &WorkerChoice) -> WorkersInfo {
    WorkersInfo {
        pool: choice.pool.clone(),
        count: choice.count,
        assign: choice.assign.as_ref().map(word_of),
        strategy: word_of(&choice.strategy),
    }
}

fn masked(secret: &SigningSecret) -> String {
    let text = &secret.secret;
    let end = text.char_indices().rev().nth(SECRET_SHOWN_CHARS - 1).map_or(text.len(), |(at, _)| at);
    format!("whsec_{HIDDEN}{}", &text[end..])
}

/// The value of a header, or the placeholder if it is a credential.
fn shown_value(name: &str, value: &str) -> String {
    let lets_in = ["auth", "cookie", "credential", "key", "pass", "secret", "session", "signature", "token"];
    if lets_in.iter().any(|word| name.contains(word)) { HIDDEN.to_owned() } else { value.to_owned() }
}

fn rate(rate: Rate) -> String {
    let per = match rate.per_ms {
        1_000 => "s",
        60_000 => "m",
        _ => "h",
    };
    format!("{}/{per}", rate.count)
}

fn duration(ms: u64) -> String {
    format_duration(Duration::from_millis(ms))
}

fn time(ms: i64) -> String {
    Timestamp::from_millis(ms).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_secret_shows_its_end_only() {
        let secret = SigningSecret { secret: "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ=".to_owned(), until_ms: None };
        assert_eq!(masked(&secret), "whsec_…ZXQ=");
    }

    #[test]
    fn credential_headers_are_hidden() {
        assert_eq!(shown_value("authorization", "Bearer x"), "…");
        assert_eq!(shown_value("x-api-key", "x"), "…");
        assert_eq!(shown_value("x-auth", "x"), "…");
        assert_eq!(shown_value("x-env", "prod"), "prod");
    }
}
