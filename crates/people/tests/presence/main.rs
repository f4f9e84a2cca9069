//! Presence as its users see it: stations with real tasks, over honest stores in memory, on networks that lose what they carry. One binary, a
//! file for each property's home.

mod alone;
mod apart;
mod grpc;
mod network;
mod store;
mod town;
