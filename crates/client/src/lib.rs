//! The Rust client of Whimbrel, over HTTP: publish, hold, subscribe, pull, push to users, read, tail, manage topics, find a message by its
//! id.
//!
//! ```no_run
//! # async fn example() -> Result<(), whimbrel_client::ClientError> {
//! use whimbrel_client::{Client, NewMessage};
//!
//! let client = Client::new("http://127.0.0.1:7600")?;
//! let accepted = client.publish("orders", &NewMessage::text("hello").key("customer-7")).await?;
//! println!("{accepted:?}");
//! # Ok(()) }
//! ```
//!
//! The client does not retry a request that may have reached the server. A publish that failed during the transfer may have been accepted,
//! and only the caller knows whether a retry is safe (it is with a message id or an idempotency key). The client retries only a request of
//! which nothing was sent because its pooled connection was closed.

mod client;
mod error;
mod hold;
mod holds;
mod message;
mod people;
mod person;
mod sse;
mod subscription;
mod subscriptions;
mod tail;
mod topic;

pub use client::{Client, ReadFrom, TailFrom};
pub use error::{ClientError, Problem};
pub use hold::{Extension, HoldBucket, HoldCounts, HoldFilter, HoldInfo, HoldOutcome, HoldPage, NewDue};
pub use message::{Accepted, Held, Message, NewMessage, Position, Published, ReadPage};
pub use people::PeopleLetters;
pub use person::{
    DeviceInfo, InboxInfo, Kick, NewPush, Notify, Origin, PlatformInfo, PresenceInfo, PresencePage, Pushed, SeatInfo,
    SessionInfo, StoredMessage,
};
pub use subscription::{
    DeadLetterInfo, DeadLetterPage, EndpointSettings, PulledMessage, ReplayRange, RetrySettings, SeekTo, Settled,
    SubscriptionInfo, SubscriptionSettings, TopicFigures,
};
pub use tail::Tail;
pub use topic::{PartitionInfo, Rates, TopicInfo, TopicSettings};
