//! One fetch: a request for one or several partitions, and the part of the answer for each of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse, TopicName};
use tokio::sync::{Semaphore, SemaphorePermit};
use whimbrel_model::StoredRecord;

use super::client::batch::{self, AbortedTransaction, DECODED_BYTES_MAX, MalformedBatch};
use super::client::cluster::{ANSWER_MAX, KafkaCluster};
use super::client::connection::CallError;
use super::client::link::BrokerLink;
use super::outcome::{self, KafkaError};
use super::queries::LogEnd;

/// The maximum bytes of one answer for all its partitions together. A single larger batch is returned nevertheless.
const ANSWER_BYTES_MAX: i32 = 8 << 20;
/// The interval at which a fetch that waits for a connection checks whether another broker leads its partition by now.
const LEADER_LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// One partition of a request.
#[derive(Debug, Clone)]
pub(super) struct FetchQuery {
    pub topic: TopicName,
    pub index: u32,
    pub from: u64,
    pub bytes_max: usize,
}

/// One partition's part of a broker's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FetchPage {
    pub records: Vec<StoredRecord>,
    /// The next offset to read, behind records that are not shown.
    pub next: u64,
    /// The offset after the last record that the request may see.
    pub visible_end: u64,
    /// The offset after the last record that is written.
    pub written_end: u64,
    /// The memory of the records.
    pub bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0}")]
    Kafka(#[from] KafkaError),
    #[error("{0}")]
    Damaged(MalformedBatch),
}

impl From<CallError> for FetchError {
    fn from(error: CallError) -> Self {
        Self::Kafka(error.into())
    }
}

/// A request that the broker answers after `wait` if there are no records. It keeps the order of the queries: Kafka answers the first
/// partition that has records with one batch at least, and the others within their bytes. A topic may thus occur several times.
pub(super) fn request(queries: &[FetchQuery], end: LogEnd, wait: Duration) -> FetchRequest {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for each in queries {
        let partition = FetchPartition::default()
            .with_partition(each.index as i32)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(i64::try_from(each.from).unwrap_or(i64::MAX))
            .with_last_fetched_epoch(-1)
            .with_log_start_offset(-1)
            .with_partition_max_bytes(i32::try_from(each.bytes_max).unwrap_or(i32::MAX));
        match topics.last_mut().filter(|topic| topic.topic == each.topic) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(FetchTopic::default().with_topic(each.topic.clone()).with_partitions(vec![partition])),
        }
    }
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(i32::try_from(wait.as_millis()).unwrap_or(i32::MAX))
        .with_min_bytes(1)
        .with_max_bytes(ANSWER_BYTES_MAX)
        .with_isolation_level(end.isolation())
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(topics)
}

/// The partition's part of an answer. A request for visible records gets none of aborted transactions. Decodes at least one batch, and
/// further ones until the records take `bytes_max` in memory.
pub(super) fn part_of(answer: &FetchResponse, query: &FetchQuery, bytes_max: usize) -> Result<FetchPage, FetchError> {
    outcome::check(answer.error_code).map_err(KafkaError::Code)?;
    let topics = answer.responses.iter().filter(|topic| topic.topic == query.topic);
    let part = topics.flat_map(|topic| &topic.partitions).find(|part| part.partition_index == query.index as i32);
    let missing = || match throttle_of(answer) {
        Some(_) => KafkaError::Code(Code::ThrottlingQuotaExceeded),
        None => KafkaError::Malformed("the answer lacks the partition".to_owned()),
    };
    read(part.ok_or_else(missing)?, query.from, bytes_max)
}

/// The time for which the broker rejects fetches of this client because its quota is exceeded. The broker then sends no partition, and
/// reads no request from the same connection until that time is over.
fn throttle_of(answer: &FetchResponse) -> Option<Duration> {
    let throttle_ms = u64::try_from(answer.throttle_time_ms).ok().filter(|throttle_ms| *throttle_ms > 0)?;
    answer.responses.is_empty().then(|| Duration::from_millis(throttle_ms))
}

/// Waits until a broker that throttles accepts fetches again, up to `wait_max`. The connection must not be used before that.
pub(super) async fn wait_for_quota(answer: &FetchResponse, wait_max: Duration) {
    if let Some(throttle) = throttle_of(answer) {
        tokio::time::sleep(throttle.min(wait_max)).await;
    }
}

fn read(part: &PartitionData, from: u64, bytes_max: usize) -> Result<FetchPage, FetchError> {
    outcome::check(part.error_code).map_err(KafkaError::Code)?;
    let aborted = part.aborted_transactions.iter().flatten();
    let aborted: Vec<AbortedTransaction> = aborted
        .map(|each| AbortedTransaction { producer_id: each.producer_id.0, first_offset: each.first_offset })
        .collect();
    let bytes = part.records.clone().unwrap_or_default();
    let written_end = u64::try_from(part.high_watermark).unwrap_or(0);
    // Without a last stable offset, the request may see everything.
    let visible_end = u64::try_from(part.last_stable_offset).unwrap_or(written_end);
    let decoded = batch::decode(bytes, from, written_end, &aborted, bytes_max).map_err(FetchError::Damaged)?;
    Ok(FetchPage { records: decoded.records, next: decoded.next, visible_end, written_end, bytes: decoded.bytes })
}

/// Fetches of one partition that return at once. Each uses a connection of its own; the connections to one broker are bounded.
pub(super) struct Fetcher {
    cluster: Arc<KafkaCluster>,
    at_once_max: usize,
    brokers: Mutex<HashMap<i32, Arc<FetchPool>>>,
}

struct FetchPool {
    permits: Semaphore,
    idle: Mutex<Vec<Arc<BrokerLink>>>,
}

/// A link that one fetch has taken from its pool. It goes back unless the fetch ends while its request is under way: the connection is
/// closed then.
struct TakenLink<'a> {
    pool: &'a FetchPool,
    link: Arc<BrokerLink>,
    has_request_under_way: bool,
}

impl Drop for TakenLink<'_> {
    fn drop(&mut self) {
        if !self.has_request_under_way {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.link.clone());
        }
    }
}

impl Fetcher {
    pub fn new(cluster: Arc<KafkaCluster>, at_once_max: usize) -> Self {
        Self { cluster, at_once_max: at_once_max.max(1), brokers: Mutex::default() }
    }

    /// Fetches the records that the partition has now.
    pub async fn fetch(&self, query: &FetchQuery, end: LogEnd, timeout: Duration) -> Result<FetchPage, FetchError> {
        let deadline = Instant::now() + timeout;
        loop {
            let leader = self.leader(query).await?;
            let pool = self.pool(leader);
            if let Some(_permit) = self.permit(&pool, leader, query, deadline).await? {
                return self.fetch_from(leader, &pool, query, end, deadline).await;
            }
        }
    }

    async fn leader(&self, query: &FetchQuery) -> Result<i32, KafkaError> {
        let topic = query.topic.as_str();
        if let Some(leader) = self.cluster.leader(topic, query.index) {
            return Ok(leader);
        }
        self.cluster.refresh(topic).await;
        self.cluster.leader(topic, query.index).ok_or(KafkaError::NoLeader)
    }

    /// Waits for a connection to the leader. `None` if another broker leads the partition by now: a broker that does not answer keeps its
    /// connections in use until their requests time out.
    async fn permit<'a>(
        &self,
        pool: &'a FetchPool,
        leader: i32,
        query: &FetchQuery,
        deadline: Instant,
    ) -> Result<Option<SemaphorePermit<'a>>, CallError> {
        let in_use =
            || CallError::NotSent(format!("all {} connections to broker {leader} are in use", self.at_once_max));
        let mut permit = std::pin::pin!(pool.permits.acquire());
        loop {
            let look_at = deadline.min(Instant::now() + LEADER_LOOK_INTERVAL);
            if let Ok(permit) = tokio::time::timeout_at(look_at.into(), &mut permit).await {
                return permit.map(Some).map_err(|_| in_use());
            }
            if self.cluster.leader(&query.topic, query.index) != Some(leader) {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Err(in_use());
            }
            self.cluster.refresh_in_background(&query.topic);
        }
    }

    async fn fetch_from(
        &self,
        leader: i32,
        pool: &FetchPool,
        query: &FetchQuery,
        end: LogEnd,
        deadline: Instant,
    ) -> Result<FetchPage, FetchError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut taken = pool.take();
        let connection = self.cluster.connection(&taken.link, leader).await?;
        let request = request(std::slice::from_ref(query), end, Duration::ZERO);
        taken.has_request_under_way = true;
        let answer = connection.call_within(&request, left().min(ANSWER_MAX), left()).await?;
        wait_for_quota(&answer, left()).await;
        taken.has_request_under_way = false;
        part_of(&answer, query, DECODED_BYTES_MAX)
    }

    fn pool(&self, broker: i32) -> Arc<FetchPool> {
        let mut brokers = self.brokers.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = || Arc::new(FetchPool { permits: Semaphore::new(self.at_once_max), idle: Mutex::default() });
        brokers.entry(broker).or_insert_with(pool).clone()
    }
}

impl FetchPool {
    /// Takes a link with an open connection, or another link if there is none, or a new one.
    fn take(&self) -> TakenLink<'_> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().rposition(|link| link.is_open()).or(idle.len().checked_sub(1));
        let link = at.map(|at| idle.swap_remove(at)).unwrap_or_default();
        TakenLink { pool: self, link, has_request_under_way: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::stub_cluster::{self, StubCluster};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn query(index: u32) -> FetchQuery {
        FetchQuery { topic: stub_cluster::topic_name(), index, from: 0, bytes_max: 1000 }
    }

    /// An answer with one record of partition 0.
    fn one_record() -> FetchResponse {
        let part = PartitionData::default().with_high_watermark(1).with_last_stable_offset(1);
        let part = part.with_records(Some(stub_cluster::batch_at(0, "x")));
        stub_cluster::fetched(&request(&[query(0)], LogEnd::Visible, Duration::ZERO), |_| part.clone())
    }

    #[test]
    fn a_request_keeps_the_order_of_its_queries_and_the_answer_is_found_by_it() {
        let other = TopicName("payments".into());
        let queries = [query(1), FetchQuery { topic: other, ..query(3) }, query(0), query(2)];
        let request = request(&queries, LogEnd::Visible, Duration::ZERO);
        let asked =
            request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|each| (&topic.topic, each.partition)));
        assert!(asked.eq(queries.iter().map(|each| (&each.topic, each.index as i32))));
        let answer = stub_cluster::fetched(&request, |_| PartitionData::default());
        for each in &queries {
            assert_eq!(part_of(&answer, each, DECODED_BYTES_MAX).map(|fetched| fetched.next), Ok(0), "{each:?}");
        }
    }

    #[test]
    fn an_answer_that_lacks_the_partition_is_passing_where_the_broker_throttles() {
        let throttled = FetchResponse::default().with_throttle_time_ms(40);
        let error = part_of(&throttled, &query(0), DECODED_BYTES_MAX).unwrap_err();
        assert!(matches!(&error, FetchError::Kafka(error) if error.is_passing()), "{error}");
        let error = part_of(&FetchResponse::default(), &query(0), DECODED_BYTES_MAX).unwrap_err();
        assert!(matches!(&error, FetchError::Kafka(KafkaError::Malformed(_))), "{error}");
    }

    #[tokio::test]
    async fn a_throttled_fetch_waits_as_long_as_the_broker_asks() {
        const THROTTLE: Duration = Duration::from_millis(80);
        let brokers = StubCluster::start(1, |_, _| {
            Some(FetchResponse::default().with_throttle_time_ms(THROTTLE.as_millis() as i32))
        });
        let fetcher = Fetcher::new(brokers.await.connect(), 1);
        let began = Instant::now();
        let error = fetcher.fetch(&query(0), LogEnd::Visible, TIMEOUT).await.unwrap_err();
        assert!(matches!(&error, FetchError::Kafka(error) if error.is_passing()), "{error}");
        assert!(began.elapsed() >= THROTTLE);
    }

    #[tokio::test]
    async fn a_reader_that_waits_for_a_frozen_broker_goes_to_the_new_leader() {
        let brokers = StubCluster::start(2, |broker, _| (broker == 1).then(one_record)).await;
        let fetcher = Arc::new(Fetcher::new(brokers.connect(), 1));
        let frozen = fetcher.clone();
        let frozen = tokio::spawn(async move { frozen.fetch(&query(0), LogEnd::Visible, TIMEOUT).await });
        while fetcher.pool(0).permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        brokers.set_leader(1);
        let began = Instant::now();
        let fetched = fetcher.fetch(&query(0), LogEnd::Visible, TIMEOUT).await.unwrap();
        assert_eq!(fetched.next, 1);
        assert!(began.elapsed() < ANSWER_MAX / 2, "waited {:?}", began.elapsed());
        assert!(!frozen.is_finished(), "the frozen broker still holds its reader");
        frozen.abort();
    }
}
