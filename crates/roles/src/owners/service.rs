//! The internal port's side of questions: what other nodes ask goes to the desk of this one.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tonic::{Request, Response, Status};
use whimbrel_model::Clock;

use super::Desk;
use super::peers::KEY_METADATA;
use super::wire::protocol::owners_server::{Owners, OwnersServer};
use super::wire::protocol::{AskRequest, AskResponse, ClockRequest, ClockResponse};
use super::wire::{from_request, to_response};

/// Bytes of one question: a hold with the largest message that any door lets in, and its framing.
const QUESTION_BYTES_MAX: usize = 256 << 20;

/// The service `whimbrel.internal.v1.Owners`, to be mounted on the internal port.
///
/// Where a key is set, whoever does not bring it is refused before the question is looked at.
pub fn service(desk: Arc<dyn Desk>, clock: Arc<dyn Clock>, internal_key: Option<&str>) -> OwnersServer<OwnersDoor> {
    let key_hash = internal_key.map(|key| Sha256::digest(key.as_bytes()).into());
    OwnersServer::new(OwnersDoor { desk, clock, key_hash }).max_decoding_message_size(QUESTION_BYTES_MAX)
}

/// Who answers other nodes.
pub struct OwnersDoor {
    desk: Arc<dyn Desk>,
    clock: Arc<dyn Clock>,
    key_hash: Option<[u8; 32]>,
}

impl OwnersDoor {
    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let Some(expected) = &self.key_hash else { return Ok(()) };
        let brought = request.metadata().get(KEY_METADATA).map(|key| key.as_bytes()).unwrap_or_default();
        let hash: [u8; 32] = Sha256::digest(brought).into();
        // All bytes are compared, and hashes at that, so that the time taken tells nothing about the key.
        let difference = expected.iter().zip(hash).fold(0u8, |sum, (ours, theirs)| sum | (ours ^ theirs));
        if difference == 0 { Ok(()) } else { Err(Status::unauthenticated("the internal key is missing or wrong")) }
    }
}

#[tonic::async_trait]
impl Owners for OwnersDoor {
    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<AskResponse>, Status> {
        self.admit(&request)?;
        let asked = from_request(request.into_inner());
        let (shard, ask) = asked.map_err(|garbled| Status::invalid_argument(garbled.to_string()))?;
        Ok(Response::new(to_response(self.desk.ask(shard, ask).await)))
    }

    async fn clock(&self, request: Request<ClockRequest>) -> Result<Response<ClockResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(ClockResponse { now_ms: self.clock.now().as_millis() }))
    }
}
