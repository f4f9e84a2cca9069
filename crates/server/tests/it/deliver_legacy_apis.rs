//! The endpoints of older systems, end to end: clients of soraka, c-delay-queue and kafka-pusher keep working.

use std::time::Duration;

use serde_json::{Value, json};
use whimbrel_client::{NewMessage, SubscriptionSettings};

use super::commands::on;
use super::deliver::{A_WHILE, Site};
use super::receiver::{Receiver, Reply, reply};
use super::server::{Server, eventually, stderr_of, stdout_of};

pub fn post(server: &Server, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let answer = server.exchange(&format!("{head}{body}"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

pub fn a_soraka_message_is_delivered_to_its_own_url(site: &Site) {
    let receiver = Receiver::confirming();
    let submit = |method: &str, path: &str| {
        let callback = json!({ "request_type": method, "url": receiver.url(path), "params": { "order": "7" } });
        let message = json!({ "topic_name": "soraka-orders", "delay_time": 200, "ttr": 3000, "callback": callback });
        let answer = post(&site.server, "/sorakaq/msg/submit", &message);
        assert_eq!(answer["ec"], 200, "{answer}");
        assert!(!answer["result"]["msgId"].is_null(), "{answer}");
    };
    submit("POST", "/posted");
    submit("GET", "/asked");
    let got = receiver.wait_for(2);
    let posted = got.iter().find(|one| one.method == "POST").unwrap();
    assert_eq!(posted.path, "/posted");
    assert_eq!(serde_json::from_slice::<Value>(&posted.body).unwrap(), json!({ "order": "7" }));
    let asked = got.iter().find(|one| one.method == "GET").unwrap();
    assert_eq!(asked.path, "/asked?order=7");
}

fn submit_now(site: &Site, topic: &str, url: String) -> String {
    let callback = json!({ "request_type": "POST", "url": url, "params": {} });
    let message = json!({ "topic_name": topic, "delay_time": 0, "ttr": 3000, "callback": callback });
    let answer = post(&site.server, "/sorakaq/msg/submit", &message);
    assert_eq!(answer["ec"], 200, "{answer}");
    answer["result"]["msgId"].as_str().unwrap().to_owned()
}

pub fn a_soraka_callback_that_reports_failure_is_retried(site: &Site) {
    let receiver = Receiver::answering(|got| match got.attempt() {
        1 => Reply { body: r#"{"ec":500,"em":"no stock","result":false}"#, ..reply(200) },
        _ => Reply { body: r#"{"ec":200,"em":"success","result":true}"#, ..reply(200) },
    });
    let id = submit_now(site, "soraka-refused", receiver.url("/"));
    let got = receiver.wait_for(2);
    assert_eq!((got[0].attempt(), got[1].attempt()), (1, 2));
    let client = site.client();
    let noted = || {
        let message = super::server::converse(client.message(&id)).unwrap();
        message.subscriptions[0].clone()
    };
    eventually("the second attempt to be recorded as delivered", || noted().state == "delivered");
    let noted = noted();
    assert_eq!(noted.name, "soraka.soraka-refused", "{noted:?}");
    assert_eq!(noted.attempts.len(), 2, "{noted:?}");
    let reasons: Vec<&str> = noted.attempts.iter().filter_map(|attempt| attempt.reason.as_deref()).collect();
    assert!(reasons.concat().contains("answered 200 with `\"result\": false`: no stock"), "{noted:?}");
}

pub fn a_soraka_callback_that_asks_to_wait_blocks_no_other(site: &Site) {
    let asks = Receiver::answering(|_| Reply { headers: vec![("retry-after", "3600".to_owned())], ..reply(429) });
    let willing = Receiver::confirming();
    submit_now(site, "soraka-apart", asks.url("/"));
    asks.wait_for(1);
    for _ in 0..3 {
        submit_now(site, "soraka-apart", willing.url("/"));
    }
    willing.wait_for(3);
}

pub fn a_soraka_message_never_has_the_headers_of_another_subscription(site: &Site) {
    let (own, elsewhere) = (Receiver::willing(), Receiver::confirming());
    site.topic("soraka-shared", 1);
    let mut settings = SubscriptionSettings::push(["soraka-shared"], own.url("/own"));
    let endpoint = settings.endpoint.as_mut().unwrap();
    endpoint.headers.insert("authorization".into(), json!("Bearer secret"));
    site.subscribe("reads-shared", &settings);
    submit_now(site, "soraka-shared", elsewhere.url("/elsewhere"));
    assert_eq!(own.wait_for(1)[0].header("authorization"), "Bearer secret");
    let called = elsewhere.wait_for(1);
    assert_eq!((called.len(), called[0].header("authorization")), (1, ""));
}

pub fn a_cancelled_soraka_message_is_never_delivered(site: &Site) {
    let receiver = Receiver::confirming();
    let submit = |delay: u64, path: &str| {
        let callback = json!({ "request_type": "POST", "url": receiver.url(path), "params": {} });
        let message = json!({ "topic_name": "soraka-undone", "delay_time": delay, "ttr": 3000, "callback": callback });
        post(&site.server, "/sorakaq/msg/submit", &message)["result"]["msgId"].clone()
    };
    // Both are pending for long enough that the commands arrive in time on a busy machine too.
    let began = std::time::Instant::now();
    let cancelled = submit(3000, "/cancelled");
    let moved = submit(3000, "/moved");
    let answer =
        post(&site.server, "/sorakaq/msg/cancel", &json!({ "topic_name": "soraka-undone", "msg_id": cancelled }));
    assert_eq!(answer["ec"], 200, "{answer}");
    let more = json!({ "topic_name": "soraka-undone", "msg_id": moved, "add_time": 500 });
    let answer = post(&site.server, "/sorakaq/msg/addTime", &more);
    assert_eq!(answer["ec"], 200, "{answer}");
    let got = receiver.wait_for(1);
    assert_eq!(got[0].path, "/moved");
    assert!(began.elapsed() >= Duration::from_millis(3500), "the delay was not added");
    std::thread::sleep(A_WHILE);
    assert_eq!(receiver.count(), 1, "a withdrawn message was delivered");
}

pub fn a_task_of_a_delay_queue_has_its_own_retry_rule(site: &Site) {
    let receiver = Receiver::answering(|_| reply(500));
    site.topic("send_mail", 1);
    site.subscribe("send-mail", &SubscriptionSettings::push(["send_mail"], receiver.url("/")));
    let task = json!({
        "taskId": "task-7", "functionName": "send_mail", "params": { "to": "a@b" }, "retryCount": 1, "retryInterval": 1,
        "delayTime": 0, "executeTimeout": 3, "nonceStr": "n-7",
    });
    let answer = post(&site.server, "/dq/acceptMsg", &task);
    assert_eq!(answer["code"], "0", "{answer}");
    let client = site.client();
    eventually("a dead letter after one retry", || {
        super::server::converse(client.dead_letters("send-mail", None, None)).unwrap().dead_letters.len() == 1
    });
    let got = receiver.all();
    assert_eq!(got.len(), 2, "one retry was asked for");
    let waited = got[1].at - got[0].at;
    assert!(waited >= Duration::from_millis(700), "the message's interval is 1 s, not {waited:?}");
    assert_eq!((got[0].header("webhook-id"), got[0].header("whimbrel-delivery")), ("task-7", ""));
}

pub fn a_second_import_of_a_pusher_file_creates_the_same_subscriptions(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("pushed", 1);
    let text = format!(
        "{{\n  // of the shop\n  \"consumer_groups\": [\n    {{ \"url\": \"{}\", \"topics\": [\"pushed\"], \"worker_num\": 2,\n      \
         \"retry_times\": 1, \"bypass_failed\": true, \"zookeepers\": [\"127.0.0.1:2181\"], }},\n  ],\n}}\n",
        receiver.url("/paid")
    );
    let file = site.server.folder().join("pusher.json");
    std::fs::write(&file, text).unwrap();
    let import = |more: &[&str]| {
        let output = on(&site.server, &[&["import", "pusher.json"], more].concat());
        assert!(output.status.success(), "{}", stderr_of(&output));
        output
    };
    let planned = import(&["--dry-run"]);
    assert!(stdout_of(&planned).contains("pusher.pushed.paid"), "{}", stdout_of(&planned));
    assert!(stderr_of(&planned).contains("zookeepers is ignored"), "{}", stderr_of(&planned));
    let made: Value = serde_json::from_str(&stdout_of(&import(&["--json"]))).unwrap();
    assert_eq!(made["subscriptions"][0]["outcome"], "made");
    let again: Value = serde_json::from_str(&stdout_of(&import(&["--json"]))).unwrap();
    assert_eq!(again["subscriptions"][0]["outcome"], "changed");
    site.publish("pushed", &NewMessage::text("x").key("k"));
    let got = receiver.wait_for(1).remove(0);
    assert_eq!((got.path.as_str(), got.header("x-kmq-topic"), got.text()), ("/paid", "pushed", "x"));
}
