//! The API over gRPC, called by the generated client through the router.

use tonic::Code;
use whimbrel_ingress::Scope;
use whimbrel_ingress::grpc::protocol::{
    ExtendRequest, FireRequest, Header, HoldRequest, NewMessage, PublishBatchRequest, PublishRequest, PublishResponse,
    ReadRequest, WithdrawRequest, batch_answer, extend_request, read_request,
};
use whimbrel_model::ports::{HoldsError, LogError};

use crate::support::{TestApi, grpc_refused as refused, key};

fn message(payload: &'static str) -> NewMessage {
    NewMessage { payload: payload.into(), ..NewMessage::default() }
}

fn publish(topic: &str, message: NewMessage) -> PublishRequest {
    PublishRequest { topic: topic.into(), message: Some(message), idempotency_key: None }
}

#[tokio::test]
async fn a_message_published_over_grpc_is_read_over_both() {
    let api = TestApi::new().await;
    let new = NewMessage {
        key: Some("k".into()),
        content_type: Some("text/plain".into()),
        headers: vec![Header { name: "X-A".into(), value: "1".into() }],
        ..message("hello")
    };
    let placed = api.messages_client().publish(publish("orders", new)).await.unwrap().into_inner();
    let read = ReadRequest { topic: "orders".into(), partition: placed.partition, ..ReadRequest::default() };
    let read = api.messages_client().read(read).await.unwrap().into_inner();
    assert_eq!(read.next_offset, 1);
    let found = &read.messages[0];
    assert_eq!((&found.id, found.offset, &found.payload[..]), (&placed.id, placed.offset, &b"hello"[..]));
    assert_eq!(found.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(found.headers, [Header { name: "x-a".into(), value: "1".into() }]);
    assert_eq!(found.content_type.as_deref(), Some("text/plain"));
    let over_http = api.get(&format!("/v1/messages/{}", placed.id)).await.ok(200);
    assert_eq!(over_http["payload"], "hello");
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_refused_whole() {
    let api = TestApi::new().await;
    let batch = |messages| PublishBatchRequest { topic: "orders".into(), messages };
    let answer =
        api.messages_client().publish_batch(batch(vec![message("a"), message("b")])).await.unwrap().into_inner();
    let published: Vec<PublishResponse> = answer
        .messages
        .into_iter()
        .map(|answer| match answer.outcome.unwrap() {
            batch_answer::Outcome::Published(published) => published,
            batch_answer::Outcome::Problem(problem) => panic!("{problem:?}"),
        })
        .collect();
    assert_eq!(published.iter().map(|answer| answer.partition).collect::<Vec<_>>(), [0, 1]);
    let bad = NewMessage { id: Some("a b".into()), ..message("b") };
    let outcome = api.messages_client().publish_batch(batch(vec![message("a"), bad])).await;
    let status = refused(outcome, Code::InvalidArgument, "bad_id");
    assert_eq!(status.metadata().get("whimbrel-index").unwrap(), "1");
    assert_eq!(api.payloads("orders").await.concat(), ["a", "b"]);
    assert!(api.messages_client().publish_batch(batch(vec![])).await.unwrap().into_inner().messages.is_empty());
}

#[tokio::test]
async fn a_partly_appended_batch_has_one_outcome_for_each_message() {
    let api = TestApi::new().await;
    api.world.log.judge(|entry| match &entry.record.value[..] {
        b"bad" => Err(LogError::DiskFull("no room".into())),
        _ => Ok(()),
    });
    let batch = PublishBatchRequest { topic: "orders".into(), messages: vec![message("good"), message("bad")] };
    let answer = api.messages_client().publish_batch(batch).await.unwrap().into_inner();
    assert!(answer.partly_appended);
    match answer.messages[1].outcome.as_ref().unwrap() {
        batch_answer::Outcome::Problem(problem) => assert_eq!(problem.code, "disk_full"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_repeat_over_grpc_returns_the_first_answer() {
    let api = TestApi::new().await;
    let request = PublishRequest { idempotency_key: Some("k".into()), ..publish("orders", message("x")) };
    let first = api.messages_client().publish(request.clone()).await.unwrap().into_inner();
    assert_eq!(api.messages_client().publish(request.clone()).await.unwrap().into_inner(), first);
    let other = PublishRequest { message: Some(message("y")), ..request };
    refused(api.messages_client().publish(other).await, Code::AlreadyExists, "different_body");
}

#[tokio::test]
async fn problems_have_the_same_codes_as_over_http() {
    let api = TestApi::new().await;
    api.messages_client().publish(publish("orders", message("x"))).await.unwrap();
    refused(api.messages_client().publish(publish("a b", message("x"))).await, Code::InvalidArgument, "bad_name");
    refused(
        api.messages_client().publish(publish("_events", message("x"))).await,
        Code::InvalidArgument,
        "reserved_name",
    );
    let later = NewMessage { delay: Some("5s".into()), ..message("x") };
    assert!(api.messages_client().publish(publish("orders", later)).await.unwrap().into_inner().due.is_some());
    let read = |topic: &str| ReadRequest { topic: topic.into(), ..ReadRequest::default() };
    refused(api.messages_client().read(read("nothing")).await, Code::NotFound, "unknown_topic");
    let beyond = ReadRequest { start: Some(read_request::Start::Offset(9)), ..read("orders") };
    refused(api.messages_client().read(beyond).await, Code::OutOfRange, "offset_out_of_range");
    let position = ReadRequest { start: Some(read_request::Start::Position("middle".into())), ..read("orders") };
    refused(api.messages_client().read(position).await, Code::InvalidArgument, "bad_parameter");
    api.world.log.judge(|_| Err(LogError::DiskFull("no room".into())));
    let status =
        refused(api.messages_client().publish(publish("orders", message("x"))).await, Code::Unavailable, "disk_full");
    assert!(status.metadata().contains_key("retry-after"));
}

#[tokio::test]
async fn holds_are_the_same_over_grpc() {
    let api = TestApi::new().await;
    let hold = |id: Option<&str>| HoldRequest {
        topic: "orders".into(),
        message: Some(NewMessage { delay: Some("1h".into()), id: id.map(str::to_owned), ..message("x") }),
        idempotency_key: None,
    };
    let held = api.messages_client().hold(hold(None)).await.unwrap().into_inner();
    assert_eq!((&*held.topic, &*held.due), ("orders", "2026-11-15T11:38:42.000Z"));
    let extend = |to| ExtendRequest { id: held.id.clone(), to: Some(to), ..ExtendRequest::default() };
    let moved = api.messages_client().extend(extend(extend_request::To::By("-30m".into()))).await.unwrap().into_inner();
    assert_eq!(moved.due, "2026-11-15T11:08:42.000Z");
    let other_version =
        ExtendRequest { if_version: Some(moved.version + 1), ..extend(extend_request::To::By("1m".into())) };
    let status =
        refused(api.messages_client().extend(other_version).await, Code::FailedPrecondition, "version_differs");
    assert_eq!(status.metadata().get("whimbrel-version").unwrap(), &moved.version.to_string());
    let fired = api.messages_client().fire(FireRequest { id: held.id.clone() }).await.unwrap().into_inner();
    assert_eq!((&*fired.fired_at, fired.offset), ("2026-11-15T10:38:42.000Z", Some(0)));
    let status = refused(
        api.messages_client().withdraw(WithdrawRequest { id: held.id.clone() }).await,
        Code::FailedPrecondition,
        "already_fired",
    );
    assert_eq!(status.metadata().get("whimbrel-fired-at").unwrap(), "2026-11-15T10:38:42.000Z");
    let read = ReadRequest { topic: "orders".into(), partition: fired.partition, ..ReadRequest::default() };
    let read = api.messages_client().read(read).await.unwrap().into_inner();
    assert_eq!(read.messages[0].due.as_deref(), Some("2026-11-15T11:08:42.000Z"));
    api.messages_client().hold(hold(Some("a"))).await.unwrap();
    api.messages_client().withdraw(WithdrawRequest { id: "a".into() }).await.unwrap();
    let elsewhere = HoldRequest { topic: "payments".into(), ..hold(Some("a")) };
    refused(api.messages_client().hold(elsewhere).await, Code::AlreadyExists, "id_taken");
}

#[tokio::test]
async fn errors_about_holds_have_the_same_codes_as_over_http() {
    let api = TestApi::new().await;
    let now = HoldRequest { topic: "orders".into(), message: Some(message("x")), idempotency_key: None };
    refused(api.messages_client().hold(now).await, Code::InvalidArgument, "bad_parameter");
    refused(api.messages_client().withdraw(WithdrawRequest::default()).await, Code::InvalidArgument, "bad_id");
    refused(api.messages_client().fire(FireRequest { id: "nothing".into() }).await, Code::NotFound, "unknown_hold");
    let nowhere = ExtendRequest { id: "nothing".into(), ..ExtendRequest::default() };
    refused(api.messages_client().extend(nowhere).await, Code::InvalidArgument, "bad_parameter");
    api.world.holds.refuse(Some(HoldsError::NoOwner(0)));
    let status =
        refused(api.messages_client().fire(FireRequest { id: "nothing".into() }).await, Code::Unavailable, "no_owner");
    assert!(status.metadata().contains_key("retry-after"));
}

#[tokio::test]
async fn keys_are_required_over_grpc_too() {
    let api = TestApi::with_keys([key("shop", &[Scope::Publish], &[])]).await;
    refused(api.messages_client().publish(publish("orders", message("x"))).await, Code::Unauthenticated, "key_missing");
    let with_key = |mut request: tonic::Request<_>| {
        request.metadata_mut().insert("authorization", "Bearer shop-secret".parse().unwrap());
        request
    };
    api.messages_client().publish(with_key(tonic::Request::new(publish("orders", message("x"))))).await.unwrap();
    let mut read = tonic::Request::new(ReadRequest { topic: "orders".into(), ..ReadRequest::default() });
    read.metadata_mut().insert("authorization", "Bearer shop-secret".parse().unwrap());
    refused(api.messages_client().read(read).await, Code::PermissionDenied, "forbidden");
}

#[tokio::test]
async fn a_publish_without_a_message_is_refused() {
    let api = TestApi::new().await;
    let empty = PublishRequest { message: None, ..publish("orders", message("x")) };
    refused(api.messages_client().publish(empty).await, Code::InvalidArgument, "bad_parameter");
    let read = ReadRequest { topic: "orders".into(), ..ReadRequest::default() };
    refused(api.messages_client().read(read).await, Code::NotFound, "unknown_topic");
    let placed = api.messages_client().publish(publish("orders", NewMessage::default())).await.unwrap().into_inner();
    assert_eq!(placed.offset, 0, "an explicitly empty message is valid");
}
