//! The test environment: in-memory ports, an API over them, and helpers for requests.

pub mod catalogue;
pub mod cluster;
pub mod dispatch;
pub mod holds;
pub mod log;
pub mod people;
pub mod receipts;

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::ServiceExt;
use whimbrel_catalogue::platforms::Platforms;
use whimbrel_catalogue::subscriptions::{SubscriptionPorts, SubscriptionRegistry};
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::{Memberships, Registry, RegistryPorts, SystemTopics, TopicDefaults, open_topics};
use whimbrel_engines::memory::MemoryDevices;
use whimbrel_ingress::events::EventWriter;
use whimbrel_ingress::grpc::protocol::messages_client::MessagesClient;
use whimbrel_ingress::grpc::protocol::people_client::PeopleClient;
use whimbrel_ingress::{ApiKey, KeySecret, Ports, Receive, ReceiveSettings, Scope, StartError};
use whimbrel_model::ports::{Catalogue, Coordination};
use whimbrel_model::{Clock, Timestamp};

use catalogue::MemoryCatalogue;
use dispatch::{MemoryDispatch, MemoryNotebook, MemoryProgress};
use holds::MemoryHolds;
use log::MemoryLog;
use people::{MemoryCarriers, MemoryPresence, ScriptedInboxes, StoreMode};
use receipts::MemoryReceipts;

pub const SHARDS: u32 = 4;

pub const LIVE_WORKERS: [&str; 2] = ["w1", "w2"];

/// Timeout for an expected condition. A test that passes never waits for it.
const SOON: Duration = Duration::from_secs(60);

/// Waits for an expected condition. The test fails instead of hanging.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("the expected condition did not occur in time")
}

/// Waits until the condition holds.
pub async fn until(is_so: impl Fn() -> bool) {
    soon(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Runs a request that must not end before the condition.
pub async fn pending_until<T>(request: Pin<&mut impl Future<Output = T>>, condition: impl Future<Output = ()>) {
    tokio::select! {
        _ = request => panic!("the request ended before the condition"),
        () = soon(condition) => {}
    }
}

/// An API key whose secret is its name with `-secret`.
pub fn key(name: &str, scopes: &[Scope], topics: &[&str]) -> ApiKey {
    let topics = topics.iter().map(|pattern| (*pattern).to_owned()).collect();
    ApiKey { name: name.into(), secret: KeySecret::Plain(format!("{name}-secret")), scopes: scopes.to_vec(), topics }
}

/// These members, with changes.
pub fn changed(mut members: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        members[name] = value.clone();
    }
    members
}

/// A connection of a gRPC client: the router.
type GrpcService = tower::util::BoxCloneSyncService<Request<tonic::body::Body>, http::Response<Body>, Infallible>;

/// Checks the status and the problem code of a rejected gRPC call.
#[track_caller]
pub fn grpc_refused<T: Debug>(outcome: Result<T, tonic::Status>, code: tonic::Code, word: &str) -> tonic::Status {
    let status = outcome.unwrap_err();
    let found = status.metadata().get("whimbrel-code").map(|value| value.to_str().unwrap().to_owned());
    assert_eq!((status.code(), found.as_deref()), (code, Some(word)), "{status:?}");
    status
}

pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn forward(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// The state that survives a restart: a test closes one API and opens the next over the same state.
pub struct World {
    pub log: Arc<MemoryLog>,
    pub catalogue: Arc<MemoryCatalogue>,
    pub receipts: Arc<MemoryReceipts>,
    pub holds: Arc<MemoryHolds>,
    pub dispatch: Arc<MemoryDispatch>,
    pub progress: Arc<MemoryProgress>,
    pub carriers: Arc<MemoryCarriers>,
    pub inboxes: Arc<ScriptedInboxes>,
    pub presence: Arc<MemoryPresence>,
    pub devices: Arc<MemoryDevices>,
    pub clock: Arc<ManualClock>,
}

pub struct TestApi {
    pub world: Arc<World>,
    pub receive: Receive,
    pub registry: Arc<Registry>,
    pub subscriptions: Arc<SubscriptionRegistry>,
    pub stats: Arc<TopicStats>,
    pub platforms: Arc<Platforms>,
    watches: [JoinHandle<()>; 3],
    pub router: Router,
    pub events: Arc<EventWriter>,
    pub settings: ReceiveSettings,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl World {
    pub fn new() -> Arc<Self> {
        let clock = Arc::new(ManualClock(AtomicI64::new(1_794_739_122_000)));
        let log = Arc::new(MemoryLog::default());
        let holds = Arc::new(MemoryHolds::new(Arc::clone(&log), Arc::clone(&clock)));
        Arc::new(Self {
            log,
            catalogue: Arc::default(),
            receipts: Arc::default(),
            holds,
            dispatch: Arc::default(),
            progress: Arc::default(),
            carriers: Arc::default(),
            inboxes: Arc::new(ScriptedInboxes::new(StoreMode::Answers, u64::MAX)),
            presence: Arc::default(),
            devices: Arc::default(),
            clock,
        })
    }

    pub async fn ports(&self) -> Ports {
        let platforms = Platforms::open(self.catalogue.clone()).await.expect("the catalogue can be read");
        Ports {
            log: self.log.clone(),
            log_topics: self.log.clone(),
            receipts: self.receipts.clone(),
            holds: self.holds.clone(),
            dispatch: self.dispatch.clone(),
            progress: self.progress.clone(),
            carriers: self.carriers.clone(),
            shared_inboxes: Some(self.inboxes.clone()),
            presence: self.presence.clone(),
            devices: self.devices.clone(),
            reachability: None,
            store_health: Arc::default(),
            platforms: Arc::new(platforms),
            workers: Arc::new(|| LIVE_WORKERS.map(str::to_owned).to_vec()),
            clock: self.clock.clone(),
        }
    }

    pub async fn try_open(self: &Arc<Self>, settings: ReceiveSettings) -> Result<TestApi, StartError> {
        self.try_open_with(TopicDefaults::default(), settings).await
    }

    async fn try_open_with(
        self: &Arc<Self>,
        topics: TopicDefaults,
        settings: ReceiveSettings,
    ) -> Result<TestApi, StartError> {
        let alone = tokio::sync::watch::Sender::new(None).subscribe();
        self.try_open_among(topics, settings, self.catalogue.clone(), None, alone).await
    }

    /// Opens an API whose registry uses the given catalogue, alone or in a cluster.
    pub async fn try_open_among(
        self: &Arc<Self>,
        topics: TopicDefaults,
        settings: ReceiveSettings,
        catalogue: Arc<dyn Catalogue>,
        coordination: Option<Arc<dyn Coordination>>,
        memberships: Memberships,
    ) -> Result<TestApi, StartError> {
        let events = EventWriter::new(self.clock.clone());
        let ports = RegistryPorts {
            log: self.log.clone(),
            log_topics: self.log.clone(),
            catalogue,
            coordination,
            clock: self.clock.clone(),
            events: events.sink(),
        };
        let registry = open_topics(ports, topics, SystemTopics { shards: SHARDS, ..SystemTopics::default() }).await?;
        let ports = SubscriptionPorts {
            catalogue: self.catalogue.clone(),
            log: self.log.clone(),
            registry: Arc::clone(&registry),
            clock: self.clock.clone(),
            events: events.sink(),
        };
        let subscriptions = Arc::new(SubscriptionRegistry::open(ports).await.expect("the catalogue can be read"));
        let stats = TopicStats::new(self.clock.clone(), Arc::new(MemoryNotebook::default()));
        let parts = (Arc::clone(&registry), Arc::clone(&subscriptions), Arc::clone(&stats));
        let ports = self.ports().await;
        let platforms = Arc::clone(&ports.platforms);
        let receive = Receive::start(ports, parts.0, parts.1, parts.2, settings.clone(), events.clone()).await?;
        let (ends, watched) = (settings.shutdown.clone(), Arc::clone(&registry));
        let topics = tokio::spawn(async move { watched.watch(memberships, ends).await });
        let (ends, watched) = (settings.shutdown.clone(), Arc::clone(&subscriptions));
        let subscribed = tokio::spawn(async move { watched.watch(ends).await });
        let (ends, watched) = (settings.shutdown.clone(), Arc::clone(&platforms));
        let watches = [topics, subscribed, tokio::spawn(async move { watched.watch(ends).await })];
        let (world, router) = (Arc::clone(self), receive.router());
        Ok(TestApi { world, router, receive, registry, subscriptions, stats, platforms, watches, events, settings })
    }

    /// The time of the clock, in the format of requests.
    pub fn clock_text(&self) -> String {
        self.clock.now().to_string()
    }

    pub async fn open(self: &Arc<Self>) -> TestApi {
        self.try_open(ReceiveSettings::default()).await.unwrap()
    }
}

impl TestApi {
    pub async fn new() -> Self {
        World::new().open().await
    }

    /// An API with the topic `orders`.
    pub async fn with_partitions(partitions: u32) -> Self {
        let api = Self::new().await;
        api.put("/v1/topics/orders", serde_json::json!({ "partitions": partitions })).await.ok(201);
        api
    }

    pub async fn with(settings: ReceiveSettings) -> Self {
        World::new().try_open(settings).await.unwrap()
    }

    pub async fn with_keys(keys: impl Into<Vec<ApiKey>>) -> Self {
        Self::with(ReceiveSettings { keys: keys.into(), ..ReceiveSettings::default() }).await
    }

    pub async fn with_topics(topics: TopicDefaults) -> Self {
        World::new().try_open_with(topics, ReceiveSettings::default()).await.unwrap()
    }

    /// Stops this API, and returns the state that survives.
    pub async fn close(self) -> Arc<World> {
        self.settings.shutdown.cancel();
        drop(self.router);
        self.receive.close().await;
        for watch in self.watches {
            watch.await.unwrap();
        }
        self.world
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub async fn call(&self, method: Method, uri: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    /// Sends a request with the API key of this name.
    pub async fn call_as(&self, key: &str, method: Method, uri: &str, body: impl Into<Body>) -> Answer {
        self.call(method, uri, &[("authorization", &format!("Bearer {key}-secret"))], body).await
    }

    fn grpc_service(&self) -> GrpcService {
        let router = self.router.clone();
        GrpcService::new(router.map_request(|request: Request<tonic::body::Body>| request.map(Body::new)))
    }

    pub fn messages_client(&self) -> MessagesClient<GrpcService> {
        MessagesClient::new(self.grpc_service())
    }

    pub fn people_client(&self) -> PeopleClient<GrpcService> {
        PeopleClient::new(self.grpc_service())
    }

    pub async fn get(&self, uri: &str) -> Answer {
        self.call(Method::GET, uri, &[], Body::empty()).await
    }

    pub async fn post(&self, uri: &str, body: impl Into<Body>) -> Answer {
        self.call(Method::POST, uri, &[], body).await
    }

    pub async fn put(&self, uri: &str, body: Value) -> Answer {
        self.call(Method::PUT, uri, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn delete(&self, uri: &str) -> Answer {
        self.call(Method::DELETE, uri, &[], Body::empty()).await
    }

    /// A header of the only message of a topic, as stored in the log.
    pub fn header_of(&self, topic: &str, name: &str) -> Vec<u8> {
        let topic = self.registry.get(topic).expect("the topic exists");
        let mut records: Vec<_> = topic.all_partitions().flat_map(|each| self.world.log.records(each)).collect();
        assert_eq!(records.len(), 1);
        let record = records.remove(0);
        record.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_vec()
    }

    /// All payloads of a topic, partition by partition.
    pub async fn payloads(&self, topic: &str) -> Vec<Vec<String>> {
        let described = self.get(&format!("/v1/topics/{topic}")).await.ok(200);
        let mut all = Vec::new();
        for partition in 0..described["partitions"].as_u64().unwrap() {
            let uri = format!("/v1/topics/{topic}/messages?partition={partition}&limit=10000");
            let read = self.get(&uri).await.ok(200);
            let messages = read["messages"].as_array().unwrap();
            all.push(messages.iter().map(|message| message["payload"].as_str().unwrap().to_owned()).collect());
        }
        all
    }
}

/// A whole answer as its type, which must have every member of the answer.
#[track_caller]
pub fn typed<T: DeserializeOwned + Serialize>(answer: Value) -> T {
    let typed = serde_json::from_value(answer.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), answer);
    typed
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, String::from_utf8_lossy(&self.body)))
    }

    /// The JSON of an answer, which must have this status.
    #[track_caller]
    pub fn ok(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The problem of an answer. Checks the members that every problem has.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        let json = self.json();
        assert_eq!((self.status.as_u16(), json["code"].as_str()), (status, Some(code)), "{json}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(json["status"], status);
        assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{json}");
        if matches!(status, 429 | 503) {
            assert!(self.headers.contains_key("retry-after"), "{json}");
        }
        json
    }
}
