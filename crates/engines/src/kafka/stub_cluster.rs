//! Brokers of unit tests, in the test's own process. They answer `ApiVersions`, `Metadata` and `FindCoordinator` by themselves and other
//! requests as the test's [`Respond`] decides. At an unknown request they close the connection. They have one topic, all of whose
//! partitions have the same leader. The last broker is the transaction coordinator.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ApiVersionsRequest, ApiVersionsResponse, BrokerId,
    DescribeConfigsRequest, DescribeConfigsResponse, DescribeProducersRequest, DescribeProducersResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse, FetchRequest,
    FetchResponse, FindCoordinatorRequest, FindCoordinatorResponse, InitProducerIdRequest, InitProducerIdResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
    RequestHeader, ResponseHeader, TopicName, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::client::batch::{self, BatchIdentity};
use super::client::cluster::KafkaCluster;
use super::client::dial::BrokerDialer;
use super::settings::{Compression, KafkaSettings};
use crate::conformance::log::record;

pub(super) const TOPIC: &str = "orders";
pub(super) const PARTITIONS: i32 = 8;

/// The answers of a test's brokers, by the number of the broker. `None` never answers.
pub(super) trait Respond: Send + Sync {
    fn fetch(&self, _broker: i32, _request: FetchRequest) -> Option<FetchResponse> {
        None
    }

    fn produce(&self, _broker: i32, _request: ProduceRequest) -> Option<ProduceResponse> {
        None
    }

    /// Without an offset of any partition.
    fn list_offsets(&self, _broker: i32, _request: ListOffsetsRequest) -> Option<ListOffsetsResponse> {
        Some(ListOffsetsResponse::default())
    }

    fn init_producer_id(&self, _broker: i32) -> Option<InitProducerIdResponse> {
        None
    }

    fn add_partitions_to_txn(&self, _request: AddPartitionsToTxnRequest) -> Option<AddPartitionsToTxnResponse> {
        None
    }

    fn end_txn(&self, _request: EndTxnRequest) -> Option<EndTxnResponse> {
        None
    }

    fn describe_producers(
        &self,
        _broker: i32,
        _request: DescribeProducersRequest,
    ) -> Option<DescribeProducersResponse> {
        None
    }

    /// The coordinator has finished every transaction.
    fn describe_transactions(&self) -> Option<DescribeTransactionsResponse> {
        let finished = TransactionState::default().with_transaction_state(StrBytes::from_static_str("CompleteCommit"));
        Some(DescribeTransactionsResponse::default().with_transaction_states(vec![finished]))
    }

    fn write_txn_markers(&self, _request: WriteTxnMarkersRequest) -> Option<WriteTxnMarkersResponse> {
        None
    }

    fn describe_configs(&self, _request: DescribeConfigsRequest) -> Option<DescribeConfigsResponse> {
        None
    }

    /// The delay of a broker's first answer on a connection.
    fn opening_delay(&self, _broker: i32) -> Duration {
        Duration::ZERO
    }

    /// Whether the brokers process one handshake after the other, also those that the client has abandoned.
    fn is_starved(&self) -> bool {
        false
    }
}

/// Brokers that answer fetches only.
struct FetchOnly<F>(F);

impl<F: Fn(i32, FetchRequest) -> Option<FetchResponse> + Send + Sync> Respond for FetchOnly<F> {
    fn fetch(&self, broker: i32, request: FetchRequest) -> Option<FetchResponse> {
        (self.0)(broker, request)
    }
}

pub(super) struct StubCluster {
    shared: Arc<StubShared>,
}

struct StubShared {
    /// The brokers' ports. Their numbers are 0, 1, …
    ports: Vec<u16>,
    topics: Mutex<Vec<TopicView>>,
    /// Partitions that have no leader now.
    leaderless: Mutex<BTreeSet<i32>>,
    /// Partitions with two replicas, of which one is in sync.
    out_of_sync: Mutex<BTreeSet<i32>>,
    respond: Box<dyn Respond>,
    /// Locked while a starved broker processes a handshake.
    cpu: AsyncMutex<()>,
    handshakes: Mutex<HandshakeCounts>,
}

/// Connections whose first request is not answered yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HandshakeCounts {
    /// The number of such connections so far.
    pub begun: usize,
    pub under_way: usize,
    /// The maximum at the same time.
    pub at_once: usize,
}

/// The topic in the view of one broker.
#[derive(Debug, Clone, Copy)]
pub(super) struct TopicView {
    pub partitions: i32,
    pub leader: i32,
    pub leader_epoch: i32,
}

impl StubCluster {
    /// Starts brokers that answer fetches on the current runtime. Broker 0 leads.
    pub async fn start(
        brokers: usize,
        respond: impl Fn(i32, FetchRequest) -> Option<FetchResponse> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(brokers, FetchOnly(respond)).await
    }

    /// Starts the brokers on the current runtime. Broker 0 leads.
    pub async fn start_with(brokers: usize, respond: impl Respond + 'static) -> Self {
        let (mut listeners, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..brokers {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
            ports.push(listener.local_addr().expect("the listener has an address").port());
            listeners.push(listener);
        }
        let topic = TopicView { partitions: PARTITIONS, leader: 0, leader_epoch: 0 };
        let topics = Mutex::new(vec![topic; brokers]);
        let (cpu, handshakes) = (AsyncMutex::default(), Mutex::default());
        let (respond, leaderless, out_of_sync) = (Box::new(respond), Mutex::default(), Mutex::default());
        let shared = Arc::new(StubShared { ports, topics, leaderless, out_of_sync, respond, cpu, handshakes });
        for (broker, listener) in (0..).zip(listeners) {
            let shared = shared.clone();
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(serve(socket, broker, shared.clone()));
                }
            });
        }
        Self { shared }
    }

    /// Moves the leadership of all partitions.
    pub fn set_leader(&self, broker: i32) {
        self.shared.topics().iter_mut().for_each(|topic| topic.leader = broker);
    }

    pub fn set_topic(&self, broker: usize, topic: TopicView) {
        self.shared.topics()[broker] = topic;
    }

    /// Removes the leaders of these partitions, and gives all others one.
    pub fn set_leaderless(&self, partitions: &[i32]) {
        *self.shared.leaderless() = partitions.iter().copied().collect();
    }

    /// Leaves these partitions with one of two replicas in sync, and all others with both.
    pub fn set_out_of_sync(&self, partitions: &[i32]) {
        *self.shared.out_of_sync() = partitions.iter().copied().collect();
    }

    pub fn delete_topic(&self) {
        self.shared.topics().iter_mut().for_each(|topic| topic.partitions = 0);
    }

    /// The addresses of all brokers, with commas.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.shared.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        addresses.join(",")
    }

    pub fn handshakes(&self) -> HandshakeCounts {
        *self.shared.handshakes()
    }

    pub fn connect(&self) -> Arc<KafkaCluster> {
        let bootstrap = self.bootstrap();
        let dialer = BrokerDialer::new(&KafkaSettings::new(&bootstrap), Handle::current()).expect("no files are read");
        Arc::new(KafkaCluster::new(dialer, &bootstrap))
    }
}

pub(super) fn topic_name() -> TopicName {
    TopicName(StrBytes::from_static_str(TOPIC))
}

/// The answer to a fetch with these parts, in the order of the request.
pub(super) fn fetched(request: &FetchRequest, mut part: impl FnMut(&FetchPartition) -> PartitionData) -> FetchResponse {
    let topic = |topic: &FetchTopic| {
        let parts = topic.partitions.iter().map(|query| part(query).with_partition_index(query.partition)).collect();
        FetchableTopicResponse::default().with_topic(topic.topic.clone()).with_partitions(parts)
    };
    FetchResponse::default().with_responses(request.topics.iter().map(topic).collect())
}

/// A batch with one record at an offset.
pub(super) fn batch_at(offset: i64, value: impl Into<Bytes>) -> Bytes {
    let identity = BatchIdentity { producer_id: -1, producer_epoch: -1, base_sequence: -1, is_transactional: false };
    let mut bytes = batch::encode([&record(value)].into_iter(), identity, Compression::None).expect("it fits").to_vec();
    bytes[..8].copy_from_slice(&offset.to_be_bytes());
    bytes.into()
}

async fn serve(mut socket: TcpStream, broker: i32, shared: Arc<StubShared>) {
    while let Ok(length) = socket.read_i32().await {
        let mut frame = BytesMut::zeroed(length as usize);
        if socket.read_exact(&mut frame).await.is_err() {
            return;
        }
        let frame = frame.freeze();
        if frame.clone().get_i16() == ApiVersionsRequest::KEY {
            shared.handshakes().begin();
            let _cpu = if shared.respond.is_starved() { Some(shared.cpu.lock().await) } else { None };
            tokio::time::sleep(shared.respond.opening_delay(broker)).await;
            shared.handshakes().under_way -= 1;
        }
        match shared.answer(broker, frame) {
            StubAnswer::Bytes(answer) if socket.write_all(&answer).await.is_ok() => {}
            StubAnswer::None => {}
            StubAnswer::Bytes(_) | StubAnswer::Close => return,
        }
    }
}

enum StubAnswer {
    Bytes(Bytes),
    None,
    Close,
}

impl HandshakeCounts {
    fn begin(&mut self) {
        (self.begun, self.under_way) = (self.begun + 1, self.under_way + 1);
        self.at_once = self.at_once.max(self.under_way);
    }
}

impl StubShared {
    fn handshakes(&self) -> MutexGuard<'_, HandshakeCounts> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leaderless(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.leaderless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of_sync(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.out_of_sync.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn topics(&self) -> MutexGuard<'_, Vec<TopicView>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, broker: i32, mut frame: Bytes) -> StubAnswer {
        let (key, version) = (frame.clone().get_i16(), frame.slice(2..).get_i16());
        let frame = &mut frame;
        match key {
            ApiVersionsRequest::KEY => answer::<ApiVersionsRequest>(frame, version, |_| Some(versions())),
            MetadataRequest::KEY => answer::<MetadataRequest>(frame, version, |_| Some(self.metadata(broker))),
            FetchRequest::KEY => answer::<FetchRequest>(frame, version, |request| self.respond.fetch(broker, request)),
            ListOffsetsRequest::KEY => {
                answer::<ListOffsetsRequest>(frame, version, |request| self.respond.list_offsets(broker, request))
            }
            ProduceRequest::KEY => {
                answer::<ProduceRequest>(frame, version, |request| self.respond.produce(broker, request))
            }
            FindCoordinatorRequest::KEY => {
                answer::<FindCoordinatorRequest>(frame, version, |_| Some(self.coordinator()))
            }
            InitProducerIdRequest::KEY => {
                answer::<InitProducerIdRequest>(frame, version, |_| self.respond.init_producer_id(broker))
            }
            AddPartitionsToTxnRequest::KEY => {
                answer(frame, version, |request| self.respond.add_partitions_to_txn(request))
            }
            EndTxnRequest::KEY => answer(frame, version, |request| self.respond.end_txn(request)),
            DescribeProducersRequest::KEY => {
                answer(frame, version, |request| self.respond.describe_producers(broker, request))
            }
            DescribeTransactionsRequest::KEY => {
                answer::<DescribeTransactionsRequest>(frame, version, |_| self.respond.describe_transactions())
            }
            WriteTxnMarkersRequest::KEY => answer(frame, version, |request| self.respond.write_txn_markers(request)),
            DescribeConfigsRequest::KEY => answer(frame, version, |request| self.respond.describe_configs(request)),
            _ => StubAnswer::Close,
        }
    }

    fn coordinator(&self) -> FindCoordinatorResponse {
        let last = self.ports.len() - 1;
        FindCoordinatorResponse::default()
            .with_node_id(BrokerId(last as i32))
            .with_host(StrBytes::from_static_str("127.0.0.1"))
            .with_port(i32::from(self.ports[last]))
    }

    fn metadata(&self, broker: i32) -> MetadataResponse {
        let view = self.topics()[broker as usize];
        let broker = |(number, port): (i32, &u16)| {
            let host = StrBytes::from_static_str("127.0.0.1");
            MetadataResponseBroker::default().with_node_id(BrokerId(number)).with_host(host).with_port(i32::from(*port))
        };
        let (leaderless, out_of_sync) = (self.leaderless().clone(), self.out_of_sync().clone());
        let partition = |index| {
            let leader = if leaderless.contains(&index) { -1 } else { view.leader };
            let in_sync = if out_of_sync.contains(&index) { 1 } else { 2 };
            MetadataResponsePartition::default()
                .with_partition_index(index)
                .with_replica_nodes(vec![BrokerId(0), BrokerId(1)])
                .with_isr_nodes(vec![BrokerId(0); in_sync])
                .with_leader_id(BrokerId(leader))
                .with_leader_epoch(view.leader_epoch)
        };
        let topic = MetadataResponseTopic::default()
            .with_name(Some(topic_name()))
            .with_error_code(if view.partitions == 0 { Code::UnknownTopicOrPartition.code() } else { 0 })
            .with_partitions((0..view.partitions).map(partition).collect());
        MetadataResponse::default().with_brokers((0..).zip(&self.ports).map(broker).collect()).with_topics(vec![topic])
    }
}

fn versions() -> ApiVersionsResponse {
    let version = |(key, max)| ApiVersion::default().with_api_key(key).with_min_version(0).with_max_version(max);
    let versions = [
        (ProduceRequest::KEY, 11),
        (FetchRequest::KEY, 12),
        (ListOffsetsRequest::KEY, 7),
        (MetadataRequest::KEY, 12),
        (FindCoordinatorRequest::KEY, 3),
        (InitProducerIdRequest::KEY, 4),
        (AddPartitionsToTxnRequest::KEY, 3),
        (EndTxnRequest::KEY, 4),
        (DescribeProducersRequest::KEY, 0),
        (DescribeTransactionsRequest::KEY, 0),
        (WriteTxnMarkersRequest::KEY, 1),
        (DescribeConfigsRequest::KEY, 4),
    ];
    ApiVersionsResponse::default().with_api_keys(versions.map(version).to_vec())
}

fn answer<R: Request>(frame: &mut Bytes, version: i16, respond: impl FnOnce(R) -> Option<R::Response>) -> StubAnswer {
    let header = RequestHeader::decode(frame, R::header_version(version)).expect("the header can be decoded");
    let Some(response) = respond(R::decode(frame, version).expect("the request can be decoded")) else {
        return StubAnswer::None;
    };
    let mut body = BytesMut::new();
    let header = ResponseHeader::default().with_correlation_id(header.correlation_id);
    header.encode(&mut body, R::Response::header_version(version)).expect("the header can be encoded");
    response.encode(&mut body, version).expect("the answer can be encoded");
    let mut answer = BytesMut::from(&(body.len() as i32).to_be_bytes()[..]);
    answer.extend_from_slice(&body);
    StubAnswer::Bytes(answer.freeze())
}
