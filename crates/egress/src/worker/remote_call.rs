//! Calls between nodes of the role `worker`: a callback that another node makes, and the load of its worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_cluster::peers::PeerReply;
use whimbrel_cluster::{PeerClients, internal_call, wire};
use whimbrel_model::ports::{Call, CallReport, CallTarget};
use whimbrel_model::subscription::DeliveryRule;
use whimbrel_model::{Record, Timestamp};

use super::limits::CALL_BYTES_MAX;
use super::strategy::WorkerLoad;
use super::worker_set::answer_within;

internal_call!(
    /// Makes one callback and returns its result.
    MakeCallback: TransferredCall, at most CALL_BYTES_MAX => CallReport
);
internal_call!(
    /// Reads the current load of the worker.
    ReadLoad: (), at most 64 => WorkerLoad
);

wire!(struct WorkerLoad { in_flight, cpu, memory });
wire!(struct TransferredCall { target, topic, partition, offset, attempt, id, published_at, record, rule });

/// A [`Call`] with its target in encoded form: all calls of a subscription have the same bytes, which the other node decodes once.
#[derive(Debug, Clone)]
pub struct TransferredCall {
    pub(super) target: Bytes,
    topic: Arc<str>,
    partition: u32,
    offset: u64,
    attempt: u32,
    id: Box<str>,
    published_at: Timestamp,
    record: Record,
    rule: Option<Arc<DeliveryRule>>,
}

impl TransferredCall {
    fn new(call: &Call, target: Bytes) -> Self {
        let Call { target: _, topic, partition, offset, attempt, id, published_at, record, rule } = call.clone();
        Self { target, topic, partition, offset, attempt, id, published_at, record, rule }
    }

    pub(super) fn into_call(self, target: Arc<CallTarget>) -> Call {
        let Self { target: _, topic, partition, offset, attempt, id, published_at, record, rule } = self;
        Call { target, topic, partition, offset, attempt, id, published_at, record, rule }
    }
}

/// The encoded target, which many calls share.
pub(crate) fn target_bytes(target: &CallTarget) -> Bytes {
    serde_json::to_vec(target).expect("a target is JSON").into()
}

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
    let request = TransferredCall::new(call, target);
    match peers.call::<MakeCallback>(address, request, answer_within(call, grace)).await {
        PeerReply::Answered(report) => Ok(report),
        PeerReply::NotDelivered(reason) | PeerReply::Refused(reason) => {
            Err(NoOutcome { may_have_called: false, reason })
        }
        PeerReply::Unknown(reason) => Err(NoOutcome { may_have_called: true, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::prepared_target::testing::target_at;
    use whimbrel_cluster::rpc::transferred;
    use whimbrel_model::Headers;
    use whimbrel_model::subscription::{Envelope, OwnCallback, SigningSecret};

    fn target() -> CallTarget {
        let mut target = target_at("http://a/");
        target.endpoint.connect_timeout_ms = Some(1);
        target.endpoint.headers = vec![("X-Env".to_owned(), "prod".to_owned())];
        let secrets = vec![SigningSecret { secret: "whsec_x".to_owned(), until_ms: Some(4) }];
        CallTarget { envelope: Envelope::Structured, secrets, ..target }
    }

    fn call(rule: Option<DeliveryRule>) -> Call {
        let mut headers = Headers::builder();
        headers.push("a", b"1").push("b", b"\xff");
        Call {
            target: Arc::new(target()),
            topic: "orders".into(),
            partition: 1,
            offset: u64::MAX,
            attempt: 2,
            id: "m".into(),
            published_at: Timestamp::from_millis(-1),
            record: Record {
                key: Some(Bytes::new()),
                value: Bytes::from_static(b"\0\xff"),
                headers: headers.take(),
                timestamp: Timestamp::from_millis(7),
            },
            rule: rule.map(Arc::new),
        }
    }

    #[test]
    fn a_call_is_decoded_as_it_was_encoded() {
        let callback = OwnCallback { method: "GET".to_owned(), url: "http://b/".to_owned() };
        let rule = DeliveryRule { callback: Some(callback), timeout_ms: Some(3), retry: None };
        for sent in [call(None), call(Some(rule))] {
            let came = transferred(&TransferredCall::new(&sent, target_bytes(&sent.target))).unwrap();
            let target: CallTarget = serde_json::from_slice(&came.target).unwrap();
            assert_eq!(target.secrets, sent.target.secrets, "`Debug` does not show them");
            assert_eq!(format!("{:?}", came.into_call(Arc::new(target))), format!("{sent:?}"));
        }
    }
}
