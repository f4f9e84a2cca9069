//! Saves the progress of the subscription.

use std::sync::Arc;

use roaring::RoaringTreemap;
use whimbrel_model::ports::{ProgressError, ProgressKey, ProgressRow};
use whimbrel_model::subscription::dead_topic;

use super::{DispatchContext, SubscriptionRunner};
use crate::incidents::StallReason;
use crate::line_set::CURSOR;
use crate::progress_format;
use crate::window::PartitionProgress;
use whimbrel_catalogue::subscriptions::Subscription;

pub(super) struct SaveDone {
    rows: Vec<ProgressRow>,
    outcome: Result<(), ProgressError>,
}

pub(super) fn redriven_row(
    context: &DispatchContext,
    subscription: &Subscription,
    redriven: RoaringTreemap,
) -> Option<ProgressRow> {
    let topic = context.registry.get(&dead_topic(&subscription.name))?;
    let progress = PartitionProgress { watermark: 0, read_to: 0, unfinished: redriven, retries: Vec::new() };
    let place = ProgressKey { line: CURSOR, partition: topic.partition(0) };
    Some(ProgressRow { place, run: subscription.stored.run, state: progress_format::encode(&progress, None).into() })
}

impl SubscriptionRunner {
    pub(super) fn start_save(&mut self) {
        let mut rows = self.lines.unsaved(self.health.failing_since());
        rows.extend(self.redriven_row());
        if rows.is_empty() {
            return;
        }
        let progress = Arc::clone(&self.context.progress);
        let (number, epoch) = (self.subscription.number(), self.epoch);
        self.work.saving.push(Box::pin(async move {
            let outcome = progress.save(number, epoch, rows.clone()).await;
            SaveDone { rows, outcome }
        }));
    }

    fn redriven_row(&mut self) -> Option<ProgressRow> {
        redriven_row(&self.context, &self.subscription, self.redriven.unsaved()?)
    }

    pub(super) fn was_saved(&mut self, done: SaveDone) {
        let SaveDone { rows, outcome } = done;
        let Err(error) = outcome else {
            let event = self.incidents.end_stall(StallReason::StoreUnavailable, &self.subscription.name);
            return self.publish(event);
        };
        self.lines.not_saved(&rows);
        self.redriven.not_saved();
        match error {
            ProgressError::Fenced { epoch, .. } if epoch < self.epoch => self.open_again(),
            ProgressError::Fenced { .. } => self.incidents.fail(error.to_string()),
            // The catalogue has a seek that this runner has not followed yet. It will within moments.
            ProgressError::NewerRun { .. } => tracing::debug!(%error, "the store rejected progress of an earlier run"),
            ProgressError::Unavailable(why) => {
                tracing::warn!(why, subscription = %self.subscription.name, "cannot save the progress; retrying");
                let stalled = Some(StallReason::StoreUnavailable);
                let event = self.incidents.set_stalled(stalled, &self.subscription.name);
                self.publish(event);
            }
        }
    }

    /// Opens the store again and saves everything: the store lost the earlier opening when it fell back to an older state.
    fn open_again(&mut self) {
        let progress = Arc::clone(&self.context.progress);
        let (number, epoch) = (self.subscription.number(), self.epoch);
        self.work.background.push(Box::pin(async move {
            let outcome = progress.open(number, epoch).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| match outcome {
                Ok(_) => runner.lines.save_all(),
                Err(ProgressError::Fenced { .. }) => {
                    runner.incidents.fail("another node owns the subscription".to_owned());
                }
                Err(error) => tracing::warn!(%error, "cannot reopen the store of progress"),
            });
            after
        }));
    }
}
