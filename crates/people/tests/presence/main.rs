//! Presence end to end: nodes with real tasks, over stores in memory, on lossy networks.

mod cluster;
mod grpc;
mod network;
mod process;
mod single_process;
