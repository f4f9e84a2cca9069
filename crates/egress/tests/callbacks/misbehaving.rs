//! Endpoints that refuse, hang, drip, flood or lie: every call ends within its timeout, with the kind of the failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use whimbrel_api::endpoint::AddressGuard;
use whimbrel_egress::worker::{Worker, WorkerSettings};
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, Call, CallFailure, CallOutcome, CallReport, Callbacks};

use crate::endpoint::{Received, answering, call, call_to, endpoint, failure_of, own_call, status_of, target};

/// The timeout of a call that is expected to time out.
const SHORT: Duration = Duration::from_millis(300);
/// The timeout of a call that is not.
const LONG: Duration = Duration::from_secs(20);
/// The tolerance of timeouts on a busy machine.
const SLACK: Duration = Duration::from_secs(5);

async fn made(call: Call) -> CallReport {
    let worker = Worker::new(WorkerSettings::default()).unwrap();
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

#[tokio::test]
async fn a_refused_connection_is_a_connect_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Connect);
}

#[tokio::test]
async fn an_unknown_name_is_a_connect_failure() {
    let unknown = target(Some("http://nobody.invalid/".to_owned()), LONG);
    assert_eq!(why(&made(call(&Arc::new(unknown))).await), CallFailure::Connect);
}

#[tokio::test]
async fn an_endpoint_that_never_accepts_times_out() {
    // A full backlog of one connection: further connections get no response.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, TcpStream::connect(address)).await {
        waiting.push(stream);
    }
    let called = made(call_to(address, SHORT)).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took >= SHORT);
}

#[tokio::test]
async fn connecting_has_its_own_timeout() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, TcpStream::connect(address)).await {
        waiting.push(stream);
    }
    let mut target = target(Some(format!("http://{address}/")), LONG);
    target.endpoint.connect_timeout_ms = Some(100);
    let called = made(call(&Arc::new(target))).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took < LONG);
}

#[tokio::test]
async fn an_endpoint_that_hangs_before_its_response_times_out() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let called = made(call_to(address, SHORT)).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took >= SHORT);
}

#[tokio::test]
async fn a_messages_own_timeout_overrides_its_subscriptions() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let mut call = own_call("POST", format!("http://{address}/"), b"{}");
    Arc::get_mut(call.rule.as_mut().unwrap()).unwrap().timeout_ms = Some(200);
    let called = made(call).await;
    assert_eq!(why(&called), CallFailure::Timeout);
    assert!(called.took < Duration::from_secs(4));
}

#[tokio::test]
async fn a_status_is_returned_if_the_endpoint_hangs_after_it() {
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", 200),
        ("HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf", 500),
    ] {
        let (address, _) = answering(answer).await;
        let called = made(call_to(address, SHORT)).await;
        assert_eq!(status_of(&called.outcome), status);
        let CallOutcome::Answered { answer, .. } = called.outcome else { unreachable!() };
        assert_eq!(answer, if status == 500 { "half" } else { "" }, "the received bytes are kept");
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
async fn an_endpoint_that_drips_its_head_times_out() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        for byte in b"HTTP/1.1 200 OK\r\nx-a: ".iter().chain(std::iter::repeat(&b'a')) {
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(why(&made(call_to(address, SHORT)).await), CallFailure::Timeout);
}

#[tokio::test]
async fn a_status_is_returned_at_the_timeout_if_the_body_drips() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 100000\r\n\r\n").await.unwrap();
        while stream.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let called = made(call_to(address, SHORT)).await;
    assert_eq!(status_of(&called.outcome), 500);
}

#[tokio::test]
async fn only_the_start_of_a_huge_body_is_read() {
    for status in ["200 OK", "500 No"] {
        let (sent, mut sent_bytes) = tokio::sync::mpsc::unbounded_channel();
        let (address, _) = endpoint(move |mut stream: TcpStream, heard: Received| {
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
async fn a_connection_closed_before_the_response_is_broken() {
    let (address, heard) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
    })
    .await;
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken);
    assert_eq!(heard.requests().len(), 1, "a request that may have arrived is not sent again");
}

#[tokio::test]
async fn a_connection_closed_at_once_is_broken_and_redials_are_bounded() {
    let (address, heard) = endpoint(|stream: TcpStream, _: Received| async move { drop(stream) }).await;
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken);
    assert_eq!(heard.connections(), 1);
}

#[tokio::test]
async fn a_connection_closed_within_the_head_is_broken() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await.unwrap();
    })
    .await;
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken);
}

#[tokio::test]
async fn a_status_is_returned_if_the_connection_closes_within_the_body() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
    })
    .await;
    let called = made(call_to(address, LONG)).await;
    assert_eq!(called.outcome, CallOutcome::Answered { status: 500, retry_after: None, answer: "half".into() });
}

#[tokio::test]
async fn an_endpoint_that_sends_only_continue_times_out() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(why(&made(call_to(address, SHORT)).await), CallFailure::Timeout);
}

#[tokio::test]
async fn a_flood_of_continue_does_not_block_the_thread() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        let many = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(&many).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(why(&made(call_to(address, SHORT)).await), CallFailure::Timeout);
}

#[tokio::test]
async fn garbage_is_broken() {
    for garbage in ["SSH-2.0-OpenSSH_9.2\r\n", "\0\0\0\0\0\0", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\n: x\r\n\r\n"]
    {
        let (address, _) = endpoint(move |mut stream: TcpStream, heard: Received| async move {
            heard.request(&mut stream).await;
            stream.write_all(garbage.as_bytes()).await.unwrap();
        })
        .await;
        assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken, "{garbage:?}");
    }
}

#[tokio::test]
async fn a_head_without_end_is_broken() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        while stream.write_all(format!("x: {}\r\n", "y".repeat(8000)).as_bytes()).await.is_ok() {}
    })
    .await;
    assert_eq!(why(&made(call_to(address, LONG)).await), CallFailure::Broken);
}

#[tokio::test]
async fn an_unrequested_second_response_is_never_used_for_the_next_call() {
    let (address, _) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        let twice = "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(twice.as_bytes()).await.unwrap();
        heard.request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let worker = Worker::new(WorkerSettings::default()).unwrap();
    let target = Arc::new(target(Some(format!("http://{address}/")), SHORT));
    for _ in 0..3 {
        assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 500);
    }
}

#[tokio::test]
async fn a_status_is_returned_if_the_endpoint_rejects_an_unread_message() {
    let (address, heard) = endpoint(|mut stream: TcpStream, _: Received| async move {
        let mut head = [0; 16];
        stream.read_exact(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 413 Too large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let worker = Worker::new(WorkerSettings::default()).unwrap();
    let target = Arc::new(target(Some(format!("http://{address}/")), LONG));
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
    let (address, heard) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let worker = Worker::new(WorkerSettings::default()).unwrap();
    let target = Arc::new(target(Some(format!("http://{address}/")), LONG));
    for calls in 1..=3 {
        assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 101);
        assert_eq!(heard.connections(), calls);
    }
}

#[tokio::test]
async fn a_body_that_ends_by_closing_the_connection_is_complete() {
    let (address, heard) = endpoint(|mut stream: TcpStream, heard: Received| async move {
        heard.request(&mut stream).await;
        stream.write_all(b"HTTP/1.0 500 No\r\n\r\nwhole").await.unwrap();
    })
    .await;
    let worker = Worker::new(WorkerSettings::default()).unwrap();
    let target = Arc::new(target(Some(format!("http://{address}/")), LONG));
    for calls in 1..=3 {
        let called = worker.call(call(&target)).await;
        assert_eq!(called.outcome, CallOutcome::Answered { status: 500, retry_after: None, answer: "whole".into() });
        assert_eq!(heard.connections(), calls);
    }
}

#[tokio::test]
async fn a_forbidden_address_is_not_dialled_under_any_name() {
    let (address, heard) = answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let guard = AddressGuard::new(&[], &["127.0.0.0/8".to_owned(), "::1".to_owned()]).unwrap();
    let worker = Worker::new(WorkerSettings { guard, ..WorkerSettings::default() }).unwrap();
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
