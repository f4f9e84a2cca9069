//! Presence over gRPC on real sockets, with the internal key.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use whimbrel_cluster::{PeerClients, PeerSettings};
use whimbrel_people::presence::packet::{GatewayQuery, QueryKind};
use whimbrel_people::presence::{PresencePeers, PresenceSettings, Remote, presence_service};

use super::process::{PresenceProcess, counts, gateway, living, memory_sessions};

fn peers(key: &str) -> Arc<dyn Remote> {
    let settings = PeerSettings { internal_key: Some(key.to_owned()), ..PeerSettings::default() };
    Arc::new(PresencePeers::new(Arc::new(PeerClients::new(settings).expect("a valid key"))))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn serve(listener: TcpListener, process: &PresenceProcess) {
    let service = presence_service(process.node.clone(), Some("secret"));
    let router = tonic::service::Routes::new(service).into_axum_router();
    tokio::spawn(async move { axum::serve(listener, router).await });
}

#[tokio::test]
async fn two_processes_report_each_others_users() {
    let ((listener_a, a), (listener_b, b)) = (listen().await, listen().await);
    let (a, b) = (a.to_string(), b.to_string());
    let cluster = living(&[(gateway(1, 10), &a), (gateway(2, 10), &b)], &[&a, &b]);
    let (_living, receiver) = watch::channel(cluster);
    let settings = PresenceSettings { writers: vec![vec![a.clone(), b.clone()]], ..PresenceSettings::default() };
    let open =
        |me: &str| PresenceProcess::open(me, settings.clone(), memory_sessions(), peers("secret"), receiver.clone());
    let (first, second) = (open(&a), open(&b));
    serve(listener_a, &first);
    serve(listener_b, &second);
    first.node.reporter().reincarnate(gateway(1, 10));
    second.node.reporter().reincarnate(gateway(2, 10));
    let mut there = counts(&[]);
    for number in 0..40 {
        let user = format!("user-{number}");
        if number % 2 == 0 {
            first.come(&user, number)
        } else {
            second.come(&user, number)
        }
        there.insert(user, 1);
    }
    first.wait_to_see(&there).await;
    second.wait_to_see(&there).await;
    for number in 0..20 {
        let user = format!("user-{number}");
        if number % 2 == 0 {
            first.go(&user, number)
        } else {
            second.go(&user, number)
        }
        there.insert(user, 0);
    }
    first.wait_to_see(&there).await;
    second.wait_to_see(&there).await;
}

#[tokio::test]
async fn a_call_with_a_wrong_key_is_rejected() {
    let (listener, address) = listen().await;
    let address = address.to_string();
    let (_living, receiver) = watch::channel(living(&[(gateway(1, 10), &address)], &[&address]));
    let process =
        PresenceProcess::open(&address, PresenceSettings::default(), memory_sessions(), peers("secret"), receiver);
    process.node.reporter().reincarnate(gateway(1, 10));
    serve(listener, &process);
    let ask = |remote: Arc<dyn Remote>| {
        let address = address.clone();
        async move {
            let asked = GatewayQuery {
                gateway: gateway(1, 10),
                address: address.as_str().into(),
                shard: 0,
                shards: 1,
                wanted: QueryKind::Snapshot,
            };
            remote.ask(&address, asked, false).await
        }
    };
    assert!(ask(peers("secret")).await.is_ok());
    let refusal = ask(peers("wrong")).await.expect_err("refused");
    assert!(refusal.contains("internal key"), "{refusal}");
}
