//! Calls between nodes. [`internal_call!`](crate::internal_call) declares a call once: its request, its reply and its limit.
//!
//! [`InternalService`] answers calls on the internal port, [`PeerClients::call`](crate::PeerClients::call) makes them, and
//! [`OwnerRouter`](crate::router::OwnerRouter) passes those that concern a shard to its owner. [`Wire`] encodes requests and replies;
//! `messages.rs` lists the types of the model. The transport is gRPC. The streams between gateways and carriers are no calls: their messages
//! are in `crate::protocol`.

mod messages;
#[cfg(test)]
mod messages_tests;
mod service;
mod wire;

pub use service::{InternalService, SERVICE};
pub use wire::{Malformed, VERSION, Wire, checked, transferred};

pub(crate) use service::MessageCodec;

/// The most bytes of one reply: a list of many holds, or many pulled messages.
pub const REPLY_BYTES_MAX: usize = 256 << 20;

/// A call to another node.
pub trait InternalCall: 'static {
    /// The path of the gRPC method.
    const PATH: &'static str;
    /// The most bytes of a request.
    const REQUEST_BYTES_MAX: usize;
    type Request: Wire + Clone + Send + Sync + 'static;
    type Reply: Wire + Send + Sync + 'static;
}

/// Declares a call: its name, its request with the most bytes of it, and its reply.
#[macro_export]
macro_rules! internal_call {
    ($(#[$doc:meta])* $name:ident: $request:ty, at most $bytes:expr => $reply:ty) => {
        $(#[$doc])*
        pub enum $name {}

        impl $crate::rpc::InternalCall for $name {
            const PATH: &'static str = concat!("/whimbrel.internal.Node/", stringify!($name));
            const REQUEST_BYTES_MAX: usize = $bytes;
            type Request = $request;
            type Reply = $reply;
        }
    };
}
