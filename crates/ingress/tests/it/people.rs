//! Presence, kicks, inboxes, devices, platforms, and what could not be handled.

use std::sync::Arc;

use serde_json::{Value, json};
use whimbrel_api::endpoint::AddressGuard;
use whimbrel_catalogue::subscriptions::ensure_notices_subscription;
use whimbrel_ingress::{ApiKey, ReceiveSettings, Scope, Secret};
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, SessionsRule};
use whimbrel_model::ports::{
    InboxMessage, InboxView, OutMessage, PeopleAsk, PeopleError, PresenceError, SeatView, UserSessions,
};
use whimbrel_model::push::{PRESENCE_TOPIC, PUSH_DEAD_TOPIC, PushDead, PushKick, PushMessage, PushTask};
use whimbrel_model::{Headers, Record, Timestamp};

use crate::people_push::records;
use crate::support::{House, soon};

fn online() -> UserSessions {
    let session = SessionId { gateway: GatewayId { node: 3, incarnation: 255 }, number: 16 };
    let platform = Platform::new("web").unwrap();
    let since = Timestamp::from_millis(1_000);
    UserSessions { sessions: vec![OnlineSession { session, platform, device: "d1".into(), since }], last_seen: None }
}

#[tokio::test]
async fn presence_says_who_is_online_and_as_of_when() {
    let house = House::new().await;
    house.world.presence.online.lock().unwrap().insert("u1".into(), online());
    let here = json!({
        "uid": "u1", "online": true, "fresh_as_of": "1970-01-01T00:00:02.000Z",
        "sessions": [{ "session": "3-ff-10", "platform": "web", "device": "d1", "gateway": "3-ff", "since": "1970-01-01T00:00:01.000Z" }],
    });
    assert_eq!(house.get("/v1/users/u1/presence").await.ok(200), here);
    let both = house.post("/v1/presence/query", r#"{"uids":["u2","u1"]}"#).await.ok(200);
    assert_eq!((&both["users"][0]["online"], &both["users"][1]), (&json!(false), &here));
    for wrong in ["{}", r#"{"uids":[]}"#, r#"{"uids":[1]}"#, r#"{"uid":["a"]}"#] {
        house.post("/v1/presence/query", wrong).await.problem(422, "bad_parameter");
    }
    let many = json!({ "uids": vec!["u"; 1_001] }).to_string();
    house.post("/v1/presence/query", many).await.problem(422, "bad_parameter");
    house.post("/v1/presence/query", r#"{"uids":["\n"]}"#).await.problem(422, "bad_uid");
}

#[tokio::test]
async fn presence_that_is_not_fresh_is_refused() {
    let house = House::new().await;
    *house.world.presence.refuses.lock().unwrap() = Some(PresenceError::NotFresh { ago_ms: Some(9_000) });
    house.get("/v1/users/u1/presence").await.problem(503, "not_fresh");
    house.post("/v1/presence/query", r#"{"uids":["u1"]}"#).await.problem(503, "not_fresh");
    *house.world.presence.refuses.lock().unwrap() = Some(PresenceError::Unavailable("away".into()));
    house.get("/v1/users/u1/presence").await.problem(503, "unavailable");
}

#[tokio::test]
async fn who_comes_and_goes_is_followed() {
    use futures_util::StreamExt;
    use tower::ServiceExt;
    let house = House::new().await;
    let request = http::Request::get("/v1/presence/events?offset=earliest").body(axum::body::Body::empty()).unwrap();
    let mut body = house.router.clone().oneshot(request).await.unwrap().into_body().into_data_stream();
    soon(body.next()).await.unwrap().unwrap();
    let record = Record {
        key: None,
        value: br#"{"uid":"u1","online":true}"#.to_vec().into(),
        headers: Headers::EMPTY,
        timestamp: Timestamp::from_millis(0),
    };
    house.world.log.put(house.registry.get(PRESENCE_TOPIC).unwrap().partition(0), record);
    let piece = soon(body.next()).await.unwrap().unwrap();
    let text = String::from_utf8(piece.to_vec()).unwrap();
    assert!(text.contains("event: presence\ndata: {\"uid\":\"u1\",\"online\":true}\n\n"), "{text}");
    house.get("/v1/presence/events?offset=7").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_kick_and_a_wipe_go_through_the_users_partition() {
    let house = House::new().await;
    let kick = r#"{"platform":"web","session":"3-ff-10","reason":"signed out"}"#;
    let answer = house.post("/v1/users/u1/kick", kick).await.ok(202);
    assert!(answer["id"].is_string());
    house.delete("/v1/users/u1/inbox").await.ok(202);
    let tasks: Vec<PushTask> = records(&house).iter().map(|(_, each)| PushTask::of(&each.headers).unwrap()).collect();
    let platform = Some(Platform::new("web").unwrap());
    let kick = PushKick { uid: "u1".into(), platform, session: Some("3-ff-10".into()), reason: "signed out".into() };
    assert_eq!(tasks, [PushTask::Kick(kick), PushTask::Wipe { uid: "u1".into() }], "in order, in one partition");
    assert!(records(&house).iter().all(|(_, record)| record.key.as_deref() == Some(&b"u1"[..])));
    for (body, code) in [
        ("{}", "bad_parameter"),
        (r#"{"reason":""}"#, "bad_parameter"),
        (r#"{"reason":"x","session":"s1"}"#, "bad_parameter"),
        (r#"{"reason":"x","platform":"Web"}"#, "bad_platform"),
        (r#"{"reason":"x","why":"y"}"#, "bad_parameter"),
    ] {
        house.post("/v1/users/u1/kick", body).await.problem(422, code);
    }
}

#[tokio::test]
async fn an_inbox_is_shown_as_its_owner_has_it() {
    let house = House::new().await;
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
    *house.world.carriers.inbox.lock().unwrap() = InboxView {
        epoch: "e1".into(),
        messages: vec![stored(5, b"hi"), stored(9, b"\xff")],
        seats: vec![seat],
        stored: 7,
        next_after: Some(9),
    };
    let inbox = house.get("/v1/users/u1/inbox?platform=ios&after=4&limit=2").await.ok(200);
    assert_eq!((&inbox["epoch"], &inbox["stored"], &inbox["next_after"]), (&json!("e1"), &json!(7), &json!(9)));
    assert_eq!(
        (&inbox["messages"][0]["payload"], &inbox["messages"][1]["payload_base64"]),
        (&json!("hi"), &json!("/w=="))
    );
    assert_eq!(inbox["seats"][0]["cursor"], 4);
    let (_, PeopleAsk::Inbox { uid, platform, after, limit }) = house.world.carriers.asked.lock().unwrap().remove(0);
    assert_eq!((uid.as_str(), platform.unwrap().as_str(), after, limit), ("u1", "ios", 4, 2));
    for wrong in ["limit=0", "limit=1001", "after=x", "other=1"] {
        house.get(&format!("/v1/users/u1/inbox?{wrong}")).await.problem(422, "bad_parameter");
    }
    house.get("/v1/users/u1/inbox?platform=iOS").await.problem(422, "bad_platform");
    for (error, status, code) in [
        (PeopleError::NoOwner(1), 503, "no_owner"),
        (PeopleError::Unavailable("x".into()), 503, "unavailable"),
        (PeopleError::Overloaded(1), 429, "overloaded"),
    ] {
        *house.world.carriers.refuses.lock().unwrap() = Some(error);
        house.get("/v1/users/u1/inbox").await.problem(status, code);
    }
}

#[tokio::test]
async fn devices_are_registered_shown_without_their_whole_token_and_removed() {
    let house = House::new().await;
    let token = "0123456789abcdef".repeat(4);
    let apns = json!({ "platform": "ios", "provider": "apns", "token": token, "topic": "com.example.app" });
    let shown = house.put("/v1/users/u1/devices/phone", apns).await.ok(200);
    assert_eq!(
        shown,
        json!({ "device": "phone", "platform": "ios", "provider": "apns", "token": "0123456789ab…", "topic": "com.example.app" })
    );
    assert_eq!(house.world.devices.kept.lock().unwrap()[&("u1".to_owned(), "phone".to_owned())].token, token);
    let webpush = json!({
        "platform": "web", "provider": "webpush", "token": "https://push.example/abc",
        "p256dh": format!("{}=", "BNcRdreALRFXTkOOUHK1EtK2wtaz5Ry4YfYCA_0QTpQtUbVlUls0VJXg7A8u-Ts1XbjhazAkj7I99e8QcYP7DkM"), "auth": "tBHItJI5svbpez7KI4CCXg",
    });
    house.put("/v1/users/u1/devices/browser", webpush).await.ok(200);
    house
        .put(
            "/v1/users/u1/devices/hook",
            json!({ "platform": "web", "provider": "http", "token": "https://pager.example/x" }),
        )
        .await
        .ok(200);
    house
        .put("/v1/users/u1/devices/droid", json!({ "platform": "android", "provider": "fcm", "token": "abc:def" }))
        .await
        .ok(200);
    assert_eq!(house.get("/v1/users/u1/devices/phone").await.ok(200), shown);
    let all = house.get("/v1/users/u1/devices").await.ok(200);
    assert_eq!(all["devices"].as_array().unwrap().len(), 4);
    assert_eq!(house.delete("/v1/users/u1/devices/phone").await.status, 204);
    house.delete("/v1/users/u1/devices/phone").await.problem(404, "unknown_device");
    house.get("/v1/users/u1/devices/phone").await.problem(404, "unknown_device");
    assert_eq!(house.get("/v1/users/u2/devices").await.ok(200), json!({ "devices": [] }));
}

#[tokio::test]
async fn a_device_cannot_name_an_address_of_the_servers_own_network() {
    let house = House::new().await;
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
            let told = house.put("/v1/users/u1/devices/d", body).await.problem(422, "forbidden_address");
            assert!(told["detail"].as_str().unwrap().contains("`horn.allow`"), "{told}");
        }
    }
    assert_eq!(house.get("/v1/users/u1/devices").await.ok(200), json!({ "devices": [] }));
}

#[tokio::test]
async fn what_the_operator_allows_to_devices_may_be_named_by_them() {
    let guard = AddressGuard::for_devices(&["127.0.0.0/8".to_owned()], &[]).unwrap();
    let house = House::with(ReceiveSettings { device_guard: Arc::new(guard), ..ReceiveSettings::default() }).await;
    let device = |host: &str| json!({ "platform": "web", "provider": "http", "token": format!("http://{host}/x") });
    house.put("/v1/users/u1/devices/d", device("127.0.0.1:9")).await.ok(200);
    house.put("/v1/users/u1/devices/d", device("10.0.0.1")).await.problem(422, "forbidden_address");
}

#[tokio::test]
async fn a_device_that_could_never_be_woken_is_refused() {
    let house = House::new().await;
    let put = |body: Value| house.put("/v1/users/u1/devices/d", body);
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
    house.put(&format!("/v1/users/u1/devices/{}", "d".repeat(129)), json!({})).await.problem(422, "bad_device");
    let hook = json!({ "platform": "web", "provider": "http", "token": "https://pager.example/x" });
    for number in 0..32 {
        house.put(&format!("/v1/users/u1/devices/d{number}"), hook.clone()).await.ok(200);
    }
    put(hook.clone()).await.problem(422, "too_many_devices");
    *house.world.devices.refuses.lock().unwrap() = true;
    put(hook).await.problem(503, "unavailable");
}

#[tokio::test]
async fn a_platform_has_the_defaults_until_somebody_configures_it() {
    let house = House::new().await;
    let defaults = json!({
        "platform": "ios", "configured": false, "store": true, "max_stored": 1000, "ttl": "7d", "notify": true,
        "sessions": "replace", "ack_timeout": "10s",
    });
    assert_eq!(house.get("/v1/platforms/ios").await.ok(200), defaults);
    let wanted = json!({ "store": false, "max_stored": 5, "ttl": "1h30m", "notify": false, "sessions": { "many": 3 }, "ack_timeout": 2000 });
    let put = house.put("/v1/platforms/ios", wanted).await.ok(200);
    assert_eq!(
        put,
        json!({ "platform": "ios", "configured": true, "store": false, "max_stored": 5, "ttl": "1h30m", "notify": false, "sessions": { "many": 3 }, "ack_timeout": "2s" })
    );
    assert_eq!(house.get("/v1/platforms/ios").await.ok(200), put);
    assert_eq!(house.get("/v1/platforms").await.ok(200), json!({ "platforms": [put] }));
    house.put("/v1/platforms/ios", json!({ "sessions": "reject" })).await.ok(200);
    let ios = Platform::new("ios").unwrap();
    let settings = house.platforms.get(&ios);
    assert_eq!(
        (settings.sessions, settings.max_stored),
        (SessionsRule::Reject, 1000),
        "what is left out has the default"
    );
    assert_eq!(house.delete("/v1/platforms/ios").await.status, 204);
    assert_eq!(house.get("/v1/platforms/ios").await.ok(200), defaults);
    assert_eq!(house.delete("/v1/platforms/ios").await.status, 204);
}

#[tokio::test]
async fn a_platform_that_another_process_configured_is_followed_and_survives() {
    let house = House::new().await;
    let mut changes = house.platforms.changes();
    house.world.catalogue.force("platforms/ios", r#"{"max_stored":7}"#);
    let ios = Platform::new("ios").unwrap();
    while house.platforms.get(&ios).max_stored != 7 {
        soon(changes.changed()).await.unwrap();
    }
    house.world.catalogue.force("platforms/ios", "{");
    house.world.catalogue.force("platforms/web", r#"{"store":false}"#);
    let web = Platform::new("web").unwrap();
    while house.platforms.get(&web).store {
        soon(changes.changed()).await.unwrap();
    }
    assert_eq!(house.platforms.get(&ios).max_stored, 7, "what cannot be read is as it was before");
    let house = house.close().await.open().await;
    assert!(!house.platforms.get(&web).store);
}

#[tokio::test]
async fn nonsense_about_a_platform_is_told() {
    let house = House::new().await;
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
        assert_eq!(house.put("/v1/platforms/ios", body.clone()).await.problem(422, code)["field"], field, "{body}");
    }
    house.put("/v1/platforms/iOS", json!({})).await.problem(422, "bad_platform");
    let keys =
        vec![ApiKey { name: "p".into(), secret: Secret::Plain("p".into()), scopes: vec![Scope::Push], topics: vec![] }];
    let house = House::with(ReceiveSettings { keys, ..ReceiveSettings::default() }).await;
    let with_key = [("authorization", "Bearer p")];
    house.call(http::Method::PUT, "/v1/platforms/ios", &with_key, "{}").await.problem(403, "forbidden");
    house.call(http::Method::GET, "/v1/platforms/ios", &with_key, "").await.ok(200);
}

#[tokio::test]
async fn dead_pushes_are_listed_and_put_back_once() {
    let house = House::new().await;
    let dead_place = house.registry.get(PUSH_DEAD_TOPIC).unwrap().partition(0);
    for number in 0..3 {
        house
            .post("/v1/users/u1/messages", json!({ "payload": "x", "id": format!("m{number}") }).to_string())
            .await
            .ok(202);
        let (partition, record) = records(&house).pop().unwrap();
        let dead = PushDead { reason: "full".into(), died_at_ms: 1_000, partition, offset: number };
        house.world.log.put(dead_place, dead.to_record(&record));
    }
    let page = house.get("/v1/push/dead-letters?limit=2").await.ok(200);
    let first = &page["dead_letters"][0];
    assert_eq!(
        (&first["id"], &first["uids"], &first["reason"], &first["died_at"]),
        (&json!("m0"), &json!(["u1"]), &json!("full"), &json!("1970-01-01T00:00:01.000Z"))
    );
    let rest = house.get(&format!("/v1/push/dead-letters?cursor={}", page["cursor"].as_str().unwrap())).await.ok(200);
    assert_eq!((&rest["dead_letters"][0]["id"], rest.get("cursor")), (&json!("m2"), None));
    let redriven = house.post("/v1/push/redrive", r#"{"ids":["m1","nope"]}"#).await.ok(200);
    assert_eq!(redriven, json!({ "redriven": 1, "unknown": ["nope"] }));
    let again = records(&house).pop().unwrap().1;
    assert_eq!(again.headers.get("whimbrel-id"), Some(&b"m1"[..]));
    assert!(PushTask::of(&again.headers).is_ok(), "it is in `_push` as it was");
    let left = house.get("/v1/push/dead-letters").await.ok(200);
    let ids: Vec<&Value> = left["dead_letters"].as_array().unwrap().iter().map(|each| &each["id"]).collect();
    assert_eq!(ids, ["m0", "m2"]);
    assert_eq!(
        house.post("/v1/push/redrive", r#"{"ids":["m1"]}"#).await.ok(200),
        json!({ "redriven": 0, "unknown": ["m1"] })
    );
    assert_eq!(house.post("/v1/push/redrive", r#"{"all":true}"#).await.ok(200)["redriven"], 2);
    assert_eq!(house.get("/v1/push/dead-letters").await.ok(200)["dead_letters"], json!([]));
    assert_eq!(records(&house).len(), 6);
    for wrong in ["{}", r#"{"ids":[]}"#, r#"{"ids":["a"],"all":true}"#] {
        house.post("/v1/push/redrive", wrong).await.problem(422, "bad_parameter");
    }
}

/// The note that it was put back may be lost in a crash; then it is put back once more.
#[tokio::test]
async fn a_dead_push_without_an_id_of_its_sender_s_is_put_back_so_that_a_repeat_is_known() {
    let house = House::new().await;
    house.post("/v1/users/u1/messages", json!({ "payload": "x" }).to_string()).await.ok(202);
    let (partition, push) = records(&house).pop().unwrap();
    let message = |record: &Record| match PushTask::of(&record.headers) {
        Ok(PushTask::Message(message)) => message,
        other => panic!("{other:?}"),
    };
    assert!(!message(&push).brought);
    let dead = PushDead { reason: "full".into(), died_at_ms: 1_000, partition, offset: 0 };
    house.world.log.put(house.registry.get(PUSH_DEAD_TOPIC).unwrap().partition(0), dead.to_record(&push));
    assert_eq!(house.post("/v1/push/redrive", r#"{"all":true}"#).await.ok(200)["redriven"], 1);
    let again = records(&house).pop().unwrap().1;
    assert_eq!(message(&again), PushMessage { brought: true, ..message(&push) });
    assert_eq!((&again.key, &again.value), (&push.key, &push.value));
    assert_eq!(again.headers.get("whimbrel-id"), push.headers.get("whimbrel-id"));
}

#[tokio::test]
async fn dead_notices_need_somebody_who_sends_notices() {
    let house = House::new().await;
    house.get("/v1/notices/dead-letters").await.problem(503, "unavailable");
    house.post("/v1/notices/redrive", r#"{"all":true}"#).await.problem(503, "unavailable");
}

#[tokio::test]
async fn dead_notices_are_those_of_the_systems_own_subscription() {
    let house = House::new().await;
    ensure_notices_subscription(&house.subscriptions).await.unwrap();
    assert_eq!(house.get("/v1/notices/dead-letters").await.ok(200), json!({ "dead_letters": [] }));
    let redriven = house.post("/v1/notices/redrive", r#"{"ids":["n1"]}"#).await.ok(200);
    assert_eq!(redriven, json!({ "redriven": 0, "unknown": ["n1"] }));
    let number = house.subscriptions.get("_notices").unwrap().number();
    assert!(house.world.dispatch.asked().iter().all(|(asked, _)| *asked == number));
}
