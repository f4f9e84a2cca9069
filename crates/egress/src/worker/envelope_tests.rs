//! The three forms of a message.

use std::sync::Arc;

use serde_json::{Value, json};
use whimbrel_model::ports::CallTarget;
use whimbrel_model::subscription::{Endpoint, SigningSecret};
use whimbrel_model::{Headers, Record};

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PUBLISHED_AT: &str = "2026-11-15T10:38:42.001Z";

struct Scene {
    envelope: Envelope,
    secrets: Vec<SigningSecret>,
    endpoint_headers: Vec<(String, String)>,
    topic: &'static str,
    headers: Vec<(&'static str, &'static [u8])>,
    key: Option<&'static [u8]>,
    payload: &'static [u8],
}

impl Scene {
    fn new(envelope: Envelope, headers: &[(&'static str, &'static [u8])]) -> Self {
        let (secrets, endpoint_headers) = (Vec::new(), Vec::new());
        let (topic, headers) = ("orders", headers.to_vec());
        Self { envelope, secrets, endpoint_headers, topic, headers, key: Some(b"k1"), payload: b"body" }
    }

    fn letter(self) -> Letter {
        let mut headers = Headers::builder();
        for (name, value) in &self.headers {
            headers.push(name, value);
        }
        let endpoint = Endpoint {
            url: Some("http://127.0.0.1/hook".to_owned()),
            timeout_ms: 1000,
            connect_timeout_ms: None,
            headers: self.endpoint_headers,
        };
        let target = CallTarget {
            subscription: "billing".to_owned(),
            endpoint,
            envelope: self.envelope,
            secrets: self.secrets,
            workers: None,
        };
        let target = Arc::new(target);
        let call = Call {
            target: Arc::clone(&target),
            topic: self.topic.into(),
            partition: 3,
            offset: 17,
            attempt: 2,
            id: "m-1".into(),
            published_at: Timestamp::parse(PUBLISHED_AT).unwrap(),
            record: Record {
                key: self.key.map(Bytes::from_static),
                value: Bytes::from_static(self.payload),
                headers: headers.take(),
                timestamp: Timestamp::from_millis(0),
            },
            rule: None,
        };
        write(&call, &Prepared::new(&target).unwrap(), Timestamp::from_millis(5_999))
    }
}

/// Name and value of each header, by name.
fn sent(letter: &Letter) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
    let mut sent: Vec<_> = letter.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    sent.sort();
    sent.retain(|(name, _)| name != "user-agent");
    sent
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn event(scene: Scene) -> Value {
    serde_json::from_slice(&scene.letter().body).unwrap()
}

#[test]
fn binary_has_the_payload_as_it_was_and_everything_else_in_headers() {
    let letter = Scene::new(Envelope::Binary, &[("content-type", b"text/plain"), ("x-env", b"prod")]).letter();
    assert_eq!(letter.body, "body");
    let expected = [
        ("ce-id", "m-1"),
        ("ce-partitionkey", "k1"),
        ("ce-source", "/topics/orders"),
        ("ce-specversion", "1.0"),
        ("ce-time", PUBLISHED_AT),
        ("ce-type", "whimbrel.message"),
        ("content-type", "text/plain"),
        ("webhook-id", "m-1"),
        ("webhook-timestamp", "5"),
        ("whimbrel-attempt", "2"),
        ("whimbrel-offset", "17"),
        ("whimbrel-partition", "3"),
        ("whimbrel-published-at", PUBLISHED_AT),
        ("whimbrel-subscription", "billing"),
        ("whimbrel-topic", "orders"),
        ("x-env", "prod"),
    ];
    assert_eq!(sent(&letter), pairs(&expected));
}

#[test]
fn what_a_publisher_says_of_its_event_stays() {
    let own: &[(&str, &[u8])] =
        &[("ce-id", b"other"), ("ce-type", b"order.paid"), ("ce-source", b"/shop"), ("ce-traceparent", b"t")];
    let letter = Scene::new(Envelope::Binary, own).letter();
    for (name, value) in [
        ("ce-id", "other"),
        ("ce-type", "order.paid"),
        ("ce-source", "/shop"),
        ("ce-traceparent", "t"),
        ("webhook-id", "m-1"),
    ] {
        let all: Vec<_> = letter.headers.get_all(name).iter().collect();
        assert_eq!(all, [value], "{name}");
    }
    let event = event(Scene::new(Envelope::Structured, own));
    assert_eq!(
        (&event["id"], &event["whimbrelid"], &event["source"]),
        (&json!("other"), &json!("m-1"), &json!("/shop"))
    );
}

#[test]
fn an_event_without_an_id_of_its_own_has_the_messages() {
    for own in [&[][..], &[("ce-id", &b""[..])]] {
        assert_eq!(Scene::new(Envelope::Binary, own).letter().headers["ce-id"], "m-1");
        assert_eq!(event(Scene::new(Envelope::Structured, own))["id"], "m-1");
    }
}

#[test]
fn attributes_are_encoded_in_headers_and_decoded_in_json() {
    let subject = |brought: &'static [u8]| {
        let own = [("ce-subject", brought)];
        let header = Scene::new(Envelope::Binary, &own).letter().headers["ce-subject"].to_str().unwrap().to_owned();
        (header, event(Scene::new(Envelope::Structured, &own))["subject"].as_str().unwrap().to_owned())
    };
    for (brought, header, json) in [
        ("ord%C3%A9r", "ord%C3%A9r", "ordér"),
        ("ordér", "ord%C3%A9r", "ordér"),
        ("100%25", "100%25", "100%"),
        ("100%", "100%", "100%"),
        ("%ff", "%ff", "%ff"),
        ("\"a \\\"b\\\"\"", "\"a \\\"b\\\"\"", "a \"b\""),
    ] {
        assert_eq!(subject(brought.as_bytes()), (header.to_owned(), json.to_owned()), "{brought}");
    }
}

#[test]
fn a_dead_letter_says_where_it_comes_from() {
    let record: &[(&str, &[u8])] = &[("whimbrel-origin", b"{\"reason\":\"answered 500\"}")];
    let letter = Scene { topic: "_dead.billing", ..Scene::new(Envelope::Binary, record) }.letter();
    assert_eq!(letter.headers["whimbrel-origin"], "{\"reason\":\"answered 500\"}");
}

#[test]
fn headers_of_the_system_and_of_the_connection_stay_behind() {
    let record: &[(&str, &[u8])] = &[
        ("whimbrel-id", b"m-1"),
        ("whimbrel-due", b"1"),
        ("whimbrel-idempotency-key", b"\0a"),
        ("whimbrel-delivery", b"{}"),
        ("whimbrel-origin", b"{}"),
        ("webhook-signature", b"v1,forged"),
        ("Host", b"elsewhere"),
        ("content-length", b"1000000"),
        ("Transfer-Encoding", b"chunked"),
        ("authorization", b"Bearer x"),
        ("not a name", b"1"),
        ("x-line", b"a\r\nb: c"),
    ];
    for envelope in [Envelope::Binary, Envelope::Structured, Envelope::Kmq] {
        let letter = Scene::new(envelope, record).letter();
        let plain = Scene::new(envelope, &[]).letter();
        assert_eq!(sent(&letter), sent(&plain), "{envelope:?}");
    }
}

#[test]
fn a_repeated_header_of_a_message_is_repeated() {
    let letter = Scene::new(Envelope::Binary, &[("x-a", b"1"), ("x-a", b"2")]).letter();
    assert_eq!(letter.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn a_message_cannot_change_what_the_endpoint_sends() {
    let mut scene = Scene::new(Envelope::Binary, &[("x-env", b"forged")]);
    scene.endpoint_headers = pairs(&[("X-Env", "prod"), ("Authorization", "Bearer s")]);
    let letter = scene.letter();
    assert_eq!(letter.headers.get_all("x-env").iter().collect::<Vec<_>>(), ["prod"]);
    assert_eq!(letter.headers["authorization"], "Bearer s");
}

#[test]
fn a_key_that_no_header_can_carry_is_percent_encoded() {
    let mut scene = Scene::new(Envelope::Binary, &[]);
    scene.key = Some("a b\"%ü\n".as_bytes());
    assert_eq!(scene.letter().headers["ce-partitionkey"], "a%20b%22%25%C3%BC%0A");
    let mut scene = Scene::new(Envelope::Binary, &[]);
    scene.key = None;
    assert!(!scene.letter().headers.contains_key("ce-partitionkey"));
}

#[test]
fn a_payload_of_no_type_is_bytes() {
    assert_eq!(Scene::new(Envelope::Binary, &[]).letter().headers["content-type"], "application/octet-stream");
}

#[test]
fn the_signature_covers_the_body_that_is_sent() {
    for envelope in [Envelope::Binary, Envelope::Structured, Envelope::Kmq] {
        let secrets = [SigningSecret { secret: SECRET.to_owned(), until_ms: None }];
        let mut scene = Scene::new(envelope, &[]);
        scene.secrets = secrets.to_vec();
        let letter = scene.letter();
        let mut expected = BytesMut::new();
        let signers = super::super::signature::Signers::new(&secrets).unwrap();
        signers.write("m-1", Timestamp::from_millis(5_000), &letter.body, &mut expected);
        assert_eq!(letter.headers["webhook-signature"].as_bytes(), expected, "{envelope:?}");
        assert_eq!(letter.headers["webhook-id"], "m-1");
        assert_eq!(letter.headers["webhook-timestamp"], "5");
    }
}

#[test]
fn kmq_is_what_kafka_pusher_sends() {
    let letter = Scene::new(Envelope::Kmq, &[("x-kmq-logid", b"l-9"), ("x-env", b"prod")]).letter();
    assert_eq!(letter.body, "body");
    let expected = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-env", "prod"),
        ("x-kmq-logid", "l-9"),
        ("x-kmq-offset", "17"),
        ("x-kmq-partition", "3"),
        ("x-kmq-partition-key", "k1"),
        ("x-kmq-timestamp", "1794739122001"),
        ("x-kmq-topic", "orders"),
        ("x-retry-times", "1"),
    ];
    assert_eq!(sent(&letter), pairs(&expected));
}

#[test]
fn structured_is_a_cloud_event() {
    let own: &[(&str, &[u8])] = &[
        ("content-type", b"application/json; charset=utf-8"),
        ("ce-type", b"order.paid"),
        ("ce-shop", b"7"),
        ("ce-data", b"forged"),
        ("ce-whimbreloffset", b"forged"),
        ("ce-not-a-name", b"1"),
        ("x-env", b"prod"),
    ];
    let mut scene = Scene::new(Envelope::Structured, own);
    scene.payload = b"{\"paid\":  true}";
    let letter = scene.letter();
    assert_eq!(letter.headers["content-type"], "application/cloudevents+json");
    assert_eq!(letter.headers["x-env"], "prod");
    assert!(!letter.headers.contains_key("ce-id"), "the event says it");
    let event: Value = serde_json::from_slice(&letter.body).unwrap();
    let expected = json!({
        "id": "m-1", "specversion": "1.0", "source": "/topics/orders", "type": "order.paid", "time": PUBLISHED_AT,
        "partitionkey": "k1", "shop": "7", "whimbrelid": "m-1", "whimbrelsubscription": "billing", "whimbreltopic": "orders",
        "whimbrelpartition": 3, "whimbreloffset": "17", "whimbrelattempt": 2,
        "datacontenttype": "application/json; charset=utf-8", "data": {"paid": true},
    });
    assert_eq!(event, expected);
}

#[test]
fn the_data_of_an_event_is_json_text_or_base64() {
    let data = |content_type: &'static [u8], payload: &'static [u8]| {
        let mut scene = Scene::new(Envelope::Structured, &[("content-type", content_type)]);
        scene.payload = payload;
        let event = event(scene);
        (event.get("data").cloned(), event.get("data_base64").cloned())
    };
    assert_eq!(data(b"application/vnd.a+json", b"[1]"), (Some(json!([1])), None));
    assert_eq!(data(b"text/plain", b"a \"b\""), (Some(json!("a \"b\"")), None));
    assert_eq!(data(b"application/json", b"{broken"), (None, Some(json!("e2Jyb2tlbg=="))));
    assert_eq!(data(b"text/plain", b"\xff"), (None, Some(json!("/w=="))));
    assert_eq!(data(b"image/png", b"abc"), (None, Some(json!("YWJj"))));
}

#[test]
fn an_endpoint_that_cannot_be_called_says_why() {
    let refused = |url: &str, header: &str, secret: &str| {
        let endpoint = Endpoint {
            url: Some(url.to_owned()),
            timeout_ms: 1,
            connect_timeout_ms: None,
            headers: pairs(&[(header, "1")]),
        };
        let secrets = vec![SigningSecret { secret: secret.to_owned(), until_ms: None }];
        let (envelope, subscription) = (Envelope::Binary, "s".to_owned());
        let target = CallTarget { subscription, endpoint, envelope, secrets, workers: None };
        Prepared::new(&Arc::new(target)).err().map(|failure| failure.detail)
    };
    assert_eq!(refused("http://a/", "x-a", SECRET), None);
    assert!(refused("nowhere", "x-a", SECRET).unwrap().contains("nowhere"));
    assert!(refused("http://a/", "content-length", SECRET).unwrap().contains("content-length"));
    assert!(refused("http://a/", "a b", SECRET).unwrap().contains("a b"));
    assert!(refused("http://a/", "x-a", "hunter2").unwrap().contains("whsec_"));
}
