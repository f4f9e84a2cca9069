//! `/v1/topics` and `/v1/topics/{topic}`: create, change, show, and delete topics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use http::StatusCode;
use tokio::time::Instant;
use whimbrel_api::problem::Problem;
use whimbrel_api::topics::{DurationForm, GrowthInfo, PartitionInfo, Rates, TopicInfo, TopicList, TopicSettings};
use whimbrel_model::ports::{Bounds, LogError, PartitionStatus};
use whimbrel_model::{PartitionId, Timestamp, TopicNumber, format_duration, parse_duration};

use crate::accept::cancel_safe::CancelSafe;
use crate::answer::{bounded_json_response, json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::{check_user_topic, topic_in_path};
use crate::body::collect_small;
use crate::endpoints::hold_calls::{count_pending, withdraw_topic};
use crate::endpoints::subscription_body::workers_of;
use crate::endpoints::subscription_json::workers_document;
use crate::endpoints::subscriptions::subscribed;
use crate::endpoints::topic_workers::check_pool;
use crate::json_fields::JsonFields;
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown};
use whimbrel_catalogue::topics::{Growth, PutOutcome, Topic, TopicChange, WorkersChange};

/// The maximum bytes of a body that describes a topic.
const TOPIC_BODY_BYTES_MAX: usize = 64 << 10;
/// Topics, and partitions of each, whose bounds are requested concurrently. On Kafka each request goes over the network.
const TOPICS_AT_ONCE: usize = 8;
const PARTITIONS_AT_ONCE: usize = 16;
/// The time that a list of topics waits for message counts. Topics whose log has not answered by then are listed without one.
const COUNTS_WAIT_MAX: Duration = Duration::from_secs(2);

/// Create or change a topic
///
/// Partitions can grow, not shrink. A growth moves keys to other partitions, as on Kafka. The answer notes it, an event reports it, and the
/// topic records the barriers of the growth.
#[utoipa::path(
    put, path = "/v1/topics/{topic}", tag = "topics", operation_id = "put_topic",
    params(("topic" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`")),
    request_body(content = Option<TopicSettings>, content_type = "application/json"),
    responses(
        (status = 201, description = "The topic was created", body = TopicInfo, content_type = "application/json"),
        (status = 200, description = "The topic existed, and has the requested settings now", body = TopicInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_name`, `reserved_name`, `bad_json`, `bad_parameter`, `bad_duration`, `cannot_shrink`, `unsupported`, `too_many_topics`, `conflict`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`topic_growing`, `disk_full`, `log_closed`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn put_topic(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let name = topic_in_path(parts.uri.path())?.into_owned();
    let caller = api.keys.caller(&parts.headers)?;
    check_user_topic(&name)?;
    caller.require_topic(Scope::Admin, &name)?;
    Query::parse(parts.uri.query())?.end()?;
    let mut load = api.in_flight.begin();
    let change = change_of(&collect_small(&api, &parts, body, &mut load, TOPIC_BODY_BYTES_MAX).await?)?;
    if let Some(WorkersChange::Set(choice)) = &change.workers {
        let known = api.registry.get(&name);
        check_pool(&api, choice.as_ref(), known.as_ref().and_then(|topic| topic.stored.workers.as_ref()))?;
    }
    let owned = Arc::clone(&api);
    let put = CancelSafe::new(async move { owned.registry.put(&name, change).await }).await?;
    let PutOutcome { topic, created, grown } = put;
    let mut document = describe(&api, &topic).await?;
    document.note = grown.as_ref().map(|growth| {
        let Growth { from, to, .. } = growth;
        format!("grew from {from} to {to} partitions: keys moved to other partitions, as on Kafka; `growths` has the barriers")
    });
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_response(status, to_json(&document)))
}

/// List the topics
#[utoipa::path(
    get, path = "/v1/topics", tag = "topics", operation_id = "list_topics",
    responses(
        (status = 200, description = "All topics that the key may see, ordered by name", body = TopicList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `key_missing`, `key_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_topics(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let caller = api.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    let now = api.ports.clock.now();
    let deadline = counts_deadline();
    let visible = api.registry.all().into_iter().filter(|topic| caller.covers(&topic.name));
    let documents = visible.map(|topic| {
        let api = Arc::clone(&api);
        async move {
            let mut document = document_of(&topic, now);
            document.messages = count_messages(&api, &topic, deadline).await;
            document
        }
    });
    let topics = futures_util::stream::iter(documents).buffered(TOPICS_AT_ONCE).collect().await;
    bounded_json_response(api.answers.begin(), to_json(&TopicList { topics }))
}

/// Get a topic
///
/// Returns first and next offset, leader, copies and in-sync set of each partition, message counts and rates.
#[utoipa::path(
    get, path = "/v1/topics/{topic}", tag = "topics", operation_id = "get_topic",
    params(("topic" = String, Path, description = "The topic. System topics are allowed")),
    responses(
        (status = 200, description = "The topic", body = TopicInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_topic(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let name = topic_in_path(request.uri().path())?;
    let caller = api.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    if !caller.covers(&name) {
        caller.require_topic(Scope::Consume, &name)?;
    }
    let topic = api.registry.find(&name).await?;
    let document = describe(&api, &topic).await?;
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

/// Delete a topic with all its messages
#[utoipa::path(
    delete, path = "/v1/topics/{topic}", tag = "topics", operation_id = "delete_topic",
    params(
        ("topic" = String, Path, description = "The topic"),
        ("holds" = Option<String>, Query, description = "`withdraw`: withdraws pending holds"),
        ("subscriptions" = Option<String>, Query, description = "`keep`: keeps the subscriptions that read the topic. They read a new topic of the same name from its beginning"),
    ),
    responses(
        (status = 204, description = "The topic is deleted"),
        (status = "4XX", description = "`unknown_topic`, `bad_name`, `reserved_name`, `bad_parameter`, `conflict`, `holds_pending`, `topic_subscribed`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `no_owner`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete_topic(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let name = topic_in_path(request.uri().path())?.into_owned();
    let caller = api.keys.caller(request.headers())?;
    check_user_topic(&name)?;
    caller.require_topic(Scope::Admin, &name)?;
    let mut query = Query::parse(request.uri().query())?;
    let holds = match query.take("holds")?.as_deref() {
        None => PendingHolds::Refuse,
        Some("withdraw") => PendingHolds::Withdraw,
        Some(other) => {
            let detail = format!("`holds` must be `withdraw`, got `{}`", shown(other));
            return Err(ApiProblem::new(Code::BadParameter, detail));
        }
    };
    let keeps_readers = match query.take("subscriptions")?.as_deref() {
        None => false,
        Some("keep") => true,
        Some(other) => {
            let detail = format!("`subscriptions` must be `keep`, got `{}`", shown(other));
            return Err(ApiProblem::new(Code::BadParameter, detail));
        }
    };
    query.end()?;
    let readers = api.subscriptions.reading(&name);
    if let Some(problem) = subscribed(&name, &readers).filter(|_| !keeps_readers) {
        return Err(problem);
    }
    let owned = Arc::clone(&api);
    CancelSafe::new(async move { delete(&owned, &name, holds).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The handling of pending holds of a deleted topic.
#[derive(Debug, Clone, Copy)]
enum PendingHolds {
    Refuse,
    Withdraw,
}

/// Handles the holds twice. The first time the topic is open, so that no publish waits at its gate for a slow or rejected deletion. The
/// second time is conclusive, because no new holds for it are accepted any more.
async fn delete(api: &ApiState, name: &str, holds: PendingHolds) -> Result<(), ApiProblem> {
    let number = api.registry.find(name).await?.number();
    clear_holds(api, name, number, holds).await?;
    let deletion = api.registry.begin_delete(name).await?;
    clear_holds(api, name, number, holds).await?;
    Ok(deletion.finish().await?)
}

async fn clear_holds(api: &ApiState, name: &str, number: TopicNumber, holds: PendingHolds) -> Result<(), ApiProblem> {
    if let PendingHolds::Withdraw = holds {
        withdraw_topic(api, number).await?;
        return Ok(());
    }
    match count_pending(api, number).await? {
        0 => Ok(()),
        count => {
            let detail = format!("{count} messages are held for `{name}`: wait, or delete it with `holds=withdraw`");
            Err(ApiProblem::new(Code::HoldsPending, detail).with("count", count))
        }
    }
}

fn change_of(body: &[u8]) -> Result<TopicChange, ApiProblem> {
    if body.trim_ascii().is_empty() {
        return Ok(TopicChange::default());
    }
    let settings: TopicSettings =
        serde_json::from_slice(body).map_err(|error| ApiProblem::new(Code::BadJson, error.to_string()))?;
    for (name, value) in [("replicas", settings.replicas), ("min_insync", settings.min_insync)] {
        if value == Some(0) {
            return Err(ApiProblem::new(Code::BadParameter, format!("`{name}` must be at least 1, got 0")));
        }
    }
    if settings.retention_bytes == Some(Some(0)) {
        return Err(ApiProblem::new(Code::BadParameter, "`retention_bytes` must be at least 1, or null for no limit"));
    }
    let workers = settings
        .workers
        .map(|workers| workers.map(|map| workers_of(JsonFields::below_body("workers", map))).transpose());
    let retention = settings.retention.map(|form| form.map(retention_of).transpose()).transpose()?;
    Ok(TopicChange {
        partitions: settings.partitions,
        replicas: settings.replicas,
        min_insync: settings.min_insync,
        retention,
        retention_bytes: settings.retention_bytes,
        workers: workers.transpose()?.map(WorkersChange::Set),
    })
}

fn retention_of(form: DurationForm) -> Result<Duration, ApiProblem> {
    let retention = match form {
        DurationForm::Millis(millis) => Duration::from_millis(millis),
        DurationForm::Text(text) => {
            parse_duration(&text).map_err(|error| ApiProblem::new(Code::BadDuration, error.to_string()))?
        }
    };
    // Engines store milliseconds as a signed number, so longer times are impossible.
    let in_range = retention > Duration::ZERO && retention.as_millis() <= i64::MAX as u128;
    if in_range { Ok(retention) } else { Err(ApiProblem::new(Code::BadDuration, "`retention` must be at least 1 ms")) }
}

fn document_of(topic: &Topic, now: Timestamp) -> TopicInfo {
    let stored = &topic.stored;
    let published = &topic.counters.published;
    TopicInfo {
        topic: topic.name.to_string(),
        number: stored.number.0,
        partitions: stored.partitions,
        retention: stored.retention().time.map(format_duration),
        retention_bytes: stored.retention_bytes,
        replicas: stored.replicas,
        min_insync: stored.min_insync,
        created_at: stored.created_at().to_string(),
        adopted: stored.adopted,
        messages: None,
        rates: Rates {
            published_per_s_10s: published.per_second(now, 10),
            published_per_s_60s: published.per_second(now, 60),
        },
        workers: stored.workers.as_ref().map(workers_document),
        growths: stored.growths.iter().map(growth_document).collect(),
        partition_list: None,
        note: None,
    }
}

fn growth_document(growth: &Growth) -> GrowthInfo {
    GrowthInfo {
        at: Timestamp::from_millis(growth.at_ms).to_string(),
        from: growth.from,
        to: growth.to,
        barriers: growth.ends.clone(),
    }
}

/// The document of a topic with its partitions.
async fn describe(api: &ApiState, topic: &Topic) -> Result<TopicInfo, ApiProblem> {
    let mut document = document_of(topic, api.ports.clock.now());
    let gone = |error: LogError| match error {
        LogError::UnknownPartition(_) => {
            ApiProblem::new(Code::UnknownTopic, format!("topic `{}` was deleted during this request", topic.name))
        }
        other => other.into(),
    };
    let status = api.ports.log_topics.describe(topic.number()).await.map_err(gone)?;
    let mut partitions = Vec::with_capacity(topic.partitions() as usize);
    for (partition, bounds) in bounds_of(api, topic).await {
        let bounds = bounds.map_err(gone)?;
        let known = status.partitions.iter().find(|status| status.index == partition.index).cloned();
        let known = known.unwrap_or(PartitionStatus {
            index: partition.index,
            leader: None,
            replicas: Vec::new(),
            in_sync: Vec::new(),
            bytes: None,
        });
        partitions.push(PartitionInfo {
            partition: partition.index,
            first_offset: bounds.first,
            next_offset: bounds.next,
            messages: bounds.next.saturating_sub(bounds.first),
            leader: known.leader,
            replicas: known.replicas,
            in_sync: known.in_sync,
            bytes: known.bytes,
        });
    }
    document.messages = Some(partitions.iter().map(|partition| partition.messages).sum());
    document.partition_list = Some(partitions);
    Ok(document)
}

/// The time until which a list of topics that begins now waits for message counts.
pub(crate) fn counts_deadline() -> Instant {
    Instant::now() + COUNTS_WAIT_MAX
}

/// The number of retained messages; `None` if the log does not answer before the deadline.
pub(crate) async fn count_messages(api: &ApiState, topic: &Topic, deadline: Instant) -> Option<u64> {
    // After the deadline the log is not asked for further topics.
    if Instant::now() >= deadline {
        return None;
    }
    let mut messages = 0;
    for (_, bounds) in tokio::time::timeout_at(deadline, bounds_of(api, topic)).await.ok()? {
        let bounds = bounds.ok()?;
        messages += bounds.next.saturating_sub(bounds.first);
    }
    Some(messages)
}

/// The bounds of every partition, in order.
async fn bounds_of(api: &ApiState, topic: &Topic) -> Vec<(PartitionId, Result<Bounds, LogError>)> {
    let asked =
        topic.all_partitions().map(|partition| async move { (partition, api.ports.log.bounds(partition).await) });
    futures_util::stream::iter(asked).buffered(PARTITIONS_AT_ONCE).collect().await
}
