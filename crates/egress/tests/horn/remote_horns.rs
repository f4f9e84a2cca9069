//! Notices are sent to a horn of another node, and always to the same one.

use std::sync::Arc;

use bytes::Bytes;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use whimbrel_cluster::{PeerClients, PeerSettings};
use whimbrel_egress::horn::{HornCallbacks, RemoteHorns};
use whimbrel_egress::worker::{LocalCallbacks, workers_service};
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, Callbacks, Member, Node, Provider as By, RetryAdvice};
use whimbrel_model::push::Notice;

use crate::bench::{Bench, device, notice, pager_at, plain_http};
use crate::notices::{Others, call_of, call_to, not_taken, status_of};
use crate::provider::{Provider, answer};

/// Starts a node with these local callbacks. Returns its address.
async fn process(desks: LocalCallbacks) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(workers_service(desks, None));
    tokio::spawn(async move { server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap() });
    address
}

fn member(name: &str, role: &str, address: &str) -> Member {
    Member { name: name.to_owned(), roles: vec![role.to_owned()], address: address.to_owned(), ..Member::default() }
}

/// A node without a horn that knows these other nodes, with their roles.
fn seeing(others: &[(&str, &str, &str)]) -> HornCallbacks {
    let remote = RemoteHorns::new(Arc::new(PeerClients::new(PeerSettings::default()).unwrap()));
    let node = |((name, role, address), number): (&(&str, &str, &str), u16)| Node {
        number,
        member: member(name, role, address),
    };
    remote.see(&others.iter().zip(2..).map(node).collect::<Vec<_>>());
    HornCallbacks { horn: None, remote: Some(Arc::new(remote)), others: Arc::new(Others::default()) }
}

fn horn(bench: &Bench) -> LocalCallbacks {
    LocalCallbacks { worker: None, horn: Some(Arc::clone(&bench.horn) as _) }
}

fn of_user(uid: &str) -> Call {
    let mut call = call_of(&Notice { uid: uid.to_owned(), ..notice("m1") });
    call.record.key = Some(Bytes::copy_from_slice(uid.as_bytes()));
    call
}

#[tokio::test]
async fn a_notice_reaches_the_horn_of_another_node() {
    let provider = Provider::start(|_| answer(413, "")).await;
    let bench = pager_at(&provider.url);
    let address = process(horn(&bench)).await;
    let callbacks = seeing(&[("a", "worker", "127.0.0.1:1"), ("b", "horn", &address)]);
    let reason = "pager (http) rejected permanently: the device's URL answered 413";
    assert_eq!(not_taken(&callbacks.call(of_user("u1")).await), (reason, RetryAdvice::Never));
    assert_eq!(provider.asked().len(), 1);
}

#[tokio::test]
async fn a_users_notices_go_to_the_same_horn_which_remembers_notified_devices() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let benches = [(); 3].map(|()| Bench::new(plain_http()));
    let mut addresses = Vec::new();
    for bench in &benches {
        for number in 0..20 {
            bench.devices.add(&format!("u{number}"), device("pager", By::Http, &provider.url));
        }
        addresses.push(process(horn(bench)).await);
    }
    let others = [("a", "horn", &*addresses[0]), ("b", "horn", &*addresses[1]), ("c", "horn", &*addresses[2])];
    let callbacks = seeing(&others);
    for _ in 0..2 {
        for number in 0..20 {
            assert_eq!(status_of(&callbacks.call(of_user(&format!("u{number}"))).await), 204);
        }
    }
    assert_eq!(provider.asked().len(), 20, "no device was notified twice");
}

#[tokio::test]
async fn an_unreachable_horn_is_skipped() {
    let bench = Bench::new(plain_http());
    let address = process(horn(&bench)).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let callbacks = seeing(&[("a", "horn", &closed), ("b", "horn", &address)]);
    for number in 0..10 {
        assert_eq!(status_of(&callbacks.call(of_user(&format!("u{number}"))).await), 204);
    }
}

#[tokio::test]
async fn without_a_horn_a_call_does_not_count_as_an_attempt() {
    let without = process(LocalCallbacks::default()).await;
    for callbacks in [seeing(&[]), seeing(&[("a", "worker", "127.0.0.1:1")]), seeing(&[("a", "horn", &without)])] {
        let outcome = callbacks.call(of_user("u1")).await.outcome;
        assert!(matches!(outcome, CallOutcome::Failed { why: CallFailure::NoWorker, .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_node_with_only_a_horn_makes_no_other_calls() {
    let address = process(horn(&Bench::new(plain_http()))).await;
    let peers = Arc::new(PeerClients::new(PeerSettings::default()).unwrap());
    let remote = RemoteHorns::new(peers);
    remote.see(&[Node { number: 2, member: member("a", "horn", &address) }]);
    let outcome = remote.call(call_to("http://127.0.0.1:1/", Vec::new())).await.outcome;
    assert!(matches!(outcome, CallOutcome::Failed { why: CallFailure::NoWorker, .. }), "{outcome:?}");
}
