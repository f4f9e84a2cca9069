//! The etcd engine, held to the contracts of the ports on a real etcd.
//!
//! The etcd is the one that `WHIMBREL_TEST_ETCD` names; `scripts/services up` starts one and writes the variable into
//! `target/services/env`. Without it these tests fail, unless `WHIMBREL_TEST_QUICK=1` allows missing servers.

#![cfg(feature = "etcd")]

mod cut_proxy;
mod login;
mod outage;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cut_proxy::CutProxy;
use whimbrel_engines::conformance;
use whimbrel_engines::conformance::catalogue::OpenCatalogue;
use whimbrel_engines::conformance::coordination::{OpenCoordination, Switch};
use whimbrel_engines::etcd::{EtcdCatalogue, EtcdConnection, EtcdCoordination, EtcdSettings};
use whimbrel_model::ports::PortFuture;

whimbrel_engines::conformance_suite!(coordination, Etcd);
whimbrel_engines::conformance_suite!(catalogue, Etcd);

struct Etcd;

impl conformance::coordination::CoordinationFactory for Etcd {
    fn open(&self) -> PortFuture<'_, OpenCoordination> {
        Box::pin(async { open_coordination(&address(), new_prefix()).await })
    }

    fn open_beside<'a>(&'a self, first: &'a OpenCoordination) -> PortFuture<'a, OpenCoordination> {
        Box::pin(async { open_coordination(&address(), prefix_of(&first.store)).await })
    }

    fn reopen(&self, coordination: OpenCoordination) -> PortFuture<'_, OpenCoordination> {
        Box::pin(async move {
            let prefix = prefix_of(&coordination.store);
            drop(coordination);
            open_coordination(&address(), prefix).await
        })
    }

    fn open_cut_off<'a>(
        &'a self,
        first: &'a OpenCoordination,
    ) -> PortFuture<'a, Option<(OpenCoordination, Box<dyn Switch>)>> {
        Box::pin(async {
            let way = CutProxy::to(address()).await;
            let open = open_coordination(way.address(), prefix_of(&first.store)).await;
            Some((open, Box::new(way) as Box<dyn Switch>))
        })
    }

    fn skip(&self) -> Option<String> {
        skip_reason()
    }
}

impl conformance::catalogue::CatalogueFactory for Etcd {
    fn open(&self) -> PortFuture<'_, OpenCatalogue> {
        Box::pin(async { open_catalogue(new_prefix()).await })
    }

    fn reopen(&self, open: OpenCatalogue) -> PortFuture<'_, OpenCatalogue> {
        Box::pin(async move {
            let prefix = prefix_of(&open.store);
            drop(open);
            open_catalogue(prefix).await
        })
    }

    fn skip(&self) -> Option<String> {
        skip_reason()
    }
}

async fn open_coordination(address: &str, prefix: String) -> OpenCoordination {
    let connection = connect(address, &prefix).await;
    OpenCoordination { coordination: Arc::new(EtcdCoordination::new(connection)), store: Arc::new(prefix) }
}

async fn open_catalogue(prefix: String) -> OpenCatalogue {
    let connection = connect(&address(), &prefix).await;
    OpenCatalogue { catalogue: Arc::new(EtcdCatalogue::new(connection)), store: Arc::new(prefix) }
}

async fn connect(address: &str, prefix: &str) -> EtcdConnection {
    EtcdConnection::connect(settings(address, prefix)).await.expect("etcd can be reached")
}

/// The shortest session that etcd grants, so that a session that is cut off ends soon.
fn settings(address: &str, prefix: &str) -> EtcdSettings {
    EtcdSettings {
        prefix: prefix.to_owned(),
        session: Duration::from_secs(2),
        request_timeout: Duration::from_secs(10),
        ..EtcdSettings::new([address])
    }
}

fn prefix_of(store: &Arc<dyn Any + Send + Sync>) -> String {
    store.downcast_ref::<String>().expect("it is the prefix").clone()
}

fn address() -> String {
    std::env::var("WHIMBREL_TEST_ETCD").expect("etcd's address")
}

/// A prefix that no other test uses.
fn new_prefix() -> String {
    static PREFIXES: AtomicU32 = AtomicU32::new(1);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = PREFIXES.fetch_add(1, Ordering::Relaxed);
    format!("test-{:x}-{:x}-{number}/", since_epoch.as_millis(), std::process::id())
}

/// The reason why tests with the shared etcd are skipped, if they may be. Otherwise a missing etcd is a failure.
fn skip_reason() -> Option<String> {
    if std::env::var_os("WHIMBREL_TEST_ETCD").is_some() {
        return None;
    }
    let quick = std::env::var("WHIMBREL_TEST_QUICK").is_ok_and(|value| value == "1");
    assert!(
        quick,
        "these tests need etcd: run `scripts/services up` and `source target/services/env`, \
         or set WHIMBREL_TEST_QUICK=1 to skip them"
    );
    Some("the tests of the etcd engine need etcd, and WHIMBREL_TEST_ETCD names none".to_owned())
}
