//! Calls select a worker among several nodes, and another one if it fails. The other workers are real services on loopback, each on its own
//! runtime, which a test can end like a process.
//!
//! The outcome of a call shows which worker made it: a marked worker may not dial any address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use whimbrel_cluster::{PeerClients, PeerSettings};
use whimbrel_egress::worker::{PoolParts, Worker, WorkerPool, workers_service};
use whimbrel_model::ports::{Call, CallOutcome, Callbacks, Member, Node};
use whimbrel_model::subscription::{AssignWorkers, Strategy, WorkerChoice};

use crate::endpoint::{OK, Received, answering, call, endpoint, hanging, target, worker, worker_without};

const WITHIN: Duration = Duration::from_secs(20);
const ME: u16 = 1;

/// A marked worker: it may not dial any address.
fn marked() -> Worker {
    worker_without(&["0.0.0.0/0"])
}

/// A node with a worker.
struct Process {
    address: String,
    runtime: Option<Runtime>,
}

impl Process {
    fn start(worker: Worker, key: Option<&str>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server::builder().add_service(workers_service(worker, key));
        runtime.spawn(async move {
            let incoming = TcpIncoming::from(TcpListener::from_std(listener).unwrap());
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self { address, runtime: Some(runtime) }
    }

    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn pool(local: Option<Worker>, others: &[(&str, &str)]) -> WorkerPool {
    let peers = Arc::new(PeerClients::new(PeerSettings::default()).unwrap());
    let pool = WorkerPool::new(PoolParts { local, name: "here".to_owned(), peers });
    let nodes: Vec<Node> = others
        .iter()
        .zip(ME + 1..)
        .map(|((name, address), number)| {
            let (roles, address) = (vec!["worker".to_owned()], (*address).to_owned());
            Node { number, member: Member { name: (*name).to_owned(), roles, address, ..Member::default() } }
        })
        .collect();
    pool.see(Some(ME), &nodes);
    pool
}

fn named(names: &[&str], strategy: Strategy) -> Option<WorkerChoice> {
    let pool = names.iter().map(|name| (*name).to_owned()).collect();
    Some(WorkerChoice { pool, strategy, ..WorkerChoice::default() })
}

fn call_by(url: String, workers: Option<WorkerChoice>) -> Call {
    let mut target = target(Some(url), WITHIN);
    target.workers = workers;
    call(&Arc::new(target))
}

/// The result of a call by the pool: the status, or the kind of the failure.
async fn called(pool: &WorkerPool, call: Call) -> String {
    match &pool.call(call).await.outcome {
        CallOutcome::Answered { status, .. } => status.to_string(),
        CallOutcome::Failed { why, .. } => why.word().to_owned(),
        CallOutcome::NotTaken { reason, .. } => reason.clone(),
    }
}

#[tokio::test]
async fn a_single_node_makes_its_own_calls_if_the_pool_admits_it() {
    let (address, _) = answering(OK).await;
    let pool = pool(Some(worker()), &[]);
    for workers in [None, named(&["*"], Strategy::Random), named(&["here"], Strategy::Random)] {
        assert_eq!(called(&pool, call_by(format!("http://{address}/"), workers)).await, "200");
    }
    let elsewhere = named(&["elsewhere"], Strategy::Random);
    assert_eq!(called(&pool, call_by(format!("http://{address}/"), elsewhere)).await, "no_worker");
}

#[tokio::test]
async fn without_a_worker_nothing_is_called() {
    let (address, heard) = answering(OK).await;
    assert_eq!(called(&pool(None, &[]), call_by(format!("http://{address}/"), None)).await, "no_worker");
    assert_eq!(heard.connections(), 0);
}

#[tokio::test]
async fn workers_of_several_nodes_take_turns() {
    let (address, _) = answering(OK).await;
    let other = Process::start(worker(), None);
    let pool = pool(Some(marked()), &[("other", &other.address)]);
    let call = call_by(format!("http://{address}/"), named(&["*"], Strategy::RoundRobin));
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(called(&pool, call.clone()).await);
    }
    assert_eq!(outcomes, ["forbidden_address", "200", "forbidden_address", "200"]);
}

#[tokio::test]
async fn a_pool_by_name_contains_only_the_named_workers() {
    let (address, _) = answering(OK).await;
    let (one, two) = (Process::start(marked(), None), Process::start(worker(), None));
    let pool = pool(Some(marked()), &[("one", &one.address), ("two", &two.address)]);
    let call = call_by(format!("http://{address}/"), named(&["two"], Strategy::Random));
    for _ in 0..8 {
        assert_eq!(called(&pool, call.clone()).await, "200");
    }
}

#[tokio::test]
async fn a_pool_by_number_keeps_its_workers() {
    let (address, _) = answering(OK).await;
    let (one, two) = (Process::start(marked(), None), Process::start(worker(), None));
    let pool = pool(Some(marked()), &[("one", &one.address), ("two", &two.address)]);
    let choice = WorkerChoice {
        count: Some(1),
        assign: Some(AssignWorkers::Random),
        strategy: Strategy::Random,
        ..WorkerChoice::default()
    };
    let call = call_by(format!("http://{address}/"), Some(choice));
    let first = called(&pool, call.clone()).await;
    for _ in 0..8 {
        assert_eq!(called(&pool, call.clone()).await, first);
    }
}

#[tokio::test]
async fn a_call_of_an_unreachable_worker_goes_to_another() {
    let (address, heard) = answering(OK).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let there = Process::start(worker(), None);
    let pool = pool(None, &[("gone", &gone), ("there", &there.address)]);
    let call = call_by(format!("http://{address}/"), named(&["*"], Strategy::RoundRobin));
    for _ in 0..4 {
        assert_eq!(called(&pool, call.clone()).await, "200");
    }
    assert_eq!(heard.requests().len(), 4);
}

#[tokio::test]
async fn without_a_reachable_worker_nothing_is_called() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let pool = pool(None, &[("gone", &gone)]);
    assert_eq!(called(&pool, call_by("http://127.0.0.1:9/".to_owned(), None)).await, "no_worker");
}

/// An endpoint that hangs at its first request and answers all later ones.
async fn hanging_once() -> (std::net::SocketAddr, Received) {
    endpoint(|mut stream, heard| async move {
        while heard.request(&mut stream).await.is_some() {
            if heard.requests().len() == 1 {
                std::future::pending::<()>().await;
            }
            stream.write_all(OK.as_bytes()).await.unwrap();
        }
    })
    .await
}

/// Makes the call, and kills the worker when the call has reached its endpoint.
async fn called_by_dying(pool: &WorkerPool, call: Call, heard: &Received, mut dies: Process) -> String {
    let killing = async {
        while heard.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        dies.kill();
    };
    tokio::join!(called(pool, call), killing).0
}

#[tokio::test]
async fn a_call_whose_worker_dies_goes_to_another() {
    let (address, heard) = hanging_once().await;
    let (dies, lives) = (Process::start(worker(), None), Process::start(worker(), None));
    let pool = pool(None, &[("dies", &dies.address), ("lives", &lives.address)]);
    let call = call_by(format!("http://{address}/"), named(&["*"], Strategy::RoundRobin));
    let began = Instant::now();
    assert_eq!(called_by_dying(&pool, call, &heard, dies).await, "200");
    assert!(began.elapsed() < WITHIN, "it did not wait for the call's timeout");
    assert_eq!(heard.requests().len(), 2, "the subscriber received it twice");
}

#[tokio::test]
async fn a_call_lost_with_the_only_worker_counts_as_an_attempt() {
    let (address, heard) = hanging_once().await;
    let dies = Process::start(worker(), None);
    let pool = pool(None, &[("dies", &dies.address)]);
    let call = call_by(format!("http://{address}/"), None);
    assert_eq!(called_by_dying(&pool, call, &heard, dies).await, "broken");
}

#[tokio::test]
async fn a_busy_worker_gets_fewer_calls() {
    let (address, _) = answering(OK).await;
    let (hanging, heard) = hanging().await;
    let busy_worker = worker();
    let busy = Process::start(busy_worker.clone(), None);
    let free = Process::start(marked(), None);
    // Calls of another node, which only the busy worker counts.
    for _ in 0..8 {
        let (worker, call) = (busy_worker.clone(), call_by(format!("http://{hanging}/"), None));
        tokio::spawn(async move { worker.call(call).await });
    }
    while heard.requests().len() < 8 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let pool = pool(None, &[("busy", &busy.address), ("free", &free.address)]);
    pool.ask_loads().await;
    let call = call_by(format!("http://{address}/"), None);
    for _ in 0..8 {
        assert_eq!(called(&pool, call.clone()).await, "forbidden_address", "the free worker made it");
    }
}

#[tokio::test]
async fn requests_without_the_internal_key_are_rejected() {
    let (address, heard) = answering(OK).await;
    let closed = Process::start(worker(), Some("a key"));
    let pool = pool(None, &[("closed", &closed.address)]);
    assert_eq!(called(&pool, call_by(format!("http://{address}/"), None)).await, "no_worker");
    assert_eq!(heard.connections(), 0);
}
