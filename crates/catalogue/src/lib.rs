//! Views of the catalogue: topics, subscriptions and platforms, with the statistics and metrics of topics.
//!
//! Each view reads its entries once, follows the catalogue by a watch, and answers from memory without a lock. All changes are
//! compare-and-set writes of one entry. [`topics`] also maps keys to partitions and guards this mapping while a topic grows: it must
//! never use a mapping that the catalogue does not have.

mod follow;
pub mod platforms;
pub mod subscriptions;
pub mod topic_metrics;
pub mod topic_stats;
pub mod topics;
