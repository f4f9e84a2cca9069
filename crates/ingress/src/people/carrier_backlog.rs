//! The backlog of the carriers: pushes are rejected while the backlog of their partition is too large.
//!
//! A carrier in this process reports its progress directly. The progress of a carrier on another node is read from the inbox store, if that
//! is shared: saved records are folded. For a partition without an owner, the last known progress counts.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::Inbox;
use whimbrel_model::push::PUSH_TOPIC;

use crate::api_state::ApiState;
use crate::problem::{ApiProblem, Code};
use whimbrel_catalogue::topics::Topic;

/// The interval at which the store is asked for the progress of other nodes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Rejects pushes to a partition whose carrier has too large a backlog.
pub(super) fn check_backlog(api: &ApiState, push: &Topic, partition: u32) -> Result<(), ApiProblem> {
    let behind = push.counters.fold_backlog.behind(partition);
    if behind <= api.settings.backlog.push {
        return Ok(());
    }
    let detail = format!("the carrier of the user has a backlog of {behind} records; retry later");
    Err(ApiProblem::new(Code::Overloaded, detail))
}

/// Reads the progress of carriers on other nodes, until shutdown.
pub(crate) async fn watch(api: Arc<ApiState>, inboxes: Arc<dyn Inbox>) {
    loop {
        tokio::select! {
            () = api.settings.shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        let Some(push) = api.registry.get(PUSH_TOPIC) else { continue };
        let folding = &push.counters.fold_backlog;
        for partition in folding.owned_remotely() {
            // If the store does not answer, the last known progress stays until the next request.
            if let Ok(at) = inboxes.boxes(partition, Vec::new()).await {
                folding.set_remote_folded(partition, at.applied);
            }
        }
    }
}
