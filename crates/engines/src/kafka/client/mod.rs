//! A Kafka client for exactly the calls that the engine needs: connections with TLS and SASL, leaders, record batches.
//!
//! The codec of requests and answers is the crate `kafka-protocol`; record batches are written and read here, since they
//! determine the throughput. Every call ends within a timeout that its caller sets. Only `KafkaCluster::ask_any` retries, at other brokers.

mod address_resolver;
pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod compression;
pub(crate) mod connection;
pub(crate) mod dial;
mod dial_pace;
pub(crate) mod link;
mod sasl;
