//! The same over gRPC on real sockets, with the internal key.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use whimbrel_cluster::{PeerSettings, Peers};
use whimbrel_people::presence::packet::{AskGateway, Wanted};
use whimbrel_people::presence::{PresencePeers, PresenceSettings, Remote, presence_service};

use super::store::MemoryStore;
use super::town::{House, counts, gateway, living};

fn peers(key: &str) -> Arc<dyn Remote> {
    let settings = PeerSettings { internal_key: Some(key.to_owned()), ..PeerSettings::default() };
    Arc::new(PresencePeers::new(Arc::new(Peers::new(settings).expect("a good key"))))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn serve(listener: TcpListener, house: &House) {
    let service = presence_service(house.station.clone(), Some("secret"));
    let router = tonic::service::Routes::new(service).into_axum_router();
    tokio::spawn(async move { axum::serve(listener, router).await });
}

#[tokio::test]
async fn two_processes_show_each_others_users() {
    let ((listener_a, a), (listener_b, b)) = (listen().await, listen().await);
    let (a, b) = (a.to_string(), b.to_string());
    let cluster = living(&[(gateway(1, 10), &a), (gateway(2, 10), &b)], &[&a, &b]);
    let (_living, receiver) = watch::channel(cluster);
    let settings = PresenceSettings { writers: vec![vec![a.clone(), b.clone()]], ..PresenceSettings::default() };
    let open = |me: &str| House::open(me, settings.clone(), MemoryStore::new(), peers("secret"), receiver.clone());
    let (first, second) = (open(&a), open(&b));
    serve(listener_a, &first);
    serve(listener_b, &second);
    first.station.reporter().reincarnate(gateway(1, 10));
    second.station.reporter().reincarnate(gateway(2, 10));
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
async fn who_does_not_bring_the_key_is_refused() {
    let (listener, address) = listen().await;
    let address = address.to_string();
    let (_living, receiver) = watch::channel(living(&[(gateway(1, 10), &address)], &[&address]));
    let house = House::open(&address, PresenceSettings::default(), MemoryStore::new(), peers("secret"), receiver);
    house.station.reporter().reincarnate(gateway(1, 10));
    serve(listener, &house);
    let ask = |remote: Arc<dyn Remote>| {
        let address = address.clone();
        async move {
            let asked = AskGateway {
                gateway: gateway(1, 10),
                address: address.as_str().into(),
                shard: 0,
                shards: 1,
                wanted: Wanted::Picture,
            };
            remote.ask(&address, asked, false).await
        }
    };
    assert!(ask(peers("secret")).await.is_ok());
    let refusal = ask(peers("wrong")).await.expect_err("refused");
    assert!(refusal.contains("internal key"), "{refusal}");
}
