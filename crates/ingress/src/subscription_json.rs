//! A subscription as it is shown: what people decided, and how it stands by its owner. Secrets are never shown.

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

/// Characters of a secret that are shown, at its end.
const SECRET_SHOWN_CHARS: usize = 4;
/// What stands for a value that is not shown.
pub(super) const HIDDEN: &str = "…";

/// A subscription. Fields of how it stands are absent where its owner does not answer; then `owner` says so.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Subscription)]
pub struct SubscriptionDocument {
    pub name: String,
    /// Never used twice: one made again under an old name has another.
    pub number: u32,
    /// `active`, `paused` or `disabled`
    pub state: String,
    /// Why and when the system disabled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<DisabledDocument>,
    pub created_at: String,
    /// The cursor's run: a seek begins a new one.
    pub run: u32,
    #[serde(flatten)]
    pub settings: SubscriptionSettings,
    #[serde(flatten)]
    pub standing: SubscriptionStanding,
    /// Stretches that are delivered once more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replays: Vec<ReplayDocument>,
    /// What changing it did, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a subscription is, and what a body says to make one. A `PUT` says all of it: what is left out has its default, but for `secret`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = SubscriptionSettings)]
pub struct SubscriptionSettings {
    /// Of the users' own, `_events`, or `_dead.<subscription>`.
    pub topics: Vec<String>,
    /// `push` (the default) or `pull`
    pub mode: String,
    /// There where `mode` is `push`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointDocument>,
    /// `key` (the default), `partition` or `none`
    pub ordering: String,
    /// Callbacks at one time: 1 to 10000, 16 where it is not given.
    pub concurrency: u32,
    pub retry: RetryDocument,
    /// `dead_letter` (the default), `block` or `drop`
    pub on_exhausted: String,
    /// Between two tries at what blocks.
    pub blocked_sleep: String,
    /// Where a new one begins, and each topic that is added later: `earliest`, `latest` (the default) or a time.
    pub start: String,
    /// Callbacks per time at most, such as `1000/s`, `60/m`, `10/h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// All must hold: `key`, `topic`, `content_type` or `headers.<name>`, and the wanted value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filter: BTreeMap<String, String>,
    /// `binary` (the default), `structured` or `kmq`
    pub envelope: String,
    /// `whsec_` and base64, or `generate`; shown without its middle. Left out of a `PUT` it stays as it is, `null` removes it, another
    /// one signs beside its predecessor for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The statuses that are success, where that is not any 2xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    /// What 410 means: `disable` (the default) or `fail`
    pub gone: String,
    /// Failing for so long without one success disables it: `5d` where it is not given.
    pub disable_after: String,
    /// How long a puller has a message: `30s` where it is not given.
    pub lease: String,
    /// Which workers make its callbacks; before what its topic says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersDocument>,
}

/// How a subscription stands, by its owner.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionStanding {
    /// `unreachable` where the owner does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Messages that are not done yet, about: offsets are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Keys, or partitions, that wait for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<u64>,
    /// Messages behind them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_messages: Option<u64>,
    /// When the next callback is made of what waits for a retry, for the breaker, or because the endpoint asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    /// Retries that wait as holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_holds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
    /// Per second, over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_rate: Option<f64>,
    /// Per second, over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_rate: Option<f64>,
    /// Callbacks at one time that the endpoint seems to bear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_now: Option<u32>,
    /// `closed`, `open` or `half_open`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<String>,
    /// Why it does not read on, where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastErrorDocument>,
    /// Bytes of bodies in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetched_bytes: Option<u64>,
    /// Signed callbacks since its owner began whose body is not UTF-8, where there were any: see `note`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverifiable: Option<u64>,
    /// Where one subscription was asked for.
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
    /// Absent where each message brings its own callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// For the whole call: `10s` where it is not given.
    pub timeout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// Sent with every callback. Values of headers that carry keys are not shown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Retry)]
pub struct RetryDocument {
    /// Retries, not attempts: 5 means at most six attempts.
    pub times: u32,
    /// Past its end the last entry repeats.
    pub schedule: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Workers)]
pub struct WorkersDocument {
    /// Names of workers; `*` for all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<String>,
    /// Instead of `pool`: so many, chosen and kept at that size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// How they are chosen: `least_loaded` (the default) or `random`
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
    /// Everything before it is done.
    pub watermark: u64,
    pub read_to: u64,
    pub end: u64,
    /// Above the watermark and not done.
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
pub struct SubscriptionList {
    /// By name.
    pub subscriptions: Vec<SubscriptionDocument>,
}

/// What people decided about a subscription.
pub(super) fn decided_document(subscription: &Subscription) -> SubscriptionDocument {
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
        standing: SubscriptionStanding::default(),
        replays: replays.collect(),
        note: None,
    }
}

/// The same with how it stands.
pub(super) fn whole_document(
    subscription: &Subscription,
    status: Option<Box<SubscriptionStatus>>,
    with_partitions: bool,
) -> SubscriptionDocument {
    let mut document = decided_document(subscription);
    let Some(status) = status else {
        document.standing.owner = Some("unreachable".to_owned());
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
    document.standing = SubscriptionStanding {
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
        "{count} signed callbacks had a payload that is not UTF-8: the Standard Webhooks libraries for JavaScript and Python decode the \
         body first and cannot verify those; use `\"envelope\":\"structured\"`, or verify the raw bytes yourself"
    )
}

fn settings_of(spec: &SubscriptionSpec) -> SubscriptionSettings {
    let endpoint = spec.endpoint.as_ref().map(|endpoint| EndpointDocument {
        url: endpoint.url.clone(),
        timeout: duration(endpoint.timeout_ms),
        connect_timeout: endpoint.connect_timeout_ms.map(duration),
        headers: endpoint.headers.iter().map(|(name, value)| (name.clone(), shown_value(name, value))).collect(),
    });
    SubscriptionSettings {
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

/// A header's value, unless it is one that lets its bearer in.
fn shown_value(name: &str, value: &str) -> String {
    let lets_in = ["auth", "cookie", "credential", "key", "pass", "secret", "session", "signature", "token"];
    if lets_in.iter().any(|word| name.contains(word)) { HIDDEN.to_owned() } else { value.to_owned() }
}

/// The word that a plain value is written with in the catalogue, and in bodies.
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
    fn a_secret_is_shown_by_its_end_only() {
        let secret = SigningSecret { secret: "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ=".to_owned(), until_ms: None };
        assert_eq!(masked(&secret), "whsec_…ZXQ=");
    }

    #[test]
    fn headers_that_let_their_bearer_in_are_not_shown() {
        assert_eq!(shown_value("authorization", "Bearer x"), "…");
        assert_eq!(shown_value("x-api-key", "x"), "…");
        assert_eq!(shown_value("x-auth", "x"), "…");
        assert_eq!(shown_value("x-env", "prod"), "prod");
    }
}
