//! The Kafka engine: the `Log` and `LogTopics` ports on Apache Kafka, through librdkafka.
//!
//! In reading order: [`settings`] (what can be configured and what is fixed), `log` (the engine and its ports), `known` (which
//! topics have which numbers), `topics` (making and changing them), `append` (the idempotent producer), `commit` (fences and
//! transactions), `hanging`, `coordinator` and `mend` (transactions that Kafka has left open), `queries` (bounds and times), `read` with `cursors`, `cursor` and `window` (reading), `outcome` (errors in
//! the port's words), `context` (librdkafka's own log lines), `native` (the few calls the safe binding lacks).
//!
//! It must never join a consumer group, commit an offset to Kafka, or block a thread of the async runtime.

mod append;
mod commit;
mod context;
mod coordinator;
mod cursor;
mod cursors;
mod hanging;
mod known;
mod log;
mod mend;
mod native;
mod outcome;
mod queries;
mod read;
pub mod settings;
mod topics;
mod window;

pub use log::KafkaLog;
pub use settings::{KafkaSettings, KafkaStartError};
