//! The role `gateway`: holds the connections of devices, and passes on what the carriers of their users say.

pub mod websocket;
