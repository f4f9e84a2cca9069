//! Dead letters: listing them, and delivering them once more.

use std::collections::HashSet;
use std::sync::Arc;

use roaring::RoaringTreemap;
use tokio::sync::oneshot;
use whimbrel_model::ports::{DeadLetter, DispatchError, DispatchTold, Entry, Log, ProgressError};
use whimbrel_model::subscription::{Origin, dead_topic, retry_topic};
use whimbrel_model::{PartitionId, StoredRecord};

use super::saving::redriven_row;
use super::{Runner, Tools};
use crate::letters::Parcel;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_model::log_walk::LogWalk;

/// Records of one step through the dead letters.
const STEP_RECORDS: usize = 1000;
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

fn unavailable(why: impl ToString) -> DispatchError {
    DispatchError::Unavailable(why.to_string())
}

async fn list(
    log: &dyn Log,
    partition: PartitionId,
    from: u64,
    limit: usize,
    redriven: &RoaringTreemap,
) -> Result<DispatchTold, DispatchError> {
    let mut walk = LogWalk::new(log, partition, from, u64::MAX);
    let mut letters = Vec::new();
    while let Some(records) = walk.step(STEP_RECORDS).await.map_err(unavailable)? {
        for StoredRecord { offset, record } in records {
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
    let topic_of =
        |name: String| tools.registry.get(&name).ok_or_else(|| unavailable(format_args!("`{name}` is not there")));
    let dead = topic_of(dead_topic(&subscription.name))?.partition(0);
    let retry = topic_of(retry_topic(&subscription.name))?.partition(0);
    let run = tools.subscriptions.raise_run(subscription.number()).await;
    let run = run.map_err(unavailable)?;
    let mut wanted: Option<HashSet<String>> = ids.map(|ids| ids.into_iter().collect());
    // What dies while this goes on is not redriven by it.
    let end = tools.log.bounds(dead).await.map_err(unavailable)?.next;
    let mut walk = LogWalk::new(&*tools.log, dead, 0, end);
    while let Some(records) = walk.step(STEP_RECORDS).await.map_err(unavailable)? {
        let mut offsets = Vec::new();
        let mut entries = Vec::new();
        for StoredRecord { offset, record } in records {
            if redriven.contains(offset) {
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
                    return Err(unavailable(format_args!(
                        "{} were redriven, then the log refused: {error}",
                        done.len()
                    )));
                }
            }
        }
    }
    let mut unknown: Vec<String> = wanted.into_iter().flatten().collect();
    unknown.sort_unstable();
    Ok(DispatchTold::Redriven { count: done.len(), unknown })
}
