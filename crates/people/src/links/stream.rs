//! The one stream that this node's gateway keeps to a carrier on another node: opened, listened to, opened again when it ends.

use std::sync::Arc;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::GatewayDesk;

use super::carriers::CarrierLinks;
use super::limits::{AGAIN_AFTER, AGAIN_AFTER_LONGEST, MESSAGE_BYTES_MAX, OPEN_WITHIN, QUEUE_BYTES_MAX};
use super::outbox::outbox;
use super::wire::{from_batch, from_serving, from_welcome, to_hello};
use whimbrel_cluster::Peers;
use whimbrel_cluster::wire::protocol::carriers_client::CarriersClient;
use whimbrel_cluster::wire::protocol::link_down::Says;

/// A carrier on another node, as a gateway of this one sees it. When anything of it changes, the stream is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub node: u16,
    pub incarnation: u64,
    pub address: String,
    /// Who opens the stream.
    pub gateway: GatewayId,
}

/// Keeps a stream to the target until it is not wanted any more.
pub(super) async fn keep(
    links: Arc<CarrierLinks>,
    peers: Arc<Peers>,
    desk: Arc<dyn GatewayDesk>,
    target: Target,
    ends: CancellationToken,
) {
    let mut pause = AGAIN_AFTER;
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
        links.fell(&target);
        tracing::debug!(node = target.node, reason, "the stream to a carrier ended; it is opened again");
        if stood {
            pause = AGAIN_AFTER;
        }
        tokio::select! {
            () = ends.cancelled() => return,
            () = sleep(pause) => pause = (pause * 2).min(AGAIN_AFTER_LONGEST),
        }
    }
}

/// Opens the stream and passes on what comes, until it ends for whatever reason.
async fn stream_once(
    links: &CarrierLinks,
    peers: &Peers,
    desk: &dyn GatewayDesk,
    target: &Target,
    stood: &mut bool,
) -> Result<(), String> {
    let (outbox, outgoing) = outbox(QUEUE_BYTES_MAX);
    outbox.push(to_hello(target.gateway));
    let mut client = CarriersClient::new(peers.channel(&target.address)?).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let opening = async {
        let answer = client.link(peers.request(outgoing)).await.map_err(|status| status.to_string())?;
        let mut incoming = answer.into_inner();
        let first = incoming.message().await.map_err(|status| status.to_string())?;
        from_welcome(first).map_err(|garbled| garbled.to_string())?;
        Ok::<_, String>(incoming)
    };
    let mut incoming = timeout(OPEN_WITHIN, opening).await.map_err(|_| "it was not opened in time".to_owned())??;
    *stood = true;
    let Some(stream) = links.stands(target, &outbox) else { return Ok(()) };
    loop {
        let down = tokio::select! {
            () = outbox.ended() => return Err("too much waited to be sent".to_owned()),
            down = incoming.message() => down.map_err(|status| status.to_string())?,
        };
        let says = down.ok_or("the other end ended it")?.says;
        match says.ok_or("a message that says nothing")? {
            Says::Welcome(_) => return Err("a welcome out of turn".to_owned()),
            Says::Serving(serving) => {
                links.serves(target, stream, from_serving(serving).map_err(|garbled| garbled.to_string())?);
            }
            Says::Batch(batch) => {
                let news = from_batch(batch).map_err(|garbled| garbled.to_string())?;
                if !desk.take(target.gateway, news) {
                    return Err("the gateway is another incarnation by now".to_owned());
                }
            }
        }
    }
}
