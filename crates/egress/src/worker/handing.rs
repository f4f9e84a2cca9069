//! One call handed to another process, and why it may not say how the call went.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use whimbrel_model::ports::{Call, Called};

use super::team::answer_within;
use super::wire::{from_response, to_request};
use whimbrel_cluster::Peers;
use whimbrel_cluster::peers::was_never_connected;
use whimbrel_cluster::wire::protocol::workers_client::WorkersClient;

/// Why another process did not say how a call went.
pub(crate) struct Silence {
    /// The call may have been made.
    pub(crate) may_have_called: bool,
    pub(crate) reason: String,
}

/// Asks the process at an address to make the call, and waits for it a little longer than the call may take. `target` is the call's
/// target as it travels.
pub(crate) async fn hand_over(
    peers: &Peers,
    address: &str,
    call: &Call,
    target: Bytes,
    grace: Duration,
) -> Result<Called, Silence> {
    let never = |reason| Silence { may_have_called: false, reason };
    let maybe = |reason| Silence { may_have_called: true, reason };
    let mut client = WorkersClient::new(peers.channel(address).map_err(never)?);
    let request = peers.request(to_request(call, target));
    let within = answer_within(call, grace);
    match timeout(within, client.call(request)).await {
        Err(_) => Err(maybe(format!("no answer within {within:?}"))),
        Ok(Err(status)) if was_never_connected(&status) || was_refused(&status) => {
            Err(never(status.message().to_owned()))
        }
        Ok(Err(status)) => Err(maybe(status.message().to_owned())),
        Ok(Ok(response)) => from_response(response.into_inner()).map_err(|garbled| maybe(garbled.to_string())),
    }
}

/// Whether the other process said so before it looked at the call.
fn was_refused(status: &tonic::Status) -> bool {
    use tonic::Code::{InvalidArgument, Unauthenticated, Unimplemented};
    [InvalidArgument, Unauthenticated, Unimplemented].contains(&status.code())
}
