//! The API as types: requests and answers in JSON, the public gRPC protocol, and the rules for endpoints that requests name.
//!
//! The server, its clients and the roles that make outbound calls use the same definitions. This crate does no I/O. A reader of an answer
//! must accept members that it does not know, so no answer rejects them. The feature `schema` describes the types for the API document, the
//! feature `grpc` adds the protocol.

pub mod dead_letters;
pub mod endpoint;
pub mod holds;
pub mod messages;
pub mod people;
pub mod problem;
#[cfg(feature = "grpc")]
pub mod protocol;
pub mod pull;
pub mod stats;
pub mod subscriptions;
pub mod topics;

/// The schemas of answers that the API document closes: the server sends no other members.
#[cfg(feature = "schema")]
pub const CLOSED_SCHEMAS: [&str; 26] = [
    "BatchAnswer",
    "DeadPushDocument",
    "DeadPushList",
    "DeviceDocument",
    "DeviceList",
    "HeldAnswer",
    "Hold",
    "HoldBucket",
    "HoldCount",
    "HoldList",
    "HoldOutcome",
    "InboxDocument",
    "Message",
    "PlatformDocument",
    "PlatformList",
    "PresenceDocument",
    "PresenceList",
    "PublishAnswer",
    "PushAnswer",
    "PushBatchAnswer",
    "ReadAnswer",
    "SearchAnswer",
    "SeatDocument",
    "SessionDocument",
    "StoredMessageDocument",
    "TaskAnswer",
];
