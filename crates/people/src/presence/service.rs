//! The internal port's side of presence: what other nodes send and ask goes to the station of this one.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::limits::MESSAGE_BYTES_MAX;
use super::station::Station;
use super::wire::{self, Garbled};
use protocol::presence_server::{Presence, PresenceServer};
use whimbrel_cluster::Admission;
use whimbrel_cluster::wire::protocol;

/// The service `whimbrel.internal.v1.Presence`, to be mounted on the internal port.
///
/// Where a key is set, whoever does not bring it is refused before anything is looked at.
pub fn presence_service(station: Arc<Station>, admission: impl Into<Admission>) -> PresenceServer<PresenceDoor> {
    let door = PresenceDoor { station, admission: admission.into() };
    PresenceServer::new(door).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Who answers other nodes.
pub struct PresenceDoor {
    station: Arc<Station>,
    admission: Admission,
}

fn refused(garbled: Garbled) -> Status {
    Status::invalid_argument(garbled.to_string())
}

#[tonic::async_trait]
impl Presence for PresenceDoor {
    async fn report(
        &self,
        request: Request<protocol::ReportRequest>,
    ) -> Result<Response<protocol::ReportResponse>, Status> {
        self.admission.admit(&request)?;
        self.station.take(wire::from_report(request.into_inner()).map_err(refused)?);
        Ok(Response::new(protocol::ReportResponse {}))
    }

    async fn ask(
        &self,
        request: Request<protocol::PresenceAskRequest>,
    ) -> Result<Response<protocol::PresenceAskResponse>, Status> {
        self.admission.admit(&request)?;
        let (ask, forward) = wire::from_ask(request.into_inner()).map_err(refused)?;
        let answer = self.station.answer(ask, forward).await.map_err(Status::unavailable)?;
        Ok(Response::new(wire::to_answer(answer)))
    }

    async fn read(
        &self,
        request: Request<protocol::PresenceReadRequest>,
    ) -> Result<Response<protocol::PresenceReadResponse>, Status> {
        self.admission.admit(&request)?;
        let (centre, shard, uids) = wire::from_read(request.into_inner()).map_err(refused)?;
        let heard = self.station.read(centre, shard, uids).await.map_err(Status::unavailable)?;
        Ok(Response::new(wire::to_heard(heard)))
    }
}
