//! The etcd engine, held to the contracts of the ports on a real etcd.
//!
//! The etcd is the one that `WHIMBREL_TEST_ETCD` names; `scripts/services up` starts one and writes the variable into
//! `target/services/env`. Without it these tests fail, unless `WHIMBREL_TEST_QUICK=1` allows missing servers.

#![cfg(feature = "etcd")]

mod cut_proxy;
mod login;
mod outage;
#[path = "../services/mod.rs"]
mod services;

use std::sync::Arc;
use std::time::Duration;

use cut_proxy::CutProxy;
use whimbrel_engines::conformance::coordination::{CoordinationFactory, OpenCoordination, Switch};
use whimbrel_engines::conformance::{Engine, Opened, Opens, Place, missing_servers, unique_word};
use whimbrel_engines::etcd::{EtcdCatalogue, EtcdConnection, EtcdCoordination, EtcdSettings};
use whimbrel_model::ports::{Catalogue, Coordination, PortFuture};

whimbrel_engines::conformance_suite!([coordination, catalogue], Etcd);

const ADDRESS: &str = "WHIMBREL_TEST_ETCD";

/// The shared etcd. A place is a prefix.
struct Etcd;

impl Engine for Etcd {
    fn new_place(&self) -> Place {
        Arc::new(new_prefix())
    }

    fn skip(&self) -> Option<String> {
        missing_servers(&[ADDRESS])
    }
}

impl Opens<dyn Coordination> for Etcd {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Coordination>> {
        Box::pin(async move { open_coordination(&address(), &place).await })
    }
}

impl CoordinationFactory for Etcd {
    fn open_cut_off<'a>(
        &'a self,
        first: &'a OpenCoordination,
    ) -> PortFuture<'a, Option<(OpenCoordination, Box<dyn Switch>)>> {
        Box::pin(async {
            let (way, place) = (CutProxy::to(address()).await, first.place.clone());
            let port = open_coordination(way.address(), &place).await;
            Some((Opened { port, place }, Box::new(way) as Box<dyn Switch>))
        })
    }
}

impl Opens<dyn Catalogue> for Etcd {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Catalogue>> {
        Box::pin(async move {
            Arc::new(EtcdCatalogue::new(connect(&address(), prefix_of(&place)).await)) as Arc<dyn Catalogue>
        })
    }
}

async fn open_coordination(address: &str, place: &Place) -> Arc<dyn Coordination> {
    Arc::new(EtcdCoordination::new(connect(address, prefix_of(place)).await))
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

fn prefix_of(place: &Place) -> &str {
    place.downcast_ref::<String>().expect("it is the prefix")
}

fn address() -> String {
    std::env::var(ADDRESS).expect("etcd's address")
}

fn new_prefix() -> String {
    format!("test-{}/", unique_word())
}
