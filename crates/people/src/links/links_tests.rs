//! What gateways and carriers may rely upon, on one node or on two. Other nodes are real services on loopback.

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
    CarrierDesk, Carriers, Delivery, DeliveryPlace, FromCarrier, GatewayDesk, Gateways, InboxView, Member, NoCarrier,
    Node, OutMessage, Owner, PeopleAsk, PeopleError, PeopleTold, PortFuture, Tenure, ToCarrier, ToGateway,
};

use super::limits::QUEUE_BYTES_MAX;
use super::{CarrierLinkParts, CarrierLinks, GatewayLinks, carriers_service};
use whimbrel_cluster::{CARRIER_ROLE, GATEWAY_ROLE, PUSH_FAMILY, PeerSettings, Peers, Sight, View};

/// Long enough for anything over loopback on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 100 };
const CARRIER: GatewayId = GatewayId { node: 2, incarnation: 200 };

/// A carrier that serves its only partition and writes down what it takes.
struct FakeCarrier {
    serving: watch::Sender<Arc<Vec<Option<u64>>>>,
    taken: mpsc::UnboundedSender<(GatewayId, Vec<ToCarrier>)>,
    /// How often a way was made anew.
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

impl CarrierDesk for FakeCarrier {
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool {
        partition == 0 && self.serving.borrow()[0].is_some() && self.taken.send((from, messages)).is_ok()
    }

    fn afresh(&self, _: GatewayId) {
        self.afresh.fetch_add(1, Ordering::SeqCst);
    }

    fn ask(&self, _: u32, _: PeopleAsk) -> PortFuture<'_, Option<Result<PeopleTold, PeopleError>>> {
        let view = InboxView { stored: 3, ..InboxView::default() };
        Box::pin(async move { self.serving.borrow()[0].map(|_| Ok(PeopleTold::Inbox(view))) })
    }

    fn serving(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>> {
        self.serving.subscribe()
    }
}

/// A gateway that writes down what it is told.
struct FakeGateway {
    me: GatewayId,
    told: mpsc::UnboundedSender<FromCarrier>,
    /// Whoever has it makes the gateway stand still, and its stream with it.
    stall: Mutex<()>,
}

impl FakeGateway {
    fn new(me: GatewayId) -> (Arc<Self>, mpsc::UnboundedReceiver<FromCarrier>) {
        let (told, tells) = mpsc::unbounded_channel();
        (Arc::new(Self { me, told, stall: Mutex::default() }), tells)
    }
}

impl GatewayDesk for FakeGateway {
    fn take(&self, gateway: GatewayId, news: FromCarrier) -> bool {
        drop(self.stall.lock());
        gateway == self.me && self.told.send(news).is_ok()
    }
}

/// What all nodes see, and what one of them is called.
struct Scene {
    views: watch::Sender<Arc<View>>,
    address: Mutex<String>,
}

impl Scene {
    fn new(address: String) -> Self {
        let scene = Self { views: watch::Sender::default(), address: Mutex::new(address) };
        scene.show(GATEWAY, Some(Owner { node: CARRIER.node, epoch: 5 }));
        scene
    }

    /// The gateway is that incarnation, and that is the owner of the only partition.
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
        self.views.send_replace(Arc::new(View { revision: 1, nodes, owners }));
    }

    fn sight_of(&self, me: GatewayId) -> Sight {
        Sight::new(self.views.subscribe(), watch::Sender::new(Some(me)).subscribe())
    }
}

fn links(sight: Sight, desk: Option<Arc<dyn CarrierDesk>>) -> Arc<CarrierLinks> {
    let peers = Arc::new(Peers::new(PeerSettings::default()).unwrap());
    CarrierLinks::new(CarrierLinkParts { partitions: 1, sight, desk, peers, owner_wait: Duration::from_secs(5) })
}

/// Two nodes: a gateway on one, a carrier on the other.
struct Pair {
    scene: Scene,
    carriers: Arc<CarrierLinks>,
    gateways: Arc<GatewayLinks>,
    carrier: Arc<FakeCarrier>,
    gateway: Arc<FakeGateway>,
    takes: mpsc::UnboundedReceiver<(GatewayId, Vec<ToCarrier>)>,
    tells: mpsc::UnboundedReceiver<FromCarrier>,
    server: JoinHandle<()>,
    ends: CancellationToken,
}

impl Pair {
    async fn new() -> Self {
        let (carrier, takes) = FakeCarrier::new(Some(5));
        let (gateway, tells) = FakeGateway::new(GATEWAY);
        let (gateways, ends) = (GatewayLinks::new(), CancellationToken::new());
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let scene = Scene::new(listener.local_addr().unwrap().to_string());
        let service = carriers_service(carrier.clone(), gateways.clone(), None);
        let incoming = TcpIncoming::from(listener);
        let serving = Server::builder().add_service(service).serve_with_incoming(incoming);
        let server = tokio::spawn(async move { serving.await.unwrap() });
        let (running, sight, until) = (gateways.clone(), scene.sight_of(CARRIER), ends.clone());
        tokio::spawn(async move { running.run(sight, None, until).await });
        let carriers = links(scene.sight_of(GATEWAY), None);
        tokio::spawn(carriers.clone().run(Some(gateway.clone()), ends.clone()));
        Self { scene, carriers, gateways, carrier, gateway, takes, tells, server, ends }
    }

    /// The tenure of the only partition, once it is so.
    async fn tenure(&self, is_so: impl Fn(Option<Tenure>) -> bool) -> Option<Tenure> {
        tenure(&self.carriers, is_so).await
    }

    async fn taken(&mut self) -> (GatewayId, Vec<ToCarrier>) {
        tokio::time::timeout(PATIENCE, self.takes.recv()).await.expect("it arrives").unwrap()
    }

    async fn told(&mut self) -> FromCarrier {
        tokio::time::timeout(PATIENCE, self.tells.recv()).await.expect("it arrives").unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.ends.cancel();
        self.server.abort();
    }
}

async fn tenure(carriers: &CarrierLinks, is_so: impl Fn(Option<Tenure>) -> bool) -> Option<Tenure> {
    let mut tenures = carriers.tenures();
    let waiting = tenures.wait_for(|tenures| is_so(tenures[0]));
    let tenures = tokio::time::timeout(PATIENCE, waiting).await.expect("the tenure comes about").unwrap().clone();
    tenures[0]
}

fn ack(upto: u64) -> ToCarrier {
    ToCarrier::Ack { session: 1, uid: Uid::new("eva").unwrap(), upto }
}

fn news(from: u64) -> FromCarrier {
    FromCarrier { partition: 0, epoch: 5, news: vec![ToGateway::Truncated { session: 1, from, to: from, prev: 0 }] }
}

#[tokio::test]
async fn on_one_node_the_desks_are_called_directly() {
    let scene = Scene::new(String::new());
    let (carrier, mut takes) = FakeCarrier::new(None);
    let (gateway, mut tells) = FakeGateway::new(CARRIER);
    let (carriers, gateways) = (links(scene.sight_of(CARRIER), Some(carrier.clone())), GatewayLinks::new());
    let ends = CancellationToken::new();
    tokio::spawn(carriers.clone().run(Some(gateway.clone()), ends.clone()));
    let (running, sight) = (gateways.clone(), scene.sight_of(CARRIER));
    tokio::spawn(async move { running.run(sight, Some(gateway), ends).await });
    assert_eq!(carriers.tell(0, CARRIER, vec![ack(1)]), Err(NoCarrier(0)), "the owner takes nothing yet");
    carrier.serve(Some(5));
    let first = tenure(&carriers, |tenure| tenure.is_some()).await;
    assert_eq!(carriers.tell(0, CARRIER, vec![ack(1)]), Ok(()));
    assert_eq!(takes.recv().await, Some((CARRIER, vec![ack(1)])));
    gateways.living().wait_for(|living| living.contains(&GATEWAY)).await.unwrap();
    assert!(gateways.tell(CARRIER, news(1)));
    assert_eq!(tells.recv().await, Some(news(1)));
    assert!(!gateways.tell(GatewayId { incarnation: 199, ..CARRIER }, news(1)), "an earlier incarnation");
    carrier.serve(Some(6));
    let second = tenure(&carriers, |tenure| tenure.is_some() && tenure != first).await;
    assert!(second > first, "a new epoch is a new tenure");
    assert_eq!((first.map(|first| first.epoch), second.map(|second| second.epoch)), (Some(5), Some(6)));
    assert_eq!(
        carriers
            .ask(0, PeopleAsk::Inbox { uid: Uid::new("eva").unwrap(), platform: None, after: 0, limit: 1 })
            .await
            .map(|PeopleTold::Inbox(view)| view.stored),
        Ok(3)
    );
}

#[tokio::test]
async fn between_nodes_both_directions_keep_their_order() {
    let mut pair = Pair::new().await;
    pair.tenure(|tenure| tenure.is_some()).await;
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
async fn a_question_about_a_user_finds_the_owner_on_another_node() {
    let pair = Pair::new().await;
    let ask = PeopleAsk::Inbox { uid: Uid::new("eva").unwrap(), platform: None, after: 0, limit: 1 };
    let told = pair.carriers.ask(0, ask).await;
    assert_eq!(told.map(|PeopleTold::Inbox(view)| view.stored), Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_owner_waits_for_one_and_is_then_refused() {
    let scene = Scene::new(String::new());
    scene.show(GATEWAY, None);
    let carriers = links(scene.sight_of(GATEWAY), None);
    let ask = PeopleAsk::Inbox { uid: Uid::new("eva").unwrap(), platform: None, after: 0, limit: 1 };
    let began = tokio::time::Instant::now();
    assert_eq!(carriers.ask(0, ask).await, Err(PeopleError::NoOwner(0)));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_partition_that_its_owner_does_not_serve_yet_has_no_tenure() {
    let mut pair = Pair::new().await;
    pair.tenure(|tenure| tenure.is_some()).await;
    pair.carrier.serve(None);
    pair.tenure(|tenure| tenure.is_none()).await;
    assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(1)]), Err(NoCarrier(0)));
    pair.carrier.serve(Some(6));
    pair.tenure(|tenure| tenure.is_some()).await;
    assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(2)]), Ok(()));
    assert_eq!(pair.taken().await, (GATEWAY, vec![ack(2)]));
}

#[tokio::test]
async fn a_stream_that_was_ended_is_opened_again_under_a_new_tenure() {
    let mut pair = Pair::new().await;
    let first = pair.tenure(|tenure| tenure.is_some()).await;
    // Whoever opens another stream as the same gateway ends the one before.
    let (outbox, _outgoing) = super::down::down(1024);
    pair.gateways.open(GATEWAY, &outbox).unwrap();
    let second = pair.tenure(|tenure| tenure.is_some() && tenure != first).await;
    assert!(second > first);
    assert_eq!(pair.carriers.tell(0, GATEWAY, vec![ack(9)]), Ok(()));
    assert_eq!(pair.taken().await, (GATEWAY, vec![ack(9)]));
    assert_eq!(pair.carrier.afresh.load(Ordering::SeqCst), 2, "what was lost with the old one counts no more");
    assert!(pair.gateways.tell(GATEWAY, news(9)));
    assert_eq!(pair.told().await, news(9));
}

#[tokio::test]
async fn an_older_incarnation_of_a_gateway_opens_nothing_and_is_told_nothing() {
    let pair = Pair::new().await;
    pair.tenure(|tenure| tenure.is_some()).await;
    let (outbox, _outgoing) = super::down::down(1024);
    let older = GatewayId { incarnation: GATEWAY.incarnation - 1, ..GATEWAY };
    assert!(pair.gateways.open(older, &outbox).is_err());
    assert!(pair.gateways.open(CARRIER, &outbox).is_err(), "nobody else is this node");
    assert!(!pair.gateways.tell(older, news(1)));
    let newer = GatewayId { incarnation: GATEWAY.incarnation + 1, ..GATEWAY };
    pair.scene.show(newer, Some(Owner { node: CARRIER.node, epoch: 5 }));
    pair.gateways.living().wait_for(|living| **living == [newer]).await.unwrap();
    assert!(pair.gateways.open(GATEWAY, &outbox).is_err(), "the picture shows a newer one");
}

#[tokio::test]
async fn a_gateway_that_does_not_read_loses_its_stream_and_holds_up_nobody() {
    let pair = Pair::new().await;
    let (outbox, _outgoing) = super::down::down(1024);
    let slow = GatewayId { node: 9, incarnation: 1 };
    pair.gateways.open(slow, &outbox).unwrap();
    let told = (0..1000).take_while(|from| pair.gateways.tell(slow, news(*from))).count();
    assert!((1..1000).contains(&told), "the bound is reached: {told}");
    outbox.ended().await;
}

/// A delivery of a body of its own.
fn delivery(place: DeliveryPlace, bytes: usize) -> FromCarrier {
    let message = Arc::new(OutMessage { payload: vec![b'x'; bytes].into(), ..OutMessage::default() });
    let news = vec![ToGateway::Deliver(Delivery { session: 1, place, again: false, message })];
    FromCarrier { partition: 0, epoch: 5, news }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_that_may_be_lost_towards_a_gateway_that_stands_still_costs_neither_its_stream_nor_what_is_stored() {
    const BODY: usize = 32 << 10;
    let flood = 2 * (QUEUE_BYTES_MAX / BODY) as u64;
    let mut pair = Pair::new().await;
    let tenure = pair.tenure(|tenure| tenure.is_some()).await;
    {
        let _standing = pair.gateway.stall.lock().unwrap();
        for place in 1..=flood {
            assert!(pair.gateways.tell(GATEWAY, delivery(DeliveryPlace::Ephemeral { place }, BODY)), "at {place}");
            let stored = DeliveryPlace::Stored { seq: place, prev: place - 1 };
            assert!(pair.gateways.tell(GATEWAY, delivery(stored, 1)), "at {place}");
        }
    }
    let (mut numbers, mut arrived, mut lost) = (Vec::new(), 0, 0);
    while (numbers.len() as u64, arrived + lost) != (flood, flood) {
        for one in pair.told().await.news {
            match one {
                ToGateway::Deliver(Delivery { place: DeliveryPlace::Stored { seq, .. }, .. }) => numbers.push(seq),
                ToGateway::Deliver(Delivery { place: DeliveryPlace::Ephemeral { .. }, .. }) => arrived += 1,
                ToGateway::Lost { session: 1, count } => lost += count,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(lost > 0 && arrived > 0, "{arrived} arrived, {lost} were lost");
    assert_eq!(numbers, (1..=flood).collect::<Vec<_>>(), "what is stored comes whole and in order");
    assert_eq!(*pair.carriers.tenures().borrow().clone(), [tenure], "nobody has to be announced again");
}
