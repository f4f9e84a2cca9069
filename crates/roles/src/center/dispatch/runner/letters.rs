//! Dead letters: listing them, and delivering them once more.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use roaring::RoaringTreemap;
use tokio::sync::oneshot;
use whimbrel_model::ports::{DeadLetter, DispatchError, DispatchTold, Entry, Log, LogError, ProgressError, ReadLimits};
use whimbrel_model::subscription::{Origin, dead_topic, retry_topic};
use whimbrel_model::{PartitionId, Record};

use super::saving::redriven_row;
use super::{Runner, Tools};
use crate::center::dispatch::letters::Parcel;
use crate::subscriptions::Subscription;

/// Records and bytes of one step through the dead letters.
const STEP_RECORDS: usize = 1000;
const STEP_BYTES: usize = 4 << 20;
/// Dead letters of one answer.
const LISTED_MAX: usize = 1000;

type Reply = oneshot::Sender<Result<DispatchTold, DispatchError>>;

impl Runner {
    pub(super) fn tell_dead_letters(&mut self, from: u64, limit: usize, reply: Reply) {
        let Some(topic) = self.tools.registry.get(&dead_topic(&self.subscription.name)) else {
            let _ = reply.send(Ok(DispatchTold::DeadLetters { letters: Vec::new(), next: None }));
            return;
        };
        let (log, redriven) = (Arc::clone(&self.tools.log), self.redriven.clone());
        self.chores.push(Box::pin(async move {
            let listed = list(&*log, topic.partition(0), from, limit.clamp(1, LISTED_MAX), &redriven).await;
            let _ = reply.send(listed);
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(|_| {});
            after
        }));
    }

    pub(super) fn redrive(&mut self, ids: Option<Vec<String>>, reply: Reply) {
        if std::mem::replace(&mut self.redriving, true) {
            let why = "a redrive of this subscription is under way".to_owned();
            let _ = reply.send(Err(DispatchError::Unavailable(why)));
            return;
        }
        let (tools, subscription) = (Arc::clone(&self.tools), Arc::clone(&self.subscription));
        let (redriven, epoch) = (self.redriven.clone(), self.epoch);
        self.chores.push(Box::pin(async move {
            let mut done = RoaringTreemap::new();
            let outcome = redrive(&tools, &subscription, ids, &redriven, &mut done).await;
            // Noted before it is answered: a letter that is redriven twice is delivered twice.
            let noted = note_redriven(&tools, &subscription, epoch, redriven | &done).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| {
                runner.redriving = false;
                runner.redriven |= done;
                if let Err(error) = noted {
                    tracing::warn!(%error, subscription = %runner.subscription.name, "what was redriven is not noted yet");
                    runner.redriven_changed = true;
                }
                let _ = reply.send(outcome);
            });
            after
        }));
    }
}

async fn note_redriven(
    tools: &Tools,
    subscription: &Subscription,
    epoch: u64,
    redriven: RoaringTreemap,
) -> Result<(), ProgressError> {
    match redriven_row(tools, subscription, redriven) {
        Some(row) => tools.progress.save(subscription.number(), epoch, vec![row]).await,
        None => Ok(()),
    }
}

/// A walk through the dead letters, in order.
struct Letters<'a> {
    log: &'a dyn Log,
    partition: PartitionId,
    at: u64,
}

impl Letters<'_> {
    /// The next records; `None` at the end.
    async fn step(&mut self) -> Result<Option<Vec<(u64, Record)>>, DispatchError> {
        let limits = ReadLimits { max_records: STEP_RECORDS, max_bytes: STEP_BYTES, wait: Duration::ZERO };
        loop {
            match self.log.read(self.partition, self.at, limits).await {
                Ok(batch) if batch.next <= self.at => return Ok(None),
                Ok(batch) => {
                    self.at = batch.next;
                    return Ok(Some(batch.records.into_iter().map(|stored| (stored.offset, stored.record)).collect()));
                }
                Err(LogError::Trimmed { first, .. }) if first > self.at => self.at = first,
                Err(LogError::Damaged { resume_at, .. }) if resume_at > self.at => self.at = resume_at,
                Err(LogError::BeyondEnd { .. }) => return Ok(None),
                Err(error) => return Err(DispatchError::Unavailable(error.to_string())),
            }
        }
    }
}

async fn list(
    log: &dyn Log,
    partition: PartitionId,
    from: u64,
    limit: usize,
    redriven: &RoaringTreemap,
) -> Result<DispatchTold, DispatchError> {
    let mut walk = Letters { log, partition, at: from };
    let mut letters = Vec::new();
    while let Some(records) = walk.step().await? {
        for (offset, record) in records {
            if redriven.contains(offset) {
                continue;
            }
            let Some((parcel, origin)) = Parcel::of_letter(&record) else { continue };
            if letters.len() == limit {
                return Ok(DispatchTold::DeadLetters { letters, next: Some(offset) });
            }
            let key = record.key.map(|key| key.to_vec());
            letters.push(DeadLetter { id: parcel.id.into(), at: offset, key, origin });
        }
    }
    Ok(DispatchTold::DeadLetters { letters, next: None })
}

/// Appends dead letters to the retry topic, under a run of their own. `done` has the offsets of those that are there, also where it
/// ends with an error.
async fn redrive(
    tools: &Tools,
    subscription: &Subscription,
    ids: Option<Vec<String>>,
    redriven: &RoaringTreemap,
    done: &mut RoaringTreemap,
) -> Result<DispatchTold, DispatchError> {
    let unavailable = |why: String| DispatchError::Unavailable(why);
    let topic_of =
        |name: String| tools.registry.get(&name).ok_or_else(|| unavailable(format!("`{name}` is not there")));
    let dead = topic_of(dead_topic(&subscription.name))?.partition(0);
    let retry = topic_of(retry_topic(&subscription.name))?.partition(0);
    let run = tools.subscriptions.raise_run(subscription.number()).await;
    let run = run.map_err(|error| unavailable(error.to_string()))?;
    let mut wanted: Option<HashSet<String>> = ids.map(|ids| ids.into_iter().collect());
    let mut walk = Letters { log: &*tools.log, partition: dead, at: 0 };
    // What dies while this goes on is not redriven by it.
    let end = tools.log.bounds(dead).await.map_err(|error| unavailable(error.to_string()))?.next;
    while let Some(records) = walk.step().await? {
        let mut offsets = Vec::new();
        let mut entries = Vec::new();
        for (offset, record) in records {
            if offset >= end || redriven.contains(offset) {
                continue;
            }
            let Some((parcel, origin)) = Parcel::of_letter(&record) else { continue };
            if wanted.as_mut().is_some_and(|wanted| !wanted.remove(&*parcel.id)) {
                continue;
            }
            let again = Origin {
                run,
                attempts: 0,
                reason: None,
                last_status: None,
                last_answer: None,
                died_at_ms: None,
                ..origin
            };
            offsets.push(offset);
            entries.push(Entry { partition: retry, record: parcel.letter(&again, tools.clock.now()) });
        }
        if entries.is_empty() {
            continue;
        }
        for (offset, outcome) in offsets.into_iter().zip(tools.log.append(entries).await) {
            match outcome {
                Ok(_) => {
                    done.insert(offset);
                }
                Err(error) => {
                    let why = format!("{} were redriven, then the log refused: {error}", done.len());
                    return Err(unavailable(why));
                }
            }
        }
    }
    let mut unknown: Vec<String> = wanted.into_iter().flatten().collect();
    unknown.sort_unstable();
    Ok(DispatchTold::Redriven { count: done.len(), unknown })
}
