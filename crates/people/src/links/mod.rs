//! The connections between gateways and carriers: within the process, or over the internal port to other nodes.
//!
//! [`carriers`] is the port `Carriers`. Messages of a gateway go to the local owner of the partition, or to another node over the one
//! stream that this node's gateway keeps to each remote carrier ([`stream`]). [`gateways`] is the port `Gateways`. Messages of an owner go
//! to this node's gateway, or into the stream that a remote gateway opened ([`gateway_outbox`]), which [`service`] answers. [`wire`] has
//! the encoding.
//!
//! Nothing here waits for a device or another node, and nothing is sent twice. If a stream breaks, its messages are lost, and its
//! partitions get new owner links. This module does not interpret the decisions of carriers.

pub mod carriers;
mod gateway_outbox;
pub mod gateways;
mod limits;
#[cfg(test)]
mod links_tests;
mod outbox;
pub mod service;
mod stream;
mod wire;
#[cfg(test)]
mod wire_tests;

pub use carriers::{CarrierLinkParts, CarrierLinks};
pub use gateways::GatewayLinks;
pub use service::{CarriersService, carriers_service, people_queries_service};
