//! What the properties stand on: a shard of an open store beside its naive model, and short words for what tests do all the time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{Applied, At, Change, CountQuery, DueCursor, HoldQuery, Known, Timers, TimersError, Write};
use whimbrel_model::{Ending, Headers, HeldMessage, Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

use super::naive::Naive;
use super::{Factory, OpenTimers};

/// When the suite's writes begin, unless a property says otherwise.
pub const START_MS: i64 = 1_800_000_000_000;
/// Bytes of a page that bounds nothing.
pub const MANY_BYTES: usize = 64 << 20;
pub const MINUTE: Duration = Duration::from_secs(60);
pub const MINUTE_MS: i64 = 60_000;

/// A shard that its writer owns, and what must be in it.
pub struct Shard {
    pub timers: Arc<dyn Timers>,
    pub number: u32,
    pub epoch: u64,
    /// Where the store was left.
    pub applied: u64,
    pub now: Timestamp,
    pub naive: Naive,
}

/// What becomes of an id; the writer adds the row that it has.
#[derive(Clone)]
pub enum Step {
    Put(Hold),
    End(HoldId, HoldEnd),
}

/// Opens a store and takes one shard of it.
pub async fn new_shard(factory: &dyn Factory) -> (OpenTimers, Shard) {
    let open = factory.open().await;
    let shard = take_shard(&open, 0).await;
    (open, shard)
}

/// Takes a shard that nobody wrote yet.
pub async fn take_shard(open: &OpenTimers, number: u32) -> Shard {
    let timers = Arc::clone(&open.timers);
    assert_eq!(timers.open(number, 1).await, Ok(Some(0)), "the suite begins with an empty store");
    Shard { timers, number, epoch: 1, applied: 0, now: Timestamp::from_millis(START_MS), naive: Naive::default() }
}

impl Shard {
    /// The write that these steps make from here on.
    pub fn write(&self, steps: Vec<Step>) -> Write {
        let mut after = self.naive.clone();
        let mut changes = Vec::new();
        for step in steps {
            let change = match step {
                Step::Put(hold) => Change::Put { was: self.naive.row(&hold.id), hold: Arc::new(hold) },
                Step::End(id, end) => Change::End { was: self.naive.row(&id), id, end },
            };
            after.change(&change);
            changes.push(change);
        }
        let (floor, applied) = (after.floor(), self.applied + 10);
        Write {
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

    /// The write that empties the shard and has these steps, to that offset.
    pub fn reset(&self, steps: Vec<Step>, applied: u64) -> Write {
        let emptied = Self { timers: Arc::clone(&self.timers), naive: Naive::default(), ..*self };
        Write { reset: true, applied, ..emptied.write(steps) }
    }

    pub async fn offer(&self, write: Write) -> Applied {
        self.timers.apply(self.number, write).await.expect("the store takes writes")
    }

    /// Writes, and the model follows.
    pub async fn done(&mut self, write: Write) {
        assert_eq!(self.offer(write.clone()).await, Applied::Done);
        self.follow(&write);
    }

    /// The model after a write that was done.
    pub fn follow(&mut self, write: &Write) {
        if write.reset {
            self.naive.empty();
        }
        write.changes.iter().for_each(|change| self.naive.change(change));
        self.applied = write.applied;
    }

    pub async fn apply(&mut self, steps: Vec<Step>) {
        self.done(self.write(steps)).await;
    }

    pub async fn put(&mut self, holds: Vec<Hold>) {
        self.apply(holds.into_iter().map(Step::Put).collect()).await;
    }

    pub async fn end(&mut self, id: &str, end: HoldEnd) {
        self.apply(vec![Step::End(HoldId::new(id), end)]).await;
    }

    /// Unwraps a read that must be of where the store was left.
    #[track_caller]
    fn here<T>(&self, read: Result<At<T>, TimersError>) -> T {
        let at = read.expect("the store can be read");
        assert_eq!(at.applied, self.applied, "a read says where the store is");
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
        self.here(self.timers.due(self.number, after, until, limit, max_bytes).await)
    }

    /// Everything that is pending, in one page.
    pub async fn due_all(&self) -> Vec<Arc<Hold>> {
        self.due_page(None, i64::MAX, 1_000_000, MANY_BYTES).await
    }

    pub async fn get(&self, id: &str) -> Option<Known> {
        self.get_many(&[id]).await.pop().expect("one answer per id")
    }

    pub async fn get_many(&self, ids: &[&str]) -> Vec<Option<Known>> {
        let asked = ids.iter().map(|id| HoldId::new(id)).collect();
        let found = self.here(self.timers.get(self.number, asked).await);
        assert_eq!(found.len(), ids.len(), "one answer per id");
        found
    }

    /// Page by page, as far as asked for: a page may be short where its holds are large.
    pub async fn list(&self, mut query: HoldQuery) -> Vec<Arc<Hold>> {
        let mut listed: Vec<Arc<Hold>> = Vec::new();
        loop {
            let page = self.here(self.timers.list(self.number, query.clone()).await);
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
        self.here(self.timers.dead(self.number, query).await)
    }

    pub async fn count(&self, query: CountQuery) -> Vec<(Timestamp, u64)> {
        self.here(self.timers.count(self.number, query).await)
    }

    /// Every read finds what the model has.
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

/// A hold due that many milliseconds after the suite's beginning, of topic 7.
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
        message: HeldMessage {
            key: Some(Bytes::from_static(b"key")),
            value: Bytes::copy_from_slice(value),
            headers: headers.take(),
        },
    }
}

/// That many milliseconds after the suite's beginning.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START_MS + millis)
}

pub fn ended(how: Ending, due: i64, topic: u32) -> HoldEnd {
    let topic = TopicNumber(topic);
    HoldEnd { how, at: at(0), due: at(due), published_at: at(-5), topic, fingerprint: None }
}

pub fn fired(due: i64) -> HoldEnd {
    ended(Ending::Fired { partition: 3 }, due, 7)
}

pub fn dead(due: i64, topic: u32) -> HoldEnd {
    ended(Ending::Dead { reason: "the topic is gone".into() }, due, topic)
}

pub fn ids_of(holds: &[Arc<Hold>]) -> Vec<&str> {
    holds.iter().map(|hold| hold.id.as_str()).collect()
}
