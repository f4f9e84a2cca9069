//! The gRPC service for presence messages and queries of other nodes.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::limits::MESSAGE_BYTES_MAX;
use super::node::PresenceNode;
use super::wire;
use protocol::presence_server::{Presence, PresenceServer};
use whimbrel_cluster::Admission;
use whimbrel_cluster::wire::{Malformed, protocol};

/// The service `whimbrel.internal.v1.Presence`, to be mounted on the internal port.
///
/// If a key is configured, calls without it are rejected before anything else is read.
pub fn presence_service(node: Arc<PresenceNode>, admission: impl Into<Admission>) -> PresenceServer<PresenceService> {
    let service = PresenceService { node, admission: admission.into() };
    PresenceServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

pub struct PresenceService {
    node: Arc<PresenceNode>,
    admission: Admission,
}

fn refused(malformed: Malformed) -> Status {
    Status::invalid_argument(malformed.to_string())
}

#[tonic::async_trait]
impl Presence for PresenceService {
    async fn report(
        &self,
        request: Request<protocol::ReportRequest>,
    ) -> Result<Response<protocol::ReportResponse>, Status> {
        self.admission.admit(&request)?;
        self.node.take(wire::from_report(request.into_inner()).map_err(refused)?);
        Ok(Response::new(protocol::ReportResponse {}))
    }

    async fn ask(
        &self,
        request: Request<protocol::PresenceAskRequest>,
    ) -> Result<Response<protocol::PresenceAskResponse>, Status> {
        self.admission.admit(&request)?;
        let (ask, forward) = wire::from_ask(request.into_inner()).map_err(refused)?;
        let answer = self.node.answer(ask, forward).await.map_err(Status::unavailable)?;
        Ok(Response::new(wire::to_answer(answer)))
    }

    async fn read(
        &self,
        request: Request<protocol::PresenceReadRequest>,
    ) -> Result<Response<protocol::PresenceReadResponse>, Status> {
        self.admission.admit(&request)?;
        let (centre, shard, uids) = wire::from_read(request.into_inner()).map_err(refused)?;
        let heard = self.node.read(centre, shard, uids).await.map_err(Status::unavailable)?;
        Ok(Response::new(wire::to_heard(heard)))
    }
}
