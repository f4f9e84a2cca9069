//! Deletion of a subscription, in this order: mark the entry, stop the owner, withdraw retries, delete topics and progress, delete the
//! entry.
//!
//! Every step is repeatable. An interrupted deletion is finished at the next start, or when the request is repeated.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::subscription::{dead_topic, retry_topic};

use crate::api_state::ApiState;
use crate::endpoints::hold_calls::withdraw_topic;
use crate::endpoints::subscription_calls::caught_up;
use crate::problem::ApiProblem;
use whimbrel_catalogue::topics::TopicError;

/// The delay between retries of interrupted deletions.
const FINISH_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Deletes a subscription with everything that belongs to it. Must not be cancelled midway.
pub(crate) async fn delete(api: &ApiState, name: &str) -> Result<(), ApiProblem> {
    let marked = api.subscriptions.begin_delete(name).await?;
    caught_up(api, &marked).await;
    for own in [retry_topic(name), dead_topic(name)] {
        delete_topic(api, &own).await?;
    }
    api.ports.progress.forget(marked.number()).await?;
    Ok(api.subscriptions.finish_delete(&marked).await?)
}

/// Deletes a topic of the subscription with its holds. A missing topic counts as deleted.
async fn delete_topic(api: &ApiState, name: &str) -> Result<(), ApiProblem> {
    let Some(topic) = api.registry.get(name) else { return Ok(()) };
    withdraw_topic(api, topic.number()).await?;
    match api.registry.begin_delete(name).await {
        Ok(deletion) => Ok(deletion.finish().await?),
        Err(TopicError::Unknown(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Finishes the deletions that were interrupted before this process started.
pub(crate) async fn finish_left(api: Arc<ApiState>) {
    let mut left: Vec<_> = api.subscriptions.all().into_iter().filter(|each| each.stored.deleting).collect();
    while !left.is_empty() {
        let mut unfinished = Vec::new();
        for each in left {
            if api.subscriptions.get(&each.name).is_none_or(|now| now.number() != each.number()) {
                continue;
            }
            let finished = tokio::select! {
                finished = delete(&api, &each.name) => finished,
                () = api.settings.shutdown.cancelled() => return,
            };
            if let Err(problem) = finished {
                tracing::warn!(subscription = &*each.name, "deletion failed: {}", problem.detail());
                unfinished.push(each);
            }
        }
        left = unfinished;
        if !left.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(FINISH_AGAIN_AFTER) => {}
                () = api.settings.shutdown.cancelled() => return,
            }
        }
    }
}
