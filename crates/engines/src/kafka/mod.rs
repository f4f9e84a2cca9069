//! The Kafka engine: the `Log` and `LogTopics` ports on Apache Kafka, with a client of its own.
//!
//! In reading order: [`settings`], `log` (the engine and its ports), `client` (connections, leaders, record batches), `known_topics`
//! (topics by number) with `missing_partitions`, `topics` (creating and changing topics), `append` (the idempotent producer), `fence`
//! (transactions, and the repair of those that Kafka has left open, with `stalled_partitions` and `coordinator`), `queries` (bounds and
//! times), `requests` (shared requests), `read` with `fetch`, `tail`, `window` and `marker_record` (reading), `outcome` (mapping of
//! errors).
//!
//! It must never join a consumer group, commit an offset to Kafka, block a thread of the async runtime, or wait without a timeout.

mod append;
mod client;
mod coordinator;
mod fence;
mod fetch;
mod known_topics;
mod log;
mod marker_record;
mod missing_partitions;
mod outcome;
mod queries;
mod read;
mod requests;
pub mod settings;
mod stall_sweep;
mod stalled_partitions;
#[cfg(test)]
mod stub_cluster;
mod tail;
mod topics;
mod window;

pub use log::KafkaLog;
pub use settings::{KafkaSettings, KafkaStartError};
