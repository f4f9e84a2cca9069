//! Statistics of topics by the minute, and the event stream.

use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use whimbrel_model::ports::MinuteRow;
use whimbrel_model::{Clock, Event, Timestamp};

use crate::support::{TestApi, soon};

#[tokio::test]
async fn publishes_and_holds_are_counted() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "a").await.ok(201);
    api.post("/v1/topics/orders/messages?delay=1h", "b").await.ok(202);
    api.post("/v1/topics/orders/messages?id=own", "c").await.ok(201);
    api.post("/v1/topics/orders/batch", r#"[{"payload":"d"},{"payload":"e"}]"#).await.ok(200);
    let topic = api.registry.get("orders").unwrap().number();
    let now = api.world.clock.now().as_millis();
    let rows = api.stats.minutes(topic, Timestamp::from_millis(0), Timestamp::from_millis(now + 60_000)).await;
    assert_eq!(rows.iter().map(|(_, row)| row.published).sum::<u64>(), 5);
}

#[tokio::test]
async fn a_topic_is_shown_by_the_minute() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "a").await.ok(201);
    let topic = api.registry.get("orders").unwrap().number();
    let mut row = MinuteRow { published: 9, delivered: 2, failed: 1, ..MinuteRow::default() };
    row.callback.note(4_000);
    row.callback.note(6_000);
    let minute = Timestamp::parse("2026-11-15T10:30:00Z").unwrap();
    api.world.dispatch.minutes.lock().unwrap().insert((topic, minute), row);
    let shown = api.get("/v1/stats/topics/orders").await.ok(200);
    let only = &shown["minutes"][0];
    assert_eq!((&only["minute"], &only["published"]), (&json!("2026-11-15T10:30:00.000Z"), &json!(9)));
    assert_eq!((&only["delivered"], &only["failed"], &only["fired"]), (&json!(2), &json!(1), &json!(0)));
    assert_eq!((&only["callback"]["average_ms"], only.get("lateness")), (&json!(5.0), None));
    assert_eq!(shown["silent_nodes"], 0);
    let earlier = "/v1/stats/topics/orders?from=2026-11-15T09:00:00Z&to=2026-11-15T10:30:00Z";
    assert_eq!(api.get(earlier).await.ok(200)["minutes"], json!([]));
    let within = "/v1/stats/topics/orders?from=2026-11-15T10:30:59Z&to=2026-11-15T10:31:00Z";
    assert_eq!(api.get(within).await.ok(200)["minutes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn invalid_time_ranges_are_rejected() {
    let api = TestApi::new().await;
    api.get("/v1/stats/topics/none").await.problem(404, "unknown_topic");
    api.post("/v1/topics/orders/messages", "a").await.ok(201);
    for query in ["from=soon", "from=2026-11-15T10:00:00Z&to=2026-11-15T09:00:00Z", "from=2020-01-01T00:00:00Z"] {
        api.get(&format!("/v1/stats/topics/orders?{query}")).await.problem(422, "bad_time");
    }
    api.get("/v1/stats/topics/orders?form=1").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn events_are_followed_live_and_from_a_position() {
    let api = TestApi::new().await;
    api.events.put(Event::new("disk_full", "first"));
    api.get("/v1/topics/_events/messages?wait=30s").await.ok(200);
    let request = http::Request::get("/v1/events?offset=earliest").body(axum::body::Body::empty()).unwrap();
    let response = api.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let mut text = String::new();
    api.events.put(Event::new("disk_space_recovered", "second").with("bytes", 7));
    soon(async {
        while !text.contains("second") {
            let frame = body.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    })
    .await;
    assert!(text.contains("id: 0:0\nevent: event\ndata: {"), "{text}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let event: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!((&event["kind"], &event["fields"]["bytes"]), (&json!("disk_space_recovered"), &json!("7")));
}
