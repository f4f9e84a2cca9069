//! Dead letters: lists them and redrives them.

use std::collections::HashSet;

use roaring::RoaringTreemap;
use whimbrel_model::ports::{DeadLetter, DispatchError, DispatchReply, Entry, Log, ProgressError};
use whimbrel_model::subscription::{MessageOrigin, dead_topic, retry_topic};
use whimbrel_model::{PartitionId, StoredRecord};

use super::DispatchContext;
use crate::outbound_message::OutboundMessage;
use crate::redriven_letters::redriven_row;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_model::log_walk::LogWalk;

/// The most records of one read of the dead letters.
const STEP_RECORDS: usize = 1000;
const LISTED_MAX: usize = 1000;

/// Saves the offsets of redriven letters.
pub(super) async fn save_redriven(
    context: &DispatchContext,
    subscription: &Subscription,
    epoch: u64,
    redriven: RoaringTreemap,
) -> Result<(), ProgressError> {
    let Some(topic) = context.ports.registry.get(&dead_topic(&subscription.name)) else { return Ok(()) };
    let row = redriven_row(topic.partition(0), subscription.stored.run, redriven);
    context.ports.progress.save(subscription.number(), epoch, vec![row]).await
}

fn unavailable(why: impl ToString) -> DispatchError {
    DispatchError::Unavailable(why.to_string())
}

pub(super) async fn list(
    log: &dyn Log,
    partition: PartitionId,
    from: u64,
    limit: usize,
    redriven: &RoaringTreemap,
) -> Result<DispatchReply, DispatchError> {
    let limit = limit.clamp(1, LISTED_MAX);
    let mut walk = LogWalk::new(log, partition, from, u64::MAX);
    let mut letters = Vec::new();
    while let Some(records) = walk.step(STEP_RECORDS).await.map_err(unavailable)? {
        for StoredRecord { offset, record } in records {
            if redriven.contains(offset) {
                continue;
            }
            let Some((message, origin)) = OutboundMessage::from_origin_record(&record) else { continue };
            if letters.len() == limit {
                return Ok(DispatchReply::DeadLetters { letters, next: Some(offset) });
            }
            let key = record.key.map(|key| key.to_vec());
            letters.push(DeadLetter { id: message.id.into(), at: offset, key, origin });
        }
    }
    Ok(DispatchReply::DeadLetters { letters, next: None })
}

/// Appends dead letters to the retry topic, under a new run. `done` gets the offsets of the appended ones, also if an error follows.
pub(super) async fn redrive(
    context: &DispatchContext,
    subscription: &Subscription,
    ids: Option<Vec<String>>,
    redriven: &RoaringTreemap,
    done: &mut RoaringTreemap,
) -> Result<DispatchReply, DispatchError> {
    let topic_of = |name: String| {
        context.ports.registry.get(&name).ok_or_else(|| unavailable(format_args!("the topic `{name}` does not exist")))
    };
    let dead = topic_of(dead_topic(&subscription.name))?.partition(0);
    let retry = topic_of(retry_topic(&subscription.name))?.partition(0);
    let run = context.ports.subscriptions.raise_run(subscription.number()).await;
    let run = run.map_err(unavailable)?;
    let mut wanted: Option<HashSet<String>> = ids.map(|ids| ids.into_iter().collect());
    // Messages that die during the redrive are not part of it.
    let end = context.ports.log.bounds(dead).await.map_err(unavailable)?.next;
    let mut walk = LogWalk::new(&*context.ports.log, dead, 0, end);
    while let Some(records) = walk.step(STEP_RECORDS).await.map_err(unavailable)? {
        let mut offsets = Vec::new();
        let mut entries = Vec::new();
        for StoredRecord { offset, record } in records {
            if redriven.contains(offset) {
                continue;
            }
            let Some((message, origin)) = OutboundMessage::from_origin_record(&record) else { continue };
            if wanted.as_mut().is_some_and(|wanted| !wanted.remove(&*message.id)) {
                continue;
            }
            let again = MessageOrigin {
                run,
                attempts: 0,
                reason: None,
                last_status: None,
                last_answer: None,
                died_at_ms: None,
                ..origin
            };
            offsets.push(offset);
            entries.push(Entry { partition: retry, record: message.origin_record(&again, context.ports.clock.now()) });
        }
        if entries.is_empty() {
            continue;
        }
        for (offset, outcome) in offsets.into_iter().zip(context.ports.log.append(entries).await) {
            match outcome {
                Ok(_) => {
                    done.insert(offset);
                }
                Err(error) => {
                    return Err(unavailable(format_args!(
                        "{} dead letters were redriven, then the log rejected an append: {error}",
                        done.len()
                    )));
                }
            }
        }
    }
    let mut unknown: Vec<String> = wanted.into_iter().flatten().collect();
    unknown.sort_unstable();
    Ok(DispatchReply::Redriven { count: done.len(), unknown })
}
