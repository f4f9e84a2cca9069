//! The internal port's side of questions about subscriptions: what other nodes ask goes to the desk of this one.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::super::DispatchDesk;
use super::super::admission::Admission;
use super::super::wire::protocol::dispatch_server::{Dispatch, DispatchServer};
use super::super::wire::protocol::{DispatchRequest, DispatchResponse, MinutesRequest, MinutesResponse};
use super::wire::{from_minutes_request, from_request, to_minutes, to_response};

/// Bytes of one question: many ids of what was pulled.
const QUESTION_BYTES_MAX: usize = 16 << 20;

/// The service `whimbrel.internal.v1.Dispatch`, to be mounted on the internal port.
///
/// Where a key is set, whoever does not bring it is refused before the question is looked at.
pub fn dispatch_service(desk: Arc<dyn DispatchDesk>, admission: impl Into<Admission>) -> DispatchServer<DispatchDoor> {
    let door = DispatchDoor { desk, admission: admission.into() };
    DispatchServer::new(door).max_decoding_message_size(QUESTION_BYTES_MAX)
}

/// Who answers other nodes.
pub struct DispatchDoor {
    desk: Arc<dyn DispatchDesk>,
    admission: Admission,
}

#[tonic::async_trait]
impl Dispatch for DispatchDoor {
    async fn ask(&self, request: Request<DispatchRequest>) -> Result<Response<DispatchResponse>, Status> {
        self.admission.admit(&request)?;
        let asked = from_request(request.into_inner());
        let (subscription, ask) = asked.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.desk.ask(subscription, ask).await)))
    }

    async fn minutes(&self, request: Request<MinutesRequest>) -> Result<Response<MinutesResponse>, Status> {
        self.admission.admit(&request)?;
        let (topic, from, to) = from_minutes_request(&request.into_inner());
        Ok(Response::new(to_minutes(self.desk.minutes(topic, from, to).await)))
    }
}
