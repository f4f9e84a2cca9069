//! The decisions of Kafka's transaction coordinator, read from its own log, the topic `__transaction_state`.
//!
//! It is read only for a hanging transaction. No request reports afterwards whether such a transaction was committed or aborted, since
//! opening a fence overwrites the coordinator's state. Records in an unknown format are skipped.

use std::time::{Duration, Instant};

use bytes::Buf as _;
use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;
use whimbrel_model::{Clock as _, StoredRecord, SystemClock};

use super::fetch::{FetchError, FetchQuery, Fetcher};
use super::outcome::{self, KafkaError};
use super::queries::{LogEnd, PAUSE_BEFORE_ASKING_AGAIN, Queries};

const COORDINATOR_TOPIC: &str = "__transaction_state";
/// The maximum difference between the clock of a record's writer and the coordinator's.
const CLOCK_SKEW_MAX_MS: i64 = 60_000;
const FETCH_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionOutcome {
    Committed,
    Aborted,
}

/// The state of the last transaction of an id that wrote to a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TransactionFinding {
    /// There is no such transaction.
    Nothing,
    UnderWay,
    Finished(TransactionOutcome),
}

/// The transaction whose outcome is looked up: the last one of `id` that wrote to the partition after the record at `at`.
#[derive(Clone, Copy)]
pub(super) struct TransactionQuery<'a> {
    pub id: &'a str,
    /// The latest producer id and epoch that the coordinator has assigned. If the log does not end with them, the broker that was read
    /// lags behind, and later decisions are missing.
    pub identity: (i64, i16),
    pub partition: (&'a str, u32),
    pub at: u64,
}

/// Finds the outcome of a transaction.
pub(super) async fn look_up(
    queries: &Queries,
    fetcher: &Fetcher,
    TransactionQuery { id, identity, partition: (topic, index), at }: TransactionQuery<'_>,
    deadline: Instant,
) -> Result<TransactionFinding, FetchError> {
    let mut since = None;
    let place = |topic: &str, index, from| FetchQuery {
        topic: TopicName(StrBytes::from_string(topic.to_owned())),
        index,
        from,
        bytes_max: FETCH_BYTES,
    };
    read((queries, fetcher), place(topic, index, at), deadline, |stored| {
        since = Some(stored.record.timestamp.as_millis());
        false
    })
    .await?;
    // The time of a record is set by its writer, and may be long ago. A time in the future counts as now.
    let Some(since) = since.map(|since: i64| since.min(SystemClock.now().as_millis())) else {
        // The leader cannot serve the record yet: a new leader starts without a high watermark.
        return Err(KafkaError::Code(Code::OffsetNotAvailable).into());
    };
    let metadata = queries.metadata(Some(COORDINATOR_TOPIC)).await;
    let metadata = metadata.map_err(|error| KafkaError::Malformed(error.to_string()))?;
    let found = metadata.topics.first();
    found.map_or(Ok(()), |topic| outcome::check(topic.error_code)).map_err(KafkaError::Code)?;
    let count = found.map_or(0, |topic| topic.partitions.len());
    if count == 0 {
        return Err(KafkaError::NoLeader.into());
    }
    let home = home_of(id, count as i32) as u32;
    // The log is read from that time on, less the clock skew. If the clocks differ by more, the whole log is read.
    for begin in [(since - CLOCK_SKEW_MAX_MS).max(0), 0] {
        let Some(from) = offset_at(queries, home, begin, deadline).await? else { continue };
        let mut history = TransactionHistory::of(topic, index);
        read((queries, fetcher), place(COORDINATOR_TOPIC, home, from), deadline, |stored| {
            if id_of(stored.record.key.as_deref().unwrap_or_default()) == Some(id)
                && let Some(state) = TransactionState::of(&stored.record.value)
            {
                history.then(state);
            }
            true
        })
        .await?;
        if history.identity != Some(identity) {
            return Err(KafkaError::Code(Code::NotLeaderOrFollower).into());
        }
        if history.finding != TransactionFinding::Nothing {
            return Ok(history.finding);
        }
    }
    Ok(TransactionFinding::Nothing)
}

/// The first offset of the coordinator's log at a time.
async fn offset_at(queries: &Queries, index: u32, time: i64, deadline: Instant) -> Result<Option<u64>, KafkaError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match queries.offset(COORDINATOR_TOPIC, index, time, LogEnd::Written, left).await {
            Err(error) if error.is_passing() && Instant::now() < deadline => {
                tokio::time::sleep(PAUSE_BEFORE_ASKING_AGAIN).await;
                queries.refresh(COORDINATOR_TOPIC).await;
            }
            answered => return answered,
        }
    }
}

/// Passes the records of a partition to `keep_reading`, open transactions included, until its end or until `keep_reading` returns false.
async fn read(
    (queries, fetcher): (&Queries, &Fetcher),
    mut query: FetchQuery,
    deadline: Instant,
    mut keep_reading: impl FnMut(&StoredRecord) -> bool,
) -> Result<(), FetchError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match fetcher.fetch(&query, LogEnd::Written, left.max(Duration::from_millis(1))).await {
            Ok(fetched) => {
                if !fetched.records.iter().all(&mut keep_reading) || fetched.next >= fetched.written_end {
                    return Ok(());
                }
                query.from = fetched.next;
            }
            Err(FetchError::Kafka(error)) if error.is_passing() && Instant::now() < deadline => {
                tokio::time::sleep(PAUSE_BEFORE_ASKING_AGAIN).await;
                queries.refresh(query.topic.as_str()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The partition of the coordinator's log that holds a transactional id: Java's hash of the text, by the number of partitions.
fn home_of(id: &str, partitions: i32) -> i32 {
    let hash = id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    hash.checked_abs().unwrap_or(0) % partitions.max(1)
}

/// The transactional id of a record of the coordinator's log.
fn id_of(key: &[u8]) -> Option<&str> {
    let mut bytes = ByteReader(key);
    if bytes.0.try_get_i16().ok()? != 0 {
        return None;
    }
    let length = usize::try_from(bytes.0.try_get_i16().ok()?).ok()?;
    std::str::from_utf8(bytes.take(length)?).ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransactionPhase {
    Begun,
    Decided(TransactionOutcome),
    Finished,
}

/// The state of a transaction in one record of the coordinator's log.
#[derive(Debug, PartialEq, Eq)]
struct TransactionState {
    /// The producer id and epoch.
    identity: (i64, i16),
    phase: TransactionPhase,
    partitions: Vec<(String, u32)>,
}

impl TransactionState {
    fn of(value: &[u8]) -> Option<Self> {
        let mut bytes = ByteReader(value);
        let is_compact = match bytes.0.try_get_i16().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let identity = (bytes.0.try_get_i64().ok()?, bytes.0.try_get_i16().ok()?);
        // The transaction timeout.
        bytes.take(4)?;
        let phase = match bytes.take(1)?[0] {
            1 => TransactionPhase::Begun,
            2 => TransactionPhase::Decided(TransactionOutcome::Committed),
            3 => TransactionPhase::Decided(TransactionOutcome::Aborted),
            // Empty, completely committed or aborted.
            0 | 4 | 5 => TransactionPhase::Finished,
            _ => return None,
        };
        let mut partitions = Vec::new();
        for _ in 0..bytes.length(is_compact)? {
            let length =
                if is_compact { bytes.length(true)? } else { usize::try_from(bytes.0.try_get_i16().ok()?).ok()? };
            let topic = std::str::from_utf8(bytes.take(length)?).ok()?;
            for _ in 0..bytes.length(is_compact)? {
                partitions.push((topic.to_owned(), u32::try_from(bytes.0.try_get_i32().ok()?).ok()?));
            }
            if is_compact {
                bytes.skip_tags()?;
            }
        }
        Some(Self { identity, phase, partitions })
    }
}

/// History of the transactions of one transactional id in one partition, in the order of the coordinator's log.
struct TransactionHistory<'a> {
    partition: (&'a str, u32),
    /// The outcome that is decided and not finished.
    decided: Option<TransactionOutcome>,
    finding: TransactionFinding,
    /// The producer id and epoch of the last record.
    identity: Option<(i64, i16)>,
}

impl<'a> TransactionHistory<'a> {
    fn of(topic: &'a str, index: u32) -> Self {
        Self { partition: (topic, index), decided: None, finding: TransactionFinding::Nothing, identity: None }
    }

    fn then(&mut self, state: TransactionState) {
        self.identity = Some(state.identity);
        let concerns = state.partitions.iter().any(|(topic, index)| (topic.as_str(), *index) == self.partition);
        match state.phase {
            TransactionPhase::Begun if concerns => (self.decided, self.finding) = (None, TransactionFinding::UnderWay),
            TransactionPhase::Decided(outcome) if concerns => {
                self.decided = Some(outcome);
                self.finding = TransactionFinding::UnderWay;
            }
            // Any later record means that the transaction before it is over.
            TransactionPhase::Begun | TransactionPhase::Decided(_) | TransactionPhase::Finished => {
                if let Some(outcome) = self.decided.take() {
                    self.finding = TransactionFinding::Finished(outcome);
                }
            }
        }
    }
}

/// Bytes that are read from the front.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn unsigned(&mut self) -> Option<u32> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// The length of a list. A null list counts as empty.
    fn length(&mut self, is_compact: bool) -> Option<usize> {
        if is_compact {
            Some(self.unsigned()?.saturating_sub(1) as usize)
        } else {
            Some(self.0.try_get_i32().ok()?.max(0) as usize)
        }
    }

    fn skip_tags(&mut self) -> Option<()> {
        for _ in 0..self.unsigned()? {
            self.unsigned()?;
            let length = self.unsigned()? as usize;
            self.take(length)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Kafka 4.3 has written them.
    const KEY: &str = "000000107768696d6272656c2f686f6c64732f32";
    const DECIDED: &str = "00010000000000000007000200000bb80203076c6174652d30020000000000075f686f6c6473020000000200000001a1e0e0af51\
                           000001a1e0e0af450100080000000000000007";
    const COMPLETE: &str = "00010000000000000007000200000bb80401000001a1e0e0af52000001a1e0e0af450100080000000000000007";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn state(phase: TransactionPhase, partitions: &[(&str, u32)]) -> TransactionState {
        TransactionState {
            identity: (7, 2),
            phase,
            partitions: partitions.iter().map(|(topic, index)| ((*topic).to_owned(), *index)).collect(),
        }
    }

    fn finding(states: Vec<TransactionState>) -> TransactionFinding {
        let mut history = TransactionHistory::of("_holds", 2);
        states.into_iter().for_each(|state| history.then(state));
        history.finding
    }

    fn finished(states: Vec<TransactionState>) -> Option<TransactionOutcome> {
        match finding(states) {
            TransactionFinding::Finished(outcome) => Some(outcome),
            TransactionFinding::Nothing | TransactionFinding::UnderWay => None,
        }
    }

    #[test]
    fn transaction_state_records_are_decoded() {
        assert_eq!(id_of(&bytes(KEY)), Some("whimbrel/holds/2"));
        let decided = state(TransactionPhase::Decided(TransactionOutcome::Committed), &[("late-0", 0), ("_holds", 2)]);
        assert_eq!(TransactionState::of(&bytes(DECIDED)), Some(decided));
        assert_eq!(TransactionState::of(&bytes(COMPLETE)), Some(state(TransactionPhase::Finished, &[])));
    }

    #[test]
    fn the_older_form_is_understood() {
        let mut value = vec![0, 0];
        value.extend([0; 14]);
        value.push(3);
        value.extend([0, 0, 0, 1, 0, 6]);
        value.extend(b"_holds");
        value.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        value.extend([0; 16]);
        let state = state(TransactionPhase::Decided(TransactionOutcome::Aborted), &[("_holds", 2)]);
        assert_eq!(TransactionState::of(&value), Some(TransactionState { identity: (0, 0), ..state }));
    }

    #[test]
    fn truncated_or_unknown_records_are_skipped() {
        let whole = bytes(DECIDED);
        for length in 0..40 {
            assert_eq!(TransactionState::of(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(TransactionState::of(&[0, 9, 0, 0]), None);
        assert_eq!(id_of(&[0, 1, 0, 1, b'x']), None);
        assert_eq!(id_of(&[0, 0, 0, 9, b'x']), None);
    }

    #[test]
    fn an_id_is_found_where_kafka_keeps_it() {
        let homes =
            [("whimbrel/holds/2", 0), ("whimbrel/holds/12", 1), ("whimbrel/holds/4", 2), ("whimbrel/holds/1", 3)];
        for (id, home) in homes {
            assert_eq!(home_of(id, 4), home, "{id}");
        }
    }

    #[test]
    fn a_decision_counts_when_the_coordinator_has_finished_it() {
        let committed = || state(TransactionPhase::Decided(TransactionOutcome::Committed), &[("_holds", 2)]);
        let aborted = || state(TransactionPhase::Decided(TransactionOutcome::Aborted), &[("_holds", 2), ("late-0", 0)]);
        let (begun, done) =
            (|| state(TransactionPhase::Begun, &[("_holds", 2)]), || state(TransactionPhase::Finished, &[]));
        assert_eq!(finding(vec![done()]), TransactionFinding::Nothing);
        assert_eq!(finding(vec![begun()]), TransactionFinding::UnderWay);
        assert_eq!(finding(vec![begun(), committed()]), TransactionFinding::UnderWay);
        assert_eq!(finished(vec![begun(), committed(), done()]), Some(TransactionOutcome::Committed));
        assert_eq!(finding(vec![begun(), committed(), done(), begun()]), TransactionFinding::UnderWay);
        assert_eq!(
            finished(vec![begun(), committed(), done(), begun(), aborted(), done()]),
            Some(TransactionOutcome::Aborted)
        );
    }

    #[test]
    fn a_log_that_is_read_from_a_broker_that_is_behind_is_recognised() {
        let mut history = TransactionHistory::of("_holds", 2);
        assert_eq!(history.identity, None);
        history.then(TransactionState {
            identity: (7, 2),
            ..state(TransactionPhase::Decided(TransactionOutcome::Committed), &[("_holds", 2)])
        });
        history.then(TransactionState { identity: (7, 3), ..state(TransactionPhase::Finished, &[]) });
        assert_eq!(history.identity, Some((7, 3)), "the latest epoch that the coordinator has assigned");
    }

    #[test]
    fn a_later_transaction_elsewhere_does_not_change_what_was_decided_here() {
        let here = state(TransactionPhase::Decided(TransactionOutcome::Committed), &[("_holds", 2)]);
        let elsewhere = [TransactionPhase::Begun, TransactionPhase::Decided(TransactionOutcome::Aborted)]
            .map(|phase| state(phase, &[("late-0", 0)]));
        let states = [here, state(TransactionPhase::Finished, &[])].into_iter().chain(elsewhere).collect();
        assert_eq!(finished(states), Some(TransactionOutcome::Committed));
    }
}
