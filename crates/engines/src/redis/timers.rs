//! The `Timers` port on Redis: the holds of a shard. Each step is one script, which also returns the applied offset of the store.
//!
//! The floor of a write is not stored: a sorted set keeps no deleted entries at its head that a reader would have to skip.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use whimbrel_model::hold::MalformedHold;
use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, CountQuery, DueCursor, HoldQuery, PortFuture, StoredHold, Timers, TimersError, TimersRead,
    TimersWrite,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::layout::{LexRange, PLACE_BYTES, ShardKeys, TIME_BYTES, bucket_minutes, minute_start};
use super::reply::{ReplyParts, bytes_of, number_of};
use super::write::{add_arguments, decimal};
use crate::stores::TimerSettings;

/// The maximum number of bytes that one step of a list reads from Redis. Longer lists are read in several steps.
const LIST_STEP_BYTES: usize = 8 << 20;
/// The approximate maximum number of bytes in one list.
const LIST_BYTES: usize = 1 << 20;
/// The number of times that a list starts again because the store changed between its steps. After that, one step reads the whole list.
const LIST_TRIES: usize = 3;

/// The maximum number of writes in flight to Redis. Further writes wait in this process. Redis executes one write at a time anyway. So a
/// read does not wait behind the large writes of all shards, and the last of those writes do not time out.
const WRITES_AT_ONCE: usize = 4;

/// The store of holds in Redis.
pub struct RedisTimers {
    connection: RedisConnection,
    writes: Semaphore,
    remember: Duration,
    open: Script,
    apply: Script,
    page: Script,
    get: Script,
    count: Script,
}

/// An index, and the hash that contains the bodies of its members.
struct HoldIndex {
    by_time: &'static str,
    by_topic: &'static str,
    bodies: &'static str,
}

const PENDING: HoldIndex = HoldIndex { by_time: "due", by_topic: "topic_due", bodies: "rows" };
const DEAD: HoldIndex = HoldIndex { by_time: "dead_due", by_topic: "dead_topic_due", bodies: "dead" };

/// Ids with their bodies, in the order of an index, and the applied offset of the store.
type IndexPage = AtOffset<Vec<(Bytes, Bytes)>>;

impl RedisTimers {
    /// Ends are remembered for the time in the settings, and up to a sixth of it longer.
    pub fn new(connection: RedisConnection, settings: TimerSettings) -> Self {
        Self {
            connection,
            writes: Semaphore::new(WRITES_AT_ONCE),
            remember: settings.remember,
            open: Script::new(include_str!("lua/open.lua")),
            apply: Script::new(include_str!("lua/apply.lua")),
            page: Script::new(include_str!("lua/page.lua")),
            get: Script::new(include_str!("lua/get.lua")),
            count: Script::new(include_str!("lua/count.lua")),
        }
    }

    fn keys(&self, shard: u32) -> ShardKeys {
        ShardKeys::new(self.connection.prefix(), shard)
    }

    /// Reads one page of an index: at most `limit` members and `max_bytes` bytes, but at least one member if there is one.
    async fn page(
        &self,
        shard: u32,
        index: &HoldIndex,
        by_topic: bool,
        stretch: &LexRange,
        limit: usize,
        max_bytes: usize,
    ) -> Result<IndexPage, TimersError> {
        let (name, id_begins) =
            if by_topic { (index.by_topic, PLACE_BYTES + 1) } else { (index.by_time, TIME_BYTES + 1) };
        let mut call = self.page.on(self.keys(shard).keys(&["meta", name, index.bodies]).iter());
        call.arg(&stretch.from).arg(&stretch.to).arg(limit).arg(max_bytes).arg(id_begins);
        let mut answer = ReplyParts::of(self.connection.run(&self.page, call).await?)?;
        let applied = answer.number()?;
        let mut found = Vec::new();
        while !answer.is_over() {
            let id = answer.bytes()?;
            let no_body = || {
                let id = String::from_utf8_lossy(&id);
                TimersError::Damaged(format!("the hold `{id}` is in the index by due time and has no row"))
            };
            let body = answer.optional()?.ok_or_else(no_body)?;
            found.push((id, body));
        }
        Ok(AtOffset { applied, found })
    }

    /// Reads a list of any length in steps that do not block Redis for long. All steps see the same state of the store.
    async fn listed<T>(
        &self,
        shard: u32,
        index: &HoldIndex,
        query: &HoldQuery,
        read: impl Fn(Bytes, Bytes) -> Result<(DueCursor, T), TimersError>,
    ) -> Result<AtOffset<Vec<T>>, TimersError> {
        let mut tries = 0;
        'restart: loop {
            tries += 1;
            let step_bytes = if tries > LIST_TRIES { usize::MAX >> 12 } else { LIST_STEP_BYTES };
            let mut rest = query.clone();
            let (mut listed, mut began_at, mut bytes) = (Vec::new(), None, 0);
            loop {
                let stretch = LexRange::listed(&rest);
                let page = self.page(shard, index, query.topic.is_some(), &stretch, rest.limit, step_bytes).await?;
                if began_at.is_some_and(|at| at != page.applied) {
                    continue 'restart;
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
                // The caller continues until a list is empty.
                if count == 0 || rest.limit == 0 || bytes >= LIST_BYTES || tries > LIST_TRIES {
                    return Ok(AtOffset { applied: page.applied, found: listed });
                }
            }
        }
    }
}

impl Timers for RedisTimers {
    fn open(&self, shard: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, TimersError>> {
        Box::pin(async move {
            let mut call = self.open.on([self.keys(shard).key("meta")].iter());
            call.arg(decimal(epoch));
            let at = bytes_of(self.connection.run(&self.open, call).await?)?;
            Ok(at.map(|at| number_of(&at)).transpose()?)
        })
    }

    fn apply(&self, shard: u32, write: TimersWrite) -> PortFuture<'_, Result<ApplyOutcome, TimersError>> {
        Box::pin(async move {
            let _turn = self.connection.acquire_turn(&self.writes).await?;
            let mut call = self.apply.on(self.keys(shard).all().iter());
            add_arguments(&mut call, &write, self.remember)?;
            // The call has a copy of the holds: free them before waiting for the answer.
            drop(write);
            let mut answer = ReplyParts::of(self.connection.run(&self.apply, call).await?)?;
            match &*answer.bytes()? {
                b"done" => Ok(ApplyOutcome::Done),
                b"behind" => Ok(ApplyOutcome::Behind { at: answer.number()? }),
                b"older_epoch" => Ok(ApplyOutcome::OlderEpoch),
                _ => Err(RedisCallError::UnexpectedReply.into()),
            }
        })
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
            let stretch = LexRange::due(after.as_ref(), until);
            let page = self.page(shard, &PENDING, false, &stretch, limit, max_bytes).await?;
            let holds =
                page.found.into_iter().map(|(id, row)| read_hold(&String::from_utf8_lossy(&id), row).map(Arc::new));
            Ok(AtOffset { applied: page.applied, found: holds.collect::<Result<_, TimersError>>()? })
        })
    }

    fn get(&self, shard: u32, ids: Vec<HoldId>) -> TimersRead<'_, Vec<Option<StoredHold>>> {
        Box::pin(async move {
            let mut call = self.get.on(self.keys(shard).keys_and_ring(&["meta", "rows", "dead"]).iter());
            for id in &ids {
                call.arg(id.as_str());
            }
            let mut answer = ReplyParts::of(self.connection.run(&self.get, call).await?)?;
            let applied = answer.number()?;
            let mut found = Vec::with_capacity(ids.len());
            for id in &ids {
                let (kind, body) = (answer.optional()?, answer.optional()?);
                found.push(match (kind.as_deref(), body) {
                    (Some(b"p"), Some(row)) => Some(StoredHold::Pending(Arc::new(read_hold(id.as_str(), row)?))),
                    (Some(b"d"), Some(placed)) => Some(StoredHold::Ended(read_placed_end(id.as_str(), placed)?)),
                    (Some(b"e"), Some(end)) => Some(StoredHold::Ended(read_end(id.as_str(), end)?)),
                    (None, None) => None,
                    _ => return Err(RedisCallError::UnexpectedReply.into()),
                });
            }
            Ok(AtOffset { applied, found })
        })
    }

    fn list(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<Arc<Hold>>> {
        Box::pin(async move {
            let read = |id: Bytes, row| {
                let hold = read_hold(&String::from_utf8_lossy(&id), row)?;
                Ok((DueCursor { due: hold.due, id: hold.id.clone() }, Arc::new(hold)))
            };
            self.listed(shard, &PENDING, &query, read).await
        })
    }

    fn dead(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<(HoldId, HoldEnd)>> {
        Box::pin(async move {
            let read = |id: Bytes, placed| {
                let id = HoldId::new(std::str::from_utf8(&id).map_err(|_| RedisCallError::UnexpectedReply)?);
                let end = read_placed_end(id.as_str(), placed)?;
                Ok((DueCursor { due: end.due, id: id.clone() }, (id, end)))
            };
            self.listed(shard, &DEAD, &query, read).await
        })
    }

    fn count(&self, shard: u32, query: CountQuery) -> TimersRead<'_, Vec<(Timestamp, u64)>> {
        Box::pin(async move {
            let mut call = self.count.on(self.keys(shard).keys(&["meta", "minutes", "counts"]).iter());
            let stretch = LexRange::counted(&query);
            call.arg(&stretch.from).arg(&stretch.to).arg(bucket_minutes(&query));
            let mut answer = ReplyParts::of(self.connection.run(&self.count, call).await?)?;
            let applied = answer.number()?;
            let mut found = Vec::new();
            while !answer.is_over() {
                found.push((minute_start(answer.number()?), answer.number()?));
            }
            Ok(AtOffset { applied, found })
        })
    }
}

fn read_hold(id: &str, row: Bytes) -> Result<Hold, TimersError> {
    Hold::decode(row).map_err(|reason| bad_row(id, reason))
}

fn read_end(id: &str, end: Bytes) -> Result<HoldEnd, TimersError> {
    HoldEnd::decode(end).map_err(|reason| bad_row(id, reason))
}

/// An end after its place, as `dead` stores it.
fn read_placed_end(id: &str, mut placed: Bytes) -> Result<HoldEnd, TimersError> {
    if placed.len() < PLACE_BYTES {
        return Err(bad_row(id, MalformedHold::Garbled));
    }
    read_end(id, placed.split_off(PLACE_BYTES))
}

fn bad_row(id: &str, reason: MalformedHold) -> TimersError {
    TimersError::Damaged(format!("the hold `{id}`: {reason}"))
}

impl From<RedisCallError> for TimersError {
    fn from(error: RedisCallError) -> Self {
        match error {
            RedisCallError::UnexpectedReply => Self::Damaged(error.to_string()),
            RedisCallError::Failed(_) | RedisCallError::TooLarge { .. } => Self::Unavailable(error.to_string()),
        }
    }
}
