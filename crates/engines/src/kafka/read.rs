//! Reading: finds a cursor, takes what is there, waits where nothing is, and never says that nothing is there without having
//! asked the broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{Event, EventSink, PartitionId};

use super::cursor::CursorLost;
use super::cursors::{Cursors, Purpose, Stand};
use super::hanging::{Hanging, Look};
use super::known::{KnownTopic, KnownTopics};
use super::queries::{End, Queries};

/// How often one read finds itself another cursor before it says that Kafka is not available.
const CURSORS_PER_READ_MAX: usize = 4;
/// How long a reader waits for news at an extra consumer before it goes over to the shared one.
const CATCHING_UP_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Reader {
    pub known: Arc<KnownTopics>,
    pub cursors: Arc<Cursors>,
    pub queries: Arc<Queries>,
    pub request_timeout: Duration,
    pub hanging: Arc<Hanging>,
    pub events: EventSink,
}

/// One read: where it reads and how long it may take.
struct Reading<'a> {
    topic: &'a Arc<KnownTopic>,
    partition: PartitionId,
    from: u64,
    limits: ReadLimits,
    /// Until then an empty answer is held back.
    wait_until: Instant,
    /// Until then what is known to be there must have come.
    give_up_at: Instant,
}

impl Reader {
    pub async fn read(&self, partition: PartitionId, from: u64, limits: ReadLimits) -> Result<ReadBatch, LogError> {
        let wait_until = Instant::now() + limits.wait;
        let give_up_at = wait_until + self.request_timeout;
        let mut lost = None;
        for _ in 0..CURSORS_PER_READ_MAX {
            // Asked for each time: a topic that was deleted meanwhile must not be read on under its name, which may be
            // another topic's by now.
            let topic = &self.known.of(partition)?;
            let reading = Reading { topic, partition, from, limits, wait_until, give_up_at };
            let (stand, end) = match self.cursors.covering(partition, from) {
                Some(stand) => (stand, None),
                None => match self.begin(&reading).await? {
                    Begun::At(stand, end) => (stand, Some(end)),
                    Begun::NothingYet => {
                        self.look_behind(topic, partition);
                        return Ok(ReadBatch { records: Vec::new(), next: from });
                    }
                },
            };
            match self.read_at(&reading, stand, end).await {
                Ok(answer) => {
                    if answer.as_ref().is_ok_and(|batch| batch.records.is_empty()) {
                        self.look_behind(topic, partition);
                    }
                    return answer;
                }
                // The place may have been trimmed away under the cursor, the topic deleted or grown: asking anew tells.
                Err(why) => lost = Some(why),
            }
        }
        Err(match lost {
            Some(CursorLost::Failed(code)) => {
                LogError::Unavailable(format!("Kafka does not let the partition be read: {code}"))
            }
            Some(CursorLost::Passed) => {
                LogError::Unavailable("others read on faster than this reader is let read".to_owned())
            }
            Some(CursorLost::Retired | CursorLost::UnknownPartition) | None => LogError::UnknownPartition(partition),
        })
    }

    /// Looks, beside the read that found nothing, whether something is there that nobody can see.
    fn look_behind(&self, topic: &Arc<KnownTopic>, partition: PartitionId) {
        if !self.hanging.may_look(partition, Instant::now()) {
            return;
        }
        let (topic, queries) = (topic.clone(), self.queries.clone());
        let (hanging, events) = (self.hanging.clone(), self.events.clone());
        tokio::spawn(async move {
            // What cannot be asked now is asked by the next read.
            let Ok(visible) = queries.bounds(&topic, partition, End::Visible).await else { return };
            let Ok(written) = queries.bounds(&topic, partition, End::Written).await else { return };
            if hanging.found(partition, visible.next, written.next, Instant::now()) == Look::HangsSinceLong {
                tell(&topic.name, partition.index, visible.next, &events);
            }
        });
    }

    /// Looks where the partition begins and ends, and finds a cursor.
    async fn begin(&self, reading: &Reading<'_>) -> Result<Begun, LogError> {
        let Reading { topic, partition, from, .. } = *reading;
        let visible = self.queries.bounds(topic, partition, End::Visible).await?;
        if from < visible.first {
            return Err(LogError::Trimmed { asked: from, first: visible.first });
        }
        if from > visible.next {
            let written = self.queries.bounds(topic, partition, End::Written).await?;
            if from > written.next {
                return Err(LogError::BeyondEnd { asked: from, next: written.next });
            }
        }
        let purpose = if from < visible.next { Purpose::CatchUp } else { Purpose::Wait };
        if purpose == Purpose::Wait && Instant::now() >= reading.wait_until {
            return Ok(Begun::NothingYet);
        }
        let stand = self.cursors.at(topic, partition, from, purpose, reading.give_up_at).await?;
        Ok(Begun::At(stand, visible.next))
    }

    /// Reads at a cursor. `end` is the visible end, where it was asked for since the read began.
    async fn read_at(
        &self,
        reading: &Reading<'_>,
        mut stand: Stand,
        mut end: Option<u64>,
    ) -> Result<Result<ReadBatch, LogError>, CursorLost> {
        loop {
            // Not borrowed from the stand, which moves on.
            let arrivals = stand.arrived().clone();
            let has_news = {
                let mut arrived = std::pin::pin!(arrivals.notified());
                arrived.as_mut().enable();
                let batch = stand.take(&reading.limits)?;
                // Also where nothing but markers was passed: whoever waits for the log's end to be read has waited for that.
                if !batch.records.is_empty() || batch.next > reading.from {
                    return Ok(Ok(batch));
                }
                let now = Instant::now();
                if now < reading.wait_until {
                    let pause_end = if stand.is_shared() { reading.wait_until } else { now + CATCHING_UP_PAUSE };
                    let wake_at = pause_end.min(reading.wait_until);
                    tokio::time::timeout_at(wake_at.into(), arrived).await.is_ok()
                } else {
                    let visible_end = match end {
                        Some(end) => end,
                        None => match self.visible_end(reading).await {
                            Ok(asked) => *end.insert(asked),
                            Err(error) => return Ok(Err(error)),
                        },
                    };
                    if batch.next >= visible_end {
                        return Ok(Ok(batch));
                    }
                    if tokio::time::timeout_at(reading.give_up_at.into(), arrived).await.is_err() {
                        let late = "the broker has not sent what is there in time";
                        return Ok(Err(LogError::Unavailable(late.to_owned())));
                    }
                    true
                }
            };
            if !has_news && !stand.is_shared() && Instant::now() < reading.wait_until {
                stand = self.go_over(reading, stand).await;
            }
        }
    }

    /// A reader that has caught up with an extra consumer waits at the shared one, which leaves the extra one to others.
    async fn go_over(&self, reading: &Reading<'_>, stand: Stand) -> Stand {
        match self.visible_end(reading).await {
            Ok(end) if stand.at() >= end => {
                let shared = self.cursors.shared_at(reading.topic, reading.partition, stand.at()).await;
                shared.unwrap_or(stand)
            }
            _ => stand,
        }
    }

    async fn visible_end(&self, reading: &Reading<'_>) -> Result<u64, LogError> {
        Ok(self.queries.bounds(reading.topic, reading.partition, End::Visible).await?.next)
    }
}

fn tell(topic: &str, index: u32, offset: u64, events: &EventSink) {
    let detail = format!(
        "partition {index} of `{topic}` stands still at offset {offset} behind an open transaction, for longer than one of Whimbrel's may \
         last: nothing behind it can be read; if it is nobody's any more, `kafka-transactions.sh find-hanging` shows whose it was"
    );
    let event = Event::warning("transaction_hanging", detail);
    (events)(event.with("topic", topic).with("partition", index).with("offset", offset));
}

enum Begun {
    /// With the visible end as it was just now.
    At(Stand, u64),
    NothingYet,
}
