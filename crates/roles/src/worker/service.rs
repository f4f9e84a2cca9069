//! The internal port's side of calls: what centers of other processes ask goes to the worker of this one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tonic::{Request, Response, Status};
use whimbrel_model::ports::{CallTarget, Callbacks};

use super::Worker;
use super::limits::{CALL_BYTES_MAX, PREPARED_TARGETS_MAX};
use super::wire::{from_request, to_load, to_response};
use crate::owners::Admission;
use crate::owners::wire::protocol::workers_server::{Workers, WorkersServer};
use crate::owners::wire::protocol::{CallRequest, CallResponse, LoadRequest, LoadResponse};

/// The service `whimbrel.internal.v1.Workers`, to be mounted on the internal port.
///
/// Where a key is set, whoever does not bring it is refused before the call is looked at.
pub fn workers_service(worker: Worker, internal_key: Option<&str>) -> WorkersServer<WorkersDoor> {
    let door = WorkersDoor { worker, admission: Admission::new(internal_key), targets: Mutex::default() };
    WorkersServer::new(door).max_decoding_message_size(CALL_BYTES_MAX)
}

/// Who answers the centers of other processes.
pub struct WorkersDoor {
    worker: Worker,
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
        Ok(Response::new(to_response(self.worker.call(call).await)))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        self.admission.admit(&request)?;
        Ok(Response::new(to_load(self.worker.load())))
    }
}
