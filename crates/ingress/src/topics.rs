//! `/v1/topics` and `/v1/topics/{topic}`: making, changing, looking at, and deleting topics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;
use whimbrel_model::ports::{Bounds, LogError, PartitionStatus};
use whimbrel_model::{PartitionId, Timestamp, TopicNumber, format_duration, parse_duration};

use super::answer::{bounded_json_response, json_response};
use super::attributes::{check_user_topic, topic_in_path};
use super::body::collect;
use super::door::Door;
use super::hold_calls::{count_pending, withdraw_topic};
use super::json_fields::Fields;
use super::keys::Scope;
use super::problem::{Code, Problem};
use super::query::{Query, shown};
use super::subscription_body::workers_of;
use super::subscription_json::{WorkersDocument, workers_document};
use super::subscriptions::subscribed;
use super::topic_workers::check_pool;
use whimbrel_catalogue::topics::{Growth, PutOutcome, Topic, TopicChange, WorkersChange};

/// Bytes of a body that describes a topic.
const TOPIC_BODY_BYTES_MAX: usize = 64 << 10;
/// Topics, and partitions of each, whose ends are asked for at one time: a broker is asked over the network.
const TOPICS_AT_ONCE: usize = 8;
const PARTITIONS_AT_ONCE: usize = 16;
/// How long a list of topics waits for message counts. Topics whose log has not answered by then are listed without one.
const COUNTS_WAIT_MAX: Duration = Duration::from_secs(2);

/// What a topic shall be. What is left out stays as it is, or takes the server's default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicSettings {
    /// Grows only.
    partitions: Option<u32>,
    /// Copies of each partition: given when the topic is made. The embedded log has one.
    replicas: Option<u32>,
    /// How many copies must have a message before it is acknowledged: given when the topic is made.
    min_insync: Option<u32>,
    /// How long messages are kept, such as `7d`; `null` for without that bound.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    retention: Option<Option<DurationForm>>,
    /// How many bytes each partition keeps; `null` for without that bound.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    retention_bytes: Option<Option<u64>>,
    /// Which workers make the callbacks of its subscriptions, where those do not say; `null` for every worker.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<WorkersDocument>)]
    workers: Option<Option<serde_json::Map<String, serde_json::Value>>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DurationForm {
    Millis(u64),
    Text(String),
}

/// Tells `null` from what is left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A topic.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Topic)]
pub struct TopicDocument {
    pub topic: String,
    /// Never used twice: a topic made again under an old name has another.
    pub number: u32,
    pub partitions: u32,
    /// Absent where time does not bound it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    /// Of each partition. Absent where size does not bound it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_insync: Option<u32>,
    pub created_at: String,
    /// Made by others in the engine, and found there.
    pub adopted: bool,
    /// At most so many messages are kept: offsets are counted, and on Kafka the markers of transactions have offsets too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
    pub rates: RatesDocument,
    /// Which workers make the callbacks of its subscriptions. Absent: every worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersDocument>,
    pub growths: Vec<GrowthDocument>,
    /// Where one topic was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_list: Option<Vec<PartitionDocument>>,
    /// What changing the topic did, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Messages published per second through this process.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Rates)]
pub struct RatesDocument {
    pub published_per_s_10s: f64,
    pub published_per_s_60s: f64,
}

/// A growth of the topic. Messages of a moved key lie below `barriers` in its old partition, then in its new one.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Growth)]
pub struct GrowthDocument {
    pub at: String,
    pub from: u32,
    pub to: u32,
    /// The next offset of each old partition at that moment.
    pub barriers: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Partition)]
pub struct PartitionDocument {
    pub partition: u32,
    pub first_offset: u64,
    pub next_offset: u64,
    /// At most so many, as for the topic.
    pub messages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<i32>,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
    /// On disk, where the engine knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TopicList {
    pub topics: Vec<TopicDocument>,
}

/// Make a topic, or change it
///
/// Partitions can grow, not shrink. Growing moves keys to other partitions, as on Kafka: the answer says so, an event is written, and
/// the growth's barriers are kept.
#[utoipa::path(
    put, path = "/v1/topics/{topic}", tag = "topics", operation_id = "put_topic",
    params(("topic" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`")),
    request_body(content = Option<TopicSettings>, content_type = "application/json"),
    responses(
        (status = 201, description = "It was made", body = TopicDocument, content_type = "application/json"),
        (status = 200, description = "It was there, and is now as asked", body = TopicDocument, content_type = "application/json"),
        (status = "4XX", description = "`bad_name`, `reserved_name`, `bad_json`, `bad_parameter`, `bad_duration`, `cannot_shrink`, `unsupported`, `too_many_topics`, `conflict`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`topic_growing`, `disk_full`, `log_closed`, `unavailable`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_topic(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let name = topic_in_path(parts.uri.path())?.into_owned();
    let caller = door.keys.caller(&parts.headers)?;
    check_user_topic(&name)?;
    caller.require_topic(Scope::Admin, &name)?;
    Query::parse(parts.uri.query())?.end()?;
    let too_large = || Problem::new(Code::PayloadTooLarge, "the description of a topic is small");
    let (mut load, wait) = (door.in_flight.begin(), door.settings.body_wait);
    let body = collect(body, &parts.headers, &mut load, wait, TOPIC_BODY_BYTES_MAX, too_large).await?;
    let change = change_of(&body)?;
    if let Some(WorkersChange::Set(choice)) = &change.workers {
        let known = door.registry.get(&name);
        check_pool(&door, choice.as_ref(), known.as_ref().and_then(|topic| topic.stored.workers.as_ref()))?;
    }
    let outcome = undisturbed(&door, move |door| async move { Ok(door.registry.put(&name, change).await?) }).await?;
    let PutOutcome { topic, created, grown } = outcome;
    let mut document = describe(&door, &topic).await?;
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
        (status = 200, description = "Every topic that the key may see, by name", body = TopicList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `key_missing`, `key_unknown`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_topics(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let caller = door.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    let now = door.ports.clock.now();
    let deadline = counts_deadline();
    let visible = door.registry.all().into_iter().filter(|topic| caller.sees(&topic.name));
    let documents = visible.map(|topic| {
        let door = Arc::clone(&door);
        async move {
            let mut document = document_of(&topic, now);
            document.messages = count_messages(&door, &topic, deadline).await;
            document
        }
    });
    let topics = futures_util::stream::iter(documents).buffered(TOPICS_AT_ONCE).collect().await;
    bounded_json_response(door.answers.begin(), to_json(&TopicList { topics }))
}

/// Look at a topic
///
/// With each partition's first and next offset, leader, copies and in-sync set, message counts and rates.
#[utoipa::path(
    get, path = "/v1/topics/{topic}", tag = "topics", operation_id = "get_topic",
    params(("topic" = String, Path, description = "The topic; the system's too")),
    responses(
        (status = 200, description = "The topic", body = TopicDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_topic(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let name = topic_in_path(request.uri().path())?;
    let caller = door.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    if !caller.sees(&name) {
        caller.require_topic(Scope::Consume, &name)?;
    }
    let topic = door.registry.find(&name).await?;
    let document = describe(&door, &topic).await?;
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

/// Delete a topic with all its messages
#[utoipa::path(
    delete, path = "/v1/topics/{topic}", tag = "topics", operation_id = "delete_topic",
    params(
        ("topic" = String, Path, description = "The topic"),
        ("holds" = Option<String>, Query, description = "`withdraw`: pending holds go with it"),
        ("subscriptions" = Option<String>, Query, description = "`keep`: subscriptions that read it stay, and read one that is made anew under the name from its beginning"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = "4XX", description = "`unknown_topic`, `bad_name`, `reserved_name`, `bad_parameter`, `conflict`, `holds_pending`, `topic_subscribed`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `no_owner`, `outcome_unknown`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_topic(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let name = topic_in_path(request.uri().path())?.into_owned();
    let caller = door.keys.caller(request.headers())?;
    check_user_topic(&name)?;
    caller.require_topic(Scope::Admin, &name)?;
    let mut query = Query::parse(request.uri().query())?;
    let holds = match query.take("holds")?.as_deref() {
        None => PendingHolds::Refuse,
        Some("withdraw") => PendingHolds::Withdraw,
        Some(other) => {
            let detail = format!("`holds` can be `withdraw`, not `{}`", shown(other));
            return Err(Problem::new(Code::BadParameter, detail));
        }
    };
    let keeps_readers = match query.take("subscriptions")?.as_deref() {
        None => false,
        Some("keep") => true,
        Some(other) => {
            let detail = format!("`subscriptions` can be `keep`, not `{}`", shown(other));
            return Err(Problem::new(Code::BadParameter, detail));
        }
    };
    query.end()?;
    let readers = door.subscriptions.reading(&name);
    if let Some(problem) = subscribed(&name, &readers).filter(|_| !keeps_readers) {
        return Err(problem);
    }
    undisturbed(&door, move |door| async move { delete(&door, &name, holds).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What becomes of holds whose topic is deleted.
#[derive(Debug, Clone, Copy)]
enum PendingHolds {
    Refuse,
    Withdraw,
}

/// Owners are asked twice: while the topic is open, so that nobody waits behind its gate for what takes long or is refused, and once
/// more when nothing can be held for it any more, which is then the truth.
async fn delete(door: &Door, name: &str, holds: PendingHolds) -> Result<(), Problem> {
    let number = door.registry.find(name).await?.number();
    clear_holds(door, name, number, holds).await?;
    let deletion = door.registry.begin_delete(name).await?;
    clear_holds(door, name, number, holds).await?;
    Ok(deletion.finish().await?)
}

async fn clear_holds(door: &Door, name: &str, number: TopicNumber, holds: PendingHolds) -> Result<(), Problem> {
    if let PendingHolds::Withdraw = holds {
        withdraw_topic(door, number).await?;
        return Ok(());
    }
    match count_pending(door, number).await? {
        0 => Ok(()),
        count => {
            let detail = format!("{count} messages are held for `{name}`: delete it with `holds=withdraw`, or wait");
            Err(Problem::new(Code::HoldsPending, detail).with("count", count))
        }
    }
}

/// Changes of topics go over catalogue and log; they are not left half-way because somebody hung up.
async fn undisturbed<T, F>(door: &Arc<Door>, work: impl FnOnce(Arc<Door>) -> F) -> Result<T, Problem>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Problem>> + Send + 'static,
{
    super::undisturbed::Undisturbed::new(work(Arc::clone(door))).await
}

fn change_of(body: &[u8]) -> Result<TopicChange, Problem> {
    if body.trim_ascii().is_empty() {
        return Ok(TopicChange::default());
    }
    let settings: TopicSettings =
        serde_json::from_slice(body).map_err(|error| Problem::new(Code::BadJson, error.to_string()))?;
    for (name, value) in [("replicas", settings.replicas), ("min_insync", settings.min_insync)] {
        if value == Some(0) {
            return Err(Problem::new(Code::BadParameter, format!("`{name}` is at least 1")));
        }
    }
    if settings.retention_bytes == Some(Some(0)) {
        return Err(Problem::new(
            Code::BadParameter,
            "`retention_bytes` is at least 1, or null for without that bound",
        ));
    }
    let workers =
        settings.workers.map(|workers| workers.map(|map| workers_of(Fields::below_body("workers", map))).transpose());
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

fn retention_of(form: DurationForm) -> Result<Duration, Problem> {
    let retention = match form {
        DurationForm::Millis(millis) => Duration::from_millis(millis),
        DurationForm::Text(text) => {
            parse_duration(&text).map_err(|error| Problem::new(Code::BadDuration, error.to_string()))?
        }
    };
    // What a signed count of milliseconds cannot say, no engine can keep to.
    let in_range = retention > Duration::ZERO && retention.as_millis() <= i64::MAX as u128;
    if in_range { Ok(retention) } else { Err(Problem::new(Code::BadDuration, "messages are kept for 1 ms at least")) }
}

fn document_of(topic: &Topic, now: Timestamp) -> TopicDocument {
    let stored = &topic.stored;
    let published = &topic.running.published;
    TopicDocument {
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
        rates: RatesDocument {
            published_per_s_10s: published.per_second(now, 10),
            published_per_s_60s: published.per_second(now, 60),
        },
        workers: stored.workers.as_ref().map(workers_document),
        growths: stored.growths.iter().map(growth_document).collect(),
        partition_list: None,
        note: None,
    }
}

fn growth_document(growth: &Growth) -> GrowthDocument {
    GrowthDocument {
        at: Timestamp::from_millis(growth.at_ms).to_string(),
        from: growth.from,
        to: growth.to,
        barriers: growth.ends.clone(),
    }
}

/// The topic with its partitions.
async fn describe(door: &Door, topic: &Topic) -> Result<TopicDocument, Problem> {
    let mut document = document_of(topic, door.ports.clock.now());
    let gone = |error: LogError| match error {
        LogError::UnknownPartition(_) => {
            Problem::new(Code::UnknownTopic, format!("topic `{}` was deleted at this moment", topic.name))
        }
        other => other.into(),
    };
    let status = door.ports.log_topics.describe(topic.number()).await.map_err(gone)?;
    let mut partitions = Vec::with_capacity(topic.partitions() as usize);
    for (partition, bounds) in bounds_of(door, topic).await {
        let bounds = bounds.map_err(gone)?;
        let known = status.partitions.iter().find(|status| status.index == partition.index).cloned();
        let known = known.unwrap_or(PartitionStatus {
            index: partition.index,
            leader: None,
            replicas: Vec::new(),
            in_sync: Vec::new(),
            bytes: None,
        });
        partitions.push(PartitionDocument {
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

/// When a list of topics that begins now stops waiting for message counts.
pub(crate) fn counts_deadline() -> Instant {
    Instant::now() + COUNTS_WAIT_MAX
}

/// How many messages are kept; `None` where the log does not answer before the deadline.
pub(crate) async fn count_messages(door: &Door, topic: &Topic, deadline: Instant) -> Option<u64> {
    // Topics behind one that has used up the time are not asked for: the answer would come too late.
    if Instant::now() >= deadline {
        return None;
    }
    let mut messages = 0;
    for (_, bounds) in tokio::time::timeout_at(deadline, bounds_of(door, topic)).await.ok()? {
        let bounds = bounds.ok()?;
        messages += bounds.next.saturating_sub(bounds.first);
    }
    Some(messages)
}

/// The bounds of every partition, in order.
async fn bounds_of(door: &Door, topic: &Topic) -> Vec<(PartitionId, Result<Bounds, LogError>)> {
    let asked =
        topic.all_partitions().map(|partition| async move { (partition, door.ports.log.bounds(partition).await) });
    futures_util::stream::iter(asked).buffered(PARTITIONS_AT_ONCE).collect().await
}

fn to_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("a document is plain data")
}
