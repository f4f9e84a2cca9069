//! The service for requests of other nodes about shards of this node.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use whimbrel_model::Clock;

use super::LocalHolds;
use super::admission::Admission;
use super::wire::protocol::owners_server::{Owners, OwnersServer};
use super::wire::protocol::{AskRequest, AskResponse, ClockRequest, ClockResponse};
use super::wire::{from_request, to_response};

/// The most bytes of one request: a hold with the largest message that an API accepts, and its framing.
const QUESTION_BYTES_MAX: usize = 256 << 20;

/// The service `whimbrel.internal.v1.Owners` of the internal port.
///
/// If a key is set, calls without it are rejected before the request is read.
pub fn service(
    local: Arc<dyn LocalHolds>,
    clock: Arc<dyn Clock>,
    admission: impl Into<Admission>,
) -> OwnersServer<OwnersService> {
    let admission = admission.into();
    OwnersServer::new(OwnersService { local, clock, admission }).max_decoding_message_size(QUESTION_BYTES_MAX)
}

pub struct OwnersService {
    local: Arc<dyn LocalHolds>,
    clock: Arc<dyn Clock>,
    admission: Admission,
}

#[tonic::async_trait]
impl Owners for OwnersService {
    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<AskResponse>, Status> {
        self.admission.admit(&request)?;
        let asked = from_request(request.into_inner());
        let (shard, ask) = asked.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.local.ask(shard, ask).await)))
    }

    async fn clock(&self, request: Request<ClockRequest>) -> Result<Response<ClockResponse>, Status> {
        self.admission.admit(&request)?;
        Ok(Response::new(ClockResponse { now_ms: self.clock.now().as_millis() }))
    }
}
