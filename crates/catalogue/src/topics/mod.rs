//! The registry of topics: names with their number, partitions, retention and growths. A view of the catalogue, updated by a watch.
//!
//! The catalogue is the source of truth about topics; the log follows it. The hot path reads an immutable map. Changes of topics run one
//! at a time: they write catalogue and log, and swap the map when both agree. The registry must never hand out a mapping of keys to
//! partitions that the catalogue does not have (see [`gate`], [`growth`] and [`agreement`]).

pub mod agreement;
mod catalogue_follower;
mod change;
mod conflicts;
mod deletion;
pub mod fold_backlog;
pub mod gate;
pub mod growth;
mod growth_driver;
mod mapping_lease;
mod numbers;
pub mod rate_meter;
pub mod registry;
pub mod stored;
pub mod system;
pub mod topic;
mod unopened_topics;
pub mod workers;

pub use deletion::Deletion;
pub use gate::{Pass, Placement};
pub use growth::Growth;
pub use growth_driver::Memberships;
pub use registry::{PutOutcome, Registry, RegistryPorts, TopicChange, TopicDefaults, TopicError};
pub use system::{PUSH_PARTITIONS_DEFAULT, SHARDS_DEFAULT, SystemTopics, open_topics};
pub use topic::Topic;
pub use workers::WorkersChange;
