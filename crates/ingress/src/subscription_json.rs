//! The JSON of a subscription: its settings, and the status from its owner. Secrets are never shown.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use whimbrel_model::ports::SubscriptionStatus;
use whimbrel_model::subscription::{
    AssignWorkers, Mode, Rate, RunState, SigningSecret, Start, Strategy, SubscriptionSpec, WorkerChoice,
};
use whimbrel_model::{Timestamp, format_duration};

use whimbrel_catalogue::subscriptions::Subscription;

/// The number of characters at the end of a secret that are shown.
const SECRET_SHOWN_CHARS: usize = 4;
/// The placeholder of a hidden value.
pub(super) const HIDDEN: &str = "…";

/// A subscription. If its owner does not answer, `owner` says so and the other status fields are absent.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Subscription)]
pub struct SubscriptionDocument {
    pub name: String,
    /// Unique: a subscription created again under an old name has another number.
    pub number: u32,
    /// `active`, `paused` or `disabled`
    pub state: String,
    /// Why and when Whimbrel disabled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<DisabledDocument>,
    pub created_at: String,
    /// The run of the cursor. A seek begins a new one.
    pub run: u32,
    #[serde(flatten)]
    pub settings: SubscriptionSettingsDocument,
    #[serde(flatten)]
    pub status: SubscriptionStatusDocument,
    /// The ranges that are delivered again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replays: Vec<ReplayDocument>,
    /// A note about the effect of the change, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The settings of a subscription. A `PUT` replaces all of them: absent fields get their default, except `secret`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = SubscriptionSettings)]
pub struct SubscriptionSettingsDocument {
    /// Topics of users, `_events`, or `_dead.<subscription>`.
    pub topics: Vec<String>,
    /// `push` (the default) or `pull`
    pub mode: String,
    /// Present if `mode` is `push`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointDocument>,
    /// `key` (the default), `partition` or `none`
    pub ordering: String,
    /// The maximum number of concurrent callbacks: 1 to 10000, default 16.
    pub concurrency: u32,
    pub retry: RetryDocument,
    /// `dead_letter` (the default), `block` or `drop`
    pub on_exhausted: String,
    /// The delay between attempts if `on_exhausted` is `block`.
    pub blocked_sleep: String,
    /// Where a new subscription, or a topic added later, begins: `earliest`, `latest` (the default) or a time.
    pub start: String,
    /// The maximum rate of callbacks, such as `1000/s`, `60/m`, `10/h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Conditions that must all hold: `key`, `topic`, `content_type` or `headers.<name>`, with the required value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filter: BTreeMap<String, String>,
    /// `binary` (the default), `structured` or `kmq`
    pub envelope: String,
    /// `whsec_` and base64, or `generate`. Shown masked. A `PUT` without it keeps it, and `null` removes it. After a change, callbacks are
    /// signed with the old secret too for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The statuses that count as success. Default: any 2xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    /// The effect of a 410: `disable` (the default) or `fail`
    pub gone: String,
    /// Disables the subscription if it fails for this time without one success. Default: `5d`.
    pub disable_after: String,
    /// How long a puller owns a message. Default: `30s`.
    pub lease: String,
    /// The workers that make its callbacks. Overrides the choice of the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersDocument>,
}

/// The status of a subscription, from its owner.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = SubscriptionStanding)]
pub struct SubscriptionStatusDocument {
    /// `unreachable` if the owner does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The approximate number of unfinished messages: offsets are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// The number of keys, or partitions, that wait for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<u64>,
    /// The number of messages behind the parked keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_messages: Option<u64>,
    /// The time of the next callback, if all wait for a retry, the circuit breaker, or a delay that the endpoint requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    /// The number of retries that wait as holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_holds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
    /// Deliveries per second over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_rate: Option<f64>,
    /// Failures per second over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_rate: Option<f64>,
    /// The current limit of concurrent callbacks, adapted to the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_now: Option<u32>,
    /// `closed`, `open` or `half_open`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<String>,
    /// Why it does not read further, if it is stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastErrorDocument>,
    /// Bytes of message bodies in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetched_bytes: Option<u64>,
    /// The number of signed callbacks since the start of its owner whose body is not UTF-8. Absent if there were none; see `note`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverifiable: Option<u64>,
    /// Present in the answer for a single subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<SubscriptionPartition>>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Disabled)]
pub struct DisabledDocument {
    pub reason: String,
    pub at: String,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Endpoint)]
pub struct EndpointDocument {
    /// Absent if each message has its own callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The timeout of the whole call. Default: `10s`.
    pub timeout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// Headers of every callback. Values of headers that carry credentials are hidden.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Retry)]
pub struct RetryDocument {
    /// The number of retries, not of attempts: 5 means at most six attempts.
    pub times: u32,
    /// The delays between attempts. The last one repeats.
    pub schedule: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Workers)]
pub struct WorkersDocument {
    /// Names of workers; `*` means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<String>,
    /// Instead of `pool`: a number of workers, which Whimbrel chooses and keeps constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// How the workers are chosen: `least_loaded` (the default) or `random`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assign: Option<String>,
    /// `random`, `round_robin`, `weighted_random`, `weighted_round_robin` or `least_loaded` (the default)
    pub strategy: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LastError)]
pub struct LastErrorDocument {
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub reason: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionPartition {
    pub topic: String,
    pub partition: u32,
    /// All messages below this offset are done.
    pub watermark: u64,
    pub read_to: u64,
    pub end: u64,
    /// The number of unfinished messages above the watermark.
    pub unfinished: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Replay)]
pub struct ReplayDocument {
    pub run: u32,
    pub asked_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SubscriptionList)]
pub struct SubscriptionListDocument {
    /// Ordered by name.
    pub subscriptions: Vec<SubscriptionDocument>,
}

/// The document of a subscription without its status.
pub(super) fn settings_document(subscription: &Subscription) -> SubscriptionDocument {
    let stored = &subscription.stored;
    let (state, disabled) = match &stored.state {
        RunState::Active => ("active", None),
        RunState::Paused => ("paused", None),
        RunState::Disabled { reason, at_ms } => {
            ("disabled", Some(DisabledDocument { reason: reason.clone(), at: time(*at_ms) }))
        }
    };
    let replays = stored.replays.iter().map(|replay| ReplayDocument {
        run: replay.run,
        asked_at: time(replay.asked_at_ms),
        key: replay.key.clone(),
        done: None,
        left: None,
    });
    SubscriptionDocument {
        name: subscription.name.to_string(),
        number: stored.number.0,
        state: state.to_owned(),
        disabled,
        created_at: time(stored.created_at_ms),
        run: stored.run,
        settings: settings_of(&stored.spec),
        status: SubscriptionStatusDocument::default(),
        replays: replays.collect(),
        note: None,
    }
}

/// The document of a subscription with its status.
pub(super) fn full_document(
    subscription: &Subscription,
    status: Option<Box<SubscriptionStatus>>,
    with_partitions: bool,
) -> SubscriptionDocument {
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
    let last_error = status.last_error.map(|error| LastErrorDocument {
        at: time(error.at_ms),
        status: error.status,
        reason: error.reason,
    });
    document.note = (status.unverifiable > 0).then(|| unverifiable_note(status.unverifiable));
    document.status = SubscriptionStatusDocument {
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

fn settings_of(spec: &SubscriptionSpec) -> SubscriptionSettingsDocument {
    let endpoint = spec.endpoint.as_ref().map(|endpoint| EndpointDocument {
        url: endpoint.url.clone(),
        timeout: duration(endpoint.timeout_ms),
        connect_timeout: endpoint.connect_timeout_ms.map(duration),
        headers: endpoint.headers.iter().map(|(name, value)| (name.clone(), shown_value(name, value))).collect(),
    });
    SubscriptionSettingsDocument {
        topics: spec.topics.clone(),
        mode: match spec.mode {
            Mode::Push => "push".to_owned(),
            Mode::Pull => "pull".to_owned(),
        },
        endpoint,
        ordering: word(&spec.ordering),
        concurrency: spec.concurrency,
        retry: RetryDocument {
            times: spec.retry.times,
            schedule: spec.retry.schedule_ms.iter().copied().map(duration).collect(),
        },
        on_exhausted: word(&spec.on_exhausted),
        blocked_sleep: duration(spec.blocked_sleep_ms),
        start: match spec.start {
            Start::Earliest => "earliest".to_owned(),
            Start::Latest => "latest".to_owned(),
            Start::At(ms) => time(ms),
        },
        rate: spec.rate.map(rate),
        filter: spec.filter.clone(),
        envelope: word(&spec.envelope),
        secret: spec.secrets.first().map(masked),
        success: spec.success.clone(),
        gone: word(&spec.gone),
        disable_after: duration(spec.disable_after_ms),
        lease: duration(spec.lease_ms),
        workers: spec.workers.as_ref().map(workers_document),
    }
}

pub(super) fn workers_document(choice: &WorkerChoice) -> WorkersDocument {
    WorkersDocument {
        pool: choice.pool.clone(),
        count: choice.count,
        assign: choice.assign.map(|assign| match assign {
            AssignWorkers::Random => "random".to_owned(),
            AssignWorkers::LeastLoaded => "least_loaded".to_owned(),
        }),
        strategy: match choice.strategy {
            Strategy::Random => "random",
            Strategy::RoundRobin => "round_robin",
            Strategy::WeightedRandom => "weighted_random",
            Strategy::WeightedRoundRobin => "weighted_round_robin",
            Strategy::LeastLoaded => "least_loaded",
        }
        .to_owned(),
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

/// The word of an enum value in the catalogue and in bodies.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
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
