//! The registry of subscriptions: what people decided about them. Kept in the catalogue, cached, watched.
//!
//! Every change is one compare-and-set of one entry, so that whoever runs a subscription sees a whole decision or none: a seek is a new
//! run and its starts together. How far a subscription has come is not here, and nothing here delivers anything.

mod changing;
mod error;
pub mod registry;
mod runs;
mod starts;
mod system;

pub use changing::{Made, SecretWish, TOPICS_MAX, check_readable};
pub use error::SubscriptionError;
pub use registry::{Subscription, SubscriptionPorts, Subscriptions};
pub use runs::{REPLAYS_MAX, ReplayAsk, SeekAsk, Sought};
pub use starts::{Position, Truncation};
pub use system::{ensure_notices_subscription, is_system_subscription};
