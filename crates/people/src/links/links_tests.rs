//! Properties of the connections between gateways and carriers, on one node or two. Other nodes are real services on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{
    CarrierMessages, Carriers, Delivery, DeliveryPosition, Gateways, InboxView, LocalCarriers, LocalGateway, Member,
    NoCarrier, Node, OutMessage, Owner, OwnerLink, PeopleError, PeopleQuery, PeopleReply, PortFuture, ToCarrier,
    ToGateway,
};

use super::limits::QUEUE_BYTES_MAX;
use super::{CarrierLinkParts, CarrierLinks, GatewayLinks, carriers_service, people_queries_service};
use whimbrel_cluster::{CARRIER_ROLE, ClusterView, ClusterWatch, GATEWAY_ROLE, PUSH_FAMILY, PeerClients, PeerSettings};

/// Long enough for anything over loopback on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 100 };
const CARRIER: GatewayId = GatewayId { node: 2, incarnation: 200 };

/// A carrier that serves its only partition and records what it receives.
struct FakeCarrier {
    serving: watch::Sender<Arc<Vec<Option<u64>>>>,
    taken: mpsc::UnboundedSender<(GatewayId, Vec<ToCarrier>)>,
    /// The number of reconnected streams.
    afresh: AtomicUsize,
}

impl FakeCarrier {
    fn new(epoch: Option<u64>) -> (Arc<Self>, mpsc::UnboundedReceiver<(GatewayId, Vec<ToCarrier>)>) {
        let (taken, takes) = mpsc::unbounded_channel();
        let serving = watch::Sender::new(Arc::new(vec![epoch]));
        (Arc::new(Self { serving, taken, afresh: AtomicUsize::new(0) }), takes)
    }

    fn serve(&self, epoch: Option<u64>) {
        self.serving.send_replace(Arc::new(vec![epoch]));
    }
}

impl LocalCarriers for FakeCarrier {
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool {
        partition == 0 && self.serving.borrow()[0].is_some() && self.taken.send((from, messages)).is_ok()
    }

    fn link_reset(&self, _: GatewayId) {
        self.afresh.fetch_add(1, Ordering::SeqCst);
    }

    fn ask(&self, _: u32, _: PeopleQuery) -> PortFuture<'_, Option<Result<PeopleReply, PeopleError>>> {
        let view = InboxView { stored: 3, ..InboxView::default() };
        Box::pin(async move { self.serving.borrow()[0].map(|_| Ok(PeopleReply::Inbox(view))) })
    }

    fn serving(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>> {
        self.serving.subscribe()
    }
}

/// A gateway that records what it receives.
struct FakeGateway {
    me: GatewayId,
    told: mpsc::UnboundedSender<CarrierMessages>,
    /// While a test holds it, the gateway is blocked, and its stream too.
    stall: Mutex<()>,
}

impl FakeGateway {
    fn new(me: GatewayId) -> (Arc<Self>, mpsc::UnboundedReceiver<CarrierMessages>) {
        let (told, tells) = mpsc::unbounded_channel();
        (Arc::new(Self { me, told, stall: Mutex::default() }), tells)
    }
}

impl LocalGateway for FakeGateway {
    fn take(&self, gateway: GatewayId, news: CarrierMessages) -> bool {
        drop(self.stall.lock());
        gateway == self.me && self.told.send(news).is_ok()
    }
}

/// The cluster view of all nodes, and the address of the carrier.
struct LinkScene {
    views: watch::Sender<Arc<ClusterView>>,
    address: Mutex<String>,
}

impl LinkScene {
    fn new(address: String) -> Self {
        let scene = Self { views: watch::Sender::default(), address: Mutex::new(address) };
        scene.show(GATEWAY, Some(Owner { node: CARRIER.node, epoch: 5 }));
        scene
    }

    /// Shows the gateway with that incarnation, and the owner of the only partition.
    fn show(&self, gateway: GatewayId, owner: Option<Owner>) {
        let address = self.address.lock().unwrap().clone();
        let node = |id: GatewayId, role: &str, address: String| Node {
            number: id.node,
            member: Member {
                name: format!("n{}", id.node),
                roles: vec![role.to_owned()],
                address,
                incarnation: id.incarnation,
                ..Member::default()
            },
        };
        let nodes = vec![node(gateway, GATEWAY_ROLE, String::new()), node(CARRIER, CARRIER_ROLE, address)];
        let owners = BTreeMap::from([(PUSH_FAMILY, vec![owner])]);
        self.views.send_replace(Arc::new(ClusterView { revision: 1, nodes, owners }));
    }

    fn sight_of(&self, me: GatewayId) -> ClusterWatch {
        ClusterWatch::new(self.views.subscribe(), watch::Sender::new(Some(me)).subscribe())
    }
}

fn links(sight: ClusterWatch, desk: Option<Arc<dyn LocalCarriers>>) -> Arc<CarrierLinks> {
    let peers = Arc::new(PeerClients::new(PeerSettings::default()).unwrap());
    CarrierLinks::new(CarrierLinkParts { partitions: 1, sight, desk, peers, owner_wait: Duration::from_secs(5) })
}

/// Two nodes: a gateway on one, a carrier on the other.
struct Pair {
    scene: LinkScene,
    carriers: Arc<CarrierLinks>,
    gateways: Arc<GatewayLinks>,
    carrier: Arc<FakeCarrier>,
    gateway: Arc<FakeGateway>,
    takes: mpsc::UnboundedReceiver<(GatewayId, Vec<ToCarrier>)>,
    tells: mpsc::UnboundedReceiver<CarrierMessages>,
    server: JoinHandle<()>,
    ends: CancellationToken,
}

impl Pair {
    async fn new() -> Self {
        let (carrier, takes) = FakeCarrier::new(Some(5));
        let (gateway, tells) = FakeGateway::new(GATEWAY);
        let (gateways, ends) = (GatewayLinks::new(), CancellationToken::new());
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let scene = LinkScene::new(listener.local_addr().unwrap().to_string());
        let service = carriers_service(carrier.clone(), gateways.clone(), None);
        let incoming = TcpIncoming::from(listener);
        let queries = people_queries_service(carrier.clone(), None);
        let serving = Server::builder().add_service(service).add_service(queries).serve_with_incoming(incoming);
        let server = tokio::spawn(async move { serving.await.unwrap() });
        let (running, sight, until) = (gateways.clone(), scene.sight_of(CARRIER), ends.clone());
        tokio::spawn(async move { running.run(sight, None, until).await });
        let carriers = links(scene.sight_of(GATEWAY), None);
        tokio::spawn(carriers.clone().run(Some(gateway.clone()), ends.clone()));
        Self { scene, carriers, gateways, carrier, gateway, takes, tells, server, ends }
    }

    /// The owner link of the only partition, once the condition holds.
    async fn owner_link(&self, is_so: impl Fn(Option<OwnerLink>) -> bool) -> Option<OwnerLink> {
        owner_link(&self.carriers, is_so).await
    }

    async fn taken(&mut self) -> (GatewayId, Vec<ToCarrier>) {
        tokio::time::timeout(PATIENCE, self.takes.recv()).await.expect("it arrives").unwrap()
    }

    async fn told(&mut self) -> CarrierMessages {
        tokio::time::timeout(PATIENCE, self.tells.recv()).await.expect("it arrives").unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.ends.cancel();
        self.server.abort();
    }
}

async fn owner_link(carriers: &CarrierLinks, is_so: impl Fn(Option<OwnerLink>) -> bool) -> Option<OwnerLink> {
    let mut owner_links = carriers.owner_links();
    let waiting = owner_links.wait_for(|owner_links| is_so(owner_links[0]));
    let owner_links = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("timeout while waiting for the owner_link")
        .unwrap()
        .clone();
    owner_links[0]
}

fn ack(upto: u64) -> ToCarrier {
    ToCarrier::Ack { session: 1, uid: Uid::new("eva").unwrap(), upto }
}

fn news(from: u64) -> CarrierMessages {
    CarrierMessages { partition: 0, epoch: 5, news: vec![ToGateway::Truncated { session: 1, from, to: from, prev: 0 }] }
}

#[tokio::test]
async fn on_one_node_gateway_and_carrier_are_called_directly() {
    let scene = LinkScene::new(String::new());
    let (carrier, mut takes) = FakeCarrier::new(None);
    let (gateway, mut tells) = FakeGateway::new(CARRIER);
    let (carriers, gateways) = (links(scene.sight_of(CARRIER), Some(carrier.clone())), GatewayLinks::new());
    let ends = CancellationToken::new();
    tokio::spawn(carriers.clone().run(Some(gateway.clone()), ends.clone()));
    let (running, sight) = (gateways.clone(), scene.sight_of(CARRIER));
    tokio::spawn(async move { running.run(sight, Some(gateway), ends).await });
    assert_eq!(carriers.tell(0, CARRIER, vec![ack(1)]), Err(NoCarrier(0)), "the owner does not serve yet");
    carrier.serve(Some(5));
    let first = owner_link(&carriers, |owner_link| owner_link.is_some()).await;
    assert_eq!(carriers.tell(0, CARRIER, vec![ack(1)]), Ok(()));
    assert_eq!(takes.recv().await, Some((CARRIER, vec![ack(1)])));
    gateways.live_gateways().wait_for(|living| living.contains(&GATEWAY)).await.unwrap();
    assert!(gateways.tell(CARRIER, news(1)));
    assert_eq!(tells.recv().await, Some(news(1)));
    assert!(!gateways.tell(GatewayId { incarnation: 199, ..CARRIER }, news(1)), "an earlier incarnation");
    carrier.serve(Some(6));
    let second = owner_link(&carriers, |owner_link| owner_link.is_some() && owner_link != first).await;
    assert!(second > first, "a new epoch is a new owner_link");
    assert_eq!((first.map(|first| first.epoch), second.map(|second| second.epoch)), (Some(5), Some(6)));
    assert_eq!(
        carriers
            .ask(0, PeopleQuery::Inbox { uid: Uid::new("eva").unwrap(), platform: None, after: 0, limit: 1 })
            .await
            .map(|PeopleReply::Inbox(view)| view.stored),
        Ok(3)
    );
}

#[tokio::test]
async fn between_nodes_both_directions_keep_their_order() {
    let mut pair = Pair::new().await;
    pair.owner_link(|owner_link| owner_link.is_some()).await;
    for upto in 0..500 {
        assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(upto)]), Ok(()));
        assert!(pair.gateways.tell(GATEWAY, news(upto)));
    }
    for upto in 0..500 {
        assert_eq!(pair.taken().await, (GATEWAY, vec![ack(upto)]));
        assert_eq!(pair.told().await, news(upto));
    }
}

#[tokio::test]
async fn a_query_reaches_the_owner_on_another_node() {
    let pair = Pair::new().await;
    let ask = PeopleQuery::Inbox { uid: Uid::new("eva").unwrap(), platform: None, after: 0, limit: 1 };
    let told = pair.carriers.ask(0, ask).await;
    assert_eq!(told.map(|PeopleReply::Inbox(view)| view.stored), Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_query_without_an_owner_waits_and_then_fails() {
    let scene = LinkScene::new(String::new());
    scene.show(GATEWAY, None);
    let carriers = links(scene.sight_of(GATEWAY), None);
    let ask = PeopleQuery::Inbox { uid: Uid::new("eva").unwrap(), platform: None, after: 0, limit: 1 };
    let began = tokio::time::Instant::now();
    assert_eq!(carriers.ask(0, ask).await, Err(PeopleError::NoOwner(0)));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_partition_that_its_owner_does_not_serve_yet_has_no_tenure() {
    let mut pair = Pair::new().await;
    pair.owner_link(|owner_link| owner_link.is_some()).await;
    pair.carrier.serve(None);
    pair.owner_link(|owner_link| owner_link.is_none()).await;
    assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(1)]), Err(NoCarrier(0)));
    pair.carrier.serve(Some(6));
    pair.owner_link(|owner_link| owner_link.is_some()).await;
    assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(2)]), Ok(()));
    assert_eq!(pair.taken().await, (GATEWAY, vec![ack(2)]));
}

#[tokio::test]
async fn a_stream_that_ended_is_opened_again_under_a_new_tenure() {
    let mut pair = Pair::new().await;
    let first = pair.owner_link(|owner_link| owner_link.is_some()).await;
    // A second stream of the same gateway ends the first one.
    let (outbox, _outgoing) = super::gateway_outbox::gateway_outbox(1024);
    pair.gateways.open(GATEWAY, &outbox).unwrap();
    let second = pair.owner_link(|owner_link| owner_link.is_some() && owner_link != first).await;
    assert!(second > first);
    assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(9)]), Ok(()));
    assert_eq!(pair.taken().await, (GATEWAY, vec![ack(9)]));
    assert_eq!(pair.carrier.afresh.load(Ordering::SeqCst), 2, "the carrier must drop the sessions of the old stream");
    assert!(pair.gateways.tell(GATEWAY, news(9)));
    assert_eq!(pair.told().await, news(9));
}

#[tokio::test]
async fn an_older_incarnation_of_a_gateway_can_neither_open_a_stream_nor_receive() {
    let pair = Pair::new().await;
    pair.owner_link(|owner_link| owner_link.is_some()).await;
    let (outbox, _outgoing) = super::gateway_outbox::gateway_outbox(1024);
    let older = GatewayId { incarnation: GATEWAY.incarnation - 1, ..GATEWAY };
    assert!(pair.gateways.open(older, &outbox).is_err());
    assert!(pair.gateways.open(CARRIER, &outbox).is_err(), "the number of this node");
    assert!(!pair.gateways.tell(older, news(1)));
    let newer = GatewayId { incarnation: GATEWAY.incarnation + 1, ..GATEWAY };
    pair.scene.show(newer, Some(Owner { node: CARRIER.node, epoch: 5 }));
    pair.gateways.live_gateways().wait_for(|living| **living == [newer]).await.unwrap();
    assert!(pair.gateways.open(GATEWAY, &outbox).is_err(), "the view has a newer one");
}

#[tokio::test]
async fn a_gateway_that_does_not_read_loses_its_stream_without_blocking_the_carrier() {
    let pair = Pair::new().await;
    let (outbox, _outgoing) = super::gateway_outbox::gateway_outbox(1024);
    let slow = GatewayId { node: 9, incarnation: 1 };
    pair.gateways.open(slow, &outbox).unwrap();
    let told = (0..1000).take_while(|from| pair.gateways.tell(slow, news(*from))).count();
    assert!((1..1000).contains(&told), "the bound must be reached: {told}");
    outbox.ended().await;
}

/// A delivery with a payload of its own.
fn delivery(place: DeliveryPosition, bytes: usize) -> CarrierMessages {
    let message = Arc::new(OutMessage { payload: vec![b'x'; bytes].into(), ..OutMessage::default() });
    let news = vec![ToGateway::Deliver(Delivery { session: 1, place, again: false, message })];
    CarrierMessages { partition: 0, epoch: 5, news }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_of_ephemeral_messages_to_a_blocked_gateway_costs_neither_its_stream_nor_stored_messages() {
    const BODY: usize = 32 << 10;
    let flood = 2 * (QUEUE_BYTES_MAX / BODY) as u64;
    let mut pair = Pair::new().await;
    let owner_link = pair.owner_link(|owner_link| owner_link.is_some()).await;
    {
        let _standing = pair.gateway.stall.lock().unwrap();
        for place in 1..=flood {
            assert!(pair.gateways.tell(GATEWAY, delivery(DeliveryPosition::Ephemeral { place }, BODY)), "at {place}");
            let stored = DeliveryPosition::Stored { seq: place, prev: place - 1 };
            assert!(pair.gateways.tell(GATEWAY, delivery(stored, 1)), "at {place}");
        }
    }
    let (mut numbers, mut arrived, mut lost) = (Vec::new(), 0, 0);
    while (numbers.len() as u64, arrived + lost) != (flood, flood) {
        for one in pair.told().await.news {
            match one {
                ToGateway::Deliver(Delivery { place: DeliveryPosition::Stored { seq, .. }, .. }) => numbers.push(seq),
                ToGateway::Deliver(Delivery { place: DeliveryPosition::Ephemeral { .. }, .. }) => arrived += 1,
                ToGateway::Lost { session: 1, count } => lost += count,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(lost > 0 && arrived > 0, "{arrived} arrived, {lost} were lost");
    assert_eq!(numbers, (1..=flood).collect::<Vec<_>>(), "stored messages must be complete and in order");
    assert_eq!(*pair.carriers.owner_links().borrow().clone(), [owner_link], "no session must be announced again");
}
