//! Arbitrary requests to every endpoint: no request causes a panic or a 500.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tower::ServiceExt;

use crate::support::TestApi;

/// Arbitrary text, and values that often break parsers.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,24}",
        "[0-9]{1,24}",
        Just("-1".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("0000-00-00T00:00:00Z".to_owned()),
        Just("9999-12-31T23:59:59.999Z".to_owned()),
        Just("0001-01-01T00:00:00+23:59".to_owned()),
        Just("99999999999w".to_owned()),
        Just("0:18446744073709551615".to_owned()),
        Just("at-0-0-18446744073709551615".to_owned()),
        Just("ffffffff-ffff-8fff-bfff-ffffffffffff".to_owned()),
        Just("earliest".to_owned()),
        Just("orders".to_owned()),
        Just("_events".to_owned()),
    ]
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        "[\\[\\]{}\",:a-z0-9\\\\ \n-]{0,64}".prop_map(String::into_bytes),
        any_value()
            .prop_map(|value| format!("[{{\"payload\":\"x\",\"key\":{0:?},\"delay\":{0:?}}}]", value).into_bytes()),
        any_value().prop_map(|value| format!("{{\"by\":{value:?}}}").into_bytes()),
        any_value().prop_map(|value| format!("{{\"until\":{value:?},\"if_version\":{value}}}").into_bytes()),
        any_value().prop_map(|value| {
            format!("{{\"taskId\":\"t\",\"functionName\":{value:?},\"delayTime\":{value:?},\"params\":{value:?}}}")
                .into_bytes()
        }),
        any_value().prop_map(|value| {
            format!("{{\"topics\":[{value:?}],\"endpoint\":{{\"url\":{value:?},\"timeout\":{value:?}}},\"rate\":{value:?}}}").into_bytes()
        }),
        any_value().prop_map(|value| format!("{{\"to\":{value:?}}}").into_bytes()),
        any_value().prop_map(|value| format!("{{\"from\":{value:?},\"key\":{value:?}}}").into_bytes()),
        any_value().prop_map(|value| format!("{{\"offsets\":{{\"orders/0\":{value}}}}}").into_bytes()),
        any_value().prop_map(|value| format!("{{\"ack_ids\":[{value:?}],\"lease\":{value:?}}}").into_bytes()),
        any_value().prop_map(|value| {
            format!("{{\"topic_name\":{value:?},\"callback\":{{\"request_type\":\"GET\",\"url\":{value:?},\"params\":{value:?}}}}}")
                .into_bytes()
        }),
        any_value().prop_map(|value| {
            format!("{{\"uids\":[{value:?}],\"payload\":\"x\",\"ttl\":{value:?},\"id\":{value:?},\"platforms\":[{value:?}]}}").into_bytes()
        }),
        any_value().prop_map(|value| format!("{{\"reason\":{value:?},\"session\":{value:?}}}").into_bytes()),
        any_value().prop_map(|value| {
            format!("{{\"platform\":\"a\",\"provider\":\"http\",\"token\":{value:?}}}").into_bytes()
        }),
        any_value().prop_map(|value| format!("{{\"partitions\":{value},\"retention\":{value:?}}}").into_bytes()),
    ]
}

fn any_headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let names = prop_oneof![
        Just("content-type"),
        Just("content-length"),
        Just("idempotency-key"),
        Just("whimbrel-key"),
        Just("whimbrel-id"),
        Just("whimbrel-delay"),
        Just("whimbrel-header-x"),
        Just("ce-id"),
        Just("last-event-id"),
        Just("authorization"),
        Just("x-kmq-topic"),
        Just("x-kmq-partition-key"),
    ];
    let value = prop_oneof![
        any_value().prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..16),
        Just(b"application/x-ndjson".to_vec()),
    ];
    proptest::collection::vec((names, value), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arbitrary_requests_are_answered_and_never_with_a_500(
        route in any::<prop::sample::Index>(),
        method in any::<prop::sample::Index>(),
        part in any_value(),
        query in proptest::collection::vec(
            (prop::sample::select(vec!["key", "id", "delay", "deliver_at", "partition", "offset", "since", "limit", "wait", "topic", "from", "to", "state", "cursor", "holds", "format", "other"]), any_value()),
            0..4,
        ),
        headers in any_headers(),
        body in any_body(),
    ) {
        let routes: Vec<_> = whimbrel_ingress::served_paths().collect();
        let (path, methods) = routes[route.index(routes.len())];
        let part = percent_encoded(&part);
        let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
        let uri = format!("{}?{}", path.replace("{topic}", &part).replace("{id}", &part).replace("{name}", &part).replace("{uid}", &part).replace("{device}", &part).replace("{platform}", &part), query.join("&"));
        let Ok(uri) = uri.parse::<Uri>() else { return Ok(()) };
        // One method that no path supports, among the supported ones.
        let methods: Vec<&str> = methods.iter().copied().chain(["patch"]).collect();
        let method = methods[method.index(methods.len())];
        let mut request = Request::builder().method(Method::from_bytes(method.to_uppercase().as_bytes()).unwrap()).uri(uri);
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                request = request.header(HeaderName::from_static(name), value);
            }
        }
        let request = request.body(Body::from(body)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let status = runtime.block_on(async {
            let api = TestApi::new().await;
            api.post("/v1/topics/orders/messages?key=k", "x").await.ok(201);
            api.put("/v1/subscriptions/orders", serde_json::json!({ "topics": ["orders"], "mode": "pull" })).await.ok(201);
            let response = api.router.clone().oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            // An accepted tail does not end by itself.
            let is_stream = parts.headers.get("content-type").is_some_and(|value| value == "text/event-stream");
            if !is_stream {
                body.collect().await.unwrap();
            }
            parts.status.as_u16()
        });
        prop_assert!(status != 500, "{status}");
        prop_assert!((200..=504).contains(&status), "{status}");
    }
}

/// A batch that announces more bytes than an integer can double is rejected. Only received bytes count.
#[tokio::test(start_paused = true)]
async fn a_batch_that_announces_the_largest_length_is_too_large() {
    let api = TestApi::new().await;
    for path in ["/v1/topics/orders/batch", "/v1/users/batch"] {
        let length = usize::MAX.to_string();
        api.call(Method::POST, path, &[("content-length", &length)], "[]").await.problem(413, "batch_too_large");
    }
}
