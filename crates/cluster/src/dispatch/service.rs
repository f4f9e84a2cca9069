//! The calls of other nodes about subscriptions of this node.

use std::sync::Arc;

use whimbrel_model::ports::{DispatchReply, DispatchRequest, MinuteRow};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::admission::Admission;
use super::super::rpc::InternalService;
use super::super::{LocalDispatch, LocalDispatchError, internal_call};

internal_call!(
    /// A request to the owner of a subscription: many ids of pulled messages, at most.
    AskSubscription: (SubscriptionNumber, DispatchRequest), at most 16 << 20 => Result<DispatchReply, LocalDispatchError>
);
internal_call!(
    /// Reads the node's own statistics of a topic by the minute, from one time to before another, in order.
    ReadMinutes: (TopicNumber, Timestamp, Timestamp), at most 64 => Vec<(Timestamp, MinuteRow)>
);

/// The service for these calls. If a key is set, calls without it are rejected before the request is read.
pub fn dispatch_service(local: Arc<dyn LocalDispatch>, admission: impl Into<Admission>) -> InternalService {
    InternalService::new(admission)
        .answering::<AskSubscription, _, _>(local.clone(), |local, (subscription, request)| async move {
            local.ask(subscription, request).await
        })
        .answering::<ReadMinutes, _, _>(local, |local, (topic, from, to)| async move {
            local.minutes(topic, from, to).await
        })
}
