//! Changes of the catalogue that conflict with those of other nodes: the node that lost reads the entry again and retries.
//!
//! Nodes that start together on an empty catalogue all create the same topics. Each of them must end up with the entry that was written
//! first, and none may fail because of it.

use std::time::Duration;

use whimbrel_model::ports::CatalogueError;

use super::registry::TopicError;

/// Bound on attempts at one change that lose against other nodes.
pub(super) const CONFLICT_TRIES: u32 = 16;
/// The pause before the second attempt; each further pause is longer by this much.
const PAUSE_STEP: Duration = Duration::from_millis(2);

/// The attempts at one change that lost so far.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    lost: u32,
}

impl Conflicts {
    /// Waits before the next attempt. Returns the error if it is not a conflict, or if too many attempts lost.
    pub async fn try_again(&mut self, error: TopicError) -> Result<(), TopicError> {
        let is_conflict = matches!(error, TopicError::Catalogue(CatalogueError::Conflict { .. }));
        if !is_conflict || self.lost >= CONFLICT_TRIES {
            return Err(error);
        }
        self.lost += 1;
        tokio::time::sleep(PAUSE_STEP * self.lost).await;
        Ok(())
    }

    /// Whether an attempt lost: the entry must be read again.
    pub fn any(&self) -> bool {
        self.lost > 0
    }
}
