//! The door as its callers see it: requests into the router, over honest in-memory ports. One binary, a file for each property's home.

mod support;

mod batch;
mod bounds;
mod claims;
mod dead_letters;
mod delay_queue;
mod events;
mod growth_nodes;
mod grpc;
mod held_pushes;
mod holding;
mod holds;
mod keys;
mod messages;
mod mqproxy;
mod nodes_at_once;
mod nonsense;
mod operating;
mod people;
mod people_behind;
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
