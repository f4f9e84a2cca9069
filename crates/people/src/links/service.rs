//! The services for streams and queries of other nodes, which pass them to this node's carrier.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{LocalCarriers, PeopleError, PeopleQuery, PeopleReply};

use super::gateway_outbox::{GatewayOutbox, gateway_outbox};
use super::gateways::GatewayLinks;
use super::limits::{MESSAGE_BYTES_MAX, OPEN_WITHIN, QUEUE_BYTES_MAX, SHOWN_MAX};
use super::wire::{from_hello, from_told, to_serving, to_welcome, uid_of};
use whimbrel_cluster::protocol::carriers_server::{Carriers, CarriersServer};
use whimbrel_cluster::protocol::{LinkDown, LinkUp};
use whimbrel_cluster::rpc::Malformed;
use whimbrel_cluster::{Admission, InternalService, internal_call};

internal_call!(
    /// A query about a user. `None`: the node does not own the partition, and nothing was done.
    AskCarrier: (u32, PeopleQuery), at most MESSAGE_BYTES_MAX => Option<Result<PeopleReply, PeopleError>>
);

/// The service for these queries. If a key is set, calls without it are rejected before their request is read.
pub fn people_queries_service(desk: Arc<dyn LocalCarriers>, admission: impl Into<Admission>) -> InternalService {
    InternalService::new(admission).answering::<AskCarrier, _, _>(desk, |desk, (partition, query)| async move {
        let PeopleQuery::Inbox { uid, platform, after, limit } = query;
        desk.ask(partition, PeopleQuery::Inbox { uid, platform, after, limit: limit.min(SHOWN_MAX) }).await
    })
}

/// The service `whimbrel.internal.v1.Carriers`, to be mounted on the internal port of a node with the role `carrier`.
///
/// If a key is configured, calls without it are rejected before anything else is read.
pub fn carriers_service(
    desk: Arc<dyn LocalCarriers>,
    gateways: Arc<GatewayLinks>,
    admission: impl Into<Admission>,
) -> CarriersServer<CarriersService> {
    let service = CarriersService { desk, gateways, admission: admission.into() };
    CarriersServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

pub struct CarriersService {
    desk: Arc<dyn LocalCarriers>,
    gateways: Arc<GatewayLinks>,
    admission: Admission,
}

#[tonic::async_trait]
impl Carriers for CarriersService {
    type LinkStream = Pin<Box<dyn Stream<Item = Result<LinkDown, Status>> + Send>>;

    async fn link(&self, request: Request<Streaming<LinkUp>>) -> Result<Response<Self::LinkStream>, Status> {
        self.admission.admit(&request)?;
        let mut incoming = request.into_inner();
        let first = timeout(OPEN_WITHIN, incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("timeout while waiting for the hello"))??;
        let gateway =
            from_hello(first).map_err(|malformed: Malformed| Status::invalid_argument(malformed.to_string()))?;
        let (outbox, outgoing) = gateway_outbox(QUEUE_BYTES_MAX);
        // The welcome and the served partitions precede any message of an owner.
        let mut serving = self.desk.serving();
        outbox.push(to_welcome());
        outbox.push(to_serving(&serving.borrow_and_update().clone()));
        let stream = self.gateways.open(gateway, &outbox);
        let stream = stream.map_err(|refused| Status::failed_precondition(refused.to_string()))?;
        let (desk, gateways) = (Arc::clone(&self.desk), Arc::clone(&self.gateways));
        tokio::spawn(async move {
            if let Err(reason) = listen(&*desk, gateway, incoming, &outbox, serving).await {
                tracing::debug!(%gateway, reason, "the stream of a gateway ended");
            }
            outbox.end();
            gateways.close(gateway, stream);
        });
        Ok(Response::new(Box::pin(outgoing.map(Ok))))
    }
}

/// Passes messages of a gateway on and reports the served partitions, until the stream ends.
async fn listen(
    desk: &dyn LocalCarriers,
    gateway: GatewayId,
    mut incoming: Streaming<LinkUp>,
    outbox: &GatewayOutbox,
    mut serving: watch::Receiver<Arc<Vec<Option<u64>>>>,
) -> Result<(), String> {
    let partitions = u32::try_from(serving.borrow().len()).unwrap_or(u32::MAX);
    desk.link_reset(gateway);
    loop {
        tokio::select! {
            biased;
            () = outbox.ended() => return Err("ended by this node".to_owned()),
            Ok(()) = serving.changed() => {
                let served = serving.borrow_and_update().clone();
                outbox.push(to_serving(&served));
            }
            up = incoming.message() => {
                let Some(up) = up.map_err(|status| status.to_string())? else { return Ok(()) };
                let (partition, messages) = from_told(up).map_err(|malformed| malformed.to_string())?;
                let is_elsewhere = |message| uid_of(message).partition(partitions) != partition;
                if partition >= partitions || messages.iter().any(is_elsewhere) {
                    return Err("a message is for another partition than its user's".to_owned());
                }
                // The gateway learns of an unserved partition from the report, and announces its sessions to the next owner.
                desk.take(partition, gateway, messages);
            }
        }
    }
}
