//! The ports: the contracts between roles and engines. Each port is a small trait whose comments state atomicity, order, durability and
//! cancellation. Every engine of a port passes the same conformance suite.

pub mod attempts;
pub mod callbacks;
pub mod carriers;
pub mod catalogue;
pub mod coordination;
pub mod devices;
pub mod dispatch;
pub mod holds;
pub mod inbox;
pub mod log;
pub mod presence;
pub mod progress;
pub mod receipts;
pub mod sessions;
pub mod timers;

pub use attempts::{
    ANSWER_KEPT_BYTES, AfterFailure, AttemptOutcome, AttemptRecord, AttemptStore, DurationHistogram, MinuteRow,
};
pub use callbacks::{Call, CallFailure, CallOutcome, CallReport, CallTarget, Callbacks, RetryAdvice};
pub use carriers::{
    Admitted, AnnouncedSession, Arrival, CarrierMessages, Carriers, Delivery, DeliveryPosition, Gateways, InboxMessage,
    InboxView, LocalCarriers, LocalGateway, NoCarrier, OutMessage, OwnerLink, PeopleError, PeopleQuery, PeopleReply,
    Resume, SeatView, ToCarrier, ToGateway,
};
pub use catalogue::{Catalogue, CatalogueError, Versioned};
pub use coordination::{ClusterSnapshot, Coordination, CoordinationError, Member, Membership, Node, Owner};
pub use devices::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, Provider};
pub use dispatch::{
    DeadLetter, DeliveryState, Dispatch, DispatchError, DispatchReply, DispatchRequest, LastError, LeasedMessage,
    MessageDelivery, PartitionDelivery, ReplayProgress, SubscriptionStatus,
};
pub use holds::{HoldReply, HoldRequest, HoldView, Holds, HoldsError, NewDueTime};
pub use inbox::{Inbox, InboxChange, InboxError, InboxRead, InboxWrite, RECLAIM_GRAIN_MS, RowKey, reclaim_hour};
pub use log::{
    AppendOutcome, Bounds, CommitOutcome, Entry, ExactTopic, Fence, Log, LogError, LogTopics, PartitionStatus,
    ReadBatch, ReadLimits, TopicStatus,
};
pub use presence::{Presence, PresenceAnswer, PresenceError, Reporter};
pub use progress::{Progress, ProgressError, ProgressKey, ProgressRow};
pub use receipts::{Claim, ClaimKind, ClaimState, PublishReceipt, Receipts, ReceiptsError};
pub use sessions::{Confirmed, SessionUpdate, Sessions, SessionsError, UserChange, UserSessions};
pub use timers::{
    ApplyOutcome, AtOffset, CountQuery, DueCursor, DueKey, HoldQuery, StoredHold, TimerChange, Timers, TimersError,
    TimersRead, TimersWrite, bucket_start,
};

use std::future::Future;
use std::pin::Pin;

/// The future that a port's method returns. It is boxed because ports are used as trait objects.
pub type PortFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
