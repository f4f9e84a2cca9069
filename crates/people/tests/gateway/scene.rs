//! A gateway on its own port, recorders of its messages to carriers and presence, and a device.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::{GatewayId, OnlineSession, SessionId, Uid};
use whimbrel_model::ports::presence::Reporter;
use whimbrel_model::ports::{
    Admitted, CarrierMessages, Carriers, Delivery, DeliveryPosition, LocalGateway as _, NoCarrier, OutMessage,
    OwnerLink, PeopleError, PeopleQuery, PeopleReply, PortFuture, ToCarrier, ToGateway,
};
use whimbrel_model::{SystemClock, Timestamp};
use whimbrel_people::gateway::tokens::{TokenSettings, TokenVerifier};
use whimbrel_people::gateway::websocket::{ClientSocket, SocketMessage};
use whimbrel_people::gateway::{Gateway, GatewaySettings};

pub const PARTITIONS: u32 = 4;
/// The owner link of all partitions at the start.
pub const FIRST_LINK: OwnerLink = OwnerLink { number: 1, epoch: 1 };
pub const ID: GatewayId = GatewayId { node: 7, incarnation: 1 };
/// Upper bound of each wait. It only ends tests that would block forever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits at most [`PATIENCE`].
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("timeout in the test")
}

pub type OwnerLinks = Vec<Option<OwnerLink>>;

struct Owners {
    told: mpsc::UnboundedSender<(u32, GatewayId, ToCarrier)>,
    owner_links: watch::Receiver<Arc<OwnerLinks>>,
    is_away: AtomicBool,
}

impl Carriers for Owners {
    fn partitions(&self) -> u32 {
        PARTITIONS
    }

    fn tell(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> Result<(), NoCarrier> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(NoCarrier(partition));
        }
        messages.into_iter().for_each(|message| drop(self.told.send((partition, from, message))));
        Ok(())
    }

    fn owner_links(&self) -> watch::Receiver<Arc<OwnerLinks>> {
        self.owner_links.clone()
    }

    fn ask(&self, partition: u32, _: PeopleQuery) -> PortFuture<'_, Result<PeopleReply, PeopleError>> {
        Box::pin(async move { Err(PeopleError::NoOwner(partition)) })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reported {
    Came(Uid, OnlineSession),
    Went(Uid, SessionId),
}

struct Noted(mpsc::UnboundedSender<Reported>);

impl Reporter for Noted {
    fn session_started(&self, uid: &Uid, session: OnlineSession) {
        let _ = self.0.send(Reported::Came(uid.clone(), session));
    }

    fn session_ended(&self, uid: &Uid, session: SessionId, _: Timestamp) {
        let _ = self.0.send(Reported::Went(uid.clone(), session));
    }
}

pub struct Scene {
    pub gateway: Arc<Gateway>,
    pub address: SocketAddr,
    told: mpsc::UnboundedReceiver<(u32, GatewayId, ToCarrier)>,
    reported: mpsc::UnboundedReceiver<Reported>,
    pub owner_links: watch::Sender<Arc<OwnerLinks>>,
    owners: Arc<Owners>,
    _shutdown: tokio_util::sync::DropGuard,
}

impl Scene {
    pub async fn start() -> Self {
        Self::with(GatewaySettings::default(), &TokenSettings::default()).await
    }

    pub async fn with(settings: GatewaySettings, tokens: &TokenSettings) -> Self {
        let (told, told_here) = mpsc::unbounded_channel();
        let (noted, reported) = mpsc::unbounded_channel();
        let (owner_links, owner_links_there) = watch::channel(Arc::new(vec![Some(FIRST_LINK); PARTITIONS as usize]));
        let owners = Arc::new(Owners { told, owner_links: owner_links_there, is_away: AtomicBool::new(false) });
        let tokens = TokenVerifier::new(tokens).unwrap();
        let gateway = Gateway::new(settings, tokens, owners.clone(), Arc::new(Noted(noted)), Arc::new(SystemClock));
        gateway.reincarnate(ID);
        let shutdown = CancellationToken::new();
        tokio::spawn(Arc::clone(&gateway).run(shutdown.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = gateway.router().into_make_service_with_connect_info::<SocketAddr>();
        let ended = shutdown.clone().cancelled_owned();
        tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(ended).await });
        let _shutdown = shutdown.drop_guard();
        Self { gateway, address, told: told_here, reported, owner_links, owners, _shutdown }
    }

    pub fn owners_are_away(&self, are_away: bool) {
        self.owners.is_away.store(are_away, Ordering::SeqCst);
    }

    /// The next message to the carriers.
    pub async fn told(&mut self) -> ToCarrier {
        soon(self.told.recv()).await.unwrap().2
    }

    /// The next message to the carriers, with the gateway's id.
    pub async fn told_by(&mut self) -> (GatewayId, ToCarrier) {
        let (_, by, told) = soon(self.told.recv()).await.unwrap();
        (by, told)
    }

    pub async fn reported(&mut self) -> Reported {
        soon(self.reported.recv()).await.unwrap()
    }

    pub fn say_as(&self, gateway: GatewayId, epoch: u64, news: Vec<ToGateway>) -> bool {
        self.gateway.take(gateway, CarrierMessages { partition: 0, epoch, news })
    }

    pub fn say(&self, news: Vec<ToGateway>) {
        assert!(self.say_as(ID, FIRST_LINK.epoch, news));
    }

    pub fn admit(&self, session: u64, cursor: u64) {
        let admitted = Admitted { session, epoch: "e1".into(), head: 42, cursor, resumed: false, why: None };
        self.say(vec![ToGateway::Admitted(Box::new(admitted))]);
    }

    /// An admitted device with its session number.
    pub async fn device(&mut self, uid: &str) -> (Device, u64) {
        let mut device = self.stranger().await;
        device.say(json!({"connect": {"uid": uid, "platform": "web", "device": "d1"}})).await;
        let session = self.admit_next(40).await;
        let connected = device.hears().await;
        assert_eq!(connected["connected"]["head"], 42, "{connected}");
        (device, session)
    }

    /// The number of the session that arrives next.
    pub async fn arrived(&mut self) -> u64 {
        match self.told().await {
            ToCarrier::Arrive(arrival) => arrival.session,
            other => panic!("not an arrival: {other:?}"),
        }
    }

    /// Admits the session that arrives next, and returns its number.
    pub async fn admit_next(&mut self, cursor: u64) -> u64 {
        let session = self.arrived().await;
        self.admit(session, cursor);
        session
    }

    /// A raw connection with this request. Nothing of the answer is read yet.
    pub async fn request(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The answer to a raw request that closes its connection.
    pub async fn exchange(&self, request: &str) -> String {
        let mut answer = String::new();
        soon(self.request(request).await.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    /// A device that has not identified itself.
    pub async fn stranger(&self) -> Device {
        Device(soon(ClientSocket::connect(self.address, "x", "/v1/connect", None)).await.unwrap())
    }
}

pub struct Device(pub ClientSocket);

impl Device {
    pub async fn say(&mut self, frame: Value) {
        self.0.send_text(frame.to_string()).await.unwrap();
    }

    pub async fn next(&mut self) -> Option<SocketMessage> {
        soon(self.0.next()).await.unwrap()
    }

    /// The next frame.
    pub async fn hears(&mut self) -> Value {
        match self.next().await {
            Some(SocketMessage::Text(text)) => serde_json::from_str(&text).unwrap(),
            other => panic!("not a frame: {other:?}"),
        }
    }

    /// The code and reason of the close frame, skipping earlier frames.
    pub async fn is_closed(&mut self) -> (u16, String) {
        loop {
            match self.next().await {
                Some(SocketMessage::Close(said)) => return said.unwrap(),
                Some(_) => {}
                None => panic!("the stream ended without a close frame"),
            }
        }
    }
}

pub fn message(payload: &[u8]) -> Arc<OutMessage> {
    let payload = payload.to_vec().into();
    Arc::new(OutMessage { id: "m1".into(), payload, ..OutMessage::default() })
}

pub fn stored(session: u64, seq: u64, prev: u64, payload: &[u8]) -> ToGateway {
    let place = DeliveryPosition::Stored { seq, prev };
    ToGateway::Deliver(Delivery { session, place, again: false, message: message(payload) })
}

pub fn ephemeral(session: u64, place: u64, payload: &[u8]) -> ToGateway {
    let place = DeliveryPosition::Ephemeral { place };
    ToGateway::Deliver(Delivery { session, place, again: false, message: message(payload) })
}
