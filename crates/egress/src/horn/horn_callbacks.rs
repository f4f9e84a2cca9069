//! The port `Callbacks` for notices: calls of the subscription `_notices` go to a horn, all others to the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallReport, Callbacks, PortFuture, RetryAdvice};
use whimbrel_model::push::{HORN_URL, Notice};

use super::remote_horns::RemoteHorns;
use super::{Horn, NotifyError};

impl Callbacks for Horn {
    fn call(&self, call: Call) -> PortFuture<'_, CallReport> {
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
                Err(error @ NotifyError::Garbled(_)) => not_taken(error, RetryAdvice::Never),
                Err(error @ NotifyError::Devices(_)) => not_taken(error, RetryAdvice::LaterForAll),
            };
            CallReport { outcome, took: began.elapsed() }
        })
    }
}

/// Routes the dispatcher's calls by their endpoint, to the horn or to the workers.
pub struct HornCallbacks {
    /// The horn of this process, if it has the role.
    pub horn: Option<Arc<Horn>>,
    /// The horns of other nodes, for a process without a horn.
    pub remote: Option<Arc<RemoteHorns>>,
    pub others: Arc<dyn Callbacks>,
}

impl Callbacks for HornCallbacks {
    fn call(&self, call: Call) -> PortFuture<'_, CallReport> {
        if call.target.endpoint.url.as_deref() != Some(HORN_URL) {
            return self.others.call(call);
        }
        match (&self.horn, &self.remote) {
            (Some(horn), _) => horn.call(call),
            (None, Some(remote)) => remote.call(call),
            (None, None) => Box::pin(std::future::ready(no_horn())),
        }
    }
}

/// No horn was called, so this does not count as an attempt. The notice waits for a horn.
pub(super) fn no_horn() -> CallReport {
    let detail = "no node with the role horn is reachable".to_owned();
    CallReport { outcome: CallOutcome::Failed { why: CallFailure::NoWorker, detail }, took: Duration::ZERO }
}
