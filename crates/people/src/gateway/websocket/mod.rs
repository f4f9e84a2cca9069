//! WebSocket (RFC 6455), both sides, without any input or output of its own.
//!
//! [`Decoder`] turns bytes, however they are cut, into whole messages; [`encode`] writes frames; [`handshake`] has the few rules of the HTTP
//! request that begins it. A decoder that is not in the middle of anything holds no buffer. Nothing in here reads a clock or a socket, and
//! no input makes it panic or keep more than the limits allow.

mod client;
mod close;
mod decoder;
mod frame;
pub mod handshake;
#[cfg(test)]
mod tests;

pub use client::{ClientError, ClientSocket, Message};
pub use close::{CLOSE_REASON_MAX_BYTES, is_valid_close_code, shortened_reason};
pub use decoder::{Decoder, Incoming, Limits, Role, Violation};
pub use frame::{CONTROL_MAX_BYTES, HEADER_MAX_BYTES, Opcode, encode, encode_close, encode_header};
