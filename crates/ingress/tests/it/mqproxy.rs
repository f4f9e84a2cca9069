//! The compatible API of MqProxy.

use http::Method;
use serde_json::json;
use whimbrel_model::partitioner::partition_of;

use crate::support::TestApi;

#[tokio::test]
async fn a_message_is_produced_with_the_mqproxy_api() {
    let api = TestApi::new().await;
    let headers = [("X-Kmq-Topic", "orders"), ("X-Kmq-Partition-Key", "k"), ("X-Kmq-Logid", "log-7")];
    let answer = api.call(Method::POST, "/produce?format=json", &headers, "hello").await.ok(200);
    let partition = partition_of(b"k", 4);
    let expected = json!({
        "errno": 0, "errmsg": "", "data": { "Topic": "orders", "Partition": partition, "Offset": 0 },
    });
    assert_eq!(answer, expected);
    let read = api.get(&format!("/v1/topics/orders/messages?partition={partition}")).await.ok(200);
    assert_eq!(read["messages"][0]["payload"], "hello");
    assert_eq!(read["messages"][0]["headers"], json!({ "x-kmq-logid": "log-7" }));
}

#[tokio::test]
async fn a_failure_is_a_200_with_errno_minus_one() {
    let api = TestApi::new().await;
    for (uri, headers) in [
        ("/produce?format=json", vec![]),
        ("/produce?format=json", vec![("x-kmq-topic", "a b")]),
        ("/produce?format=json", vec![("x-kmq-topic", "_events")]),
        ("/produce?format=xml", vec![("x-kmq-topic", "orders")]),
    ] {
        let answer = api.call(Method::POST, uri, &headers, "x").await.ok(200);
        assert_eq!(answer["errno"], -1, "{uri} {headers:?}");
        assert!(!answer["errmsg"].as_str().unwrap().is_empty());
    }
}
