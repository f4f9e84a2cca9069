//! The service for calls of other nodes: calls of their centers go to the worker of this process, notices to its horn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use whimbrel_cluster::{Admission, InternalService};
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallReport, CallTarget, Callbacks};
use whimbrel_model::push::HORN_URL;

use super::Worker;
use super::limits::PREPARED_TARGETS_MAX;
use super::remote_call::{MakeCallback, ReadLoad, TransferredCall};
use super::strategy::WorkerLoad;

/// The service for calls of other nodes. If a key is set, calls without it are rejected before their request is read.
pub fn workers_service(desks: impl Into<LocalCallbacks>, admission: impl Into<Admission>) -> InternalService {
    let state = Arc::new(RemoteCallbacks { desks: desks.into(), targets: Mutex::default() });
    InternalService::new(admission)
        .answering::<MakeCallback, _, _>(state.clone(), |state, call| async move { state.call(call).await })
        .answering::<ReadLoad, _, _>(state, |state, ()| async move {
            state.desks.worker.as_ref().map_or_else(WorkerLoad::default, Worker::load)
        })
}

/// The worker and the horn of this process.
#[derive(Clone, Default)]
pub struct LocalCallbacks {
    /// Present if the process has the role `worker`.
    pub worker: Option<Worker>,
    /// Present if the process has the role `horn`. It serves calls to [`HORN_URL`].
    pub horn: Option<Arc<dyn Callbacks>>,
}

impl From<Worker> for LocalCallbacks {
    fn from(worker: Worker) -> Self {
        Self { worker: Some(worker), horn: None }
    }
}

impl LocalCallbacks {
    async fn call(&self, call: Call) -> CallReport {
        let is_notice = call.target.endpoint.url.as_deref() == Some(HORN_URL);
        match (&self.horn, &self.worker) {
            (Some(horn), _) if is_notice => horn.call(call).await,
            (_, Some(worker)) if !is_notice => worker.call(call).await,
            _ => no_worker("this node does not have the role that serves the call"),
        }
    }
}

/// No call was made.
fn no_worker(detail: &str) -> CallReport {
    let outcome = CallOutcome::Failed { why: CallFailure::NoWorker, detail: detail.to_owned() };
    CallReport { outcome, took: Duration::ZERO }
}

/// The calls of other nodes.
struct RemoteCallbacks {
    desks: LocalCallbacks,
    /// The targets by their encoded bytes, so that each is decoded once and keeps its connections.
    targets: Mutex<HashMap<Bytes, Arc<CallTarget>>>,
}

impl RemoteCallbacks {
    async fn call(&self, call: TransferredCall) -> CallReport {
        match self.target(&call.target) {
            Some(target) => self.desks.call(call.into_call(target)).await,
            None => no_worker("the node that sent the call encoded its target in another form"),
        }
    }

    fn target(&self, bytes: &Bytes) -> Option<Arc<CallTarget>> {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = targets.get(bytes) {
            return Some(Arc::clone(target));
        }
        let target: Arc<CallTarget> = Arc::new(serde_json::from_slice(bytes).ok()?);
        if targets.len() >= PREPARED_TARGETS_MAX {
            targets.clear();
        }
        // Copies the bytes, so that the entry does not keep the whole request in memory.
        targets.insert(Bytes::copy_from_slice(bytes), Arc::clone(&target));
        Some(target)
    }
}
