//! Endpoints that refuse, hang, drip, flood or lie: every call ends within its timeout, with the kind of the failure.

use std::iter::{once, repeat};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, Call, CallFailure, CallOutcome, CallReport, Callbacks};

use crate::endpoint::{
    OK, answering, call, call_to, endpoint, failure_of, hanging, own_call, status_of, target, target_at, worker,
    worker_without, writing,
};

/// The timeout of a call that is expected to time out.
const SHORT: Duration = Duration::from_millis(300);
/// The timeout of a call that is not.
const LONG: Duration = Duration::from_secs(20);
/// The tolerance of timeouts on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
/// The pauses of endpoints that drip their bytes, and of endpoints that flood the client.
const DRIPPING: Duration = Duration::from_millis(5);
const FLOODING: Duration = Duration::ZERO;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

async fn made(call: Call) -> CallReport {
    let worker = worker();
    let began = Instant::now();
    let timeout = Duration::from_millis(call.target.endpoint.timeout_ms);
    let called = worker.call(call).await;
    assert!(began.elapsed() < timeout + SLACK, "{:?} and not {timeout:?}", began.elapsed());
    assert_eq!(worker.in_flight(), 0);
    called
}

fn why(called: &CallReport) -> CallFailure {
    failure_of(&called.outcome)
}

/// The outcome of a response with this status and kept body.
fn answered(status: u16, answer: &'static str) -> CallOutcome {
    CallOutcome::Answered { status, retry_after: None, answer: answer.into() }
}

#[tokio::test]
async fn a_refused_connection_is_a_connect_failure() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Connect);
}

#[tokio::test]
async fn an_unknown_name_is_a_connect_failure() {
    let unknown = target(Some("http://nobody.invalid/".to_owned()), LONG);
    assert_eq!(why(&made(call(&Arc::new(unknown))).await), CallFailure::Connect);
}

/// A listener with a full backlog of one connection: further connections get no response. It lasts as long as the connections in it.
async fn full_listener() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, TcpStream::connect(address)).await {
        waiting.push(stream);
    }
    (address, listener, waiting)
}

#[tokio::test]
async fn an_endpoint_that_never_accepts_times_out() {
    let (address, _listener, _waiting) = full_listener().await;
    let called = made(call_to(address, SHORT)).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took >= SHORT);
}

#[tokio::test]
async fn connecting_has_its_own_timeout() {
    let (address, _listener, _waiting) = full_listener().await;
    let mut target = target_at(address, LONG);
    target.endpoint.connect_timeout_ms = Some(100);
    let called = made(call(&Arc::new(target))).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took < LONG);
}

#[tokio::test]
async fn an_endpoint_that_never_completes_a_head_times_out() {
    let dripped_head = b"HTTP/1.1 200 OK\r\nx-a: ".chunks(1).chain(repeat(&b"a"[..]));
    let flood: &[u8] = CONTINUE.repeat(1000).leak();
    for (case, (address, _)) in [
        ("nothing", hanging().await),
        ("one byte after the other", writing(dripped_head, DRIPPING).await),
        ("only 100 Continue", writing(repeat(CONTINUE), Duration::from_millis(1)).await),
        ("a flood of 100 Continue, which must not block the thread", writing(repeat(flood), FLOODING).await),
    ] {
        let called = made(call_to(address, SHORT)).await;
        assert_eq!(why(&called), CallFailure::Timeout, "{case}");
        assert!(called.took >= SHORT, "{case}");
    }
}

#[tokio::test]
async fn a_messages_own_timeout_overrides_its_subscriptions() {
    let (address, _) = hanging().await;
    let mut call = own_call("POST", format!("http://{address}/"), b"{}");
    Arc::get_mut(call.rule.as_mut().unwrap()).unwrap().timeout_ms = Some(200);
    let called = made(call).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took < Duration::from_secs(4));
}

#[tokio::test]
async fn a_status_is_returned_with_the_received_bytes_if_the_endpoint_hangs_after_it() {
    for (answer, status, kept) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", 200, ""),
        ("HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf", 500, "half"),
    ] {
        let (address, _) = answering(answer).await;
        assert_eq!(made(call_to(address, SHORT)).await.outcome, answered(status, kept));
    }
}

#[tokio::test]
async fn a_success_with_an_endless_body_ends_before_the_timeout() {
    let (address, _) = answering("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
    let called = made(call_to(address, LONG)).await;
    assert_eq!(status_of(&called.outcome), 200);
    assert!(called.took < LONG / 2);
}

#[tokio::test]
async fn a_status_is_returned_at_the_timeout_if_the_body_drips() {
    let head: &[u8] = b"HTTP/1.1 500 No\r\ncontent-length: 100000\r\n\r\n";
    let (address, _) = writing(once(head).chain(repeat(&b"a"[..])), DRIPPING).await;
    assert_eq!(status_of(&made(call_to(address, SHORT)).await.outcome), 500);
}

#[tokio::test]
async fn only_the_start_of_a_huge_body_is_read() {
    for status in ["200 OK", "500 No"] {
        let (sent, mut sent_bytes) = tokio::sync::mpsc::unbounded_channel();
        let (address, _) = endpoint(move |mut stream, heard| {
            let sent = sent.clone();
            async move {
                heard.request(&mut stream).await;
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: 1073741824\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                let (block, mut bytes) = (vec![b'x'; 64 << 10], 0);
                while bytes < 1 << 30 && stream.write_all(&block).await.is_ok() {
                    bytes += block.len();
                }
                sent.send(bytes).unwrap();
            }
        })
        .await;
        let called = made(call_to(address, LONG)).await;
        assert!(called.took < LONG / 2);
        let CallOutcome::Answered { answer, .. } = called.outcome else { panic!("{called:?}") };
        assert_eq!(answer.len(), if status == "200 OK" { 0 } else { ANSWER_KEPT_BYTES });
        assert!(sent_bytes.recv().await.unwrap() < 64 << 20, "the connection was closed before the rest was read");
    }
}

#[tokio::test]
async fn a_connection_closed_at_once_is_broken_and_redials_are_bounded() {
    let (address, heard) = endpoint(|stream, _| async move { drop(stream) }).await;
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken);
    assert_eq!(heard.connections(), 1);
}

#[tokio::test]
async fn a_response_without_a_whole_head_is_broken_and_the_request_is_not_sent_again() {
    let closed_early: [&[u8]; 6] = [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\0\0\0\0\0",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
    ];
    for said in closed_early {
        let (address, heard) = writing(once(said), FLOODING).await;
        assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken, "{said:?}");
        assert_eq!(heard.requests().len(), 1, "{said:?}: the request may have arrived");
    }
}

#[tokio::test]
async fn a_head_without_end_is_broken() {
    let line: &[u8] = format!("x: {}\r\n", "y".repeat(8000)).leak().as_bytes();
    let (address, _) = writing(once(&b"HTTP/1.1 200 OK\r\n"[..]).chain(repeat(line)), FLOODING).await;
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken);
}

#[tokio::test]
async fn a_status_is_returned_if_the_connection_closes_within_the_body() {
    let said: &[u8] = b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf";
    let (address, _) = writing(once(said), FLOODING).await;
    assert_eq!(made(call_to(address, LONG)).await.outcome, answered(500, "half"));
}

#[tokio::test]
async fn an_unrequested_second_response_is_never_used_for_the_next_call() {
    let (address, _) = endpoint(|mut stream, heard| async move {
        heard.request(&mut stream).await;
        let twice = format!("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n{OK}");
        stream.write_all(twice.as_bytes()).await.unwrap();
        heard.request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let (worker, target) = (worker(), Arc::new(target_at(address, SHORT)));
    for _ in 0..3 {
        assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 500);
    }
}

#[tokio::test]
async fn a_status_is_returned_if_the_endpoint_rejects_an_unread_message() {
    let (address, heard) = endpoint(|mut stream, _| async move {
        let mut head = [0; 16];
        stream.read_exact(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 413 Too large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let (worker, target) = (worker(), Arc::new(target_at(address, LONG)));
    for calls in 1..=2 {
        let mut call = call(&target);
        // Larger than the buffers between both sides.
        call.record.value = vec![b'x'; 32 << 20].into();
        assert_eq!(status_of(&worker.call(call).await.outcome), 413);
        assert_eq!(heard.connections(), calls, "a connection with a half-sent message is not reused");
    }
}

#[tokio::test]
async fn a_status_is_returned_and_an_upgraded_connection_is_not_reused() {
    let (address, heard) = endpoint(|mut stream, heard| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let (worker, target) = (worker(), Arc::new(target_at(address, LONG)));
    for calls in 1..=3 {
        assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 101);
        assert_eq!(heard.connections(), calls);
    }
}

#[tokio::test]
async fn a_body_that_ends_by_closing_the_connection_is_complete() {
    let (address, heard) = writing(once(&b"HTTP/1.0 500 No\r\n\r\nwhole"[..]), FLOODING).await;
    let (worker, target) = (worker(), Arc::new(target_at(address, LONG)));
    for calls in 1..=3 {
        assert_eq!(worker.call(call(&target)).await.outcome, answered(500, "whole"));
        assert_eq!(heard.connections(), calls);
    }
}

#[tokio::test]
async fn a_forbidden_address_is_not_dialled_under_any_name() {
    let (address, heard) = answering(OK).await;
    let worker = worker_without(&["127.0.0.0/8", "::1"]);
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "127.1", "2130706433"] {
        let target = target(Some(format!("http://{host}:{}/", address.port())), LONG);
        assert_eq!(why(&worker.call(call(&Arc::new(target))).await), CallFailure::Forbidden, "{host}");
        let own = own_call("POST", format!("http://{host}:{}/", address.port()), b"{}");
        assert_eq!(why(&worker.call(own).await), CallFailure::Forbidden, "{host}, in a message's own callback");
    }
    assert_eq!(heard.connections(), 0);
}

#[tokio::test]
async fn metadata_services_are_not_dialled_by_default() {
    for url in
        ["http://169.254.169.254/latest/meta-data", "http://metadata.google.internal/", "http://[fd00:ec2::254]/"]
    {
        let called = made(call(&Arc::new(target(Some(url.to_owned()), LONG)))).await;
        assert_eq!(why(&called), CallFailure::Forbidden, "{url}");
    }
}

#[tokio::test]
async fn an_invalid_target_is_a_bad_target_failure() {
    for url in [None, Some("nowhere".to_owned()), Some("ftp://127.0.0.1/".to_owned())] {
        let called = made(call(&Arc::new(target(url, LONG)))).await;
        assert_eq!(why(&called), CallFailure::BadTarget);
    }
}
