//! API keys: scopes and topics.

use axum::body::Body;
use http::Method;
use whimbrel_ingress::Scope;

use crate::support::{Answer, TestApi, key};

async fn api() -> TestApi {
    TestApi::with_keys([
        key("shop", &[Scope::Publish], &["orders.*"]),
        key("reader", &[Scope::Consume], &[]),
        key("ops", &[Scope::Admin, Scope::Publish, Scope::Consume], &[]),
    ])
    .await
}

async fn ask(api: &TestApi, key: &str, method: Method, uri: &str) -> Answer {
    let bearer = format!("Bearer {key}-secret");
    let body = if method == Method::POST { Body::from("[]") } else { Body::empty() };
    api.call(method, uri, &[("authorization", &bearer), ("x-kmq-topic", "orders.eu")], body).await
}

#[tokio::test]
async fn without_a_key_every_protected_endpoint_is_closed() {
    let api = api().await;
    for (path, methods) in whimbrel_ingress::served_paths() {
        for method in methods {
            let method: Method = method.to_uppercase().parse().unwrap();
            let uri =
                path.replace("{topic}", "orders").replace("{id}", "x").replace("{name}", "x").replace("{uid}", "x");
            let answer = api.call(method, &uri, &[], "").await;
            match path {
                "/healthz" | "/readyz" | "/openapi.json" | "/" | "/people" => assert_eq!(answer.status, 200, "{path}"),
                "/produce" => assert_eq!(answer.ok(200)["errno"], -1),
                "/dq/acceptMsg" => assert_eq!(answer.ok(200)["code"], "-1"),
                path if path.starts_with("/sorakaq/") => assert_eq!(answer.ok(200)["ec"], 406),
                _ => drop(answer.problem(401, "key_missing")),
            }
        }
    }
    let answer = api.call(Method::GET, "/v1/topics", &[("authorization", "Bearer shop")], "").await;
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    answer.problem(401, "key_unknown");
}

#[tokio::test]
async fn a_key_is_limited_to_its_scopes() {
    let api = api().await;
    ask(&api, "shop", Method::POST, "/v1/topics/orders.eu/messages").await.ok(201);
    ask(&api, "shop", Method::POST, "/v1/topics/payments/messages").await.problem(403, "forbidden");
    ask(&api, "shop", Method::POST, "/v1/topics/payments/batch").await.problem(403, "forbidden");
    ask(&api, "shop", Method::GET, "/v1/topics/orders.eu/messages").await.problem(403, "forbidden");
    ask(&api, "shop", Method::PUT, "/v1/topics/orders.eu").await.problem(403, "forbidden");
    ask(&api, "reader", Method::GET, "/v1/topics/orders.eu/messages").await.ok(200);
    ask(&api, "reader", Method::GET, "/v1/messages?topic=orders.eu").await.ok(200);
    ask(&api, "reader", Method::POST, "/v1/topics/orders.eu/messages").await.problem(403, "forbidden");
    ask(&api, "reader", Method::DELETE, "/v1/topics/orders.eu").await.problem(403, "forbidden");
    assert_eq!(ask(&api, "shop", Method::POST, "/produce").await.ok(200)["errno"], 0);
    assert_eq!(ask(&api, "reader", Method::POST, "/produce").await.ok(200)["errno"], -1);
    assert_eq!(ask(&api, "ops", Method::DELETE, "/v1/topics/orders.eu").await.status, 204);
}

#[tokio::test]
async fn a_key_sees_its_topics_only() {
    let api = api().await;
    for topic in ["orders.eu", "payments"] {
        ask(&api, "ops", Method::PUT, &format!("/v1/topics/{topic}")).await.ok(201);
    }
    let seen = ask(&api, "shop", Method::GET, "/v1/topics").await.ok(200);
    let names: Vec<&str> = seen["topics"].as_array().unwrap().iter().map(|t| t["topic"].as_str().unwrap()).collect();
    assert_eq!(names, ["orders.eu"]);
    ask(&api, "shop", Method::GET, "/v1/topics/payments").await.problem(403, "forbidden");
    let page = ask(&api, "shop", Method::GET, "/").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    assert!(page.contains("orders.eu") && !page.contains("payments"), "{page}");
    let page = api.get("/").await;
    assert!(!String::from_utf8_lossy(&page.body).contains("orders.eu"));
}
