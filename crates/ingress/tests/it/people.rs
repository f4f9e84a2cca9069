//! Presence, kicks, inboxes, devices, platforms, and dead pushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use whimbrel_api::endpoint::AddressGuard;
use whimbrel_catalogue::subscriptions::ensure_notices_subscription;
use whimbrel_ingress::{DestinationGuards, ReceiveSettings, Scope};
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, SessionsRule, Uid};
use whimbrel_model::ports::{
    Devices as _, InboxMessage, InboxView, OutMessage, PeopleError, PeopleQuery, PresenceError, SeatView, UserSessions,
};
use whimbrel_model::push::{PRESENCE_TOPIC, PUSH_DEAD_TOPIC, PushFailure, PushKick, PushMessage, PushTask};
use whimbrel_model::{Headers, Record, Timestamp};

use crate::people_push::records;
use crate::support::{TestApi, key, soon};

fn online() -> UserSessions {
    let session = SessionId { gateway: GatewayId { node: 3, incarnation: 255 }, number: 16 };
    let platform = Platform::new("web").unwrap();
    let since = Timestamp::from_millis(1_000);
    UserSessions { sessions: vec![OnlineSession { session, platform, device: "d1".into(), since }], last_seen: None }
}

#[tokio::test]
async fn presence_lists_sessions_with_their_freshness() {
    let api = TestApi::new().await;
    api.world.presence.online.lock().unwrap().insert("u1".into(), online());
    let here = json!({
        "uid": "u1", "online": true, "fresh_as_of": "1970-01-01T00:00:02.000Z",
        "sessions": [{ "session": "3-ff-10", "platform": "web", "device": "d1", "gateway": "3-ff", "since": "1970-01-01T00:00:01.000Z" }],
    });
    assert_eq!(api.get("/v1/users/u1/presence").await.ok(200), here);
    let both = api.post("/v1/presence/query", r#"{"uids":["u2","u1"]}"#).await.ok(200);
    assert_eq!((&both["users"][0]["online"], &both["users"][1]), (&json!(false), &here));
    for wrong in ["{}", r#"{"uids":[]}"#, r#"{"uids":[1]}"#, r#"{"uid":["a"]}"#] {
        api.post("/v1/presence/query", wrong).await.problem(422, "bad_parameter");
    }
    let many = json!({ "uids": vec!["u"; 1_001] }).to_string();
    api.post("/v1/presence/query", many).await.problem(422, "bad_parameter");
    api.post("/v1/presence/query", r#"{"uids":["\n"]}"#).await.problem(422, "bad_uid");
}

#[tokio::test]
async fn stale_presence_is_an_error() {
    let api = TestApi::new().await;
    *api.world.presence.refuses.lock().unwrap() = Some(PresenceError::NotFresh { ago_ms: Some(9_000) });
    api.get("/v1/users/u1/presence").await.problem(503, "presence_stale");
    api.post("/v1/presence/query", r#"{"uids":["u1"]}"#).await.problem(503, "presence_stale");
    *api.world.presence.refuses.lock().unwrap() = Some(PresenceError::Unavailable("away".into()));
    api.get("/v1/users/u1/presence").await.problem(503, "unavailable");
}

#[tokio::test]
async fn presence_changes_can_be_followed() {
    use futures_util::StreamExt;
    use tower::ServiceExt;
    let api = TestApi::new().await;
    let request = http::Request::get("/v1/presence/events?offset=earliest").body(axum::body::Body::empty()).unwrap();
    let mut body = api.router.clone().oneshot(request).await.unwrap().into_body().into_data_stream();
    soon(body.next()).await.unwrap().unwrap();
    let record = Record {
        key: None,
        value: br#"{"uid":"u1","online":true}"#.to_vec().into(),
        headers: Headers::EMPTY,
        timestamp: Timestamp::from_millis(0),
    };
    api.world.log.put(api.registry.get(PRESENCE_TOPIC).unwrap().partition(0), record);
    let piece = soon(body.next()).await.unwrap().unwrap();
    let text = String::from_utf8(piece.to_vec()).unwrap();
    assert!(text.contains("event: presence\ndata: {\"uid\":\"u1\",\"online\":true}\n\n"), "{text}");
    api.get("/v1/presence/events?offset=7").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_kick_and_a_wipe_are_records_of_the_users_partition() {
    let api = TestApi::new().await;
    let kick = r#"{"platform":"web","session":"3-ff-10","reason":"signed out"}"#;
    let answer = api.post("/v1/users/u1/kick", kick).await.ok(202);
    assert!(answer["id"].is_string());
    api.delete("/v1/users/u1/inbox").await.ok(202);
    let tasks: Vec<PushTask> = records(&api).iter().map(|(_, each)| PushTask::of(&each.headers).unwrap()).collect();
    let platform = Some(Platform::new("web").unwrap());
    let kick = PushKick { uid: "u1".into(), platform, session: Some("3-ff-10".into()), reason: "signed out".into() };
    assert_eq!(tasks, [PushTask::Kick(kick), PushTask::Wipe { uid: "u1".into() }], "in order, in one partition");
    assert!(records(&api).iter().all(|(_, record)| record.key.as_deref() == Some(&b"u1"[..])));
    for (body, code) in [
        ("{}", "bad_parameter"),
        (r#"{"reason":""}"#, "bad_parameter"),
        (r#"{"reason":"x","session":"s1"}"#, "bad_parameter"),
        (r#"{"reason":"x","platform":"Web"}"#, "bad_platform"),
        (r#"{"reason":"x","why":"y"}"#, "bad_parameter"),
    ] {
        api.post("/v1/users/u1/kick", body).await.problem(422, code);
    }
}

#[tokio::test]
async fn an_inbox_is_shown_as_its_owner_reports_it() {
    let api = TestApi::new().await;
    let message = |payload: &'static [u8]| {
        Arc::new(OutMessage {
            id: "m1".into(),
            payload: payload.into(),
            sent_at: Timestamp::from_millis(0),
            ..OutMessage::default()
        })
    };
    let stored =
        |seq, payload| InboxMessage { seq, expires_at: Timestamp::from_millis(1_000), message: message(payload) };
    let seat = SeatView {
        platform: Platform::new("ios").unwrap(),
        device: "".into(),
        cursor: 4,
        waiting: 2,
        online: true,
        seen_at: Timestamp::from_millis(0),
    };
    *api.world.carriers.inbox.lock().unwrap() = InboxView {
        epoch: "e1".into(),
        messages: vec![stored(5, b"hi"), stored(9, b"\xff")],
        seats: vec![seat],
        stored: 7,
        next_after: Some(9),
    };
    let inbox = api.get("/v1/users/u1/inbox?platform=ios&after=4&limit=2").await.ok(200);
    assert_eq!((&inbox["epoch"], &inbox["stored"], &inbox["next_after"]), (&json!("e1"), &json!(7), &json!(9)));
    assert_eq!(
        (&inbox["messages"][0]["payload"], &inbox["messages"][1]["payload_base64"]),
        (&json!("hi"), &json!("/w=="))
    );
    assert_eq!(inbox["seats"][0]["cursor"], 4);
    let (_, PeopleQuery::Inbox { uid, platform, after, limit }) = api.world.carriers.asked.lock().unwrap().remove(0);
    assert_eq!((uid.as_str(), platform.unwrap().as_str(), after, limit), ("u1", "ios", 4, 2));
    for wrong in ["limit=0", "limit=1001", "after=x", "other=1"] {
        api.get(&format!("/v1/users/u1/inbox?{wrong}")).await.problem(422, "bad_parameter");
    }
    api.get("/v1/users/u1/inbox?platform=iOS").await.problem(422, "bad_platform");
    for (error, status, code) in [
        (PeopleError::NoOwner(1), 503, "no_owner"),
        (PeopleError::Unavailable("x".into()), 503, "unavailable"),
        (PeopleError::Overloaded(1), 429, "overloaded"),
    ] {
        *api.world.carriers.refuses.lock().unwrap() = Some(error);
        api.get("/v1/users/u1/inbox").await.problem(status, code);
    }
}

#[tokio::test]
async fn devices_are_registered_shown_with_a_masked_token_and_removed() {
    let api = TestApi::new().await;
    let token = "0123456789abcdef".repeat(4);
    let apns = json!({ "platform": "ios", "provider": "apns", "token": token, "topic": "com.example.app" });
    let shown = api.put("/v1/users/u1/devices/phone", apns).await.ok(200);
    assert_eq!(
        shown,
        json!({ "device": "phone", "platform": "ios", "provider": "apns", "token": "0123456789ab…", "topic": "com.example.app" })
    );
    assert_eq!(api.world.devices.of(&Uid::new("u1").unwrap()).await.unwrap()[0].token, token);
    let webpush = json!({
        "platform": "web", "provider": "webpush", "token": "https://push.example/abc",
        "p256dh": format!("{}=", "BNcRdreALRFXTkOOUHK1EtK2wtaz5Ry4YfYCA_0QTpQtUbVlUls0VJXg7A8u-Ts1XbjhazAkj7I99e8QcYP7DkM"), "auth": "tBHItJI5svbpez7KI4CCXg",
    });
    api.put("/v1/users/u1/devices/browser", webpush).await.ok(200);
    api.put(
        "/v1/users/u1/devices/hook",
        json!({ "platform": "web", "provider": "http", "token": "https://pager.example/x" }),
    )
    .await
    .ok(200);
    api.put("/v1/users/u1/devices/droid", json!({ "platform": "android", "provider": "fcm", "token": "abc:def" }))
        .await
        .ok(200);
    assert_eq!(api.get("/v1/users/u1/devices/phone").await.ok(200), shown);
    let all = api.get("/v1/users/u1/devices").await.ok(200);
    assert_eq!(all["devices"].as_array().unwrap().len(), 4);
    assert_eq!(api.delete("/v1/users/u1/devices/phone").await.status, 204);
    api.delete("/v1/users/u1/devices/phone").await.problem(404, "unknown_device");
    api.get("/v1/users/u1/devices/phone").await.problem(404, "unknown_device");
    assert_eq!(api.get("/v1/users/u2/devices").await.ok(200), json!({ "devices": [] }));
}

#[tokio::test]
async fn a_device_cannot_register_an_address_of_the_servers_network() {
    let api = TestApi::new().await;
    let keys = (
        "BNcRdreALRFXTkOOUHK1EtK2wtaz5Ry4YfYCA_0QTpQtUbVlUls0VJXg7A8u-Ts1XbjhazAkj7I99e8QcYP7DkM",
        "tBHItJI5svbpez7KI4CCXg",
    );
    for host in [
        "127.0.0.1:9",
        "10.0.0.7",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "[::1]:80",
        "[fd00::1]",
        "[::ffff:10.0.0.7]",
    ] {
        let webpush = json!({ "platform": "web", "provider": "webpush", "token": format!("https://{host}/x"), "p256dh": keys.0, "auth": keys.1 });
        let http = json!({ "platform": "web", "provider": "http", "token": format!("http://{host}/x") });
        for body in [webpush, http] {
            let told = api.put("/v1/users/u1/devices/d", body).await.problem(422, "forbidden_address");
            assert!(told["detail"].as_str().unwrap().contains("`horn.allow`"), "{told}");
        }
    }
    assert_eq!(api.get("/v1/users/u1/devices").await.ok(200), json!({ "devices": [] }));
}

#[tokio::test]
async fn an_address_that_the_operator_allows_can_be_registered() {
    let guard = AddressGuard::for_devices(&["127.0.0.0/8".to_owned()], &[]).unwrap();
    let guards = DestinationGuards { devices: Arc::new(guard), ..DestinationGuards::default() };
    let api = TestApi::with(ReceiveSettings { guards, ..ReceiveSettings::default() }).await;
    let device = |host: &str| json!({ "platform": "web", "provider": "http", "token": format!("http://{host}/x") });
    api.put("/v1/users/u1/devices/d", device("127.0.0.1:9")).await.ok(200);
    api.put("/v1/users/u1/devices/d", device("10.0.0.1")).await.problem(422, "forbidden_address");
}

#[tokio::test]
async fn an_invalid_device_is_rejected() {
    let api = TestApi::new().await;
    let put = |body: Value| api.put("/v1/users/u1/devices/d", body);
    for (body, code) in [
        (json!({}), "bad_parameter"),
        (json!({ "platform": "iOS", "provider": "apns", "token": "00" }), "bad_platform"),
        (json!({ "platform": "ios", "provider": "sms", "token": "00" }), "bad_parameter"),
        (json!({ "platform": "ios", "provider": "apns" }), "bad_parameter"),
        (json!({ "platform": "ios", "provider": "apns", "token": "zz".repeat(32) }), "bad_parameter"),
        (json!({ "platform": "ios", "provider": "apns", "token": "00".repeat(32), "topic": "a b" }), "bad_parameter"),
        (json!({ "platform": "ios", "provider": "apns", "token": "00".repeat(32), "auth": "x" }), "bad_parameter"),
        (json!({ "platform": "a", "provider": "fcm", "token": "a b" }), "bad_parameter"),
        (json!({ "platform": "web", "provider": "http", "token": "ftp://a/b" }), "bad_url"),
        (json!({ "platform": "web", "provider": "http", "token": "http://169.254.169.254/" }), "forbidden_address"),
        (json!({ "platform": "web", "provider": "webpush", "token": "https://a/b" }), "bad_parameter"),
        (
            json!({ "platform": "web", "provider": "webpush", "token": "https://a/b", "p256dh": "AAAA", "auth": "AAAA" }),
            "bad_parameter",
        ),
    ] {
        put(body.clone()).await.problem(422, code);
    }
    api.put(&format!("/v1/users/u1/devices/{}", "d".repeat(129)), json!({})).await.problem(422, "bad_device");
    let hook = json!({ "platform": "web", "provider": "http", "token": "https://pager.example/x" });
    for number in 0..32 {
        api.put(&format!("/v1/users/u1/devices/d{number}"), hook.clone()).await.ok(200);
    }
    put(hook.clone()).await.problem(422, "too_many_devices");
    api.world.devices.is_down.store(true, Ordering::Relaxed);
    put(hook).await.problem(503, "unavailable");
}

#[tokio::test]
async fn a_platform_has_the_defaults_until_it_is_configured() {
    let api = TestApi::new().await;
    let defaults = json!({
        "platform": "ios", "configured": false, "store": true, "max_stored": 1000, "ttl": "7d", "notify": true,
        "sessions": "replace", "ack_timeout": "10s",
    });
    assert_eq!(api.get("/v1/platforms/ios").await.ok(200), defaults);
    let wanted = json!({ "store": false, "max_stored": 5, "ttl": "1h30m", "notify": false, "sessions": { "many": 3 }, "ack_timeout": 2000 });
    let put = api.put("/v1/platforms/ios", wanted).await.ok(200);
    assert_eq!(
        put,
        json!({ "platform": "ios", "configured": true, "store": false, "max_stored": 5, "ttl": "1h30m", "notify": false, "sessions": { "many": 3 }, "ack_timeout": "2s" })
    );
    assert_eq!(api.get("/v1/platforms/ios").await.ok(200), put);
    assert_eq!(api.get("/v1/platforms").await.ok(200), json!({ "platforms": [put] }));
    api.put("/v1/platforms/ios", json!({ "sessions": "reject" })).await.ok(200);
    let ios = Platform::new("ios").unwrap();
    let settings = api.platforms.get(&ios);
    assert_eq!(
        (settings.sessions, settings.max_stored),
        (SessionsRule::Reject, 1000),
        "absent fields have the default"
    );
    assert_eq!(api.delete("/v1/platforms/ios").await.status, 204);
    assert_eq!(api.get("/v1/platforms/ios").await.ok(200), defaults);
    assert_eq!(api.delete("/v1/platforms/ios").await.status, 204);
}

#[tokio::test]
async fn settings_from_another_process_are_followed_and_survive_a_restart() {
    let api = TestApi::new().await;
    let mut changes = api.platforms.changes();
    api.world.catalogue.force("platforms/ios", r#"{"max_stored":7}"#);
    let ios = Platform::new("ios").unwrap();
    while api.platforms.get(&ios).max_stored != 7 {
        soon(changes.changed()).await.unwrap();
    }
    api.world.catalogue.force("platforms/ios", "{");
    api.world.catalogue.force("platforms/web", r#"{"store":false}"#);
    let web = Platform::new("web").unwrap();
    while api.platforms.get(&web).store {
        soon(changes.changed()).await.unwrap();
    }
    assert_eq!(api.platforms.get(&ios).max_stored, 7, "an undecodable entry keeps the last known settings");
    let api = api.close().await.open().await;
    assert!(!api.platforms.get(&web).store);
}

#[tokio::test]
async fn invalid_platform_settings_are_rejected() {
    let api = TestApi::new().await;
    for (body, code, field) in [
        (json!({ "max_stored": 0 }), "bad_parameter", "max_stored"),
        (json!({ "max_stored": 100_001 }), "bad_parameter", "max_stored"),
        (json!({ "ttl": "8d" }), "bad_duration", "ttl"),
        (json!({ "ttl": "0s" }), "bad_duration", "ttl"),
        (json!({ "ack_timeout": "11m" }), "bad_duration", "ack_timeout"),
        (json!({ "sessions": "many" }), "bad_parameter", "sessions"),
        (json!({ "sessions": { "many": 0 } }), "bad_parameter", "sessions"),
        (json!({ "sessions": { "many": 2, "few": 1 } }), "bad_parameter", "sessions"),
        (json!({ "store": 1 }), "bad_parameter", "store"),
        (json!({ "stroe": true }), "bad_parameter", "stroe"),
    ] {
        assert_eq!(api.put("/v1/platforms/ios", body.clone()).await.problem(422, code)["field"], field, "{body}");
    }
    api.put("/v1/platforms/iOS", json!({})).await.problem(422, "bad_platform");
    let api = TestApi::with_keys([key("p", &[Scope::Push], &[])]).await;
    api.call_as("p", http::Method::PUT, "/v1/platforms/ios", "{}").await.problem(403, "forbidden");
    api.call_as("p", http::Method::GET, "/v1/platforms/ios", "").await.ok(200);
}

#[tokio::test]
async fn dead_pushes_are_listed_and_redriven_once() {
    let api = TestApi::new().await;
    let dead_place = api.registry.get(PUSH_DEAD_TOPIC).unwrap().partition(0);
    for number in 0..3 {
        api.post("/v1/users/u1/messages", json!({ "payload": "x", "id": format!("m{number}") }).to_string())
            .await
            .ok(202);
        let (partition, record) = records(&api).pop().unwrap();
        let dead = PushFailure { reason: "full".into(), died_at_ms: 1_000, partition, offset: number };
        api.world.log.put(dead_place, dead.to_record(&record));
    }
    let page = api.get("/v1/push/dead-letters?limit=2").await.ok(200);
    let first = &page["dead_letters"][0];
    assert_eq!(
        (&first["id"], &first["uids"], &first["reason"], &first["died_at"]),
        (&json!("m0"), &json!(["u1"]), &json!("full"), &json!("1970-01-01T00:00:01.000Z"))
    );
    let rest = api.get(&format!("/v1/push/dead-letters?cursor={}", page["cursor"].as_str().unwrap())).await.ok(200);
    assert_eq!((&rest["dead_letters"][0]["id"], rest.get("cursor")), (&json!("m2"), None));
    let redriven = api.post("/v1/push/redrive", r#"{"ids":["m1","nope"]}"#).await.ok(200);
    assert_eq!(redriven, json!({ "redriven": 1, "unknown": ["nope"] }));
    let again = records(&api).pop().unwrap().1;
    assert_eq!(again.headers.get("whimbrel-id"), Some(&b"m1"[..]));
    assert!(PushTask::of(&again.headers).is_ok(), "it is unchanged in `_push`");
    let left = api.get("/v1/push/dead-letters").await.ok(200);
    let ids: Vec<&Value> = left["dead_letters"].as_array().unwrap().iter().map(|each| &each["id"]).collect();
    assert_eq!(ids, ["m0", "m2"]);
    assert_eq!(
        api.post("/v1/push/redrive", r#"{"ids":["m1"]}"#).await.ok(200),
        json!({ "redriven": 0, "unknown": ["m1"] })
    );
    assert_eq!(api.post("/v1/push/redrive", r#"{"all":true}"#).await.ok(200)["redriven"], 2);
    assert_eq!(api.get("/v1/push/dead-letters").await.ok(200)["dead_letters"], json!([]));
    assert_eq!(records(&api).len(), 6);
    for wrong in ["{}", r#"{"ids":[]}"#, r#"{"ids":["a"],"all":true}"#] {
        api.post("/v1/push/redrive", wrong).await.problem(422, "bad_parameter");
    }
}

/// A crash can lose the record of a redrive. The push is then redriven again.
#[tokio::test]
async fn a_redriven_push_with_a_minted_id_is_recognized_as_a_repeat() {
    let api = TestApi::new().await;
    api.post("/v1/users/u1/messages", json!({ "payload": "x" }).to_string()).await.ok(202);
    let (partition, push) = records(&api).pop().unwrap();
    let message = |record: &Record| match PushTask::of(&record.headers) {
        Ok(PushTask::Message(message)) => message,
        other => panic!("{other:?}"),
    };
    assert!(!message(&push).brought);
    let dead = PushFailure { reason: "full".into(), died_at_ms: 1_000, partition, offset: 0 };
    api.world.log.put(api.registry.get(PUSH_DEAD_TOPIC).unwrap().partition(0), dead.to_record(&push));
    assert_eq!(api.post("/v1/push/redrive", r#"{"all":true}"#).await.ok(200)["redriven"], 1);
    let again = records(&api).pop().unwrap().1;
    assert_eq!(message(&again), PushMessage { brought: true, ..message(&push) });
    assert_eq!((&again.key, &again.value), (&push.key, &push.value));
    assert_eq!(again.headers.get("whimbrel-id"), push.headers.get("whimbrel-id"));
}

#[tokio::test]
async fn dead_notifications_need_the_system_subscription() {
    let api = TestApi::new().await;
    api.get("/v1/notices/dead-letters").await.problem(503, "unavailable");
    api.post("/v1/notices/redrive", r#"{"all":true}"#).await.problem(503, "unavailable");
}

#[tokio::test]
async fn dead_notifications_are_the_dead_letters_of_the_system_subscription() {
    let api = TestApi::new().await;
    ensure_notices_subscription(&api.subscriptions).await.unwrap();
    assert_eq!(api.get("/v1/notices/dead-letters").await.ok(200), json!({ "dead_letters": [] }));
    let redriven = api.post("/v1/notices/redrive", r#"{"ids":["n1"]}"#).await.ok(200);
    assert_eq!(redriven, json!({ "redriven": 0, "unknown": ["n1"] }));
    let number = api.subscriptions.get("_notices").unwrap().number();
    assert!(api.world.dispatch.asked().iter().all(|(asked, _)| *asked == number));
}
