//! The port `Holds`: every question finds the owner of its shard, on this node or another, or says that there is none.
//!
//! A question that was certainly not delivered is asked again, at whoever owns the shard then. One that may have arrived and
//! got no answer is never asked again where it could have changed something: its outcome is not known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use whimbrel_model::ports::{Ask, Holds, HoldsError, PortFuture, Told};

use super::families::HOLDS_FAMILY;
use super::peers::{Asked, Peers};
use super::sight::Sight;
use super::{Desk, DeskError};

/// How long a question waits for an owner, unless configured otherwise.
pub const OWNER_WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// How soon an owner that was not ready is asked again: the picture may be ahead of it, or behind.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Questions to the owners of all shards.
pub struct Router {
    shards: u32,
    sight: Sight,
    desk: Arc<dyn Desk>,
    peers: Arc<Peers>,
    owner_wait: Duration,
}

impl Router {
    pub fn new(shards: u32, sight: Sight, desk: Arc<dyn Desk>, peers: Arc<Peers>, owner_wait: Duration) -> Self {
        Self { shards, sight, desk, peers, owner_wait }
    }

    /// Asks whoever owns the shard now; `Err` where nothing was done and another try makes sense, with the reason.
    async fn ask_once(&self, shard: u32, ask: &Ask) -> Result<Result<Told, HoldsError>, Option<String>> {
        let view = self.sight.view();
        let owner = view.owner(HOLDS_FAMILY, shard).ok_or(None)?.node;
        if self.sight.me() == Some(owner) {
            return match self.desk.ask(shard, ask.clone()).await {
                Err(DeskError::NotHere) => Err(None),
                Err(DeskError::Holds(error)) => Ok(Err(error)),
                Ok(told) => Ok(Ok(told)),
            };
        }
        let address = view.address_of(owner).ok_or(None)?;
        match self.peers.ask(address, shard, ask).await {
            Asked::Answered(Err(DeskError::NotHere)) => Err(None),
            Asked::Answered(Err(DeskError::Holds(error))) => Ok(Err(error)),
            Asked::Answered(Ok(told)) => Ok(Ok(told)),
            Asked::NotDelivered(reason) => Err(Some(reason)),
            Asked::Unknown(reason) if changes_nothing(ask) => Err(Some(reason)),
            Asked::Unknown(reason) => Ok(Err(HoldsError::OutcomeUnknown(reason))),
            Asked::Refused(reason) => {
                tracing::error!(node = owner, reason, "another node refuses what this one asks");
                Ok(Err(HoldsError::Unavailable(format!("node {owner} refused the question: {reason}"))))
            }
        }
    }
}

/// Whether asking twice is as good as once.
fn changes_nothing(ask: &Ask) -> bool {
    match ask {
        Ask::Look { .. } | Ask::List(_) | Ask::Dead(_) | Ask::Count(_) => true,
        Ask::Accept(_) | Ask::Extend { .. } | Ask::Withdraw { .. } | Ask::Fire { .. } | Ask::WithdrawTopic { .. } => {
            false
        }
    }
}

impl Holds for Router {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn ask(&self, shard: u32, ask: Ask) -> PortFuture<'_, Result<Told, HoldsError>> {
        Box::pin(async move {
            let asked = until_answered(&self.sight, self.owner_wait, shard, || self.ask_once(shard, &ask)).await;
            asked.unwrap_or(Err(HoldsError::NoOwner(shard)))
        })
    }
}

/// Asks again for as long as another try makes sense; `None` where nobody answered in time.
pub async fn until_answered<A, F>(
    sight: &Sight,
    owner_wait: Duration,
    shard: u32,
    ask_once: impl Fn() -> F,
) -> Option<A>
where
    F: Future<Output = Result<A, Option<String>>>,
{
    let patience = Instant::now() + owner_wait;
    let mut views = sight.views.clone();
    loop {
        views.mark_unchanged();
        let reason = match ask_once().await {
            Ok(answer) => return Some(answer),
            Err(reason) => reason,
        };
        let now = Instant::now();
        if now >= patience {
            if let Some(reason) = reason {
                tracing::warn!(shard, reason, "the owner of a shard could not be asked");
            }
            return None;
        }
        // A new picture may name another owner; the same one may become ready without one.
        let _ = timeout_at(patience.min(now + AGAIN_AFTER), views.changed()).await;
    }
}
