//! The calls of other nodes about holds, and about the clock of this node.

use std::sync::Arc;

use whimbrel_model::ports::{HoldReply, HoldRequest};
use whimbrel_model::{Clock, Timestamp};

use super::admission::Admission;
use super::rpc::InternalService;
use super::{LocalHolds, LocalHoldsError, internal_call};

internal_call!(
    /// A request to the owner of a shard of holds: a hold with the largest message that an API accepts, at most.
    AskHolds: (u32, HoldRequest), at most 256 << 20 => Result<HoldReply, LocalHoldsError>
);
internal_call!(
    /// Reads the node's wall clock. Centers compare their clocks with it.
    ReadClock: (), at most 64 => Timestamp
);

/// The service for these calls. If a key is set, calls without it are rejected before the request is read.
pub fn service(local: Arc<dyn LocalHolds>, clock: Arc<dyn Clock>, admission: impl Into<Admission>) -> InternalService {
    InternalService::new(admission)
        .answering::<AskHolds, _, _>(local, |local, (shard, request)| async move { local.ask(shard, request).await })
        .answering::<ReadClock, _, _>(clock, |clock, ()| async move { clock.now() })
}
