//! The API as types: the public gRPC protocol, and the rules for endpoints that requests name.
//!
//! The server, its clients and the roles that make outbound calls use the same definitions. This crate does no I/O.

pub mod endpoint;
pub mod protocol;
