//! The three forms of a message.

use std::sync::Arc;

use serde_json::{Value, json};
use whimbrel_model::subscription::SigningSecret;
use whimbrel_model::{Headers, Record};

use super::*;
use crate::worker::prepared_target::testing::target_at;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PUBLISHED_AT: &str = "2026-11-15T10:38:42.001Z";

struct EnvelopeScene {
    envelope: Envelope,
    secrets: Vec<SigningSecret>,
    endpoint_headers: Vec<(String, String)>,
    topic: &'static str,
    headers: Vec<(&'static str, &'static [u8])>,
    key: Option<&'static [u8]>,
    payload: &'static [u8],
}

impl EnvelopeScene {
    fn new(envelope: Envelope, headers: &[(&'static str, &'static [u8])]) -> Self {
        let (secrets, endpoint_headers) = (Vec::new(), Vec::new());
        let (topic, headers) = ("orders", headers.to_vec());
        Self { envelope, secrets, endpoint_headers, topic, headers, key: Some(b"k1"), payload: b"body" }
    }

    fn request(self) -> OutboundRequest {
        let mut headers = Headers::builder();
        for (name, value) in &self.headers {
            headers.push(name, value);
        }
        let mut target = target_at("http://127.0.0.1/hook");
        (target.envelope, target.secrets) = (self.envelope, self.secrets);
        target.endpoint.headers = self.endpoint_headers;
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
        write(&call, &PreparedTarget::new(&target).unwrap(), Timestamp::from_millis(5_999))
    }
}

/// Name and value of each header, by name.
fn sent(request: &OutboundRequest) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
    let mut sent: Vec<_> = request.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    sent.sort();
    sent.retain(|(name, _)| name != "user-agent");
    sent
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn event(scene: EnvelopeScene) -> Value {
    serde_json::from_slice(&scene.request().body).unwrap()
}

#[test]
fn binary_has_the_payload_as_it_was_and_everything_else_in_headers() {
    let request =
        EnvelopeScene::new(Envelope::Binary, &[("content-type", b"text/plain"), ("x-env", b"prod")]).request();
    assert_eq!(request.body, "body");
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
    assert_eq!(sent(&request), pairs(&expected));
}

#[test]
fn attributes_of_the_publisher_stay_unchanged() {
    let own: &[(&str, &[u8])] =
        &[("ce-id", b"other"), ("ce-type", b"order.paid"), ("ce-source", b"/shop"), ("ce-traceparent", b"t")];
    let request = EnvelopeScene::new(Envelope::Binary, own).request();
    for (name, value) in [
        ("ce-id", "other"),
        ("ce-type", "order.paid"),
        ("ce-source", "/shop"),
        ("ce-traceparent", "t"),
        ("webhook-id", "m-1"),
    ] {
        let all: Vec<_> = request.headers.get_all(name).iter().collect();
        assert_eq!(all, [value], "{name}");
    }
    let event = event(EnvelopeScene::new(Envelope::Structured, own));
    assert_eq!(
        (&event["id"], &event["whimbrelid"], &event["source"]),
        (&json!("other"), &json!("m-1"), &json!("/shop"))
    );
}

#[test]
fn an_event_without_its_own_id_has_the_id_of_the_message() {
    for own in [&[][..], &[("ce-id", &b""[..])]] {
        assert_eq!(EnvelopeScene::new(Envelope::Binary, own).request().headers["ce-id"], "m-1");
        assert_eq!(event(EnvelopeScene::new(Envelope::Structured, own))["id"], "m-1");
    }
}

#[test]
fn attributes_are_encoded_in_headers_and_decoded_in_json() {
    let subject = |brought: &'static [u8]| {
        let own = [("ce-subject", brought)];
        let header =
            EnvelopeScene::new(Envelope::Binary, &own).request().headers["ce-subject"].to_str().unwrap().to_owned();
        (header, event(EnvelopeScene::new(Envelope::Structured, &own))["subject"].as_str().unwrap().to_owned())
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
fn a_dead_letter_includes_its_origin() {
    let record: &[(&str, &[u8])] = &[("whimbrel-origin", b"{\"reason\":\"answered 500\"}")];
    let request = EnvelopeScene { topic: "_dead.billing", ..EnvelopeScene::new(Envelope::Binary, record) }.request();
    assert_eq!(request.headers["whimbrel-origin"], "{\"reason\":\"answered 500\"}");
}

#[test]
fn headers_of_the_system_and_of_the_connection_are_not_sent() {
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
        let request = EnvelopeScene::new(envelope, record).request();
        let plain = EnvelopeScene::new(envelope, &[]).request();
        assert_eq!(sent(&request), sent(&plain), "{envelope:?}");
    }
}

#[test]
fn a_repeated_header_of_a_message_is_repeated() {
    let request = EnvelopeScene::new(Envelope::Binary, &[("x-a", b"1"), ("x-a", b"2")]).request();
    assert_eq!(request.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn a_message_cannot_change_what_the_endpoint_sends() {
    let mut scene = EnvelopeScene::new(Envelope::Binary, &[("x-env", b"forged")]);
    scene.endpoint_headers = pairs(&[("X-Env", "prod"), ("Authorization", "Bearer s")]);
    let request = scene.request();
    assert_eq!(request.headers.get_all("x-env").iter().collect::<Vec<_>>(), ["prod"]);
    assert_eq!(request.headers["authorization"], "Bearer s");
}

#[test]
fn a_key_that_no_header_can_carry_is_percent_encoded() {
    let mut scene = EnvelopeScene::new(Envelope::Binary, &[]);
    scene.key = Some("a b\"%ü\n".as_bytes());
    assert_eq!(scene.request().headers["ce-partitionkey"], "a%20b%22%25%C3%BC%0A");
    let mut scene = EnvelopeScene::new(Envelope::Binary, &[]);
    scene.key = None;
    assert!(!scene.request().headers.contains_key("ce-partitionkey"));
}

#[test]
fn a_payload_without_a_type_is_binary() {
    assert_eq!(EnvelopeScene::new(Envelope::Binary, &[]).request().headers["content-type"], "application/octet-stream");
}

#[test]
fn the_signature_covers_the_body_that_is_sent() {
    for envelope in [Envelope::Binary, Envelope::Structured, Envelope::Kmq] {
        let secrets = [SigningSecret { secret: SECRET.to_owned(), until_ms: None }];
        let mut scene = EnvelopeScene::new(envelope, &[]);
        scene.secrets = secrets.to_vec();
        let request = scene.request();
        let mut expected = BytesMut::new();
        let signers = super::super::signature::Signers::new(&secrets).unwrap();
        signers.write("m-1", Timestamp::from_millis(5_000), &request.body, &mut expected);
        assert_eq!(request.headers["webhook-signature"].as_bytes(), expected, "{envelope:?}");
        assert_eq!(request.headers["webhook-id"], "m-1");
        assert_eq!(request.headers["webhook-timestamp"], "5");
    }
}

#[test]
fn kmq_has_the_headers_of_kafka_pusher() {
    let request = EnvelopeScene::new(Envelope::Kmq, &[("x-kmq-logid", b"l-9"), ("x-env", b"prod")]).request();
    assert_eq!(request.body, "body");
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
    assert_eq!(sent(&request), pairs(&expected));
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
    let mut scene = EnvelopeScene::new(Envelope::Structured, own);
    scene.payload = b"{\"paid\":  true}";
    let request = scene.request();
    assert_eq!(request.headers["content-type"], "application/cloudevents+json");
    assert_eq!(request.headers["x-env"], "prod");
    assert!(!request.headers.contains_key("ce-id"), "the event says it");
    let event: Value = serde_json::from_slice(&request.body).unwrap();
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
        let mut scene = EnvelopeScene::new(Envelope::Structured, &[("content-type", content_type)]);
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
fn an_invalid_endpoint_is_rejected_with_its_reason() {
    let refused = |url: &str, header: &str, secret: &str| {
        let mut target = target_at(url);
        target.endpoint.headers = pairs(&[(header, "1")]);
        target.secrets = vec![SigningSecret { secret: secret.to_owned(), until_ms: None }];
        PreparedTarget::new(&Arc::new(target)).err().map(|failure| failure.detail)
    };
    assert_eq!(refused("http://a/", "x-a", SECRET), None);
    assert!(refused("nowhere", "x-a", SECRET).unwrap().contains("nowhere"));
    assert!(refused("http://a/", "content-length", SECRET).unwrap().contains("content-length"));
    assert!(refused("http://a/", "a b", SECRET).unwrap().contains("a b"));
    assert!(refused("http://a/", "x-a", "hunter2").unwrap().contains("whsec_"));
}
