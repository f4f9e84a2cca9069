//! Messages to people: the roles `carrier`, `gateway` and `presence`.
//!
//! [`carrier`] owns partitions of `_push`: inboxes, admission of sessions, delivery. [`gateway`] holds the connections of devices and
//! decides nothing about a message. [`presence`] tracks who is online. [`links`] connects gateways and carriers, within a process or over
//! the internal port. No component waits for a device.

pub mod carrier;
pub mod gateway;
pub mod linger;
pub mod links;
pub mod presence;
