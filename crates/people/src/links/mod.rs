//! The ways between gateways and carriers: within the process, or over the internal port to other nodes.
//!
//! [`carriers`] is the port `Carriers`: what a gateway says finds the owner of the partition, at the desk of this node or up the one
//! stream that this node's gateway keeps to each other carrier ([`stream`]). [`gateways`] is the port `Gateways`: what an owner says
//! goes to the desk of this node's gateway, or down the stream that the gateway opened ([`down`]), which [`service`] answers. [`wire`] has
//! the words.
//!
//! Nothing here waits for a device or for another node, and nothing is ever sent again: what is lost with a stream shows as a new tenure
//! of the partitions behind it. It knows nothing of what carriers decide.

pub mod carriers;
mod down;
pub mod gateways;
mod limits;
#[cfg(test)]
mod links_tests;
mod outbox;
pub mod service;
mod stream;
mod wire;
mod wire_asks;
#[cfg(test)]
mod wire_tests;

pub use carriers::{CarrierLinkParts, CarrierLinks};
pub use gateways::GatewayLinks;
pub use service::{CarriersDoor, carriers_service};
