//! The service for requests of other nodes about subscriptions of this node.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::super::LocalDispatch;
use super::super::admission::Admission;
use super::super::wire::protocol::dispatch_server::{Dispatch, DispatchServer};
use super::super::wire::protocol::{DispatchRequest, DispatchResponse, MinutesRequest, MinutesResponse};
use super::wire::{from_minutes_request, from_request, to_minutes, to_response};

/// The most bytes of one request: many ids of pulled messages.
const QUESTION_BYTES_MAX: usize = 16 << 20;

/// The service `whimbrel.internal.v1.Dispatch` of the internal port.
///
/// If a key is set, calls without it are rejected before the request is read.
pub fn dispatch_service(
    local: Arc<dyn LocalDispatch>,
    admission: impl Into<Admission>,
) -> DispatchServer<DispatchService> {
    let service = DispatchService { local, admission: admission.into() };
    DispatchServer::new(service).max_decoding_message_size(QUESTION_BYTES_MAX)
}

pub struct DispatchService {
    local: Arc<dyn LocalDispatch>,
    admission: Admission,
}

#[tonic::async_trait]
impl Dispatch for DispatchService {
    async fn ask(&self, request: Request<DispatchRequest>) -> Result<Response<DispatchResponse>, Status> {
        self.admission.admit(&request)?;
        let asked = from_request(request.into_inner());
        let (subscription, ask) = asked.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.local.ask(subscription, ask).await)))
    }

    async fn minutes(&self, request: Request<MinutesRequest>) -> Result<Response<MinutesResponse>, Status> {
        self.admission.admit(&request)?;
        let (topic, from, to) = from_minutes_request(&request.into_inner());
        Ok(Response::new(to_minutes(self.local.minutes(topic, from, to).await)))
    }
}
