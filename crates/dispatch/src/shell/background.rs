//! The effects that run in the background: lookups for answers, changes of the catalogue, redrives, and work on retries that are holds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use roaring::RoaringTreemap;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::ReadLimits;

use super::dead_letters::{list, redrive, save_redriven};
use super::retry_holds::{RetryHoldCheck, count_retry_holds};
use super::{DispatchContext, SubscriptionShell};
use crate::runner::{RequestId, RunnerEffect, RunnerInput};
use whimbrel_catalogue::subscriptions::Subscription;

impl SubscriptionShell {
    pub(super) fn perform_in_background(&mut self, effect: RunnerEffect) {
        if let RunnerEffect::ListDeadLetters { request, partition, from, limit, redriven } = effect {
            let Some(reply) = self.replies.remove(&request) else { return };
            let log = Arc::clone(&self.context.ports.log);
            return self.background.push(Box::pin(async move {
                let _ = reply.send(list(&*log, partition, from, limit, &redriven).await);
                None
            }));
        }
        let (context, holds, epoch) = (Arc::clone(&self.context), Arc::clone(&self.joined.holds), self.epoch);
        let subscription = Arc::clone(&self.subscription);
        self.background.push(Box::pin(async move {
            match effect {
                RunnerEffect::ReadEnds { request, partitions, dead } => {
                    Some(read_ends(&context, request, partitions, dead).await)
                }
                RunnerEffect::FindMessage { request, partition, offset } => {
                    Some(find_message(&context, &subscription, request, (partition, offset)).await)
                }
                RunnerEffect::Redrive { request, ids, redriven } => {
                    Some(run_redrive(&context, &subscription, epoch, request, (ids, redriven)).await)
                }
                RunnerEffect::Disable { reason } => {
                    if let Err(error) = context.ports.subscriptions.disable(subscription.number(), &reason).await {
                        tracing::error!(%error, subscription = %subscription.name, "cannot disable the subscription");
                    }
                    Some(RunnerInput::Disabled)
                }
                RunnerEffect::EndReplay(run) => Some(end_replay(&context, &subscription, epoch, run).await),
                RunnerEffect::Reopen => {
                    let outcome = context.ports.progress.open(subscription.number(), epoch).await.map(drop);
                    if let Err(error) = &outcome {
                        tracing::warn!(%error, "cannot reopen the store of progress");
                    }
                    Some(RunnerInput::Reopened(outcome))
                }
                RunnerEffect::CountRetryHolds(topic) => {
                    count_retry_holds(&*holds, topic).await.map(RunnerInput::RetryHoldsCounted)
                }
                RunnerEffect::CheckRetryHolds { topic, rules } => {
                    let (log, clock) = (&*context.ports.log, &*context.ports.clock);
                    let check = RetryHoldCheck { holds: &*holds, log, clock, rules: &rules, topic };
                    Some(RunnerInput::RetryHoldsChecked(was_checked(check.run().await, &subscription)))
                }
                // All others are performed at once.
                _ => None,
            }
        }));
    }
}

async fn read_ends(
    context: &DispatchContext,
    request: RequestId,
    partitions: Vec<PartitionId>,
    dead: Option<PartitionId>,
) -> RunnerInput {
    let bounds = join_all(partitions.iter().map(|partition| context.ports.log.bounds(*partition))).await;
    let ends = partitions.into_iter().zip(bounds).map(|(id, bounds)| (id, bounds.ok().map(|b| b.next))).collect();
    let dead = match dead {
        Some(dead) => context.ports.log.bounds(dead).await.map_or(0, |bounds| bounds.next - bounds.first),
        None => 0,
    };
    RunnerInput::Ends { request, ends, dead }
}

async fn find_message(
    context: &DispatchContext,
    subscription: &Subscription,
    request: RequestId,
    (partition, offset): (PartitionId, u64),
) -> RunnerInput {
    let attempts = context.ports.notebook.attempts(subscription.number(), partition, offset).await;
    let limits = ReadLimits { max_records: 1, max_bytes: 1, wait: Duration::ZERO };
    let read = context.ports.log.read(partition, offset, limits).await.ok();
    let found = read.and_then(|batch| batch.records.into_iter().find(|each| each.offset == offset));
    RunnerInput::Message { request, partition, offset, attempts, record: found.map(|stored| stored.record) }
}

async fn run_redrive(
    context: &DispatchContext,
    subscription: &Subscription,
    epoch: u64,
    request: RequestId,
    (ids, redriven): (Option<Vec<String>>, RoaringTreemap),
) -> RunnerInput {
    let mut done = RoaringTreemap::new();
    let outcome = redrive(context, subscription, ids, &redriven, &mut done).await;
    // Saved before the answer: otherwise a dead letter could be redriven, and delivered, twice.
    let saved = save_redriven(context, subscription, epoch, redriven | &done).await;
    if let Err(error) = &saved {
        tracing::warn!(%error, subscription = %subscription.name, "cannot save the redriven dead letters yet; retrying");
    }
    RunnerInput::Redriven { request, done, is_saved: saved.is_ok(), outcome }
}

async fn end_replay(context: &DispatchContext, subscription: &Subscription, epoch: u64, run: u32) -> RunnerInput {
    let number = subscription.number();
    match context.ports.subscriptions.end_replay(number, run).await {
        Ok(_) => {
            if let Err(error) = context.ports.progress.end_line(number, epoch, run).await {
                tracing::debug!(%error, run, "cannot delete the progress of a completed replay");
            }
        }
        Err(error) => {
            tracing::warn!(%error, run, "cannot remove a completed replay from the catalogue; retrying");
        }
    }
    RunnerInput::ReplayEnded(run)
}

/// Logs the result of a check of retries. Returns false if it failed.
fn was_checked(outcome: Result<usize, String>, subscription: &Subscription) -> bool {
    let name = &subscription.name;
    match &outcome {
        Ok(0) => {}
        Ok(moved) => tracing::info!(
            moved,
            subscription = %name,
            "rescheduled retries that were due too late because the clock was ahead when they failed"
        ),
        Err(why) => tracing::debug!(why, subscription = %name, "cannot check the due times of retries; retrying"),
    }
    outcome.is_ok()
}
