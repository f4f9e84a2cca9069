//! Saving how far the subscription has come.

use std::sync::Arc;

use roaring::RoaringTreemap;
use whimbrel_model::ports::{ProgressError, ProgressPlace, ProgressRow};
use whimbrel_model::subscription::dead_topic;

use super::{Runner, Tools};
use crate::saved;
use crate::window::Standing;
use whimbrel_catalogue::subscriptions::Subscription;

pub(super) struct SaveDone {
    rows: Vec<ProgressRow>,
    outcome: Result<(), ProgressError>,
}

/// The dead letters that were redriven, as a row of their partition.
pub(super) fn redriven_row(
    tools: &Tools,
    subscription: &Subscription,
    redriven: RoaringTreemap,
) -> Option<ProgressRow> {
    let topic = tools.registry.get(&dead_topic(&subscription.name))?;
    let standing = Standing { watermark: 0, read_to: 0, unfinished: redriven, retries: Vec::new() };
    let place = ProgressPlace { line: 0, partition: topic.partition(0) };
    Some(ProgressRow { place, run: subscription.stored.run, state: saved::encode(&standing, None).into() })
}

impl Runner {
    /// Begins to save what changed.
    pub(super) fn start_save(&mut self) {
        let failing_since = self.failing_since;
        let mut rows = Vec::new();
        for line in self.lines.values_mut() {
            let (number, run) = (line.number, line.run);
            rows.extend(line.window.unsaved().into_iter().map(|(partition, standing)| ProgressRow {
                place: ProgressPlace { line: number, partition },
                run,
                state: saved::encode(&standing, failing_since).into(),
            }));
        }
        rows.extend(self.redriven_row());
        if rows.is_empty() {
            return;
        }
        let progress = Arc::clone(&self.tools.progress);
        let (number, epoch) = (self.subscription.number(), self.epoch);
        self.saving.push(Box::pin(async move {
            let outcome = progress.save(number, epoch, rows.clone()).await;
            SaveDone { rows, outcome }
        }));
    }

    fn redriven_row(&mut self) -> Option<ProgressRow> {
        let is_changed = std::mem::take(&mut self.redriven_changed);
        is_changed.then(|| redriven_row(&self.tools, &self.subscription, self.redriven.clone())).flatten()
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
            // The catalogue has a seek that was not followed yet: it will be within moments.
            ProgressError::NewerRun { .. } => tracing::debug!(%error, "progress of an earlier run was refused"),
            ProgressError::Unavailable(why) => {
                tracing::warn!(why, subscription = %self.subscription.name, "progress could not be saved; trying on");
                self.set_stalled(Some("store_unavailable"));
            }
        }
    }

    /// The store has forgotten that it was opened (it fell back to an older state): it is opened once more, and gets everything.
    fn open_again(&mut self) {
        let progress = Arc::clone(&self.tools.progress);
        let (number, epoch) = (self.subscription.number(), self.epoch);
        self.chores.push(Box::pin(async move {
            let outcome = progress.open(number, epoch).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| match outcome {
                Ok(_) => {
                    for line in runner.lines.values_mut() {
                        let all = line.window.partition_ids();
                        line.window.not_saved(all);
                    }
                }
                Err(ProgressError::Fenced { .. }) => {
                    runner.failure = Some("somebody else owns the subscription".to_owned());
                }
                Err(error) => tracing::warn!(%error, "the store of progress could not be opened again"),
            });
            after
        }));
    }
}
