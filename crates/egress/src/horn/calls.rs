//! The port `Callbacks` in front of the horn: calls of the subscription `_notices` go to it, all others past it to the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_model::ports::{Again, Call, CallFailure, CallOutcome, Callbacks, Called, PortFuture};
use whimbrel_model::push::{HORN_URL, Notice};

use super::elsewhere::HornsElsewhere;
use super::{Horn, NotifyError};

impl Callbacks for Horn {
    fn call(&self, call: Call) -> PortFuture<'_, Called> {
        Box::pin(async move {
            let began = Instant::now();
            let notice = serde_json::from_slice::<Notice>(&call.record.value);
            let notified = match &notice {
                Ok(notice) => self.notify(notice).await,
                Err(error) => Err(NotifyError::Garbled(error.to_string())),
            };
            let not_taken = |error: NotifyError, again| CallOutcome::NotTaken { reason: error.to_string(), again };
            let outcome = match notified {
                Ok(notified) => notified.call_outcome(),
                Err(error @ NotifyError::Garbled(_)) => not_taken(error, Again::Never),
                Err(error @ NotifyError::Devices(_)) => not_taken(error, Again::LaterForAll),
            };
            Called { outcome, took: began.elapsed() }
        })
    }
}

/// Calls by where they go. What the dispatcher is given where notices are.
pub struct HornCallbacks {
    /// The horn of this process, where it has that role.
    pub horn: Option<Arc<Horn>>,
    /// Those of others, for a process that has none.
    pub elsewhere: Option<Arc<HornsElsewhere>>,
    pub others: Arc<dyn Callbacks>,
}

impl Callbacks for HornCallbacks {
    fn call(&self, call: Call) -> PortFuture<'_, Called> {
        if call.target.endpoint.url.as_deref() != Some(HORN_URL) {
            return self.others.call(call);
        }
        match (&self.horn, &self.elsewhere) {
            (Some(horn), _) => horn.call(call),
            (None, Some(elsewhere)) => elsewhere.call(call),
            (None, None) => Box::pin(std::future::ready(nobody())),
        }
    }
}

/// Nothing was called: it is no attempt, and the notice waits for a horn.
pub(super) fn nobody() -> Called {
    let detail = "no process with the role horn can be reached".to_owned();
    Called { outcome: CallOutcome::Failed { why: CallFailure::NoWorker, detail }, took: Duration::ZERO }
}
