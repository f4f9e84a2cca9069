//! The internal gRPC service for calls: calls of other nodes' centers go to the worker of this process, notices to its horn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tonic::{Request, Response, Status};
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallReport, CallTarget, Callbacks};
use whimbrel_model::push::HORN_URL;

use super::Worker;
use super::call_wire::{from_request, to_load, to_response};
use super::limits::{CALL_BYTES_MAX, PREPARED_TARGETS_MAX};
use super::strategy::WorkerLoad;
use whimbrel_cluster::Admission;
use whimbrel_cluster::wire::protocol::workers_server::{Workers, WorkersServer};
use whimbrel_cluster::wire::protocol::{CallRequest, CallResponse, LoadRequest, LoadResponse};

/// The service `whimbrel.internal.v1.Workers` of the internal port.
///
/// If a key is set, requests without it are rejected before they are decoded.
pub fn workers_service(
    desks: impl Into<LocalCallbacks>,
    admission: impl Into<Admission>,
) -> WorkersServer<WorkersService> {
    let door = WorkersService { desks: desks.into(), admission: admission.into(), targets: Mutex::default() };
    WorkersServer::new(door).max_decoding_message_size(CALL_BYTES_MAX)
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
            _ => {
                let detail = "this node does not have the role that serves the call".to_owned();
                let outcome = CallOutcome::Failed { why: CallFailure::NoWorker, detail };
                CallReport { outcome, took: Duration::ZERO }
            }
        }
    }
}

/// Serves the calls of other nodes.
pub struct WorkersService {
    desks: LocalCallbacks,
    admission: Admission,
    /// The targets by their encoded bytes, so that each is decoded once and keeps its connections.
    targets: Mutex<HashMap<Bytes, Arc<CallTarget>>>,
}

impl WorkersService {
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

#[tonic::async_trait]
impl Workers for WorkersService {
    async fn call(&self, request: Request<CallRequest>) -> Result<Response<CallResponse>, Status> {
        self.admission.admit(&request)?;
        let call = from_request(request.into_inner(), |bytes| self.target(bytes));
        let call = call.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.desks.call(call).await)))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        self.admission.admit(&request)?;
        Ok(Response::new(to_load(self.desks.worker.as_ref().map_or_else(WorkerLoad::default, Worker::load))))
    }
}
