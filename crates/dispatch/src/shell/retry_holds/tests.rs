//! Tests of the check on a list of holds and a log with one partition.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use whimbrel_model::ports::{AppendOutcome, Bounds, CommitOutcome, Entry, Fence, PortFuture, ReadBatch};
use whimbrel_model::subscription::{HEADER_DELIVERY, Mode, Ordering};
use whimbrel_model::{Headers, HoldId, Record, StoredRecord, SubscriptionSpec};

use super::*;

const PARTITION: PartitionId = PartitionId::new(TopicNumber(3), 1);
const RETRIES: TopicNumber = TopicNumber(9);
const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const DAY_MS: i64 = 86_400_000;

struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        NOW
    }
}

/// The holds of one shard, which can be counted, listed and moved.
struct ListedHolds(Mutex<Vec<HoldView>>);

impl Holds for ListedHolds {
    fn shards(&self) -> u32 {
        1
    }

    fn ask(&self, _: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, HoldsError>> {
        let mut holds = self.0.lock().unwrap();
        let told = match ask {
            HoldRequest::Count(query) => {
                let count = holds.iter().filter(|hold| query.from.is_none_or(|from| hold.due >= from)).count();
                HoldReply::Counted(vec![(NOW, count as u64)])
            }
            HoldRequest::List(query) => {
                holds.sort_by_key(|hold| (hold.due, hold.id.clone()));
                let is_after = |hold: &&HoldView| {
                    query.after.as_ref().is_none_or(|after| (hold.due, &hold.id) > (after.due, &after.id))
                        && query.from.is_none_or(|from| hold.due >= from)
                };
                HoldReply::Listed(holds.iter().filter(is_after).take(query.limit).cloned().collect())
            }
            HoldRequest::Extend { id, to: NewDueTime::Until(due), if_version: Some(version), key: None } => {
                let hold = holds.iter_mut().find(|hold| hold.id == id && hold.version == version).unwrap();
                (hold.due, hold.version) = (due, version + 1);
                HoldReply::Rescheduled { due, version: hold.version }
            }
            other => panic!("{other:?} is not expected"),
        };
        Box::pin(std::future::ready(Ok(told)))
    }
}

/// A partition whose messages below offset 10 left the log. Each tenth message has a retry interval of 7 days.
struct PartLog;

impl Log for PartLog {
    fn append(&self, _: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        panic!("only reads are expected")
    }

    fn fence<'a>(&'a self, _: &'a str, _: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        panic!("only reads are expected")
    }

    fn commit<'a>(&'a self, _: &'a Fence, _: Vec<Entry>) -> PortFuture<'a, CommitOutcome> {
        panic!("only reads are expected")
    }

    fn read(&self, partition: PartitionId, from: u64, _: ReadLimits) -> PortFuture<'_, Result<ReadBatch, LogError>> {
        assert_eq!(partition, PARTITION);
        if from < 10 {
            return Box::pin(std::future::ready(Err(LogError::Trimmed { asked: from, first: 10 })));
        }
        let record = |offset: u64| {
            let mut headers = Headers::builder();
            if offset.is_multiple_of(10) {
                headers.push(HEADER_DELIVERY, br#"{"retry":{"times":3,"schedule_ms":[604800000]}}"#);
            }
            Record { key: None, value: Bytes::new(), headers: headers.take(), timestamp: NOW }
        };
        let records = (from..from + 3).map(|offset| StoredRecord { offset, record: record(offset) }).collect();
        Box::pin(std::future::ready(Ok(ReadBatch { records, next: from + 3 })))
    }

    fn bounds(&self, _: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        panic!("only reads are expected")
    }

    fn offset_at(&self, _: PartitionId, _: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        panic!("only reads are expected")
    }

    fn trim(&self, _: PartitionId, _: u64) -> PortFuture<'_, Result<(), LogError>> {
        panic!("only reads are expected")
    }
}

/// The due times of retries after a check, in milliseconds from now. Each is given with the offset of its message.
async fn checked(retries: &[(u64, i64)]) -> Vec<i64> {
    let name: Arc<str> = "_retry.billing".into();
    let view = |(offset, due_in_ms): &(u64, i64)| HoldView {
        id: HoldId::new(&format!("{RETRY_PURPOSE}-4-1-3-1-{offset}-1")),
        topic: RETRIES,
        topic_name: Arc::clone(&name),
        key: None,
        due: Timestamp::from_millis(NOW.as_millis() + due_in_ms),
        published_at: NOW,
        version: 1,
    };
    let spec = SubscriptionSpec::new(Vec::new(), Mode::Push, None);
    let retry = RetryPolicy { times: 5, schedule_ms: vec![1_000] };
    let rules = LineRules::of(&SubscriptionSpec { ordering: Ordering::None, retry, ..spec });
    let holds = ListedHolds(Mutex::new(retries.iter().map(view).collect()));
    let check = RetryHoldCheck { holds: &holds, log: &PartLog, clock: &StillClock, rules: &rules, topic: RETRIES };
    check.run().await.unwrap();
    let holds = holds.0.into_inner().unwrap();
    let due_of = |(offset, _): &(u64, i64)| {
        let id = format!("{RETRY_PURPOSE}-4-1-3-1-{offset}-1");
        holds.iter().find(|hold| hold.id.as_str() == id).unwrap().due.as_millis() - NOW.as_millis()
    };
    retries.iter().map(due_of).collect()
}

#[tokio::test]
async fn a_retry_that_is_due_beyond_its_schedule_is_moved_to_its_step() {
    assert_eq!(checked(&[(11, DAY_MS), (12, 3_000_000), (13, 500)]).await, [1_000, 3_000_000, 500]);
}

#[tokio::test]
async fn a_messages_own_interval_is_the_bound_of_its_retry() {
    assert_eq!(checked(&[(20, 6 * DAY_MS), (30, 9 * DAY_MS)]).await, [6 * DAY_MS, 7 * DAY_MS]);
}

#[tokio::test]
async fn a_retry_whose_message_left_the_log_is_not_moved() {
    assert_eq!(checked(&[(5, DAY_MS)]).await, [DAY_MS], "its own rule cannot be read");
}

#[tokio::test]
async fn every_page_is_checked() {
    let many: Vec<(u64, i64)> =
        (0..CHECKED_AT_ONCE as u64 * 2 + 7).map(|number| (number * 10 + 11, DAY_MS + number as i64)).collect();
    assert!(checked(&many).await.into_iter().all(|due_in_ms| due_in_ms == 1_000));
}
