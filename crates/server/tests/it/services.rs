//! The services that tests of the server start, and the settings of a server that uses them.
//!
//! Without them, a test is skipped with a message if `WHIMBREL_TEST_QUICK=1` is set; `scripts/services up` installs them and writes
//! `target/services/env`.

use whimbrel_engines::conformance::{missing_servers, say_skipped};

pub use own_services::*;

#[path = "../../../engines/tests/services/mod.rs"]
mod own_services;

/// Whether to skip a test that needs the services in these variables.
pub fn skip(variables: &[&str]) -> bool {
    missing_servers(variables).inspect(|why| say_skipped(why)).is_some()
}

impl OwnRedis {
    /// The settings of a server that keeps the state beside its log there.
    pub fn settings(&self) -> Vec<String> {
        vec![
            "timers.engine=redis".to_owned(),
            "receipts.engine=redis".to_owned(),
            "subscriptions.engine=redis".to_owned(),
            "push.engine=redis".to_owned(),
            "presence.engine=redis".to_owned(),
            "devices.engine=redis".to_owned(),
            format!("redis.urls=redis://{}", self.address()),
        ]
    }
}

impl OwnEtcd {
    pub fn settings(&self) -> Vec<String> {
        vec!["coordination.engine=etcd".to_owned(), format!("etcd.endpoints=http://{}", self.address())]
    }
}
