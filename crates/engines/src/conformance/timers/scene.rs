//! The setting of the properties: a shard of an open store beside its reference model, and short functions for frequent steps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, CountQuery, DueCursor, HoldQuery, StoredHold, TimerChange, Timers, TimersError, TimersWrite,
};
use whimbrel_model::{Headers, Hold, HoldEnd, HoldEndKind, HoldId, MessageBody, Timestamp, TopicNumber};

use super::naive::NaiveTimers;
use super::{OpenTimers, TimersFactory};

/// The time of the suite's first write, unless a property sets another one.
pub const START_MS: i64 = 1_800_000_000_000;
/// A limit in bytes that no page reaches.
pub const MANY_BYTES: usize = 64 << 20;
pub const MINUTE: Duration = Duration::from_secs(60);
pub const MINUTE_MS: i64 = 60_000;

/// A shard with its owner, and the expected contents.
pub struct ShardScene {
    pub timers: Arc<dyn Timers>,
    pub number: u32,
    pub epoch: u64,
    /// The applied offset that the store must have.
    pub applied: u64,
    pub now: Timestamp,
    pub naive: NaiveTimers,
}

/// A change of an id; the writer adds the id's present row.
#[derive(Clone)]
pub enum HoldStep {
    Put(Hold),
    End(HoldId, HoldEnd),
}

/// Opens a store and takes one shard of it.
pub async fn new_shard(factory: &dyn TimersFactory) -> (OpenTimers, ShardScene) {
    let open = factory.open().await;
    let shard = take_shard(&open, 0).await;
    (open, shard)
}

/// Takes a shard that was never written.
pub async fn take_shard(open: &OpenTimers, number: u32) -> ShardScene {
    let timers = Arc::clone(&open.port);
    assert_eq!(timers.open(number, 1).await, Ok(Some(0)), "the suite begins with an empty store");
    ShardScene {
        timers,
        number,
        epoch: 1,
        applied: 0,
        now: Timestamp::from_millis(START_MS),
        naive: NaiveTimers::default(),
    }
}

impl ShardScene {
    /// The write with these steps at the applied offset.
    pub fn write(&self, steps: Vec<HoldStep>) -> TimersWrite {
        let mut after = self.naive.clone();
        let mut changes = Vec::new();
        for step in steps {
            let change = match step {
                HoldStep::Put(hold) => TimerChange::Put { was: self.naive.row(&hold.id), hold: Arc::new(hold) },
                HoldStep::End(id, end) => TimerChange::End { was: self.naive.row(&id), id, end },
            };
            after.change(&change);
            changes.push(change);
        }
        let (floor, applied) = (after.floor(), self.applied + 10);
        TimersWrite {
            epoch: self.epoch,
            expected: self.applied,
            reset: false,
            changes,
            applied,
            floor,
            now: self.now,
            synced: false,
        }
    }

    /// The write that empties the shard, has these steps, and moves the store to `applied`.
    pub fn reset(&self, steps: Vec<HoldStep>, applied: u64) -> TimersWrite {
        let emptied = Self { timers: Arc::clone(&self.timers), naive: NaiveTimers::default(), ..*self };
        TimersWrite { reset: true, applied, ..emptied.write(steps) }
    }

    pub async fn offer(&self, write: TimersWrite) -> ApplyOutcome {
        self.timers.apply(self.number, write).await.expect("the store takes writes")
    }

    /// Writes, and updates the model.
    pub async fn done(&mut self, write: TimersWrite) {
        assert_eq!(self.offer(write.clone()).await, ApplyOutcome::Done);
        self.follow(&write);
    }

    /// Updates the model after a write that succeeded.
    pub fn follow(&mut self, write: &TimersWrite) {
        if write.reset {
            self.naive.empty();
        }
        write.changes.iter().for_each(|change| self.naive.change(change));
        self.applied = write.applied;
    }

    pub async fn apply(&mut self, steps: Vec<HoldStep>) {
        self.done(self.write(steps)).await;
    }

    pub async fn put(&mut self, holds: Vec<Hold>) {
        self.apply(holds.into_iter().map(HoldStep::Put).collect()).await;
    }

    pub async fn end(&mut self, id: &str, end: HoldEnd) {
        self.apply(vec![HoldStep::End(HoldId::new(id), end)]).await;
    }

    /// Unwraps a read, which must have the expected applied offset.
    #[track_caller]
    fn at_applied<T>(&self, read: Result<AtOffset<T>, TimersError>) -> T {
        let at = read.expect("the store can be read");
        assert_eq!(at.applied, self.applied, "a read returns the applied offset");
        at.found
    }

    pub async fn due_page(
        &self,
        after: Option<DueCursor>,
        until: i64,
        limit: usize,
        max_bytes: usize,
    ) -> Vec<Arc<Hold>> {
        let until = Timestamp::from_millis(until);
        self.at_applied(self.timers.due(self.number, after, until, limit, max_bytes).await)
    }

    /// All pending holds, in one page.
    pub async fn due_all(&self) -> Vec<Arc<Hold>> {
        self.due_page(None, i64::MAX, 1_000_000, MANY_BYTES).await
    }

    pub async fn get(&self, id: &str) -> Option<StoredHold> {
        self.get_many(&[id]).await.pop().expect("one answer per id")
    }

    pub async fn get_many(&self, ids: &[&str]) -> Vec<Option<StoredHold>> {
        let asked = ids.iter().map(|id| HoldId::new(id)).collect();
        let found = self.at_applied(self.timers.get(self.number, asked).await);
        assert_eq!(found.len(), ids.len(), "one answer per id");
        found
    }

    /// Reads page by page up to the limit of the query: a page may be short if its holds are large.
    pub async fn list(&self, mut query: HoldQuery) -> Vec<Arc<Hold>> {
        let mut listed: Vec<Arc<Hold>> = Vec::new();
        loop {
            let page = self.at_applied(self.timers.list(self.number, query.clone()).await);
            let Some(last) = page.last() else { return listed };
            query.after = Some(DueCursor { due: last.due, id: last.id.clone() });
            query.limit = query.limit.saturating_sub(page.len());
            listed.extend(page);
            if query.limit == 0 {
                return listed;
            }
        }
    }

    pub async fn dead(&self, query: HoldQuery) -> Vec<(HoldId, HoldEnd)> {
        self.at_applied(self.timers.dead(self.number, query).await)
    }

    pub async fn count(&self, query: CountQuery) -> Vec<(Timestamp, u64)> {
        self.at_applied(self.timers.count(self.number, query).await)
    }

    /// Asserts that every read returns the state of the model.
    pub async fn agrees(&self) {
        assert_eq!(self.due_all().await, self.naive.pending());
        assert_eq!(self.list(everything()).await, self.naive.pending());
        let mut topics: Vec<_> = self.naive.pending().iter().map(|hold| hold.topic).collect();
        topics.dedup();
        for topic in topics {
            let of_topic = HoldQuery { topic: Some(topic), ..everything() };
            assert_eq!(self.list(of_topic.clone()).await, self.naive.list(&of_topic));
            let counted = CountQuery { topic: Some(topic), ..minutes() };
            assert_eq!(self.count(counted.clone()).await, self.naive.count(&counted));
        }
        assert_eq!(self.dead(everything()).await, self.naive.dead(&everything()));
        assert_eq!(self.count(minutes()).await, self.naive.count(&minutes()));
        for id in self.naive.ids() {
            assert_eq!(self.get(id.as_str()).await, self.naive.get(&id), "{id}");
        }
    }
}

pub fn everything() -> HoldQuery {
    HoldQuery { topic: None, from: None, to: None, after: None, limit: 1_000_000 }
}

pub fn minutes() -> CountQuery {
    CountQuery { topic: None, from: None, to: None, bucket: MINUTE }
}

/// A hold of topic 7, due `due` milliseconds after the start of the suite.
pub fn hold(id: &str, due: i64) -> Hold {
    hold_of(id, due, 7, id.as_bytes())
}

pub fn hold_of(id: &str, due: i64, topic: u32, value: &[u8]) -> Hold {
    let mut headers = Headers::builder();
    headers.push("whimbrel-id", id.as_bytes()).push("colour", b"red");
    Hold {
        id: HoldId::new(id),
        topic: TopicNumber(topic),
        topic_name: format!("topic-{topic}").into(),
        due: at(due),
        published_at: at(-5),
        version: 41,
        fresh: true,
        moves: Vec::new(),
        message: MessageBody {
            key: Some(Bytes::from_static(b"key")),
            value: Bytes::copy_from_slice(value),
            headers: headers.take(),
        },
    }
}

/// A time in milliseconds after the start of the suite.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START_MS + millis)
}

pub fn ended(how: HoldEndKind, due: i64, topic: u32) -> HoldEnd {
    let topic = TopicNumber(topic);
    HoldEnd { how, at: at(0), due: at(due), published_at: at(-5), topic, fingerprint: None }
}

pub fn fired(due: i64) -> HoldEnd {
    ended(HoldEndKind::Fired { partition: 3 }, due, 7)
}

pub fn dead(due: i64, topic: u32) -> HoldEnd {
    ended(HoldEndKind::Dead { reason: "the topic is gone".into() }, due, topic)
}

pub fn ids_of(holds: &[Arc<Hold>]) -> Vec<&str> {
    holds.iter().map(|hold| hold.id.as_str()).collect()
}
