//! The ports: what engines promise to roles. Each is a small trait that states atomicity, ordering, durability and what
//! happens on cancellation; every engine of a port passes the same conformance suite.

pub mod callbacks;
pub mod carriers;
pub mod catalogue;
pub mod coordination;
pub mod devices;
pub mod dispatch;
pub mod holds;
pub mod inbox;
pub mod log;
pub mod notebook;
pub mod presence;
pub mod progress;
pub mod receipts;
pub mod sessions;
pub mod timers;

pub use callbacks::{Again, Call, CallFailure, CallOutcome, CallTarget, Callbacks, Called};
pub use carriers::{
    Admitted, Announced, Arrival, CarrierDesk, Carriers, Delivery, DeliveryPlace, FromCarrier, GatewayDesk, Gateways,
    InboxMessage, InboxView, NoCarrier, OutMessage, PeopleAsk, PeopleError, PeopleTold, Resume, SeatView, Tenure,
    ToCarrier, ToGateway,
};
pub use catalogue::{Catalogue, CatalogueError, Versioned};
pub use coordination::{Coordination, CoordinationError, Member, Membership, Node, Owner, Picture};
pub use devices::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, Provider};
pub use dispatch::{
    DeadLetter, Dispatch, DispatchAsk, DispatchError, DispatchTold, LastError, MessageStanding, PartitionStanding,
    Pulled, ReplayStanding, Standing, SubscriptionStatus,
};
pub use holds::{Ask, HoldView, Holds, HoldsError, NewDue, Told};
pub use inbox::{Inbox, InboxChange, InboxError, InboxRead, InboxWrite, RECLAIM_GRAIN_MS, RowKey, reclaim_hour};
pub use log::{
    AppendOutcome, Bounds, CommitOutcome, Entry, ExactTopic, Fence, Log, LogError, LogTopics, PartitionStatus,
    ReadBatch, ReadLimits, TopicStatus,
};
pub use notebook::{ANSWER_KEPT_BYTES, AfterFailure, AttemptNote, AttemptOutcome, MinuteRow, Notebook, Spread};
pub use presence::{Presence, PresenceAnswer, PresenceError, Reporter};
pub use progress::{Progress, ProgressError, ProgressPlace, ProgressRow};
pub use receipts::{Answer, Begun, Claim, ClaimKind, Receipts, ReceiptsError};
pub use sessions::{Heard, SessionNews, Sessions, SessionsError, UserChange, UserSessions};
pub use timers::{
    Applied, At, Change, CountQuery, DueCursor, HoldQuery, Known, Row, Timers, TimersError, TimersRead, Write,
    bucket_start,
};

use std::future::Future;
use std::pin::Pin;

/// What a port's call returns: ports are used as trait objects, so their futures are boxed.
pub type PortFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
