//! The role `carrier`: owns partitions of `_push`; takes every push of its users in order, to their devices and their inboxes.
//!
//! [`partition`] decides, and is pure; [`owner`] does what it says. Which partitions are its own is told to it.

pub mod partition;
pub mod rows;
pub mod settings;
pub mod user_box;

pub use settings::CarrierSettings;
