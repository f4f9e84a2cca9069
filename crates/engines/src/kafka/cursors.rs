//! The cursors of the process: which reader goes on where, within a bounded number of consumers.
//!
//! One shared consumer holds up to one cursor for every partition: that is where readers wait for news, as one long fetch of
//! all partitions. Readers at other places of the same partition, and those with much to catch up, get one of a few extra
//! consumers, which hold one cursor each. A cursor that nobody uses can be moved to another place; a reader whose cursor was
//! taken meanwhile gets another one.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::error::KafkaError;
use tokio::sync::Notify;
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, TopicNumber};

use super::context::{Consumer, Quiet};
use super::cursor::{Cursor, CursorLost};
use super::known::KnownTopic;
use super::outcome;
use super::settings::{FetchShape, KafkaSettings};

/// The shared consumer waits for news of many partitions, with little memory for each. A partition that joins is fetched when
/// the fetch under way is over.
const SHARED_FETCH: FetchShape = FetchShape { longest: Duration::from_millis(100), partition_bytes: 256 << 10 };
/// An extra consumer reads what is there, in large pieces, and is moved often.
const EXTRA_FETCH: FetchShape = FetchShape { longest: Duration::from_millis(20), partition_bytes: 2 << 20 };
/// How long a shared cursor without readers goes on fetching.
const SHARED_IDLE_MAX: Duration = Duration::from_secs(60);
/// How long an extra consumer without readers is kept.
const EXTRA_IDLE_MAX: Duration = Duration::from_secs(5);
/// A reader comes back for more within this time; before, its cursor is taken away only when there is no other.
const READER_RETURNS_WITHIN: Duration = Duration::from_secs(1);

/// What a reader wants of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// There are records to read.
    CatchUp,
    /// There is nothing yet.
    Wait,
}

pub(super) struct Cursors {
    shared_client: Arc<Consumer>,
    extra_config: ClientConfig,
    extra_max: usize,
    seats: Mutex<Seats>,
    freed: Notify,
}

#[derive(Default)]
struct Seats {
    shared: HashMap<PartitionId, Arc<Seat>>,
    extra: Vec<Arc<Seat>>,
    /// Extra consumers that are being made and have no seat yet.
    opening: usize,
}

/// A cursor and who uses it. A seat with users is never moved nor thrown away; the first user comes only under the lock
/// of the seats.
struct Seat {
    cursor: Cursor,
    is_shared: bool,
    users: AtomicUsize,
    left_at: Mutex<Instant>,
}

impl Cursors {
    pub fn new(settings: &KafkaSettings) -> Result<Self, KafkaError> {
        let shared_client = Arc::new(Consumer::from_config_and_context(&settings.reader(SHARED_FETCH), Quiet)?);
        Ok(Self {
            shared_client,
            extra_config: settings.reader(EXTRA_FETCH),
            extra_max: settings.extra_readers_max.max(1),
            seats: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A cursor that a reader at `from` can go on with as it is.
    pub fn covering(self: &Arc<Self>, partition: PartitionId, from: u64) -> Option<Stand> {
        let seats = self.seats();
        self.covering_in(&seats, partition, from)
    }

    fn covering_in(self: &Arc<Self>, seats: &Seats, partition: PartitionId, from: u64) -> Option<Stand> {
        let mut candidates = seats.shared.get(&partition).into_iter().chain(&seats.extra);
        candidates.find_map(|seat| self.stand(seat, partition, from))
    }

    /// A stand at a cursor that covers `from`. Only under the lock of the seats, so that the cursor is not moved meanwhile.
    fn stand(self: &Arc<Self>, seat: &Arc<Seat>, partition: PartitionId, from: u64) -> Option<Stand> {
        seat.cursor.hold(partition, from).then(|| Stand { lease: self.take(seat), at: from })
    }

    /// A cursor at `from`, waited for until `until` where all are in use.
    pub async fn at(
        self: &Arc<Self>,
        topic: &Arc<KnownTopic>,
        partition: PartitionId,
        from: u64,
        purpose: Purpose,
        until: Instant,
    ) -> Result<Stand, LogError> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            match self.find(topic, partition, from, purpose) {
                Found::Covering(stand) => return Ok(stand),
                Found::Aimed(stand) => {
                    self.place(stand.lease.clone()).await;
                    return Ok(stand);
                }
                Found::MayOpen(opening) => return self.open(opening, topic.clone(), partition, from).await,
                Found::AllInUse => {}
            }
            if tokio::time::timeout_at(until.into(), freed).await.is_err() {
                return Err(LogError::Overloaded(
                    "too many readers stand at different places of one partition".to_owned(),
                ));
            }
        }
    }

    /// The shared cursor, moved to `from`, where nobody else needs it: for a reader that has caught up elsewhere.
    pub async fn shared_at(
        self: &Arc<Self>,
        topic: &Arc<KnownTopic>,
        partition: PartitionId,
        from: u64,
    ) -> Option<Stand> {
        let stand = {
            let mut seats = self.seats();
            match seats.shared.get(&partition) {
                Some(seat) => match self.stand(seat, partition, from) {
                    Some(stand) => return Some(stand),
                    None if seat.is_idle() => self.aim(seat, topic, partition, from),
                    None => return None,
                },
                None => self.new_shared(&mut seats, topic, partition, from),
            }
        };
        self.place(stand.lease.clone()).await;
        Some(stand)
    }

    fn find(self: &Arc<Self>, topic: &Arc<KnownTopic>, partition: PartitionId, from: u64, purpose: Purpose) -> Found {
        let mut seats = self.seats();
        if let Some(stand) = self.covering_in(&seats, partition, from) {
            return Found::Covering(stand);
        }
        let now = Instant::now();
        let shared = seats.shared.get(&partition).map(|seat| seat.idle_for(now));
        let extra: Vec<Option<Duration>> = seats.extra.iter().map(|seat| seat.idle_for(now)).collect();
        let may_open = seats.extra.len() + seats.opening < self.extra_max;
        match choose(purpose, shared, &extra, may_open) {
            Choice::NewShared => Found::Aimed(self.new_shared(&mut seats, topic, partition, from)),
            Choice::MoveShared => match seats.shared.get(&partition) {
                Some(seat) => Found::Aimed(self.aim(seat, topic, partition, from)),
                None => Found::AllInUse,
            },
            Choice::MoveExtra(index) => Found::Aimed(self.aim(&seats.extra[index], topic, partition, from)),
            Choice::OpenExtra => {
                seats.opening += 1;
                Found::MayOpen(Opening(self.clone()))
            }
            Choice::Wait => Found::AllInUse,
        }
    }

    fn new_shared(
        self: &Arc<Self>,
        seats: &mut Seats,
        topic: &Arc<KnownTopic>,
        partition: PartitionId,
        from: u64,
    ) -> Stand {
        let cursor = Cursor::new(self.shared_client.clone(), topic.clone(), partition, from);
        let seat = Arc::new(Seat::new(cursor, true));
        seats.shared.insert(partition, seat.clone());
        Stand { lease: self.take(&seat), at: from }
    }

    fn aim(self: &Arc<Self>, seat: &Arc<Seat>, topic: &Arc<KnownTopic>, partition: PartitionId, from: u64) -> Stand {
        let lease = self.take(seat);
        seat.cursor.aim(topic.clone(), partition, from);
        Stand { lease, at: from }
    }

    /// The blocking part has a lease of its own: it goes on when the reader's future is dropped.
    async fn place(&self, lease: Lease) {
        let placed = tokio::task::spawn_blocking(move || lease.place()).await;
        debug_assert!(placed.is_ok(), "placing a cursor does not panic");
    }

    async fn open(
        self: &Arc<Self>,
        opening: Opening,
        topic: Arc<KnownTopic>,
        partition: PartitionId,
        from: u64,
    ) -> Result<Stand, LogError> {
        let opened = tokio::task::spawn_blocking(move || {
            let cursors = opening.0.clone();
            let client = Arc::new(Consumer::from_config_and_context(&cursors.extra_config, Quiet)?);
            let seat = Arc::new(Seat::new(Cursor::new(client, topic, partition, from), false));
            let stand = {
                let mut seats = cursors.seats();
                seats.extra.push(seat.clone());
                Stand { lease: cursors.take(&seat), at: from }
            };
            drop(opening);
            stand.lease.place();
            Ok(stand)
        });
        match opened.await {
            Ok(Ok(stand)) => Ok(stand),
            Ok(Err(error)) => Err(outcome::unavailable(&error)),
            Err(_) => Err(LogError::Unavailable("the log is shutting down".to_owned())),
        }
    }

    /// The log has dropped what lies before `first`.
    pub fn forget_before(&self, partition: PartitionId, first: u64) {
        let seats = self.seats();
        let all = seats.shared.get(&partition).into_iter().chain(&seats.extra);
        all.for_each(|seat| seat.cursor.forget_before(partition, first));
    }

    /// The topic is gone: whoever reads it is told, and its name may come back as another topic. Blocks.
    pub fn retire_topic(self: &Arc<Self>, topic: TopicNumber) {
        let leases: Vec<Lease> = {
            let seats = self.seats();
            let shared = seats.shared.iter().filter(|(partition, _)| partition.topic == topic).map(|(_, seat)| seat);
            shared.chain(&seats.extra).filter(|seat| seat.cursor.topic() == topic).map(|seat| self.take(seat)).collect()
        };
        leases.iter().for_each(|lease| lease.retire());
        self.seats().shared.retain(|partition, _| partition.topic != topic);
    }

    /// Lets go of cursors and consumers that nobody has used for a while. Blocks.
    pub fn retire_idle(self: &Arc<Self>, now: Instant) {
        let idle_longer = |seat: &Seat, than| seat.idle_for(now).is_some_and(|idle| idle > than);
        let (unused, closing) = {
            let mut seats = self.seats();
            let shared = seats.shared.iter().filter(|(_, seat)| idle_longer(seat, SHARED_IDLE_MAX));
            let unused: Vec<(PartitionId, Lease)> = shared.map(|(id, seat)| (*id, self.take(seat))).collect();
            let (closing, kept) = seats.extra.drain(..).partition(|seat| idle_longer(seat, EXTRA_IDLE_MAX));
            seats.extra = kept;
            let closing: Vec<Arc<Seat>> = closing;
            (unused, closing)
        };
        drop(closing);
        for (partition, lease) in unused {
            lease.retire();
            let mut seats = self.seats();
            if seats.shared.get(&partition).is_some_and(|seat| Arc::ptr_eq(seat, &lease.seat)) {
                seats.shared.remove(&partition);
            }
        }
    }

    /// The consumers, for whoever drains their log lines.
    pub fn clients(&self) -> Vec<Arc<Consumer>> {
        let extra = self.seats().extra.iter().map(|seat| seat.cursor.client().clone()).collect::<Vec<_>>();
        std::iter::once(self.shared_client.clone()).chain(extra).collect()
    }

    fn take(self: &Arc<Self>, seat: &Arc<Seat>) -> Lease {
        seat.users.fetch_add(1, Ordering::AcqRel);
        Lease { cursors: self.clone(), seat: seat.clone() }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Found {
    Covering(Stand),
    Aimed(Stand),
    MayOpen(Opening),
    AllInUse,
}

/// The right to make one more consumer; given back when dropped.
struct Opening(Arc<Cursors>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.seats().opening -= 1;
        self.0.freed.notify_waiters();
    }
}

impl Seat {
    fn new(cursor: Cursor, is_shared: bool) -> Self {
        Self { cursor, is_shared, users: AtomicUsize::new(0), left_at: Mutex::new(Instant::now()) }
    }

    fn is_idle(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
    }

    /// For how long nobody has used it; `None` while somebody does.
    fn idle_for(&self, now: Instant) -> Option<Duration> {
        let left_at = *self.left_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_idle().then(|| now.saturating_duration_since(left_at))
    }
}

/// A reader's stand at a cursor. What it has still to read there is kept for it, within a bound, until it is dropped.
pub(super) struct Stand {
    lease: Lease,
    at: u64,
}

impl Stand {
    pub fn is_shared(&self) -> bool {
        self.lease.seat.is_shared
    }

    pub fn arrived(&self) -> &Arc<Notify> {
        self.lease.arrived()
    }

    /// Where the reader reads on.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Takes what is there. Where that is nothing, the stand goes on past the markers that are known of.
    pub fn take(&mut self, limits: &ReadLimits) -> Result<ReadBatch, CursorLost> {
        let batch = self.lease.take(self.at, limits)?;
        if batch.records.is_empty() && batch.next > self.at {
            self.lease.move_hold(self.at, batch.next);
            self.at = batch.next;
        }
        Ok(batch)
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // The lease is dropped after this, so the cursor has not been moved yet.
        self.lease.release(self.at);
    }
}

/// The use of a cursor. While there is one, the cursor stays where it is.
struct Lease {
    cursors: Arc<Cursors>,
    seat: Arc<Seat>,
}

impl Deref for Lease {
    type Target = Cursor;

    fn deref(&self) -> &Cursor {
        &self.seat.cursor
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        self.cursors.take(&self.seat)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.seat.left_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if self.seat.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.cursors.freed.notify_waiters();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    NewShared,
    MoveShared,
    MoveExtra(usize),
    OpenExtra,
    Wait,
}

/// Which cursor a reader gets that none covers. `shared` is the partition's shared one, where there is one, with the time it has
/// been idle; `None` inside is in use.
fn choose(purpose: Purpose, shared: Option<Option<Duration>>, extra: &[Option<Duration>], may_open: bool) -> Choice {
    let longest_idle = extra.iter().enumerate().filter_map(|(at, idle)| idle.map(|idle| (idle, at))).max();
    let take_extra = match longest_idle {
        Some((idle, at)) if idle > READER_RETURNS_WITHIN || !may_open => Some(Choice::MoveExtra(at)),
        _ => may_open.then_some(Choice::OpenExtra),
    };
    let take_shared = match shared {
        None => Some(Choice::NewShared),
        Some(idle) => idle.map(|_| Choice::MoveShared),
    };
    let (first, second) = match purpose {
        Purpose::CatchUp => (take_extra, take_shared),
        Purpose::Wait => (take_shared, take_extra),
    };
    first.or(second).unwrap_or(Choice::Wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn who_waits_gets_the_shared_cursor_and_who_catches_up_an_extra_one() {
        assert_eq!(choose(Purpose::Wait, None, &[], true), Choice::NewShared);
        assert_eq!(choose(Purpose::Wait, Some(Some(SHORT)), &[], true), Choice::MoveShared);
        assert_eq!(choose(Purpose::CatchUp, None, &[], true), Choice::OpenExtra);
        assert_eq!(choose(Purpose::CatchUp, None, &[Some(LONG)], true), Choice::MoveExtra(0));
    }

    #[test]
    fn a_cursor_whose_reader_just_left_is_spared_while_another_can_be_opened() {
        assert_eq!(choose(Purpose::CatchUp, None, &[Some(SHORT)], true), Choice::OpenExtra);
        assert_eq!(choose(Purpose::CatchUp, None, &[Some(SHORT), None], false), Choice::MoveExtra(0));
        assert_eq!(choose(Purpose::CatchUp, None, &[Some(SHORT), Some(SHORT * 2)], false), Choice::MoveExtra(1));
    }

    #[test]
    fn whoever_finds_the_first_choice_in_use_takes_the_second() {
        assert_eq!(choose(Purpose::Wait, Some(None), &[None], true), Choice::OpenExtra);
        assert_eq!(choose(Purpose::CatchUp, None, &[None], false), Choice::NewShared);
        assert_eq!(choose(Purpose::CatchUp, Some(Some(LONG)), &[None], false), Choice::MoveShared);
    }

    #[test]
    fn where_all_are_in_use_one_waits() {
        assert_eq!(choose(Purpose::CatchUp, Some(None), &[None, None], false), Choice::Wait);
        assert_eq!(choose(Purpose::Wait, Some(None), &[None], false), Choice::Wait);
    }
}
