//! The port `Callbacks` in front of the horn: calls of the subscription `_notices` go to it, all others past it to the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_model::ports::{Call, CallFailure, CallOutcome, Callbacks, Called, PortFuture};
use whimbrel_model::push::{HORN_URL, Notice};

use super::elsewhere::HornsElsewhere;
use super::{Horn, NotifyError};

/// What a record is answered with that is no notice: it will be a dead letter.
const UNPROCESSABLE: u16 = 422;
/// The registry of devices does not answer: everybody waits.
const UNAVAILABLE: u16 = 503;

impl Callbacks for Horn {
    fn call(&self, call: Call) -> PortFuture<'_, Called> {
        Box::pin(async move {
            let began = Instant::now();
            let notice = serde_json::from_slice::<Notice>(&call.record.value);
            let notified = match &notice {
                Ok(notice) => self.notify(notice).await,
                Err(error) => Err(NotifyError::Garbled(error.to_string())),
            };
            let failed = |status, error: NotifyError| CallOutcome::Answered {
                status,
                retry_after: None,
                answer: error.to_string().into(),
            };
            let outcome = match notified {
                Ok(notified) => notified.call_outcome(),
                Err(error @ NotifyError::Garbled(_)) => failed(UNPROCESSABLE, error),
                Err(error @ NotifyError::Devices(_)) => failed(UNAVAILABLE, error),
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
