//! The internal port's side of questions: what other nodes ask goes to the desk of this one.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use whimbrel_model::Clock;

use super::Desk;
use super::admission::Admission;
use super::wire::protocol::owners_server::{Owners, OwnersServer};
use super::wire::protocol::{AskRequest, AskResponse, ClockRequest, ClockResponse};
use super::wire::{from_request, to_response};

/// Bytes of one question: a hold with the largest message that any door lets in, and its framing.
const QUESTION_BYTES_MAX: usize = 256 << 20;

/// The service `whimbrel.internal.v1.Owners`, to be mounted on the internal port.
///
/// Where a key is set, whoever does not bring it is refused before the question is looked at.
pub fn service(
    desk: Arc<dyn Desk>,
    clock: Arc<dyn Clock>,
    admission: impl Into<Admission>,
) -> OwnersServer<OwnersDoor> {
    let admission = admission.into();
    OwnersServer::new(OwnersDoor { desk, clock, admission }).max_decoding_message_size(QUESTION_BYTES_MAX)
}

/// Who answers other nodes.
pub struct OwnersDoor {
    desk: Arc<dyn Desk>,
    clock: Arc<dyn Clock>,
    admission: Admission,
}

#[tonic::async_trait]
impl Owners for OwnersDoor {
    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<AskResponse>, Status> {
        self.admission.admit(&request)?;
        let asked = from_request(request.into_inner());
        let (shard, ask) = asked.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.desk.ask(shard, ask).await)))
    }

    async fn clock(&self, request: Request<ClockRequest>) -> Result<Response<ClockResponse>, Status> {
        self.admission.admit(&request)?;
        Ok(Response::new(ClockResponse { now_ms: self.clock.now().as_millis() }))
    }
}
