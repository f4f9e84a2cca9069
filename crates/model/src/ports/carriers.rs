//! The messages between gateways and carriers.
//!
//! A carrier owns a partition of `_push`: it admits the devices of its users, records what it sent to each and what each acknowledged, and
//! decides what to send next. A gateway holds connections and forwards messages. Messages between a gateway and the owner of a partition
//! keep their order. No message has a reply; results are messages of their own. **When a partition gets a new owner, or the link to the
//! owner is reconnected, a gateway announces all its sessions of that partition again**, which repairs whatever the old link lost.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::watch;

use super::PortFuture;
use crate::Timestamp;
use crate::people::{CloseCode, GatewayId, Platform, Uid};

/// From a gateway to the owner of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToCarrier {
    /// A device connects. The reply is `Admitted` or `Rejected`.
    Arrive(Box<Arrival>),
    /// A session that an earlier owner or link admitted. The only reply is a `Kick`, if the platform's policy demands it.
    Announce(Box<AnnouncedSession>),
    /// The device has stored all messages up to `upto`. The gateway checks that `upto` only increases and that the session was sent it.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The session's number at its gateway.
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
    /// The highest message number that the device has.
    pub cursor: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedSession {
    /// The connection's original request. Its `resume` is ignored.
    pub arrival: Arrival,
    /// The inbox epoch that the session was admitted with.
    pub epoch: Arc<str>,
    /// The highest message number that was sent to the session.
    pub sent: u64,
    /// The highest message number that the session acknowledged.
    pub acked: u64,
}

/// Messages from the owner of a partition, in order. A gateway discards them if it has seen a newer epoch of the partition.
#[derive(Debug, Clone, PartialEq)]
pub struct CarrierMessages {
    pub partition: u32,
    pub epoch: u64,
    pub news: Vec<ToGateway>,
}

/// A message from a carrier to a gateway, about one of its sessions.
#[derive(Debug, Clone, PartialEq)]
pub enum ToGateway {
    Admitted(Box<Admitted>),
    Rejected {
        session: u64,
        code: CloseCode,
        reason: Arc<str>,
    },
    Deliver(Delivery),
    /// Stored messages `from` to `to`, inclusive, expired, overflowed or were replaced before they were sent. `prev` is as in a delivery.
    Truncated {
        session: u64,
        from: u64,
        to: u64,
        prev: u64,
    },
    /// `count` ephemeral messages for the session were dropped.
    Lost {
        session: u64,
        count: u64,
    },
    /// The session is over. The gateway sends the reason and closes the connection.
    Kick {
        session: u64,
        code: CloseCode,
        reason: Arc<str>,
    },
}

impl ToGateway {
    /// The number of the session.
    pub fn session(&self) -> u64 {
        match self {
            Self::Admitted(admitted) => admitted.session,
            Self::Deliver(delivery) => delivery.session,
            Self::Rejected { session, .. }
            | Self::Truncated { session, .. }
            | Self::Lost { session, .. }
            | Self::Kick { session, .. } => *session,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    pub session: u64,
    pub epoch: Arc<str>,
    /// The highest message number stored for this seat, or its cursor if none is stored.
    pub head: u64,
    /// The cursor from which delivery continues: the `prev` of the first delivery.
    pub cursor: u64,
    pub resumed: bool,
    /// The reason why a requested resume was refused.
    pub why: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub session: u64,
    pub place: DeliveryPosition,
    /// The message was sent before and not acknowledged.
    pub again: bool,
    pub message: Arc<OutMessage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryPosition {
    /// The message's number, and the number before it for that seat.
    Stored { seq: u64, prev: u64 },
    /// Not stored for that seat. `place` increases: a gateway discards an ephemeral message at or below the last place that it delivered.
    Ephemeral { place: u64 },
}

/// A message to devices, shared by all recipients. Each protocol encodes it once.
#[derive(Debug, Default)]
pub struct OutMessage {
    pub id: Box<str>,
    pub payload: Bytes,
    pub content_type: Option<Box<str>>,
    pub sent_at: Timestamp,
    /// The members of the JSON frame that are the same for every device, encoded at the first use.
    pub json: OnceLock<Bytes>,
    /// The same for the protobuf frame.
    pub proto: OnceLock<Bytes>,
}

impl PartialEq for OutMessage {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.payload, &self.content_type, self.sent_at)
            == (&other.id, &other.payload, &other.content_type, other.sent_at)
    }
}

/// The partition has no owner, or the owner is not reachable. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no carrier owns partition {0} at the moment")]
pub struct NoCarrier(pub u32);

/// A partition has an owner, and this node has a link to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerLink {
    /// Increases whenever the partition gets a new owner or the link to the owner is reconnected.
    pub number: u64,
    /// The owner's epoch. A sender with an older epoch is not the owner any more.
    pub epoch: u64,
}

/// The owners of all partitions, for gateways and the `receive` role.
pub trait Carriers: Send + Sync {
    fn partitions(&self) -> u32;

    /// Queues messages to the owner of the partition, in order with all earlier ones of this gateway. It never blocks. `Ok` does not mean
    /// delivered: lost messages show as a new number in `owner_links`.
    fn tell(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> Result<(), NoCarrier>;

    /// The owner of each partition. `None`: there is no owner, or it is not reachable.
    fn owner_links(&self) -> watch::Receiver<Arc<Vec<Option<OwnerLink>>>>;

    /// Sends a request about a user of the partition to its owner. If there is no owner, waits for one for a limited time. Requests only
    /// read, so a dropped call has no effect.
    fn ask(&self, partition: u32, ask: PeopleQuery) -> PortFuture<'_, Result<PeopleReply, PeopleError>>;
}

/// The live gateways, for carriers.
pub trait Gateways: Send + Sync {
    /// Queues messages to a gateway, in order with all earlier ones of this partition. It never blocks. `false`: the incarnation has ended.
    fn tell(&self, gateway: GatewayId, news: CarrierMessages) -> bool;

    /// The live gateways.
    fn live_gateways(&self) -> watch::Receiver<Arc<Vec<GatewayId>>>;
}

/// The receiving end of the partition owners of this node.
pub trait LocalCarriers: Send + Sync {
    /// Queues messages from a gateway. `false`: this node does not own the partition, and nothing was queued.
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool;

    /// The link from the gateway was reconnected, and may have lost messages. Only sessions that it announces from now on are valid.
    fn link_reset(&self, from: GatewayId);

    /// `None`: this node does not own the partition.
    fn ask(&self, partition: u32, ask: PeopleQuery) -> PortFuture<'_, Option<Result<PeopleReply, PeopleError>>>;

    /// The epochs of the partitions that this node owns.
    fn serving(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>>;
}

/// The receiving end of the gateway of this node. It never blocks.
pub trait LocalGateway: Send + Sync {
    /// `false`: the gateway of this node has another incarnation.
    fn take(&self, gateway: GatewayId, news: CarrierMessages) -> bool;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeopleQuery {
    /// The stored messages of a user, for one platform or all. At most `limit` messages, and fewer if they are large.
    Inbox { uid: Uid, platform: Option<Platform>, after: u64, limit: usize },
}

#[derive(Debug, Clone, PartialEq)]
pub enum PeopleReply {
    Inbox(InboxView),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct InboxView {
    pub epoch: Arc<str>,
    pub messages: Vec<InboxMessage>,
    pub seats: Vec<SeatView>,
    /// All stored messages, in this page or not.
    pub stored: u64,
    /// The end of this page, if there are more messages. Its last message may have a lower number, because messages can expire during the
    /// read.
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
    #[error("no carrier owns partition {0} at the moment")]
    NoOwner(u32),
    #[error("the inboxes cannot be read at the moment: {0}")]
    Unavailable(String),
    #[error("too many requests wait for the owner of partition {0}")]
    Overloaded(u32),
}
