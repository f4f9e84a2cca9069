//! An unreachable etcd, an etcd that returns, and one unreachable endpoint of several.

use std::time::Duration;

use whimbrel_engines::conformance::coordination::Switch;
use whimbrel_engines::etcd::{EtcdCatalogue, EtcdConnection, EtcdCoordination, EtcdSettings, EtcdStartError};
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{Catalogue, CatalogueError, Coordination, Member};

use crate::cut_proxy::CutProxy;
use crate::{ADDRESS, address, connect, new_prefix, settings};

/// An address of loopback without a listener.
const UNREACHABLE: &str = "127.0.0.1:9";

fn member(name: &str) -> Member {
    Member { name: name.to_owned(), ..Member::default() }
}

/// A catalogue whose requests time out soon.
async fn impatient_catalogue(settings: EtcdSettings) -> EtcdCatalogue {
    let short = EtcdSettings { request_timeout: Duration::from_millis(500), ..settings };
    EtcdCatalogue::new(EtcdConnection::connect(short).await.expect("the way is open"))
}

#[tokio::test]
async fn a_start_reports_an_unreachable_etcd() {
    let settings = EtcdSettings { request_timeout: Duration::from_millis(500), ..EtcdSettings::new([UNREACHABLE]) };
    let error = EtcdConnection::connect(settings).await.err().expect("nobody answers");
    assert!(matches!(error, EtcdStartError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(UNREACHABLE), "{error}");
}

#[tokio::test]
async fn an_unreachable_endpoint_is_skipped() {
    needs_servers!(ADDRESS);
    let mut settings = settings(&address(), &new_prefix());
    settings.endpoints.insert(0, UNREACHABLE.to_owned());
    let connection = EtcdConnection::connect(settings).await.expect("one of them answers");
    let membership = EtcdCoordination::new(connection).join(member("a"), None).await.expect("it can join");
    membership.own("holds/0").await.expect("it is free");
}

#[tokio::test]
async fn a_write_through_a_cut_connection_fails_and_a_later_write_succeeds() {
    needs_servers!(ADDRESS);
    let way = CutProxy::to(address()).await;
    let catalogue = impatient_catalogue(settings(way.address(), &new_prefix())).await;
    let version = catalogue.put("x", b"1".to_vec(), None).await.expect("it is written");
    way.cut();
    let failed = catalogue.get("x").await;
    assert!(matches!(failed, Err(CatalogueError::Unavailable(_))), "{failed:?}");
    way.mend();
    let found = catalogue.get("x").await.expect("it can be read again").expect("it is there");
    assert_eq!(found.version, version);
}

#[tokio::test]
async fn a_write_that_etcd_does_not_confirm_has_an_unknown_outcome() {
    needs_servers!(ADDRESS);
    let way = CutProxy::to(address()).await;
    let catalogue = impatient_catalogue(settings(way.address(), &new_prefix())).await;
    let version = catalogue.put("x", b"1".to_vec(), None).await.expect("it is written");
    way.cut();
    let failed = catalogue.put("x", b"2".to_vec(), Some(version)).await;
    assert!(matches!(failed, Err(CatalogueError::OutcomeUnknown(_))), "{failed:?}");
    let failed = catalogue.remove("x", version).await;
    assert!(matches!(failed, Err(CatalogueError::OutcomeUnknown(_))), "{failed:?}");
    way.mend();
    // A later read shows the outcome; either write may have happened by now, later, or never.
    catalogue.get("x").await.expect("it can be read again");
}

#[tokio::test]
async fn a_write_for_which_no_connection_can_be_made_did_not_happen() {
    needs_servers!(ADDRESS);
    let way = CutProxy::to(address()).await;
    let mut settings = settings(way.address(), &new_prefix());
    settings.endpoints.push(UNREACHABLE.to_owned());
    let catalogue = impatient_catalogue(settings).await;
    way.cut();
    // Calls go to the two endpoints in turn: one swallows the requests, and no connection to the other can be opened.
    let mut outcomes = Vec::new();
    while outcomes.len() < 10 && !outcomes.iter().any(|outcome| matches!(outcome, Err(CatalogueError::Unavailable(_))))
    {
        outcomes.push(catalogue.put("x", b"1".to_vec(), None).await);
    }
    assert!(matches!(outcomes.last(), Some(Err(CatalogueError::Unavailable(_)))), "{outcomes:?}");
}

#[tokio::test]
async fn a_watch_catches_up_after_its_connection_was_cut() {
    needs_servers!(ADDRESS);
    let way = CutProxy::to(address()).await;
    let prefix = new_prefix();
    let (apart, here) = (connect(way.address(), &prefix).await, connect(&address(), &prefix).await);
    let (apart, here) = (EtcdCatalogue::new(apart), EtcdCatalogue::new(here));
    let version = here.put("x", b"1".to_vec(), None).await.expect("it is written");
    let mut seen = apart.changed(0).await.expect("it can be watched");
    while seen < version {
        seen = apart.changed(seen).await.expect("it can be watched");
    }
    way.cut();
    let version = here.put("x", b"2".to_vec(), Some(version)).await.expect("it is written");
    way.mend();
    while seen < version {
        seen = apart.changed(seen).await.expect("it can be watched");
    }
}
