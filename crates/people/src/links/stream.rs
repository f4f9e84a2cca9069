//! The stream from this node's gateway to one carrier on another node: opens it, reads it, and opens it again after it has ended.

use std::sync::Arc;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::LocalGateway;

use super::carriers::CarrierLinks;
use super::limits::{MESSAGE_BYTES_MAX, OPEN_WITHIN, QUEUE_BYTES_MAX, RECONNECT_DELAY, RECONNECT_DELAY_MAX};
use super::outbox::outbox;
use super::wire::{from_batch, from_serving, from_welcome, to_hello};
use whimbrel_cluster::PeerClients;
use whimbrel_cluster::protocol::carriers_client::CarriersClient;
use whimbrel_cluster::protocol::link_down::Says;

/// A remote carrier and the local gateway that connects to it. If any field changes, a new stream is necessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CarrierTarget {
    pub node: u16,
    pub incarnation: u64,
    pub address: String,
    /// The gateway that opens the stream.
    pub gateway: GatewayId,
}

/// Keeps a stream to the target until `ends` is cancelled.
pub(super) async fn keep_stream(
    links: Arc<CarrierLinks>,
    peers: Arc<PeerClients>,
    desk: Arc<dyn LocalGateway>,
    target: CarrierTarget,
    ends: CancellationToken,
) {
    let mut pause = RECONNECT_DELAY;
    loop {
        let (mut stood, mut reason) = (false, String::new());
        let streaming = async {
            if let Err(why) = stream_once(&links, &peers, &*desk, &target, &mut stood).await {
                reason = why;
            }
        };
        tokio::select! {
            () = ends.cancelled() => return,
            () = streaming => {}
        }
        links.stream_ended(&target);
        tracing::debug!(node = target.node, reason, "the stream to a carrier ended; reconnecting");
        if stood {
            pause = RECONNECT_DELAY;
        }
        tokio::select! {
            () = ends.cancelled() => return,
            () = sleep(pause) => pause = (pause * 2).min(RECONNECT_DELAY_MAX),
        }
    }
}

/// Opens the stream and passes its messages on, until it ends.
async fn stream_once(
    links: &CarrierLinks,
    peers: &PeerClients,
    desk: &dyn LocalGateway,
    target: &CarrierTarget,
    stood: &mut bool,
) -> Result<(), String> {
    let (outbox, outgoing) = outbox(QUEUE_BYTES_MAX);
    outbox.push(to_hello(target.gateway));
    let mut client = CarriersClient::new(peers.channel(&target.address)?).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let opening = async {
        let answer = client.link(peers.request(outgoing)).await.map_err(|status| status.to_string())?;
        let mut incoming = answer.into_inner();
        let first = incoming.message().await.map_err(|status| status.to_string())?;
        from_welcome(first).map_err(|malformed| malformed.to_string())?;
        Ok::<_, String>(incoming)
    };
    let mut incoming =
        timeout(OPEN_WITHIN, opening).await.map_err(|_| "timeout while opening the stream".to_owned())??;
    *stood = true;
    let Some(stream) = links.stream_opened(target, &outbox) else { return Ok(()) };
    loop {
        let down = tokio::select! {
            () = outbox.ended() => return Err("the send queue is full".to_owned()),
            down = incoming.message() => down.map_err(|status| status.to_string())?,
        };
        let says = down.ok_or("the peer ended the stream")?.says;
        match says.ok_or("a message is empty")? {
            Says::Welcome(_) => return Err("unexpected welcome".to_owned()),
            Says::Serving(serving) => {
                links.stream_serves(target, stream, from_serving(serving).map_err(|malformed| malformed.to_string())?);
            }
            Says::Batch(batch) => {
                let news = from_batch(batch).map_err(|malformed| malformed.to_string())?;
                if !desk.take(target.gateway, news) {
                    return Err("the gateway has a new incarnation".to_owned());
                }
            }
        }
    }
}
