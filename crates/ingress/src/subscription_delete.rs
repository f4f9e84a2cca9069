//! Deleting a subscription: its entry is marked, its owner ends, its retries are withdrawn, its topics and progress go, then the entry.
//!
//! Every step may be repeated, so that a deletion that was cut short is finished by the next start, or by asking for it again.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::subscription::{dead_topic, retry_topic};

use super::door::Door;
use super::hold_calls::withdraw_topic;
use super::problem::Problem;
use super::subscription_calls::caught_up;
use whimbrel_catalogue::topics::TopicError;

/// Between two tries at deletions that were cut short.
const FINISH_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Deletes it with everything that belongs to it. Not to be cancelled midway.
pub(super) async fn delete(door: &Door, name: &str) -> Result<(), Problem> {
    let marked = door.subscriptions.begin_delete(name).await?;
    caught_up(door, &marked).await;
    for own in [retry_topic(name), dead_topic(name)] {
        delete_topic(door, &own).await?;
    }
    door.ports.progress.forget(marked.number()).await?;
    Ok(door.subscriptions.finish_delete(&marked).await?)
}

/// Deletes a topic of the subscription's own with what is held for it. One that is gone is gone.
async fn delete_topic(door: &Door, name: &str) -> Result<(), Problem> {
    let Some(topic) = door.registry.get(name) else { return Ok(()) };
    withdraw_topic(door, topic.number()).await?;
    match door.registry.begin_delete(name).await {
        Ok(deletion) => Ok(deletion.finish().await?),
        Err(TopicError::Unknown(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Finishes the deletions that were cut short before this process started.
pub(super) async fn finish_left(door: Arc<Door>) {
    let mut left: Vec<_> = door.subscriptions.all().into_iter().filter(|each| each.stored.deleting).collect();
    while !left.is_empty() {
        let mut unfinished = Vec::new();
        for each in left {
            if door.subscriptions.get(&each.name).is_none_or(|now| now.number() != each.number()) {
                continue;
            }
            let finished = tokio::select! {
                finished = delete(&door, &each.name) => finished,
                () = door.settings.shutdown.cancelled() => return,
            };
            if let Err(problem) = finished {
                tracing::warn!(subscription = &*each.name, "a deletion could not be finished: {}", problem.detail());
                unfinished.push(each);
            }
        }
        left = unfinished;
        if !left.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(FINISH_AGAIN_AFTER) => {}
                () = door.settings.shutdown.cancelled() => return,
            }
        }
    }
}
