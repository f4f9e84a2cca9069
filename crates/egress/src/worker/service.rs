//! The internal port's side of calls: what centers of other processes ask goes to the worker of this one, notices to its horn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tonic::{Request, Response, Status};
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallTarget, Callbacks, Called};
use whimbrel_model::push::HORN_URL;

use super::Worker;
use super::limits::{CALL_BYTES_MAX, PREPARED_TARGETS_MAX};
use super::strategy::Load;
use super::wire::{from_request, to_load, to_response};
use whimbrel_cluster::Admission;
use whimbrel_cluster::wire::protocol::workers_server::{Workers, WorkersServer};
use whimbrel_cluster::wire::protocol::{CallRequest, CallResponse, LoadRequest, LoadResponse};

/// The service `whimbrel.internal.v1.Workers`, to be mounted on the internal port.
///
/// Where a key is set, whoever does not bring it is refused before the call is looked at.
pub fn workers_service(desks: impl Into<CallDesks>, admission: impl Into<Admission>) -> WorkersServer<WorkersDoor> {
    let door = WorkersDoor { desks: desks.into(), admission: admission.into(), targets: Mutex::default() };
    WorkersServer::new(door).max_decoding_message_size(CALL_BYTES_MAX)
}

/// Who makes calls in this process.
#[derive(Clone, Default)]
pub struct CallDesks {
    /// Where it has the role `worker`.
    pub worker: Option<Worker>,
    /// Where it has the role `horn`: for calls to [`HORN_URL`].
    pub horn: Option<Arc<dyn Callbacks>>,
}

impl From<Worker> for CallDesks {
    fn from(worker: Worker) -> Self {
        Self { worker: Some(worker), horn: None }
    }
}

impl CallDesks {
    async fn call(&self, call: Call) -> Called {
        let is_notice = call.target.endpoint.url.as_deref() == Some(HORN_URL);
        match (&self.horn, &self.worker) {
            (Some(horn), _) if is_notice => horn.call(call).await,
            (_, Some(worker)) if !is_notice => worker.call(call).await,
            _ => {
                let detail = "this process does not have the role that the call is for".to_owned();
                let outcome = CallOutcome::Failed { why: CallFailure::NoWorker, detail };
                Called { outcome, took: Duration::ZERO }
            }
        }
    }
}

/// Who answers the centers of other processes.
pub struct WorkersDoor {
    desks: CallDesks,
    admission: Admission,
    /// Targets by their bytes, so that each is read once and keeps its connections.
    targets: Mutex<HashMap<Bytes, Arc<CallTarget>>>,
}

impl WorkersDoor {
    fn target(&self, bytes: &Bytes) -> Option<Arc<CallTarget>> {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = targets.get(bytes) {
            return Some(Arc::clone(target));
        }
        let target: Arc<CallTarget> = Arc::new(serde_json::from_slice(bytes).ok()?);
        if targets.len() >= PREPARED_TARGETS_MAX {
            targets.clear();
        }
        // A copy, so that the entry does not keep the whole message that it came with.
        targets.insert(Bytes::copy_from_slice(bytes), Arc::clone(&target));
        Some(target)
    }
}

#[tonic::async_trait]
impl Workers for WorkersDoor {
    async fn call(&self, request: Request<CallRequest>) -> Result<Response<CallResponse>, Status> {
        self.admission.admit(&request)?;
        let call = from_request(request.into_inner(), |bytes| self.target(bytes));
        let call = call.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.desks.call(call).await)))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        self.admission.admit(&request)?;
        Ok(Response::new(to_load(self.desks.worker.as_ref().map_or_else(Load::default, Worker::load))))
    }
}
