//! The etcd engine: members, owners and the catalogue of an installation with several nodes.
//!
//! ```text
//! <prefix>cluster/nodes/0007      a member, under its lease
//! <prefix>cluster/names/berlin    the node number of that name, under the same lease
//! <prefix>cluster/owners/holds/3  the owner, under its lease; its epoch is the create revision of the key
//! <prefix>catalogue/topics/orders a value of the catalogue; its version is its revision
//! ```
//!
//! The engine implements the few messages of etcd's protocol that it needs (`proto/etcd.proto`). So a build needs no `protoc`, and the
//! engine has the send time of each keep-alive.

mod catalogue;
mod connection;
mod coordination;
mod mirror;
mod session;
mod settings;

pub use catalogue::EtcdCatalogue;
pub use connection::EtcdConnection;
pub use coordination::EtcdCoordination;
pub use settings::{EtcdLogin, EtcdSettings, EtcdStartError};

/// etcd's messages, generated from `proto/etcd.proto`.
mod wire {
    tonic::include_proto!("etcdserverpb");
}
