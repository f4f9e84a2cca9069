//! The API for people over gRPC, called by the generated client through the router.

use tonic::Code;
use whimbrel_ingress::grpc::protocol::{
    InboxRequest, KickRequest, NewPush, PresenceRequest, PushBatchRequest, PushNotify, PushRequest, push_outcome,
};
use whimbrel_model::ports::{PeopleError, PresenceError};
use whimbrel_model::push::PushTask;

use crate::people_push::records;
use crate::support::{TestApi, grpc_refused as refused};

fn push(uid: &str) -> NewPush {
    NewPush { uids: vec![uid.into()], payload: "x".into(), ..NewPush::default() }
}

#[tokio::test]
async fn a_push_over_grpc_is_the_same_record_as_over_http() {
    let api = TestApi::new().await;
    let notify = PushNotify { title: Some("T".into()), body: None, data: Some("{\"x\":1}".into()) };
    let new = NewPush { platforms: vec!["ios".into()], ttl: Some("1h".into()), notify: Some(notify), ..push("u1") };
    let pushed = api.people_client().push(PushRequest { push: Some(new) }).await.unwrap().into_inner();
    let over_http = r#"{"payload":"x","platforms":["ios"],"ttl":"1h","notify":{"title":"T","data":{"x":1}}}"#;
    api.post("/v1/users/u1/messages", over_http).await.ok(202);
    let tasks: Vec<PushTask> = records(&api).iter().map(|(_, each)| PushTask::of(&each.headers).unwrap()).collect();
    let [PushTask::Message(grpc), PushTask::Message(http)] = &tasks[..] else { panic!("{tasks:?}") };
    assert_eq!(grpc.id, pushed.id);
    assert_eq!((&grpc.notify, &grpc.platforms, grpc.ttl_ms), (&http.notify, &http.platforms, http.ttl_ms));
}

#[tokio::test]
async fn a_batch_answers_push_by_push_and_names_the_invalid_one() {
    let api = TestApi::new().await;
    let held = NewPush { delay: Some("1s".into()), ..push("u2") };
    let answer = api.people_client().push_batch(PushBatchRequest { pushes: vec![push("u1"), held] }).await.unwrap();
    let outcomes: Vec<_> = answer.into_inner().pushes.into_iter().map(|each| each.outcome.unwrap()).collect();
    let [push_outcome::Outcome::Pushed(now), push_outcome::Outcome::Pushed(later)] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert!(now.due.is_none() && later.due.is_some());
    let bad = PushBatchRequest { pushes: vec![push("u1"), NewPush { uids: Vec::new(), ..push("u1") }] };
    let status = refused(api.people_client().push_batch(bad).await, Code::InvalidArgument, "bad_entry");
    assert_eq!(status.metadata().get("whimbrel-index").unwrap(), "1");
    refused(api.people_client().push(PushRequest { push: None }).await, Code::InvalidArgument, "bad_parameter");
}

#[tokio::test]
async fn kick_presence_and_inbox_are_those_of_http() {
    let api = TestApi::new().await;
    let kick = KickRequest { uid: "u1".into(), reason: "bye".into(), ..KickRequest::default() };
    api.people_client().kick(kick).await.unwrap();
    assert!(matches!(PushTask::of(&records(&api)[0].1.headers), Ok(PushTask::Kick(_))));
    let kick = KickRequest { uid: "u1".into(), ..KickRequest::default() };
    refused(api.people_client().kick(kick).await, Code::InvalidArgument, "bad_parameter");
    let ask = PresenceRequest { uids: vec!["u1".into()] };
    let presence = api.people_client().presence(ask.clone()).await.unwrap().into_inner();
    assert!(!presence.users[0].online && presence.fresh_as_of == "1970-01-01T00:00:02.000Z");
    *api.world.presence.refuses.lock().unwrap() = Some(PresenceError::NotFresh { ago_ms: None });
    refused(api.people_client().presence(ask).await, Code::Unavailable, "presence_stale");
    let ask = InboxRequest { uid: "u1".into(), ..InboxRequest::default() };
    api.world.carriers.inbox.lock().unwrap().next_after = Some(9);
    let inbox = api.people_client().inbox(ask.clone()).await.unwrap().into_inner();
    assert_eq!((inbox.stored, inbox.next_after), (0, Some(9)));
    *api.world.carriers.refuses.lock().unwrap() = Some(PeopleError::NoOwner(3));
    refused(api.people_client().inbox(ask).await, Code::Unavailable, "no_owner");
}
