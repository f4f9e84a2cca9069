//! How far the carriers are behind what is pushed: pushes are refused for a while before it is ever longer until they are delivered.
//!
//! A carrier of this process says itself how far it has come. Of one elsewhere it is seen in the store of inboxes, where that is shared: what
//! is saved is folded. Of a partition that nobody has, what was seen last counts.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::Inbox;
use whimbrel_model::push::PUSH_TOPIC;

use super::super::door::Door;
use super::super::problem::{Code, Problem};
use whimbrel_catalogue::topics::Topic;

/// How often the store is asked how far carriers elsewhere have come.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Refuses what is for a partition whose owner is too far behind.
pub(super) fn check_behind(door: &Door, push: &Topic, partition: u32) -> Result<(), Problem> {
    let behind = push.running.folding.behind(partition);
    if behind <= door.settings.push_behind_max {
        return Ok(());
    }
    let detail = format!("the carrier of the user is {behind} records behind; come again in a moment");
    Err(Problem::new(Code::Overloaded, detail))
}

/// Looks at what carriers elsewhere have saved, until the door closes.
pub(in super::super) async fn watch(door: Arc<Door>, inboxes: Arc<dyn Inbox>) {
    loop {
        tokio::select! {
            () = door.settings.shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let Some(push) = door.registry.get(PUSH_TOPIC) else { continue };
        let folding = &push.running.folding;
        for partition in folding.owned_elsewhere() {
            // A store that does not answer leaves what was seen last, and will be asked again.
            if let Ok(at) = inboxes.boxes(partition, Vec::new()).await {
                folding.told(partition, at.applied);
            }
        }
    }
}
