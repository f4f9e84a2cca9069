//! The domain types of Whimbrel (names, ids, records, times, limits), and the ports: the traits that engines implement and roles use.
//!
//! This crate contains no engine, network or file access, and depends on no other crate of the workspace.

pub mod clock;
pub mod event;
pub mod header_rules;
pub mod hold;
pub mod id;
pub mod limits;
pub mod log_walk;
pub mod name;
pub mod partitioner;
pub mod people;
pub mod ports;
pub mod push;
pub mod record;
mod shared_text;
pub mod store_health;
pub mod subscription;
pub mod time;
pub mod topic;

pub use clock::{Clock, GuardedClock, SystemClock};
pub use event::{EVENTS_TOPIC, Event, EventLevel, EventSink};
pub use hold::{HOLDS_TOPIC, Hold, HoldEnd, HoldEndKind, HoldId, HoldRecord, MessageBody};
pub use id::{IdMint, MessageId, MintedIdParts};
pub use name::{NameError, check_brought_id, check_topic_name};
pub use people::{CloseCode, GatewayId, OnlineSession, Platform, PlatformSettings, SessionId, SessionsRule, Uid};
pub use push::{NOTICES_TOPIC, Notice, Notify, PRESENCE_TOPIC, PUSH_TOPIC, PushMessage, PushTask};
pub use record::{Headers, HeadersBuilder, Record, StoredRecord};
pub use store_health::StoreHealth;
pub use subscription::{StoredSubscription, SubscriptionNumber, SubscriptionSpec};
pub use time::{DurationError, TimeError, Timestamp, format_duration, parse_duration};
pub use topic::{ExistingTopic, NamedBounds, PartitionId, Retention, TopicNumber, TopicSpec};
