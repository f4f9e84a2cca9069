//! Saves the progress of the subscription.

use std::sync::Arc;

use roaring::RoaringTreemap;
use whimbrel_model::ports::{ProgressError, ProgressKey, ProgressRow};
use whimbrel_model::subscription::dead_topic;

use super::{DispatchContext, SubscriptionRunner};
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
    let place = ProgressKey { line: 0, partition: topic.partition(0) };
    Some(ProgressRow { place, run: subscription.stored.run, state: progress_format::encode(&progress, None).into() })
}

impl SubscriptionRunner {
    pub(super) fn start_save(&mut self) {
        let failing_since = self.failing_since;
        let mut rows = Vec::new();
        for line in self.lines.values_mut() {
            let (number, run) = (line.number, line.run);
            rows.extend(line.window.unsaved().into_iter().map(|(partition, progress)| ProgressRow {
                place: ProgressKey { line: number, partition },
                run,
                state: progress_format::encode(&progress, failing_since).into(),
            }));
        }
        rows.extend(self.redriven_row());
        if rows.is_empty() {
            return;
        }
        let progress = Arc::clone(&self.context.progress);
        let (number, epoch) = (self.subscription.number(), self.epoch);
        self.saving.push(Box::pin(async move {
            let outcome = progress.save(number, epoch, rows.clone()).await;
            SaveDone { rows, outcome }
        }));
    }

    fn redriven_row(&mut self) -> Option<ProgressRow> {
        let is_changed = std::mem::take(&mut self.redriven_changed);
        is_changed.then(|| redriven_row(&self.context, &self.subscription, self.redriven.clone())).flatten()
    }

    pub(super) fn was_saved(&mut self, done: SaveDone) {
        let SaveDone { rows, outcome } = done;
        let Err(error) = outcome else {
            if self.stalled == Some("store_unavailable") {
                self.set_stalled(None);
            }
            return;
        };
        for (line, partitions) in Self::rows_are_of(&rows) {
            if let Some(line) = self.lines.get_mut(&line) {
                line.window.not_saved(partitions);
            }
        }
        self.redriven_changed = !self.redriven.is_empty();
        match error {
            ProgressError::Fenced { epoch, .. } if epoch < self.epoch => self.open_again(),
            ProgressError::Fenced { .. } => self.failure = Some(error.to_string()),
            // The catalogue has a seek that this runner has not followed yet. It will within moments.
            ProgressError::NewerRun { .. } => tracing::debug!(%error, "the store rejected progress of an earlier run"),
            ProgressError::Unavailable(why) => {
                tracing::warn!(why, subscription = %self.subscription.name, "cannot save the progress; retrying");
                self.set_stalled(Some("store_unavailable"));
            }
        }
    }

    /// Opens the store again and saves everything: the store lost the earlier opening when it fell back to an older state.
    fn open_again(&mut self) {
        let progress = Arc::clone(&self.context.progress);
        let (number, epoch) = (self.subscription.number(), self.epoch);
        self.background.push(Box::pin(async move {
            let outcome = progress.open(number, epoch).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| match outcome {
                Ok(_) => {
                    for line in runner.lines.values_mut() {
                        let all = line.window.partition_ids();
                        line.window.not_saved(all);
                    }
                }
                Err(ProgressError::Fenced { .. }) => {
                    runner.failure = Some("another node owns the subscription".to_owned());
                }
                Err(error) => tracing::warn!(%error, "cannot reopen the store of progress"),
            });
            after
        }));
    }
}
