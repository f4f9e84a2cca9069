//! WebSocket (RFC 6455), both sides, without I/O of its own, except [`ClientSocket`].
//!
//! [`Decoder`] turns bytes, however they are split, into whole messages. [`encode`] writes frames. [`handshake`] has the rules of the
//! opening HTTP request. An idle decoder holds no buffer. No input makes the decoder panic or keep more than the limits allow, and it reads
//! neither clock nor socket.

mod client;
mod close;
mod decoder;
mod frame;
pub mod handshake;
#[cfg(test)]
mod tests;

pub use client::{ClientSocket, ClientSocketError, SocketMessage, open_websocket};
pub use close::{CLOSE_REASON_MAX_BYTES, is_valid_close_code, shortened_reason};
pub use decoder::{Decoder, Limits, MessageRef, Role, WsViolation};
pub use frame::{CONTROL_MAX_BYTES, HEADER_MAX_BYTES, Opcode, encode, encode_close, encode_header};
