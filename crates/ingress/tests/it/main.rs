//! The API as clients see it: requests to the router, over in-memory ports. One binary, with one file for each group of properties.

mod support;

mod arbitrary_requests;
mod batch;
mod bounds;
mod carrier_backlog;
mod claims;
mod concurrent_nodes;
mod dead_letters;
mod delay_queue;
mod delayed_publish;
mod events;
mod growth_nodes;
mod grpc;
mod health;
mod held_pushes;
mod holds;
mod keys;
mod messages;
mod mqproxy;
mod people;
mod people_grpc;
mod people_push;
mod publish;
mod read;
mod soraka;
mod stats;
mod subscription_runs;
mod subscriptions;
mod system_subscriptions;
mod tail;
mod topic_deletion;
mod topics;
mod workers;
