//! Passes one call to another node.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use whimbrel_model::ports::{Call, CallReport};

use super::call_wire::{from_response, to_request};
use super::worker_set::answer_within;
use whimbrel_cluster::PeerClients;
use whimbrel_cluster::peers::was_never_connected;
use whimbrel_cluster::wire::protocol::workers_client::WorkersClient;

/// Why another node returned no outcome.
pub(crate) struct NoOutcome {
    /// Whether the node may have made the call.
    pub(crate) may_have_called: bool,
    pub(crate) reason: String,
}

/// Sends the call to the node at `address`, and waits for its outcome for the call's timeout plus `grace`. `target` is the encoded target.
pub(crate) async fn call_remote(
    peers: &PeerClients,
    address: &str,
    call: &Call,
    target: Bytes,
    grace: Duration,
) -> Result<CallReport, NoOutcome> {
    let never = |reason| NoOutcome { may_have_called: false, reason };
    let maybe = |reason| NoOutcome { may_have_called: true, reason };
    let mut client = WorkersClient::new(peers.channel(address).map_err(never)?);
    let request = peers.request(to_request(call, target));
    let within = answer_within(call, grace);
    match timeout(within, client.call(request)).await {
        Err(_) => Err(maybe(format!("no reply within {within:?}"))),
        Ok(Err(status)) if was_never_connected(&status) || was_refused(&status) => {
            Err(never(status.message().to_owned()))
        }
        Ok(Err(status)) => Err(maybe(status.message().to_owned())),
        Ok(Ok(response)) => from_response(response.into_inner()).map_err(|garbled| maybe(garbled.to_string())),
    }
}

/// Whether the node rejected the request before it made the call.
fn was_refused(status: &tonic::Status) -> bool {
    use tonic::Code::{InvalidArgument, Unauthenticated, Unimplemented};
    [InvalidArgument, Unauthenticated, Unimplemented].contains(&status.code())
}
