//! Saves the progress of the subscription.

use whimbrel_model::ports::ProgressError;

use super::{RunnerEffect, SaveDone, SubscriptionRunner};
use crate::incidents::StallReason;
use crate::redriven_letters::redriven_row;

impl SubscriptionRunner {
    pub(super) fn start_save(&mut self) {
        let mut rows = self.lines.unsaved(self.health.failing_since());
        if let Some(redriven) = self.redriven.unsaved()
            && let Some(dead) = self.sources.dead()
        {
            rows.push(redriven_row(dead, self.subscription.stored.run, redriven));
        }
        if !rows.is_empty() {
            self.clock.set_saving(true);
            self.effects.push(RunnerEffect::Save(rows));
        }
    }

    pub(super) fn was_saved(&mut self, done: SaveDone) {
        let SaveDone { rows, outcome } = done;
        self.clock.set_saving(false);
        let name = &self.subscription.name;
        let Err(error) = outcome else {
            let event = self.incidents.end_stall(StallReason::StoreUnavailable, name);
            return self.publish(event);
        };
        self.lines.not_saved(&rows);
        self.redriven.not_saved();
        match error {
            // The store lost the earlier opening when it fell back to an older state.
            ProgressError::Fenced { epoch, .. } if epoch < self.epoch => self.effects.push(RunnerEffect::Reopen),
            ProgressError::Fenced { .. } => self.incidents.fail(error.to_string()),
            // The catalogue has a seek that this runner has not followed yet. It will within moments.
            ProgressError::NewerRun { .. } => {}
            ProgressError::Unavailable(_) => {
                let event = self.incidents.set_stalled(Some(StallReason::StoreUnavailable), name);
                self.publish(event);
            }
        }
    }

    /// Saves everything again after the store was opened again.
    pub(super) fn reopened(&mut self, outcome: Result<(), ProgressError>) {
        match outcome {
            Ok(()) => self.lines.save_all(),
            Err(ProgressError::Fenced { .. }) => self.incidents.fail("another node owns the subscription".to_owned()),
            Err(_) => {}
        }
    }
}
