//! The internal port's side of streams and questions: what gateways on other nodes say goes to the desk of this one.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::CarrierDesk;

use super::down::{DownBox, down};
use super::gateways::GatewayLinks;
use super::limits::{MESSAGE_BYTES_MAX, OPEN_WITHIN, QUEUE_BYTES_MAX};
use super::wire::{from_hello, from_told, to_serving, to_welcome, uid_of};
use super::wire_asks::{from_request, to_response};
use whimbrel_cluster::Admission;
use whimbrel_cluster::wire::Garbled;
use whimbrel_cluster::wire::protocol::carriers_server::{Carriers, CarriersServer};
use whimbrel_cluster::wire::protocol::{LinkDown, LinkUp, PeopleRequest, PeopleResponse};

/// The service `whimbrel.internal.v1.Carriers`, to be mounted on the internal port of a node with the role `carrier`.
///
/// Where a key is set, whoever does not bring it is refused before anything is looked at.
pub fn carriers_service(
    desk: Arc<dyn CarrierDesk>,
    gateways: Arc<GatewayLinks>,
    admission: impl Into<Admission>,
) -> CarriersServer<CarriersDoor> {
    let door = CarriersDoor { desk, gateways, admission: admission.into() };
    CarriersServer::new(door).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Who answers gateways on other nodes.
pub struct CarriersDoor {
    desk: Arc<dyn CarrierDesk>,
    gateways: Arc<GatewayLinks>,
    admission: Admission,
}

#[tonic::async_trait]
impl Carriers for CarriersDoor {
    type LinkStream = Pin<Box<dyn Stream<Item = Result<LinkDown, Status>> + Send>>;

    async fn link(&self, request: Request<Streaming<LinkUp>>) -> Result<Response<Self::LinkStream>, Status> {
        self.admission.admit(&request)?;
        let mut incoming = request.into_inner();
        let first = timeout(OPEN_WITHIN, incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello in time"))??;
        let gateway = from_hello(first).map_err(|garbled| refusal(&garbled))?;
        let (outbox, outgoing) = down(QUEUE_BYTES_MAX);
        // The welcome and what is served come before anything that an owner says.
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

    async fn ask(&self, request: Request<PeopleRequest>) -> Result<Response<PeopleResponse>, Status> {
        self.admission.admit(&request)?;
        let (partition, ask) = from_request(request.into_inner()).map_err(|garbled| refusal(&garbled))?;
        Ok(Response::new(to_response(self.desk.ask(partition, ask).await)))
    }
}

fn refusal(garbled: &Garbled) -> Status {
    Status::invalid_argument(garbled.to_string())
}

/// Takes what a gateway says, and tells it what is served, until the stream ends.
async fn listen(
    desk: &dyn CarrierDesk,
    gateway: GatewayId,
    mut incoming: Streaming<LinkUp>,
    outbox: &DownBox,
    mut serving: watch::Receiver<Arc<Vec<Option<u64>>>>,
) -> Result<(), String> {
    let partitions = u32::try_from(serving.borrow().len()).unwrap_or(u32::MAX);
    desk.afresh(gateway);
    loop {
        tokio::select! {
            biased;
            () = outbox.ended() => return Err("it was ended here".to_owned()),
            Ok(()) = serving.changed() => {
                let served = serving.borrow_and_update().clone();
                outbox.push(to_serving(&served));
            }
            up = incoming.message() => {
                let Some(up) = up.map_err(|status| status.to_string())? else { return Ok(()) };
                let (partition, messages) = from_told(up).map_err(|garbled| garbled.to_string())?;
                let is_elsewhere = |message| uid_of(message).partition(partitions) != partition;
                if partition >= partitions || messages.iter().any(is_elsewhere) {
                    return Err("it says something to an owner who is not its user's".to_owned());
                }
                // What is not served any more is told as such: the gateway announces its sessions to the next owner.
                desk.take(partition, gateway, messages);
            }
        }
    }
}
