//! Calls to correct endpoints.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use whimbrel_model::ports::{Call, CallOutcome, Callbacks};
use whimbrel_model::subscription::Envelope;

use crate::endpoint::{OK, answering, call, call_to, endpoint, hanging, own_call, status_of, target_at, worker};

const WITHIN: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_message_is_posted_and_its_status_returned() {
    let (address, heard) = answering("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").await;
    let called = worker().call(call_to(address, WITHIN)).await;
    let nothing = CallOutcome::Answered { status: 202, retry_after: None, answer: "".into() };
    assert_eq!(called.outcome, nothing);
    let request = heard.requests().remove(0);
    assert!(request.starts_with("POST /hook HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("\r\nhost: {address}\r\n")), "{request}");
    assert!(request.contains("\r\nwebhook-id: m-5\r\n"), "{request}");
    assert!(request.contains("\r\ncontent-length: 5\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\nhello"), "{request}");
}

#[tokio::test]
async fn an_empty_message_has_a_content_length() {
    let (address, heard) = answering("HTTP/1.1 204 No Content\r\n\r\n").await;
    let mut call = call_to(address, WITHIN);
    call.record.value = bytes::Bytes::new();
    worker().call(call).await;
    let request = heard.requests().remove(0);
    assert!(request.contains("\r\ncontent-length: 0\r\n"), "{request}");
}

#[tokio::test]
async fn sequential_calls_share_a_connection() {
    let (address, heard) = answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let (worker, target) = (worker(), Arc::new(target_at(address, WITHIN)));
    for _ in 0..20 {
        assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 200);
    }
    assert_eq!(heard.requests().len(), 20);
    assert_eq!(heard.connections(), 1);
}

#[tokio::test]
async fn the_start_of_an_error_body_is_kept_and_a_success_body_is_not() {
    let (address, _) = answering("HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nlate").await;
    let called = worker().call(call_to(address, WITHIN)).await;
    let retry_after = Some(Duration::from_secs(7));
    assert_eq!(called.outcome, CallOutcome::Answered { status: 503, retry_after, answer: "late".into() });
    let (address, _) = answering("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine").await;
    let called = worker().call(call_to(address, WITHIN)).await;
    assert_eq!(called.outcome, CallOutcome::Answered { status: 200, retry_after: None, answer: "".into() });
}

#[tokio::test]
async fn the_success_body_of_a_messages_own_callback_is_kept() {
    let (address, _) = answering("HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"result\":true}").await;
    let called = worker().call(own_call("POST", format!("http://{address}/"), b"{}")).await;
    let answer = r#"{"result":true}"#.into();
    assert_eq!(called.outcome, CallOutcome::Answered { status: 200, retry_after: None, answer });
}

#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let (elsewhere, unheard) = answering(OK).await;
    let answer = format!("HTTP/1.1 307 Elsewhere\r\nlocation: http://{elsewhere}/\r\ncontent-length: 0\r\n\r\n");
    let (address, _) = answering(answer.leak()).await;
    assert_eq!(status_of(&worker().call(call_to(address, WITHIN)).await.outcome), 307);
    assert_eq!(unheard.connections(), 0);
}

#[tokio::test]
async fn kmq_headers_have_the_capitals_of_kafka_pusher() {
    let (address, heard) = answering(OK).await;
    let mut target = target_at(address, WITHIN);
    target.envelope = Envelope::Kmq;
    worker().call(call(&Arc::new(target))).await;
    let request = heard.requests().remove(0);
    for line in
        ["X-Kmq-Topic: orders", "X-Kmq-Partition: 0", "X-Kmq-Partition-Key: ", "X-Kmq-Offset: 5", "X-Kmq-Logid: "]
    {
        assert!(request.contains(&format!("\r\n{line}\r\n")), "{line}: {request}");
    }
    assert!(request.contains("\r\nX-Kmq-Timestamp: 1000\r\n") && request.contains("\r\nX-Retry-Times: 0\r\n"));
}

#[tokio::test]
async fn a_message_with_its_own_callback_is_sent_to_it() {
    let (address, heard) = answering(OK).await;
    let worker = worker();
    let params = br#"{"order":"a b","n":1}"#;
    assert_eq!(status_of(&worker.call(own_call("GET", format!("http://{address}/cb?x=1"), params)).await.outcome), 200);
    assert_eq!(status_of(&worker.call(own_call("POST", format!("http://{address}/cb"), params)).await.outcome), 200);
    let requests = heard.requests();
    assert!(requests[0].starts_with("GET /cb?x=1&n=1&order=a%20b HTTP/1.1\r\n"), "{}", requests[0]);
    assert!(requests[0].ends_with("\r\n\r\n") && !requests[0].contains("content-type"), "{}", requests[0]);
    assert!(requests[1].starts_with("POST /cb HTTP/1.1\r\n"), "{}", requests[1]);
    assert!(requests[1].ends_with(r#"{"order":"a b","n":1}"#), "{}", requests[1]);
    assert_eq!(heard.connections(), 1, "both used one connection");
}

#[tokio::test]
async fn a_message_cannot_redirect_the_headers_of_a_subscription() {
    let ((address, heard), (elsewhere, unheard)) = (answering(OK).await, answering(OK).await);
    let mut target = target_at(address, WITHIN);
    target.endpoint.headers = vec![("authorization".to_owned(), "Bearer secret".to_owned())];
    for method in ["GET", "POST"] {
        let own = own_call(method, format!("http://{elsewhere}/"), b"{}");
        let own = Call { target: Arc::new(target.clone()), ..own };
        assert_eq!(status_of(&worker().call(own).await.outcome), 200);
    }
    assert_eq!(unheard.connections(), 0);
    for request in heard.requests() {
        assert!(request.starts_with("POST /hook HTTP/1.1\r\n"), "{request}");
    }
}

#[tokio::test]
async fn calls_in_progress_are_counted_until_they_end_or_are_dropped() {
    let (address, heard) = hanging().await;
    let worker = worker();
    {
        let mut calling = std::pin::pin!(worker.call(call_to(address, WITHIN)));
        while heard.requests().is_empty() {
            tokio::select! {
                _ = &mut calling => panic!("the endpoint never answers"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        assert_eq!(worker.in_flight(), 1);
    }
    assert_eq!(worker.in_flight(), 0);
}

#[tokio::test]
async fn a_connection_that_closed_while_idle_fails_no_call() {
    let (closed, mut on_close) = tokio::sync::mpsc::unbounded_channel();
    let (address, heard) = endpoint(move |mut stream, heard| {
        let closed = closed.clone();
        async move {
            heard.request(&mut stream).await;
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
            closed.send(()).unwrap();
        }
    })
    .await;
    let (worker, target) = (worker(), Arc::new(target_at(address, WITHIN)));
    for _ in 0..20 {
        assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 200);
        on_close.recv().await.unwrap();
        // The runtime polls its sockets before it returns here, and finds the closed connection.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    assert_eq!(heard.requests().len(), 20, "no request was sent twice");
}

#[tokio::test]
async fn connections_to_an_unused_endpoint_are_closed() {
    let (closed, mut on_close) = tokio::sync::mpsc::unbounded_channel();
    let (address, heard) = endpoint(move |mut stream, heard| {
        let closed = closed.clone();
        async move {
            while heard.request(&mut stream).await.is_some() {
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
            closed.send(()).unwrap();
        }
    })
    .await;
    let (worker, target) = (worker(), Arc::new(target_at(address, WITHIN)));
    assert_eq!(status_of(&worker.call(call(&target)).await.outcome), 200);
    assert_eq!(heard.connections(), 1);
    // From here on, the paused clock advances whenever all tasks are idle.
    tokio::time::pause();
    on_close.recv().await.unwrap();
}

#[tokio::test]
async fn a_large_message_arrives_complete() {
    let (address, heard) = answering(OK).await;
    let mut call = call_to(address, WITHIN);
    call.record.value = vec![b'x'; 1 << 20].into();
    assert_eq!(status_of(&worker().call(call).await.outcome), 200);
    let request = heard.requests().remove(0);
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.len(), 1 << 20);
}
