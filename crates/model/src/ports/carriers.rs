//! What gateways and carriers say to each other.
//!
//! A carrier owns a partition of `_push`: it admits every device of its users, knows what each was sent and has acknowledged, and decides
//! what is sent next. A gateway holds connections and passes on. Between one gateway and the owner of one partition messages keep their
//! order; none of them is answered, what comes back is news of its own. **When a partition has a new owner, or the way to it was made anew,
//! a gateway announces all its sessions of that partition again**: whatever was lost on the old way is then made good.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::watch;

use super::PortFuture;
use crate::Timestamp;
use crate::people::{CloseCode, GatewayId, Platform, Uid};

/// From a gateway to the owner of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToCarrier {
    /// A device wants in. It is answered by `Admitted` or `Rejected`.
    Arrive(Box<Arrival>),
    /// A session that was admitted by an earlier owner. Answered only by what the policy says: `Kick`, or nothing.
    Announce(Box<Announced>),
    /// Everything up to that number. Only forwards, only what the session was sent: the gateway has checked.
    Ack {
        session: u64,
        uid: Uid,
        upto: u64,
    },
    Gone {
        session: u64,
        uid: Uid,
    },
}

/// A device that connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Its number at its gateway.
    pub session: u64,
    pub uid: Uid,
    pub platform: Platform,
    pub device: Box<str>,
    pub resume: Option<Resume>,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    pub epoch: Box<str>,
    /// The highest number that the device has.
    pub cursor: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// As it arrived; its resume no longer counts.
    pub arrival: Arrival,
    /// The inbox's epoch that it was told.
    pub epoch: Arc<str>,
    /// The highest number that it was sent.
    pub sent: u64,
    /// The highest number that it acknowledged.
    pub acked: u64,
}

/// News from the owner of a partition, in order. A gateway leaves out what comes from an older epoch than it has seen or heard from.
#[derive(Debug, Clone, PartialEq)]
pub struct FromCarrier {
    pub partition: u32,
    pub epoch: u64,
    pub news: Vec<ToGateway>,
}

/// From a carrier to a gateway, about one of its sessions.
#[derive(Debug, Clone, PartialEq)]
pub enum ToGateway {
    Admitted(Box<Admitted>),
    Rejected {
        session: u64,
        code: CloseCode,
        reason: Arc<str>,
    },
    Deliver(Delivery),
    /// Stored messages in that range, both ends included, expired, overflowed or were replaced before they were sent. `prev` as of a
    /// delivery.
    Truncated {
        session: u64,
        from: u64,
        to: u64,
        prev: u64,
    },
    /// So many ephemeral messages for the session were dropped on their way.
    Lost {
        session: u64,
        count: u64,
    },
    /// The session is over: it is told why, and closed.
    Kick {
        session: u64,
        code: CloseCode,
        reason: Arc<str>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    pub session: u64,
    pub epoch: Arc<str>,
    /// The highest number stored for this seat; what it has where there is none.
    pub head: u64,
    /// Where the seat reads on from: the first delivery's `prev`.
    pub cursor: u64,
    pub resumed: bool,
    /// Why not, where it asked to.
    pub why: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub session: u64,
    pub place: DeliveryPlace,
    /// It was sent before and is sent again for want of an acknowledgement.
    pub again: bool,
    pub message: Arc<OutMessage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryPlace {
    /// Its number, and the number before it for that seat.
    Stored { seq: u64, prev: u64 },
    /// Not stored for that seat. The place grows: a gateway that has delivered it or a later one leaves it out.
    Ephemeral { place: u64 },
}

/// A message on its way to devices, the same for all of them. What each protocol makes of it is encoded once.
#[derive(Debug, Default)]
pub struct OutMessage {
    pub id: Box<str>,
    pub payload: Bytes,
    pub content_type: Option<Box<str>>,
    pub sent_at: Timestamp,
    /// The members of the JSON frame that are the same for every device; made by whoever needs it first.
    pub json: OnceLock<Bytes>,
    /// The same of the protobuf frame.
    pub proto: OnceLock<Bytes>,
}

impl PartialEq for OutMessage {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.payload, &self.content_type, self.sent_at)
            == (&other.id, &other.payload, &other.content_type, other.sent_at)
    }
}

/// Nobody has the partition at the moment, or cannot be reached. Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no carrier has partition {0} at the moment")]
pub struct NoCarrier(pub u32);

/// That a partition has an owner, and that there is a way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenure {
    /// Another one whenever the partition has a new owner or the way to its owner was made anew. Later ones are higher.
    pub number: u64,
    /// The owner's: whoever speaks under an older one is none any more.
    pub epoch: u64,
}

/// The owners of all partitions, as gateways and doors see them.
pub trait Carriers: Send + Sync {
    fn partitions(&self) -> u32;

    /// Passes messages to the owner of the partition, in order with all earlier ones of this gateway. Taken is not arrived: what is lost on
    /// the way shows as a new tenure.
    fn tell(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> Result<(), NoCarrier>;

    /// The tenure of each partition; `None`: nobody has it, or cannot be reached.
    fn tenures(&self) -> watch::Receiver<Arc<Vec<Option<Tenure>>>>;

    /// A question about a user of the partition; waits for an owner for a while.
    fn ask(&self, partition: u32, ask: PeopleAsk) -> PortFuture<'_, Result<PeopleTold, PeopleError>>;
}

/// The living gateways, as carriers see them.
pub trait Gateways: Send + Sync {
    /// Passes news to a gateway, in order with all earlier ones of this partition; `false` where that incarnation is not there any more.
    fn tell(&self, gateway: GatewayId, news: FromCarrier) -> bool;

    /// Who lives.
    fn living(&self) -> watch::Receiver<Arc<Vec<GatewayId>>>;
}

/// Where the owners of this node take what gateways say.
pub trait CarrierDesk: Send + Sync {
    /// `false`: the partition is not this node's. Nothing was taken.
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool;

    /// The way from that gateway was made anew, and something may have been lost with the old one: of its sessions only those count that
    /// it announces from here on.
    fn afresh(&self, from: GatewayId);

    /// `None`: the partition is not this node's.
    fn ask(&self, partition: u32, ask: PeopleAsk) -> PortFuture<'_, Option<Result<PeopleTold, PeopleError>>>;

    /// The epochs of the partitions that this node serves.
    fn serving(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>>;
}

/// Where the gateway of this node takes what carriers say. It never blocks.
pub trait GatewayDesk: Send + Sync {
    /// `false`: this is another incarnation.
    fn take(&self, gateway: GatewayId, news: FromCarrier) -> bool;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeopleAsk {
    /// What is stored for a user: for one platform, or all of it. At most `limit` messages, and fewer where they are large.
    Inbox { uid: Uid, platform: Option<Platform>, after: u64, limit: usize },
}

#[derive(Debug, Clone, PartialEq)]
pub enum PeopleTold {
    Inbox(InboxView),
}

/// A user's inbox as it is shown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InboxView {
    pub epoch: Arc<str>,
    pub messages: Vec<InboxMessage>,
    pub seats: Vec<SeatView>,
    /// Messages that are stored, shown or not.
    pub stored: u64,
    /// The number that this ends at, where there is more behind it. What is shown may end before: rows can go while they are read.
    pub next_after: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct InboxMessage {
    pub seq: u64,
    pub expires_at: Timestamp,
    pub message: Arc<OutMessage>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatView {
    pub platform: Platform,
    pub device: Box<str>,
    pub cursor: u64,
    pub waiting: u64,
    pub online: bool,
    pub seen_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeopleError {
    #[error("no carrier has partition {0} at the moment")]
    NoOwner(u32),
    #[error("the inboxes cannot be read at the moment: {0}")]
    Unavailable(String),
    #[error("too much is asked of partition {0} at the moment")]
    Overloaded(u32),
}
