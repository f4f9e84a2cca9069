//! Events in `_events`.

use whimbrel_model::Event;
use whimbrel_model::ports::LogError;

use crate::support::{TestApi, soon};

#[tokio::test]
async fn an_event_becomes_a_message_of_the_system_topic() {
    let api = TestApi::new().await;
    (api.events.sink())(Event::new("damage_found", "something broke").with("file", "a.log"));
    let read = api.get("/v1/topics/_events/messages?wait=10s").await.ok(200);
    let event: serde_json::Value = serde_json::from_str(read["messages"][0]["payload"].as_str().unwrap()).unwrap();
    assert_eq!((&event["kind"], &event["detail"]), (&"damage_found".into(), &"something broke".into()));
    assert_eq!(event["fields"]["file"], "a.log");
    assert_eq!(read["messages"][0]["content_type"], "application/json");
    let by_id = format!("/v1/messages/{}", read["messages"][0]["id"].as_str().unwrap());
    api.get(&by_id).await.ok(200);
}

#[tokio::test(start_paused = true)]
async fn events_wait_while_the_log_rejects_appends() {
    let api = TestApi::new().await;
    let (refused, mut times) = tokio::sync::watch::channel(0);
    api.world.log.judge(move |_| {
        refused.send_modify(|count| *count += 1);
        Err(LogError::DiskFull("no room".into()))
    });
    api.events.put(Event::new("disk_full", "first"));
    api.events.put(Event::new("disk_full", "second"));
    soon(times.wait_for(|count| *count >= 6)).await.unwrap();
    api.world.log.judge_nothing();
    let mut details = Vec::new();
    while details.len() < 2 {
        let uri = format!("/v1/topics/_events/messages?offset={}&wait=30s", details.len());
        for message in api.get(&uri).await.ok(200)["messages"].as_array().unwrap() {
            let event: serde_json::Value = serde_json::from_str(message["payload"].as_str().unwrap()).unwrap();
            details.push(event["detail"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(details, ["first", "second"]);
}

#[tokio::test]
async fn queued_events_are_written_at_shutdown() {
    let api = TestApi::new().await;
    api.events.put(Event::new("test", "last words"));
    let api = api.close().await.open().await;
    let read = api.get("/v1/topics/_events/messages").await.ok(200);
    assert!(read["messages"][0]["payload"].as_str().unwrap().contains("last words"));
}
