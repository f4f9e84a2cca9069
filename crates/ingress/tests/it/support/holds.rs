//! The `Holds` port over the in-memory log. For every request the owner folds its shard from the beginning, decides, and writes its
//! decision: slow, but simple enough to trust. It fires on command of a test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use whimbrel_model::hold::MOVES_REMEMBERED;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{
    CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest, HoldView, Holds, HoldsError, NewDueTime, PortFuture,
    bucket_start,
};
use whimbrel_model::{
    Clock, HOLDS_TOPIC, Hold, HoldEnd, HoldEndKind, HoldId, HoldRecord, PartitionId, Timestamp, TopicNumber,
};

use super::log::MemoryLog;
use super::{ManualClock, SHARDS};

/// The maximum time until a hold's due time: two years.
const FAR_MS: i64 = 2 * 366 * 86_400_000;

pub struct MemoryHolds {
    log: Arc<MemoryLog>,
    clock: Arc<ManualClock>,
    refuses: Mutex<Option<HoldsError>>,
    /// Requests are executed, and their replies are lost.
    loses_answers: Mutex<bool>,
    asked: Mutex<Vec<HoldRequest>>,
}

#[derive(Debug, Clone)]
enum Known {
    Pending(Hold),
    Ended(HoldEnd),
}

impl MemoryHolds {
    pub fn new(log: Arc<MemoryLog>, clock: Arc<ManualClock>) -> Self {
        Self { log, clock, refuses: Mutex::default(), loses_answers: Mutex::default(), asked: Mutex::default() }
    }

    pub fn refuse(&self, error: Option<HoldsError>) {
        *self.refuses.lock().unwrap() = error;
    }

    pub fn lose_answers(&self, loses: bool) {
        *self.loses_answers.lock().unwrap() = loses;
    }

    pub fn asked(&self) -> Vec<HoldRequest> {
        self.asked.lock().unwrap().clone()
    }

    pub fn fire_due(&self) {
        let now = self.clock.now();
        for shard in 0..SHARDS {
            let due = pending(&self.fold(shard)).into_iter().filter(|hold| hold.due <= now).collect::<Vec<_>>();
            due.iter().for_each(|hold| {
                self.fire(shard, hold);
            });
        }
    }

    pub fn kill(&self, id: &str, reason: &str) {
        let id = HoldId::new(id);
        let shard = id.shard(SHARDS);
        let Some(Known::Pending(hold)) = self.fold(shard).remove(&id) else { panic!("{id} is not pending") };
        let end = hold.ended(HoldEndKind::Dead { reason: reason.into() }, self.clock.now());
        self.write(shard, HoldRecord::Ended { id, end });
    }

    fn partition(&self, shard: u32) -> PartitionId {
        PartitionId::new(self.log.number_of(HOLDS_TOPIC).unwrap(), shard)
    }

    fn write(&self, shard: u32, record: HoldRecord) -> u64 {
        self.log.put(self.partition(shard), record.to_record(self.clock.now()));
        self.log.records(self.partition(shard)).len() as u64 - 1
    }

    fn fold(&self, shard: u32) -> BTreeMap<HoldId, Known> {
        let mut known = BTreeMap::new();
        for (offset, record) in self.log.records(self.partition(shard)).iter().enumerate() {
            match HoldRecord::of(record, offset as u64).unwrap() {
                HoldRecord::Held(hold) => {
                    known.entry(hold.id.clone()).or_insert(Known::Pending(hold));
                }
                HoldRecord::Carried(hold) => {
                    known.insert(hold.id.clone(), Known::Pending(hold));
                }
                HoldRecord::Moved { id, due, key } => {
                    if let Some(Known::Pending(hold)) = known.get_mut(&id) {
                        *hold = hold.moved(due, key.as_deref(), offset as u64);
                        assert!(hold.moves.len() <= MOVES_REMEMBERED);
                    }
                }
                HoldRecord::Ended { id, end } | HoldRecord::CarriedEnd { id, end } => {
                    known.insert(id, Known::Ended(end));
                }
            }
        }
        known
    }

    fn fire(&self, shard: u32, hold: &Hold) -> HoldReply {
        let at = self.clock.now();
        let partitions = self.log.partitions_of(hold.topic) as u32;
        let partition = hold.message.key.as_ref().map_or(0, |key| partition_of(key, partitions));
        let place = PartitionId::new(hold.topic, partition);
        self.log.put(place, hold.fire(at));
        let offset = Some(self.log.records(place).len() as u64 - 1);
        let end = hold.ended(HoldEndKind::Fired { partition }, at);
        self.write(shard, HoldRecord::Ended { id: hold.id.clone(), end });
        HoldReply::Fired { at, partition, offset }
    }

    fn decide(&self, shard: u32, ask: HoldRequest) -> HoldReply {
        let known = self.fold(shard);
        let find = |id: &HoldId| known.get(id).cloned();
        match ask {
            HoldRequest::Accept(hold) => match find(&hold.id) {
                None => {
                    let due = hold.due;
                    self.write(shard, HoldRecord::Held(Hold::clone(&hold)));
                    HoldReply::Held { due }
                }
                Some(Known::Pending(known)) if is_same(&hold, known.topic, known.fingerprint()) => {
                    HoldReply::Held { due: known.due }
                }
                Some(Known::Ended(end)) if is_same(&hold, end.topic, end.fingerprint) => {
                    HoldReply::Held { due: end.due }
                }
                Some(_) => HoldReply::Taken,
            },
            HoldRequest::Extend { id, to, if_version, key } => {
                of_pending(find(&id), |hold| self.extend(shard, hold, to, if_version, key))
            }
            HoldRequest::Withdraw { id } => of_pending(find(&id), |hold| {
                self.withdraw(shard, &hold);
                HoldReply::Withdrawn
            }),
            HoldRequest::Fire { id } => of_pending(find(&id), |hold| self.fire(shard, &hold)),
            HoldRequest::Look { id } => of_pending(find(&id), |hold| HoldReply::Pending(HoldView::of(&hold))),
            HoldRequest::List(query) => {
                let mut holds = pending(&known);
                holds.retain(|hold| wanted(&query, hold.topic, hold.due, &hold.id));
                holds.sort_by_key(|hold| (hold.due, hold.id.clone()));
                HoldReply::Listed(holds.iter().take(query.limit).map(HoldView::of).collect())
            }
            HoldRequest::Dead(query) => {
                let dead = known.into_iter().filter_map(|(id, known)| match known {
                    Known::Ended(end) if matches!(end.how, HoldEndKind::Dead { .. }) => Some((id, end)),
                    _ => None,
                });
                let mut dead: Vec<_> = dead.filter(|(id, end)| wanted(&query, end.topic, end.due, id)).collect();
                dead.sort_by_key(|(id, end)| (end.due, id.clone()));
                dead.truncate(query.limit);
                HoldReply::ListedDead(dead)
            }
            HoldRequest::Count(query) => HoldReply::Counted(count(&pending(&known), &query)),
            HoldRequest::WithdrawTopic { topic } => {
                let of_topic: Vec<Hold> = pending(&known).into_iter().filter(|hold| hold.topic == topic).collect();
                of_topic.iter().for_each(|hold| self.withdraw(shard, hold));
                HoldReply::WithdrawnMany(of_topic.len() as u64)
            }
        }
    }

    fn withdraw(&self, shard: u32, hold: &Hold) {
        let end = hold.ended(HoldEndKind::Withdrawn, self.clock.now());
        self.write(shard, HoldRecord::Ended { id: hold.id.clone(), end });
    }

    fn extend(
        &self,
        shard: u32,
        hold: Hold,
        to: NewDueTime,
        if_version: Option<u64>,
        key: Option<Box<str>>,
    ) -> HoldReply {
        if let Some(earlier) = hold.moves.iter().find(|earlier| Some(&earlier.key) == key.as_ref()) {
            return HoldReply::Rescheduled { due: earlier.due, version: earlier.version };
        }
        if if_version.is_some_and(|version| version != hold.version) {
            return HoldReply::OtherVersion { version: hold.version, due: hold.due };
        }
        let due = match to {
            NewDueTime::By(ms) => Timestamp::from_millis(hold.due.as_millis().saturating_add(ms)),
            NewDueTime::Until(due) => due,
        };
        if due.as_millis().saturating_sub(self.clock.now().as_millis()) > FAR_MS {
            return HoldReply::TooFar;
        }
        let version = self.write(shard, HoldRecord::Moved { id: hold.id, due, key });
        HoldReply::Rescheduled { due, version }
    }
}

/// The reply to a request about one hold, if only a pending one changes.
fn of_pending(found: Option<Known>, reply: impl FnOnce(Hold) -> HoldReply) -> HoldReply {
    match found {
        None => HoldReply::Unknown,
        Some(Known::Ended(end)) => HoldReply::Ended(end),
        Some(Known::Pending(hold)) => reply(hold),
    }
}

fn is_same(hold: &Hold, topic: TopicNumber, fingerprint: Option<u64>) -> bool {
    hold.topic == topic && hold.fingerprint() == fingerprint
}

fn pending(known: &BTreeMap<HoldId, Known>) -> Vec<Hold> {
    let holds = known.values().filter_map(|known| match known {
        Known::Pending(hold) => Some(hold.clone()),
        Known::Ended(_) => None,
    });
    holds.collect()
}

fn wanted(query: &HoldQuery, topic: TopicNumber, due: Timestamp, id: &HoldId) -> bool {
    query.topic.is_none_or(|wanted| wanted == topic)
        && query.from.is_none_or(|from| due >= from)
        && query.to.is_none_or(|to| due < to)
        && query.after.as_ref().is_none_or(|after| *after < DueCursor { due, id: id.clone() })
}

fn count(holds: &[Hold], query: &CountQuery) -> Vec<(Timestamp, u64)> {
    assert_eq!(query.bucket.as_millis() % 60_000, 0, "buckets are whole minutes");
    let mut counts = BTreeMap::new();
    for hold in holds {
        let range = HoldQuery { topic: query.topic, from: query.from, to: query.to, after: None, limit: usize::MAX };
        if wanted(&range, hold.topic, hold.due, &hold.id) {
            *counts.entry(bucket_start(hold.due, query.bucket)).or_default() += 1;
        }
    }
    counts.into_iter().collect()
}

impl Holds for MemoryHolds {
    fn shards(&self) -> u32 {
        SHARDS
    }

    fn ask(&self, shard: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, HoldsError>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(ask.clone());
            if let Some(error) = self.refuses.lock().unwrap().clone() {
                return Err(error);
            }
            let told = self.decide(shard, ask);
            if *self.loses_answers.lock().unwrap() {
                return Err(HoldsError::OutcomeUnknown("the owner went away".to_owned()));
            }
            Ok(told)
        })
    }
}
