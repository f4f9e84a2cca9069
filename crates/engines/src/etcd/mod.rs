//! The etcd engine: members, owners and the catalogue of an installation of several nodes.
//!
//! ```text
//! <prefix>cluster/nodes/0007      a member, under its lease
//! <prefix>cluster/names/berlin    which number that name has, under the same lease
//! <prefix>cluster/owners/holds/3  who owns it, under its lease; its epoch is the revision that made the key
//! <prefix>catalogue/topics/orders a value of the catalogue; its version is its revision
//! ```
//!
//! etcd's own protocol is spoken directly: the few messages that are needed stand in `proto/etcd.proto`, so that a build needs
//! no `protoc`, and when each keep-alive was sent is known here.

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

/// etcd's messages, as they are compiled.
mod wire {
    tonic::include_proto!("etcdserverpb");
}
