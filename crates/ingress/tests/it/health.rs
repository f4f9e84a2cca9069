//! Health, readiness, the API document, the pages.

use http::Method;
use serde_json::json;
use whimbrel_ingress::{PageInfo, ReceiveSettings};
use whimbrel_model::ports::LogError;

use crate::support::TestApi;

#[tokio::test]
async fn a_live_process_answers_ok() {
    let api = TestApi::new().await;
    let answer = api.get("/healthz").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"ok"[..]));
}

#[tokio::test]
async fn readiness_follows_the_log() {
    let api = TestApi::new().await;
    assert_eq!(api.get("/readyz").await.ok(200), json!({ "ready": true }));
    api.world.log.refuse(Some(LogError::Unavailable("no broker".into())));
    let problem = api.get("/readyz").await.problem(503, "not_ready");
    assert!(problem["reasons"][0].as_str().unwrap().contains("no broker"));
    api.world.log.refuse(None);
    api.get("/readyz").await.ok(200);
    api.world.log.accept_nothing(LogError::DiskFull("no room".into()));
    api.get("/readyz").await.ok(200);
    api.world.log.accept_nothing(LogError::Poisoned("sync failed".into()));
    api.get("/readyz").await.problem(503, "not_ready");
}

#[tokio::test]
async fn readiness_ends_at_shutdown() {
    let api = TestApi::new().await;
    api.settings.shutdown.cancel();
    api.get("/readyz").await.problem(503, "not_ready");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let api = TestApi::new().await;
    api.get("/v2/nothing").await.problem(404, "unknown_path");
    let refused = api.call(Method::DELETE, "/v1/topics/orders/batch", &[], "").await;
    assert_eq!(refused.headers["allow"], "POST");
    refused.problem(405, "method_not_allowed");
}

#[tokio::test]
async fn every_documented_path_is_served() {
    let api = TestApi::new().await;
    let document = api.get("/openapi.json").await.ok(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let uri =
                path.replace("{topic}", "orders").replace("{id}", "x").replace("{name}", "x").replace("{uid}", "x");
            // A tail does not end by itself. The server adds `/metrics` and the gateway's `/v1/connect` beside this router.
            let is_beside = uri == "/metrics" || uri.starts_with("/v1/connect");
            if uri.ends_with("/tail") || uri.ends_with("/events") || is_beside {
                continue;
            }
            let answer = api.call(method.clone(), &uri, &[], "").await;
            let code = serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap_or_default()["code"].clone();
            assert!(code != "unknown_path" && code != "method_not_allowed", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_page_shows_the_process_and_the_topics() {
    let page = PageInfo {
        version: "1.2.3".into(),
        data_folder: "some<where>".into(),
        engines: vec!["log: embedded".into()],
        address: "http://127.0.0.1:7600".into(),
    };
    let api = TestApi::with(ReceiveSettings { page, ..ReceiveSettings::default() }).await;
    api.post("/v1/topics/greetings/messages", "x").await.ok(201);
    let answer = api.get("/").await;
    assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
    let html = String::from_utf8(answer.body.to_vec()).unwrap();
    for part in ["1.2.3", "some&lt;where&gt;", "log: embedded", "greetings", "curl", "ready"] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("<script"));
}

#[tokio::test]
async fn the_people_page_is_served_and_may_connect_to_its_own_server_only() {
    let answer = TestApi::new().await.get("/people").await;
    assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    let html = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(html.contains("/v1/connect") && html.contains("whimbrel.v1.json"), "{html}");
}
