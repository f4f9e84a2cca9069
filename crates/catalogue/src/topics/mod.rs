//! The registry of topics: names → number, partitions, retention, growths. Kept in the catalogue, cached, watched.
//!
//! The catalogue is the truth about what topics there are; the log follows it. The hot path reads an immutable map; whoever changes
//! topics does so one at a time, catalogue and log together, and swaps the map when both agree. The registry must never hand out
//! a mapping of keys to partitions that the catalogue does not have (see [`gate`], [`growth`] and [`agreement`]).

pub mod agreement;
mod changing;
mod conflicts;
mod deletion;
pub mod folding;
mod following;
pub mod gate;
mod growing;
pub mod growth;
mod mapping_lease;
mod numbers;
pub mod rates;
pub mod registry;
pub mod stored;
pub mod system;
pub mod topic;
mod unopened;
pub mod workers;

pub use deletion::Deletion;
pub use gate::{Pass, Placement};
pub use growing::Memberships;
pub use growth::Growth;
pub use registry::{PutOutcome, Registry, RegistryPorts, TopicChange, TopicDefaults, TopicError};
pub use system::{PUSH_PARTITIONS_DEFAULT, SHARDS_DEFAULT, SystemTopics, open_topics};
pub use topic::Topic;
pub use workers::WorkersChange;
