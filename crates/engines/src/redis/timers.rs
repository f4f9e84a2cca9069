//! The `Timers` port on Redis: the holds of a shard, each step one script that says where the store was.
//!
//! The floor of a write is not kept: a sorted set has no deleted entries at its head that a reader would have to pass.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use whimbrel_model::hold::MalformedHold;
use whimbrel_model::ports::{
    Applied, At, CountQuery, DueCursor, HoldQuery, Known, PortFuture, Timers, TimersError, TimersRead, Write,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::connection::{CallError, RedisConnection, Script};
use super::layout::{PLACE_BYTES, ShardKeys, Stretch, TIME_BYTES, bucket_minutes, minute_start};
use super::reply::{OddReply, Parts, bytes_of, number_of};
use super::write::{TooLarge, add_arguments, decimal};
use crate::embedded::TimerSettings;

/// Bytes that one step of a list reads from Redis: what is longer is read in several.
const LIST_STEP_BYTES: usize = 8 << 20;
/// Bytes that a list returns at once, about.
const LIST_BYTES: usize = 1 << 20;
/// How often a list begins again because the store moved between its steps; then it is read in one, however large.
const LIST_TRIES: usize = 3;

/// Writes that are on their way to Redis at the same time; others wait here. Redis does one after the other anyway, and a read
/// should not stand behind the large writes of all shards, nor the last of those be given up because of the others.
const WRITES_AT_ONCE: usize = 4;

/// The store of holds in Redis.
pub struct RedisTimers {
    connection: RedisConnection,
    writes: Semaphore,
    remember: Duration,
    scripts: Scripts,
}

struct Scripts {
    open: Script,
    apply: Script,
    page: Script,
    get: Script,
    count: Script,
}

/// An index and the hash that has what its members stand for.
struct Index {
    by_time: &'static str,
    by_topic: &'static str,
    bodies: &'static str,
}

const PENDING: Index = Index { by_time: "due", by_topic: "topic_due", bodies: "rows" };
const DEAD: Index = Index { by_time: "dead_due", by_topic: "dead_topic_due", bodies: "dead" };

/// Ids with their bodies, in the order of an index, and where the store was.
type Page = At<Vec<(Bytes, Bytes)>>;

impl RedisTimers {
    /// Ends are remembered for the time of the settings, and up to a sixth of it longer.
    pub fn new(connection: RedisConnection, settings: TimerSettings) -> Self {
        let scripts = Scripts {
            open: Script::new(include_str!("lua/open.lua")),
            apply: Script::new(include_str!("lua/apply.lua")),
            page: Script::new(include_str!("lua/page.lua")),
            get: Script::new(include_str!("lua/get.lua")),
            count: Script::new(include_str!("lua/count.lua")),
        };
        Self { connection, writes: Semaphore::new(WRITES_AT_ONCE), remember: settings.remember, scripts }
    }

    fn keys(&self, shard: u32) -> ShardKeys {
        ShardKeys::new(self.connection.prefix(), shard)
    }

    async fn take(&self, shard: u32, epoch: u64) -> Result<Option<u64>, Failure> {
        let mut call = self.scripts.open.on([self.keys(shard).key("meta")].iter());
        call.arg(decimal(epoch));
        let at = bytes_of(self.connection.run(&self.scripts.open, call).await?)?;
        Ok(at.map(|at| number_of(&at)).transpose()?)
    }

    async fn write(&self, shard: u32, write: Write) -> Result<Applied, Failure> {
        let _turn = self.connection.turn_of(&self.writes).await?;
        let mut call = self.scripts.apply.on(self.keys(shard).all().iter());
        add_arguments(&mut call, &write, self.remember)?;
        // What is sent is a copy; the holds need not stay in memory until Redis has answered.
        drop(write);
        let mut answer = Parts::of(self.connection.run(&self.scripts.apply, call).await?)?;
        match &*answer.bytes()? {
            b"done" => Ok(Applied::Done),
            b"behind" => Ok(Applied::Behind { at: answer.number()? }),
            b"older_epoch" => Ok(Applied::OlderEpoch),
            _ => Err(OddReply.into()),
        }
    }

    /// One step: a page of an index, at most so many, and no more bytes (but one, where there is one).
    async fn page(
        &self,
        shard: u32,
        index: &Index,
        by_topic: bool,
        stretch: &Stretch,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Page, Failure> {
        let (name, id_begins) =
            if by_topic { (index.by_topic, PLACE_BYTES + 1) } else { (index.by_time, TIME_BYTES + 1) };
        let mut call = self.scripts.page.on(self.keys(shard).keys(&["meta", name, index.bodies]).iter());
        call.arg(&stretch.from).arg(&stretch.to).arg(limit).arg(max_bytes).arg(id_begins);
        let mut answer = Parts::of(self.connection.run(&self.scripts.page, call).await?)?;
        let applied = answer.number()?;
        let mut found = Vec::new();
        while !answer.is_over() {
            let id = answer.bytes()?;
            let body = answer.optional()?.ok_or_else(|| Failure::NoBody(String::from_utf8_lossy(&id).into_owned()))?;
            found.push((id, body));
        }
        Ok(At { applied, found })
    }

    /// A list of any length, read in steps that Redis is not held up by, all of them at the same state of the store.
    async fn listed<T>(
        &self,
        shard: u32,
        index: &Index,
        query: &HoldQuery,
        read: impl Fn(Bytes, Bytes) -> Result<(DueCursor, T), Failure>,
    ) -> Result<At<Vec<T>>, Failure> {
        let mut tries = 0;
        'anew: loop {
            tries += 1;
            let step_bytes = if tries > LIST_TRIES { usize::MAX >> 12 } else { LIST_STEP_BYTES };
            let mut rest = query.clone();
            let (mut listed, mut began_at, mut bytes) = (Vec::new(), None, 0);
            loop {
                let stretch = Stretch::listed(&rest);
                let page = self.page(shard, index, query.topic.is_some(), &stretch, rest.limit, step_bytes).await?;
                if began_at.is_some_and(|at| at != page.applied) {
                    continue 'anew;
                }
                began_at = Some(page.applied);
                let count = page.found.len();
                for (id, body) in page.found {
                    bytes += body.len();
                    let (place, item) = read(id, body)?;
                    rest.after = Some(place);
                    listed.push(item);
                }
                rest.limit -= count.min(rest.limit);
                // Who asks goes on until there are no more.
                if count == 0 || rest.limit == 0 || bytes >= LIST_BYTES || tries > LIST_TRIES {
                    return Ok(At { applied: page.applied, found: listed });
                }
            }
        }
    }

    async fn known(&self, shard: u32, ids: Vec<HoldId>) -> Result<At<Vec<Option<Known>>>, Failure> {
        let mut call = self.scripts.get.on(self.keys(shard).keys_and_ring(&["meta", "rows", "dead"]).iter());
        for id in &ids {
            call.arg(id.as_str());
        }
        let mut answer = Parts::of(self.connection.run(&self.scripts.get, call).await?)?;
        let applied = answer.number()?;
        let mut found = Vec::with_capacity(ids.len());
        for id in &ids {
            let (kind, body) = (answer.optional()?, answer.optional()?);
            found.push(match (kind.as_deref(), body) {
                (Some(b"p"), Some(row)) => Some(Known::Pending(Arc::new(read_hold(id.as_str(), row)?))),
                (Some(b"d"), Some(placed)) => Some(Known::Ended(read_placed_end(id.as_str(), placed)?)),
                (Some(b"e"), Some(end)) => Some(Known::Ended(read_end(id.as_str(), end)?)),
                (None, None) => None,
                _ => return Err(OddReply.into()),
            });
        }
        Ok(At { applied, found })
    }

    async fn counted(&self, shard: u32, query: &CountQuery) -> Result<At<Vec<(Timestamp, u64)>>, Failure> {
        let mut call = self.scripts.count.on(self.keys(shard).keys(&["meta", "minutes", "counts"]).iter());
        let stretch = Stretch::counted(query);
        call.arg(&stretch.from).arg(&stretch.to).arg(bucket_minutes(query));
        let mut answer = Parts::of(self.connection.run(&self.scripts.count, call).await?)?;
        let applied = answer.number()?;
        let mut found = Vec::new();
        while !answer.is_over() {
            found.push((minute_start(answer.number()?), answer.number()?));
        }
        Ok(At { applied, found })
    }
}

impl Timers for RedisTimers {
    fn open(&self, shard: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, TimersError>> {
        Box::pin(async move { Ok(self.take(shard, epoch).await?) })
    }

    fn apply(&self, shard: u32, write: Write) -> PortFuture<'_, Result<Applied, TimersError>> {
        Box::pin(async move { Ok(self.write(shard, write).await?) })
    }

    fn due(
        &self,
        shard: u32,
        after: Option<DueCursor>,
        until: Timestamp,
        limit: usize,
        max_bytes: usize,
    ) -> TimersRead<'_, Vec<Arc<Hold>>> {
        Box::pin(async move {
            let stretch = Stretch::due(after.as_ref(), until);
            let page = self.page(shard, &PENDING, false, &stretch, limit, max_bytes).await?;
            let holds =
                page.found.into_iter().map(|(id, row)| read_hold(&String::from_utf8_lossy(&id), row).map(Arc::new));
            Ok(At { applied: page.applied, found: holds.collect::<Result<_, Failure>>()? })
        })
    }

    fn get(&self, shard: u32, ids: Vec<HoldId>) -> TimersRead<'_, Vec<Option<Known>>> {
        Box::pin(async move { Ok(self.known(shard, ids).await?) })
    }

    fn list(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<Arc<Hold>>> {
        Box::pin(async move {
            let read = |id: Bytes, row| {
                let hold = read_hold(&String::from_utf8_lossy(&id), row)?;
                Ok((DueCursor { due: hold.due, id: hold.id.clone() }, Arc::new(hold)))
            };
            Ok(self.listed(shard, &PENDING, &query, read).await?)
        })
    }

    fn dead(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<(HoldId, HoldEnd)>> {
        Box::pin(async move {
            let read = |id: Bytes, placed| {
                let id = HoldId::new(std::str::from_utf8(&id).map_err(|_| OddReply)?);
                let end = read_placed_end(id.as_str(), placed)?;
                Ok((DueCursor { due: end.due, id: id.clone() }, (id, end)))
            };
            Ok(self.listed(shard, &DEAD, &query, read).await?)
        })
    }

    fn count(&self, shard: u32, query: CountQuery) -> TimersRead<'_, Vec<(Timestamp, u64)>> {
        Box::pin(async move { Ok(self.counted(shard, &query).await?) })
    }
}

fn read_hold(id: &str, row: Bytes) -> Result<Hold, Failure> {
    Hold::decode(row).map_err(|reason| Failure::BadRow { id: id.to_owned(), reason })
}

fn read_end(id: &str, end: Bytes) -> Result<HoldEnd, Failure> {
    HoldEnd::decode(end).map_err(|reason| Failure::BadRow { id: id.to_owned(), reason })
}

/// An end with its place in front, as the dead have it.
fn read_placed_end(id: &str, mut placed: Bytes) -> Result<HoldEnd, Failure> {
    if placed.len() < PLACE_BYTES {
        return Err(Failure::BadRow { id: id.to_owned(), reason: MalformedHold::Garbled });
    }
    read_end(id, placed.split_off(PLACE_BYTES))
}

/// What can go wrong, before it is said in the port's words.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error(transparent)]
    Odd(#[from] OddReply),
    #[error("the hold `{id}`: {reason}")]
    BadRow { id: String, reason: MalformedHold },
    #[error("the hold `{0}` has a place in due order and no row")]
    NoBody(String),
}

impl From<Failure> for TimersError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Call(_) | Failure::TooLarge(_) => Self::Unavailable(failure.to_string()),
            Failure::Odd(_) | Failure::BadRow { .. } | Failure::NoBody(_) => Self::Damaged(failure.to_string()),
        }
    }
}
