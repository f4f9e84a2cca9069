//! The registry of subscriptions: a view of their entries in the catalogue, updated by a watch.
//!
//! Every change is one compare-and-set of one entry. So owners see a complete change or none: a seek is a new run together with its
//! starts. Progress is not stored here, and this module delivers nothing.

mod change;
mod error;
pub mod registry;
mod runs;
mod starts;
mod system;

pub use change::{SecretChange, SubscriptionPutOutcome, TOPICS_MAX, check_readable};
pub use error::SubscriptionError;
pub use registry::{Subscription, SubscriptionPorts, SubscriptionRegistry};
pub use runs::{REPLAYS_MAX, ReplayRequest, RunOutcome, SeekRequest};
pub use starts::{StartPosition, Truncation};
pub use system::{ensure_notices_subscription, is_system_subscription};
