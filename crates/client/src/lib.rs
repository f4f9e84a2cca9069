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
mod new_push;
mod people;
mod sse;
mod subscriptions;
mod tail;

pub use client::{Client, ReadFrom, TailFrom};
pub use error::ClientError;
pub use hold::{Extension, HoldFilter, NewDue};
pub use message::{NewMessage, Position};
pub use new_push::NewPush;
pub use people::PeopleLetters;
pub use tail::Tail;
pub use whimbrel_api::dead_letters::{DeadLetterInfo, DeadLetterPage, Redriven};
pub use whimbrel_api::holds::{HoldBucket, HoldCounts, HoldInfo, HoldOutcome, HoldPage};
pub use whimbrel_api::messages::{Accepted, Held, Message, MessageState, Published, ReadPage};
pub use whimbrel_api::people::{
    DeviceInfo, InboxInfo, Kick, NewDevice, NewNotify, Origin, PlatformBody, PlatformInfo, PresenceInfo, PresencePage,
    Pushed, SeatInfo, SessionInfo, StoredMessage, TaskAnswer,
};
pub use whimbrel_api::problem::{Problem, ProblemMembers};
pub use whimbrel_api::pull::{PulledMessage, Settled};
pub use whimbrel_api::stats::{DurationFigures, MinuteFigures, TopicFigures};
pub use whimbrel_api::subscriptions::{
    EndpointSettings, ReplayRange, RetrySettings, SeekInfo, SeekTo, SubscriptionInfo, SubscriptionSettings,
};
pub use whimbrel_api::topics::{DurationForm, GrowthInfo, PartitionInfo, Rates, TopicInfo, TopicSettings};
