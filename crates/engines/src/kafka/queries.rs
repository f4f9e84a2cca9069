//! Questions to the brokers: where a partition begins and ends, which record a time leads to, which topics there are.
//!
//! They have clients of their own. A client that also reads has its questions wait behind its own long fetches, since a broker
//! answers a connection in order; and librdkafka asks for a partition's end with the client's isolation level, so that the end
//! of what is visible and the end of what is written need one client each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::Semaphore;
use whimbrel_model::ports::{Bounds, LogError};
use whimbrel_model::{PartitionId, Timestamp};

use super::context::{Consumer, Quiet};
use super::known::KnownTopic;
use super::outcome;
use super::settings::KafkaSettings;

/// Questions that wait for brokers at once: each keeps a thread.
const QUESTIONS_AT_ONCE: usize = 32;
/// How long leadership is given to settle before a question is asked again.
const PAUSE_BEFORE_ASKING_AGAIN: Duration = Duration::from_millis(20);
/// How long a partition that is known here may be unknown to a broker: it may have been made a moment ago.
const NEWS_TRAVEL_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Behind the last record that readers can see.
    Visible,
    /// Behind the last record that is written, open transactions included.
    Written,
}

pub(super) struct Queries {
    visible: Arc<Consumer>,
    written: Arc<Consumer>,
    permits: Semaphore,
    timeout: Duration,
}

impl Queries {
    pub fn new(settings: &KafkaSettings) -> Result<Self, KafkaError> {
        let client =
            |isolation| Consumer::from_config_and_context(&settings.query_client(isolation), Quiet).map(Arc::new);
        Ok(Self {
            visible: client("read_committed")?,
            written: client("read_uncommitted")?,
            permits: Semaphore::new(QUESTIONS_AT_ONCE),
            timeout: settings.request_timeout,
        })
    }

    /// The clients, for whoever drains their log lines.
    pub fn clients(&self) -> [&Arc<Consumer>; 2] {
        [&self.visible, &self.written]
    }

    /// The first kept offset, and the end.
    pub async fn bounds(&self, topic: &KnownTopic, partition: PartitionId, end: End) -> Result<Bounds, LogError> {
        let client = match end {
            End::Visible => &self.visible,
            End::Written => &self.written,
        };
        let (name, index) = (topic.name.clone(), partition.index as i32);
        let (first, next) = self
            .ask(client, topic, partition, move |client, timeout| client.fetch_watermarks(&name, index, timeout))
            .await?;
        Ok(Bounds { first: first.max(0) as u64, next: next.max(0) as u64 })
    }

    /// Where a partition ends for readers and for writers. Blocks.
    pub fn ends_now(&self, topic: &str, index: u32) -> Result<(u64, u64), KafkaError> {
        let end = |client: &Consumer| client.fetch_watermarks(topic, index as i32, self.timeout);
        let (visible, written) = (end(&self.visible)?.1, end(&self.written)?.1);
        Ok((visible.max(0) as u64, written.max(0) as u64))
    }

    /// The first record at or after a time; `None` where there is none.
    pub async fn offset_at(
        &self,
        topic: &KnownTopic,
        partition: PartitionId,
        time: Timestamp,
    ) -> Result<Option<u64>, LogError> {
        let (name, index) = (topic.name.clone(), partition.index as i32);
        let found = self.ask(&self.written, topic, partition, move |client, timeout| {
            let mut times = TopicPartitionList::with_capacity(1);
            times.add_partition_offset(&name, index, Offset::Offset(time.as_millis().max(0)))?;
            let found = client.offsets_for_times(times, timeout)?;
            let elements = found.elements();
            let element = elements.first().ok_or(KafkaError::OffsetFetch(Code::Fail))?;
            element.error()?;
            Ok(element.offset())
        });
        Ok(match found.await? {
            Offset::Offset(offset) => u64::try_from(offset).ok(),
            _ => None,
        })
    }

    /// The metadata of one topic or of all. A topic that is not there is in it with an error.
    pub async fn metadata(&self, topic: Option<&str>) -> Result<Metadata, LogError> {
        let (client, topic, timeout) = (self.written.clone(), topic.map(str::to_owned), self.timeout);
        let asked = self.blocking(move || client.fetch_metadata(topic.as_deref(), timeout)).await?;
        asked.map_err(|error| outcome::unavailable(&error))
    }

    /// Asks about a partition, and again while leadership is moving or the client has not heard of the partition yet.
    async fn ask<T: Send + 'static>(
        &self,
        client: &Arc<Consumer>,
        topic: &KnownTopic,
        partition: PartitionId,
        question: impl Fn(&Consumer, Duration) -> Result<T, KafkaError> + Send + Clone + 'static,
    ) -> Result<T, LogError> {
        let began = Instant::now();
        loop {
            let left = self.timeout.saturating_sub(began.elapsed());
            let (asked, question) = (client.clone(), question.clone());
            let error = match self.blocking(move || question(&asked, left)).await? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let patience = match error.rdkafka_error_code() {
                Some(code) if outcome::is_passing(code) => self.timeout,
                Some(code) if outcome::is_unknown_partition(code) => NEWS_TRAVEL_MAX.min(self.timeout),
                _ => Duration::ZERO,
            };
            if began.elapsed() + PAUSE_BEFORE_ASKING_AGAIN >= patience {
                let answer = outcome::question_error(&error, partition);
                // A partition whose broker is gone or was just started is not known to anybody for a moment, and still there.
                let is_gone = match &answer {
                    LogError::UnknownPartition(_) => {
                        outcome::is_without(&self.metadata(Some(&topic.name)).await?, &topic.name, partition.index)
                    }
                    _ => true,
                };
                return Err(if is_gone { answer } else { outcome::unavailable(&error) });
            }
            tokio::time::sleep(PAUSE_BEFORE_ASKING_AGAIN).await;
            if matches!(outcome::question_error(&error, partition), LogError::UnknownPartition(_)) {
                // The client answers from what it remembers of the topic, which may have grown since. Where it cannot be asked
                // anew, the next round tells.
                let (client, name, timeout) = (client.clone(), topic.name.clone(), self.timeout);
                let _ = self.blocking(move || client.fetch_metadata(Some(&name), timeout).map(drop)).await;
            }
        }
    }

    async fn blocking<T: Send + 'static>(&self, question: impl FnOnce() -> T + Send + 'static) -> Result<T, LogError> {
        let closing = || LogError::Unavailable("the log is shutting down".to_owned());
        let _permit = self.permits.acquire().await.map_err(|_| closing())?;
        tokio::task::spawn_blocking(question).await.map_err(|_| closing())
    }
}
