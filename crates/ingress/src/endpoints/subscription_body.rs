//! The body of a subscription: parses and validates every field, so that readers of the catalogue can rely on it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};
use whimbrel_model::Timestamp;
use whimbrel_model::name::check_any_topic_name;
use whimbrel_model::subscription::{
    AssignWorkers, CONCURRENCY_MAX, Endpoint, Envelope, GonePolicy, Mode, OnExhausted, Ordering, Rate, RetryPolicy,
    Start, Strategy, SubscriptionSpec, TIMEOUT_DEFAULT, WorkerChoice,
};

use crate::endpoints::subscription_json::HIDDEN;
use crate::json_fields::{JsonFields, time_of};
use crate::problem::{ApiProblem, Code};
use crate::query::shown;
use whimbrel_api::endpoint::{AddressGuard, Forbidden, check_secret, host_of};
use whimbrel_catalogue::subscriptions::{SecretChange, TOPICS_MAX, check_readable};
use whimbrel_model::header_rules;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

const TIMEOUT: RangeInclusive<Duration> = MS..=Duration::from_secs(600);
const CONNECT_TIMEOUT: RangeInclusive<Duration> = MS..=Duration::from_secs(60);
const RETRY_AFTER: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(7 * 86_400);
const BLOCKED_SLEEP: RangeInclusive<Duration> = Duration::from_millis(10)..=HOUR;
const DISABLE_AFTER: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(366 * 86_400);
pub(crate) const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(12 * 3_600);
pub(crate) const RETRY_TIMES_MAX: u64 = 1_000;
const RATE_COUNT_MAX: u32 = 10_000_000;
const SCHEDULE_MAX: usize = 64;
const ENDPOINT_HEADERS_MAX: usize = 32;
const ENDPOINT_HEADER_BYTES_MAX: usize = 4_096;
const FILTER_MAX: usize = 16;
const SUCCESS_MAX: usize = 32;
const POOL_MAX: usize = 100;
/// The maximum characters of a worker's name.
pub(crate) const WORKER_NAME_MAX: usize = 200;
const SECRET_PREFIX: &str = "whsec_";
const SECRET_GENERATED_BYTES: usize = 32;

/// A validated body.
pub(crate) struct SubscriptionInput {
    pub(crate) spec: SubscriptionSpec,
    pub(crate) secret: SecretChange,
    /// The secret that Whimbrel generated. It is shown only in this answer.
    pub(crate) generated: Option<String>,
    /// Whether the body has `start`.
    pub(crate) has_start: bool,
}

/// Validates a whole body. `brings_callbacks`: each message has its own callback, so the endpoint needs no URL.
pub(crate) fn parse_subscription(
    body: &[u8],
    guard: &AddressGuard,
    brings_callbacks: bool,
    now: Timestamp,
) -> Result<SubscriptionInput, ApiProblem> {
    let mut fields = JsonFields::of_body(body)?;
    let topics = topics_of(&mut fields)?;
    let mode = fields.word("mode", &[Mode::Push, Mode::Pull])?.unwrap_or_default();
    let endpoint = endpoint_of(&mut fields, mode, guard, brings_callbacks)?;
    let mut spec = SubscriptionSpec::new(topics, mode, endpoint);
    let orders = [Ordering::Key, Ordering::Partition, Ordering::None];
    spec.ordering = fields.word("ordering", &orders)?.unwrap_or_default();
    if let Some(concurrency) = fields.number("concurrency", 1..=u64::from(CONCURRENCY_MAX))? {
        spec.concurrency = concurrency as u32;
    }
    if let Some(below) = fields.below("retry")? {
        spec.retry = retry_of(below)?;
    }
    let ends = [OnExhausted::DeadLetter, OnExhausted::Block, OnExhausted::Drop];
    spec.on_exhausted = fields.word("on_exhausted", &ends)?.unwrap_or_default();
    if let Some(sleep) = fields.duration("blocked_sleep", BLOCKED_SLEEP)? {
        spec.blocked_sleep_ms = millis(sleep);
    }
    let start = start_of(&mut fields, now)?;
    spec.start = start.unwrap_or_default();
    spec.rate = fields.text("rate")?.map(|text| rate_of(&fields, &text)).transpose()?;
    if let Some(filter) = fields.object("filter")? {
        spec.filter = filter_of(&fields, filter)?;
    }
    let envelopes = [Envelope::Binary, Envelope::Structured, Envelope::Kmq];
    spec.envelope = fields.word("envelope", &envelopes)?.unwrap_or_default();
    let (secret, generated) = secret_of(&mut fields)?;
    spec.success = success_of(&mut fields)?;
    spec.gone = fields.word("gone", &[GonePolicy::Disable, GonePolicy::Fail])?.unwrap_or_default();
    if let Some(after) = fields.duration("disable_after", DISABLE_AFTER)? {
        spec.disable_after_ms = millis(after);
    }
    if let Some(lease) = fields.duration("lease", LEASE)? {
        spec.lease_ms = millis(lease);
    }
    spec.workers = fields.below("workers")?.map(workers_of).transpose()?;
    fields.end()?;
    Ok(SubscriptionInput { spec, secret, generated, has_start: start.is_some() })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn topics_of(fields: &mut JsonFields) -> Result<Vec<String>, ApiProblem> {
    let topics = fields.texts("topics", TOPICS_MAX)?.filter(|topics| !topics.is_empty());
    let topics = topics.ok_or_else(|| fields.wrong("topics", "must name at least one topic"))?;
    for (index, topic) in topics.iter().enumerate() {
        check_any_topic_name(topic).map_err(|error| {
            fields.wrong_as(Code::BadName, "topics", format_args!("contains `{}`: {error}", shown(topic)))
        })?;
        check_readable(topic)
            .map_err(|why| fields.wrong_as(Code::ReservedName, "topics", format_args!("contains `{topic}`: {why}")))?;
        if topics[..index].contains(topic) {
            return Err(fields.wrong("topics", format_args!("contains `{topic}` twice")));
        }
    }
    Ok(topics)
}

fn endpoint_of(
    fields: &mut JsonFields,
    mode: Mode,
    guard: &AddressGuard,
    brings_callbacks: bool,
) -> Result<Option<Endpoint>, ApiProblem> {
    let below = fields.below("endpoint")?;
    let mut below = match (mode, below) {
        (Mode::Pull, None) => return Ok(None),
        (Mode::Pull, Some(_)) => {
            return Err(fields.wrong("endpoint", "is only allowed with `\"mode\":\"push\"`: remove it"));
        }
        (Mode::Push, None) => {
            return Err(fields.wrong("endpoint", "is missing: set it, or set `\"mode\":\"pull\"`"));
        }
        (Mode::Push, Some(below)) => below,
    };
    let url = below.text("url")?;
    match &url {
        Some(url) => check_url(url, guard).map_err(|wrong| wrong.at(&below, "url"))?,
        None if brings_callbacks => {}
        None => return Err(below.wrong_as(Code::BadUrl, "url", "is missing")),
    }
    let timeout_ms = millis(below.duration("timeout", TIMEOUT)?.unwrap_or(TIMEOUT_DEFAULT));
    let connect_timeout_ms = below.duration("connect_timeout", CONNECT_TIMEOUT)?.map(millis);
    let headers = match below.object("headers")? {
        Some(headers) => endpoint_headers(&below, headers)?,
        None => Vec::new(),
    };
    below.end()?;
    Ok(Some(Endpoint { url, timeout_ms, connect_timeout_ms, headers }))
}

/// Why a URL is rejected.
#[derive(Debug)]
pub(crate) struct UrlRejection {
    pub(crate) code: Code,
    pub(crate) why: String,
}

impl UrlRejection {
    fn at(self, fields: &JsonFields, name: &str) -> ApiProblem {
        fields.wrong_as(self.code, name, self.why)
    }
}

/// Validates a callback URL, as far as possible before its host is resolved.
pub(crate) fn check_url(url: &str, guard: &AddressGuard) -> Result<(), UrlRejection> {
    let host = host_of(url).map_err(|error| UrlRejection {
        code: Code::BadUrl,
        why: format!("is not a valid callback URL: {}", error.why),
    })?;
    let forbidden = |Forbidden(place)| UrlRejection {
        code: Code::ForbiddenAddress,
        why: format!("must not lead to {place}: the operator's `[callbacks] allow` and `deny` exclude it"),
    };
    guard.check_host(&host).map_err(forbidden)
}

fn endpoint_headers(fields: &JsonFields, headers: Map<String, Value>) -> Result<Vec<(String, String)>, ApiProblem> {
    if headers.len() > ENDPOINT_HEADERS_MAX {
        return Err(fields.wrong("headers", format_args!("has more than {ENDPOINT_HEADERS_MAX} entries")));
    }
    let mut checked: Vec<(String, String)> = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        let wrong =
            |code, what: &str| fields.wrong_as(code, "headers", format_args!("contains `{}`: {what}", shown(&name)));
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed.map_err(|_| wrong(Code::BadHeader, "it is not a valid header name"))?;
        let value = value.as_str().ok_or_else(|| wrong(Code::BadHeader, "its value must be a string"))?;
        if value == HIDDEN {
            return Err(wrong(Code::BadHeader, "its value is the placeholder `…`: send the real value"));
        }
        HeaderValue::from_str(value)
            .map_err(|_| wrong(Code::BadHeader, "its value has characters that are not allowed in a header"))?;
        if parsed.as_str().len() + value.len() > ENDPOINT_HEADER_BYTES_MAX {
            return Err(wrong(Code::HeaderTooLarge, "it is over 4096 bytes"));
        }
        if header_rules::belongs_to_the_call(parsed.as_str()) {
            return Err(wrong(Code::ReservedHeader, "Whimbrel sets it for each callback"));
        }
        if checked.iter().any(|(other, _)| other == parsed.as_str()) {
            return Err(wrong(Code::BadHeader, "it is present twice"));
        }
        checked.push((parsed.as_str().to_owned(), value.to_owned()));
    }
    Ok(checked)
}

fn retry_of(mut fields: JsonFields) -> Result<RetryPolicy, ApiProblem> {
    let mut retry = RetryPolicy::default();
    if let Some(times) = fields.number("times", 0..=RETRY_TIMES_MAX)? {
        retry.times = times as u32;
    }
    if let Some(schedule) = fields.list("schedule", SCHEDULE_MAX)? {
        if schedule.is_empty() {
            return Err(fields.wrong("schedule", "must have at least one duration; the last one repeats"));
        }
        let each = schedule.iter().map(|value| fields.duration_of("schedule", value, &RETRY_AFTER).map(millis));
        retry.schedule_ms = each.collect::<Result<_, _>>()?;
    }
    fields.end()?;
    Ok(retry)
}

fn start_of(fields: &mut JsonFields, now: Timestamp) -> Result<Option<Start>, ApiProblem> {
    Ok(match fields.text("start")?.as_deref() {
        None => None,
        Some("earliest") => Some(Start::Earliest),
        Some("latest") => Some(Start::Latest),
        Some(text) => {
            let time = time_of(fields, "start", text).map_err(|_| {
                fields.wrong_as(
                    Code::BadTime,
                    "start",
                    "must be `earliest`, `latest` or a time such as 2026-01-31T09:30:00Z",
                )
            })?;
            if time > now {
                return Err(fields.wrong_as(
                    Code::BadTime,
                    "start",
                    "is in the future: use `latest` to begin with new messages",
                ));
            }
            Some(Start::At(time.as_millis()))
        }
    })
}

/// Parses `1000/s`, `1000/m`, `1000/h`.
fn rate_of(fields: &JsonFields, text: &str) -> Result<Rate, ApiProblem> {
    let parsed = text.split_once('/').and_then(|(count, per)| {
        let per_ms = match per {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let count = count.parse().ok().filter(|count| (1..=RATE_COUNT_MAX).contains(count))?;
        Some(Rate { count, per_ms })
    });
    parsed.ok_or_else(|| fields.wrong("rate", "must be a number per s, m or h, such as `1000/s`, `60/m`, `10/h`"))
}

fn filter_of(fields: &JsonFields, filter: Map<String, Value>) -> Result<BTreeMap<String, String>, ApiProblem> {
    if filter.len() > FILTER_MAX {
        return Err(fields.wrong("filter", format_args!("has more than {FILTER_MAX} conditions")));
    }
    let mut checked = BTreeMap::new();
    for (name, value) in filter {
        let wrong = |what: &str| fields.wrong("filter", format_args!("contains `{}`: {what}", shown(&name)));
        let value = value.as_str().ok_or_else(|| wrong("its value must be a string"))?;
        let name = match name.strip_prefix("headers.") {
            Some(header) => {
                let header = HeaderName::from_bytes(header.as_bytes());
                format!("headers.{}", header.map_err(|_| wrong("it is not a valid header name"))?)
            }
            None if matches!(name.as_str(), "key" | "topic" | "content_type") => name,
            None => return Err(wrong("use `key`, `topic`, `content_type` or `headers.<name>`")),
        };
        checked.insert(name, value.to_owned());
    }
    Ok(checked)
}

fn secret_of(fields: &mut JsonFields) -> Result<(SecretChange, Option<String>), ApiProblem> {
    let secret = match fields.take_or_null("secret") {
        None => return Ok((SecretChange::Keep, None)),
        Some(Value::Null) => return Ok((SecretChange::Remove, None)),
        Some(Value::String(secret)) => secret,
        Some(_) => return Err(fields.wrong_as(Code::BadSecret, "secret", "must be a string, or null for no secret")),
    };
    if secret == "generate" {
        let secret = generate_secret().map_err(|why| ApiProblem::new(Code::Unavailable, why))?;
        return Ok((SecretChange::Set(secret.clone()), Some(secret)));
    }
    if secret.contains('…') {
        let what = "is a masked secret: leave it out to keep the current one";
        return Err(fields.wrong_as(Code::BadSecret, "secret", what));
    }
    if check_secret(&secret).is_ok() {
        return Ok((SecretChange::Set(secret), None));
    }
    let what = "must be `whsec_` and the base64 of 24 to 64 bytes, or `generate`";
    Err(fields.wrong_as(Code::BadSecret, "secret", what))
}

fn generate_secret() -> Result<String, String> {
    let mut bytes = [0u8; SECRET_GENERATED_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("cannot read random bytes from the operating system: {error}")),
        }
    }
    Ok(format!("{SECRET_PREFIX}{}", STANDARD.encode(bytes)))
}

fn success_of(fields: &mut JsonFields) -> Result<Option<Vec<u16>>, ApiProblem> {
    let Some(statuses) = fields.list("success", SUCCESS_MAX)? else { return Ok(None) };
    let status = |value: &Value| {
        let status = value.as_u64().and_then(|status| u16::try_from(status).ok());
        status.filter(|status| (200..600).contains(status))
    };
    let checked: Option<Vec<u16>> = statuses.iter().map(status).collect();
    let checked = checked.filter(|statuses| !statuses.is_empty());
    checked.map(Some).ok_or_else(|| fields.wrong("success", "must be an array of statuses such as [200, 202]"))
}

/// The workers of a subscription or a topic, and the strategy that picks one.
pub(crate) fn workers_of(mut fields: JsonFields) -> Result<WorkerChoice, ApiProblem> {
    let pool = fields.texts("pool", POOL_MAX)?;
    let count = fields.number("count", 1..=POOL_MAX as u64)?.map(|count| count as u32);
    let assign = fields.word("assign", &[AssignWorkers::Random, AssignWorkers::LeastLoaded])?;
    let strategies = [
        Strategy::Random,
        Strategy::RoundRobin,
        Strategy::WeightedRandom,
        Strategy::WeightedRoundRobin,
        Strategy::LeastLoaded,
    ];
    let strategy = fields.word("strategy", &strategies)?.unwrap_or_default();
    if pool.is_some() && count.is_some() {
        return Err(fields.wrong("count", "cannot be combined with `pool`: set only one of them"));
    }
    if assign.is_some() && count.is_none() {
        return Err(fields.wrong("assign", "needs `count`: it chooses that many workers"));
    }
    let pool = match (pool, count) {
        (Some(pool), _) => pool,
        (None, Some(_)) => Vec::new(),
        (None, None) => vec!["*".to_owned()],
    };
    if pool.is_empty() && count.is_none() {
        return Err(fields.wrong("pool", "must name workers, or `*` for all of them"));
    }
    if let Some(bad) = pool.iter().find(|name| !is_worker_name(name)) {
        return Err(fields.wrong("pool", format_args!("contains `{}`, which is not a valid worker name", shown(bad))));
    }
    fields.end()?;
    Ok(WorkerChoice { pool, count, assign, strategy })
}

pub(crate) fn is_worker_name(name: &str) -> bool {
    (1..=WORKER_NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::proptest;
    use serde_json::json;

    fn parse(body: Value) -> Result<SubscriptionInput, ApiProblem> {
        let now = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
        parse_subscription(body.to_string().as_bytes(), &AddressGuard::default(), false, now)
    }

    fn push(changes: Value) -> Value {
        let mut body = json!({ "topics": ["orders"], "endpoint": { "url": "http://127.0.0.1:9000/hook" } });
        for (name, value) in changes.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    fn url(url: &str) -> Value {
        push(json!({ "endpoint": { "url": url } }))
    }

    #[test]
    fn the_example_of_the_contract_is_valid() {
        let secret = format!("whsec_{}", STANDARD.encode([7; 24]));
        let body = json!({
            "topics": ["orders"], "mode": "push",
            "endpoint": { "url": "http://127.0.0.1:9000/hook", "timeout": "3s", "headers": { "X-Env": "prod" } },
            "ordering": "key", "concurrency": 16,
            "retry": { "times": 5, "schedule": ["1s", "10s", "60s", "300s", "3000s"] },
            "on_exhausted": "dead_letter", "blocked_sleep": "2s",
            "start": "latest", "rate": "1000/s", "filter": { "headers.Type": "order.paid" },
            "envelope": "binary", "secret": secret, "workers": { "pool": ["*"], "strategy": "round_robin" },
        });
        let input = parse(body).unwrap();
        let endpoint = input.spec.endpoint.as_ref().unwrap();
        assert_eq!((endpoint.timeout_ms, &endpoint.headers[0].0[..]), (3_000, "x-env"));
        assert_eq!(input.spec.rate, Some(Rate { count: 1000, per_ms: 1000 }));
        assert_eq!(input.spec.filter["headers.type"], "order.paid");
        assert_eq!(input.spec.workers.unwrap().strategy, Strategy::RoundRobin);
        assert!(input.secret == SecretChange::Set(secret) && input.has_start && input.generated.is_none());
    }

    #[test]
    fn absent_fields_have_their_defaults() {
        let spec = parse(push(json!({}))).unwrap().spec;
        assert_eq!(spec, SubscriptionSpec::new(spec.topics.clone(), Mode::Push, spec.endpoint.clone()));
        let pull = parse(json!({ "topics": ["orders"], "mode": "pull" })).unwrap().spec;
        assert_eq!((pull.mode, pull.endpoint), (Mode::Pull, None));
    }

    #[test]
    fn errors_name_the_invalid_field() {
        for (body, code, field) in [
            (json!({}), Code::BadParameter, "topics"),
            (push(json!({ "topics": [] })), Code::BadParameter, "topics"),
            (push(json!({ "topics": ["a", "a"] })), Code::BadParameter, "topics"),
            (push(json!({ "topics": ["a b"] })), Code::BadName, "topics"),
            (push(json!({ "topics": ["_holds"] })), Code::ReservedName, "topics"),
            (push(json!({ "topics": ["_retry.x"] })), Code::ReservedName, "topics"),
            (json!({ "topics": ["orders"] }), Code::BadParameter, "endpoint"),
            (push(json!({ "mode": "pull" })), Code::BadParameter, "endpoint"),
            (push(json!({ "mode": "pushy" })), Code::BadParameter, "mode"),
            (push(json!({ "endpoint": {} })), Code::BadUrl, "endpoint.url"),
            (url("127.0.0.1:9000"), Code::BadUrl, "endpoint.url"),
            (url("/hook"), Code::BadUrl, "endpoint.url"),
            (url("ftp://a/b"), Code::BadUrl, "endpoint.url"),
            (url("http://u:p@a/b"), Code::BadUrl, "endpoint.url"),
            (url("http://a:99999/"), Code::BadUrl, "endpoint.url"),
            (url("http:///x"), Code::BadUrl, "endpoint.url"),
            (url("http://169.254.169.254/latest"), Code::ForbiddenAddress, "endpoint.url"),
            (url("http://[fe80::1]/"), Code::ForbiddenAddress, "endpoint.url"),
            (url("http://metadata.google.internal/"), Code::ForbiddenAddress, "endpoint.url"),
            (push(json!({ "concurrency": 0 })), Code::BadParameter, "concurrency"),
            (push(json!({ "concurrency": 10_001 })), Code::BadParameter, "concurrency"),
            (push(json!({ "retry": { "times": 1001 } })), Code::BadParameter, "retry.times"),
            (push(json!({ "retry": { "schedule": [] } })), Code::BadParameter, "retry.schedule"),
            (push(json!({ "retry": { "schedule": vec!["1s"; 65] } })), Code::BadParameter, "retry.schedule"),
            (push(json!({ "retry": { "schedule": ["soon"] } })), Code::BadDuration, "retry.schedule"),
            (push(json!({ "retry": { "schedule": ["8d"] } })), Code::BadDuration, "retry.schedule"),
            (push(json!({ "rate": "1000" })), Code::BadParameter, "rate"),
            (push(json!({ "rate": "0/s" })), Code::BadParameter, "rate"),
            (push(json!({ "rate": "5/d" })), Code::BadParameter, "rate"),
            (push(json!({ "filter": { "body": "x" } })), Code::BadParameter, "filter"),
            (push(json!({ "filter": { "key": 7 } })), Code::BadParameter, "filter"),
            (push(json!({ "filter": { "headers.a b": "x" } })), Code::BadParameter, "filter"),
            (push(json!({ "secret": "hunter2" })), Code::BadSecret, "secret"),
            (push(json!({ "secret": "whsec_…abcd" })), Code::BadSecret, "secret"),
            (push(json!({ "secret": "whsec_YWJj" })), Code::BadSecret, "secret"),
            (push(json!({ "start": "yesterday" })), Code::BadTime, "start"),
            (push(json!({ "start": "2026-11-15T12:00:01Z" })), Code::BadTime, "start"),
            (push(json!({ "success": [] })), Code::BadParameter, "success"),
            (push(json!({ "success": [20] })), Code::BadParameter, "success"),
            (push(json!({ "workers": { "pool": ["a"], "count": 2 } })), Code::BadParameter, "workers.count"),
            (push(json!({ "workers": { "assign": "random" } })), Code::BadParameter, "workers.assign"),
            (push(json!({ "workers": { "pool": [] } })), Code::BadParameter, "workers.pool"),
            (push(json!({ "workers": { "strategy": "best" } })), Code::BadParameter, "workers.strategy"),
            (push(json!({ "lease": "0s" })), Code::BadDuration, "lease"),
            (push(json!({ "retrys": {} })), Code::BadParameter, "retrys"),
        ] {
            let problem = parse(body.clone()).err().unwrap_or_else(|| panic!("{body} should be refused"));
            assert_eq!(problem.code(), code, "{body}: {}", problem.detail());
            assert_eq!(problem.member("field").unwrap(), field, "{body}: {}", problem.detail());
        }
    }

    #[test]
    fn headers_of_the_callback_are_rejected_and_authorization_is_allowed() {
        let headers = |name: &str| push(json!({ "endpoint": { "url": "http://a/", "headers": { name: "x" } } }));
        for name in ["Host", "content-length", "Webhook-Id", "whimbrel-topic", "connection"] {
            assert_eq!(parse(headers(name)).err().unwrap().code(), Code::ReservedHeader, "{name}");
        }
        assert!(parse(headers("Authorization")).is_ok());
        assert_eq!(parse(headers("a b")).err().unwrap().code(), Code::BadHeader);
    }

    #[test]
    fn the_placeholder_of_a_hidden_value_is_rejected() {
        let settings = push(json!({ "endpoint": { "url": "http://a/", "headers": { "authorization": HIDDEN } } }));
        assert_eq!(parse(settings).err().unwrap().code(), Code::BadHeader);
    }

    #[test]
    fn a_generated_secret_is_new_and_valid() {
        let input = parse(push(json!({ "secret": "generate" }))).unwrap();
        let made = input.generated.unwrap();
        assert_ne!(parse(push(json!({ "secret": "generate" }))).unwrap().generated.unwrap(), made);
        assert!(parse(push(json!({ "secret": made }))).is_ok());
        assert!(parse(push(json!({ "secret": null }))).unwrap().secret == SecretChange::Remove);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(url in ".*", rate in ".*", start in ".*") {
            let _ = check_url(&url, &AddressGuard::default());
            let _ = parse(push(json!({ "rate": rate })));
            let _ = parse(push(json!({ "start": start })));
        }
    }
}
