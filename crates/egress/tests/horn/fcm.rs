//! FCM's HTTP v1 API, and the endpoint of its access tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use whimbrel_egress::horn::{DeviceOutcome, FcmSettings, HornSettings, ServiceAccount};
use whimbrel_model::ports::Provider as By;
use whimbrel_model::push::Notice;

use crate::bench::{Bench, NOW_MS, delay_of, device, notice, reason_of, settings, silent_notice};
use crate::proofs::rs256;
use crate::provider::{Answer, Asked, Provider, answer, answer_later};

const SEND: &str = "/v1/projects/my-project/messages:send";

struct Google {
    key: RsaKeyPair,
    /// The server for messages and claims.
    provider: Provider,
}

impl Google {
    /// Grants `token-1`, `token-2` and so on, each for 1 h, and answers messages with `messages`.
    async fn start(messages: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let granted = AtomicUsize::new(0);
        Self::start_granting(messages, move || {
            let number = granted.fetch_add(1, Ordering::SeqCst) + 1;
            let grant =
                json!({ "access_token": format!("token-{number}"), "expires_in": 3600, "token_type": "Bearer" });
            answer(200, &grant.to_string())
        })
        .await
    }

    async fn start_granting(
        messages: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
        grants: impl Fn() -> Answer + Send + Sync + 'static,
    ) -> Self {
        let manner = move |asked: &Asked| if asked.path == "/token" { grants() } else { messages(asked) };
        Self { key: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(), provider: Provider::start(manner).await }
    }

    fn bench(&self) -> Bench {
        let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&self.key).unwrap();
        let base64 = STANDARD.encode(der.as_ref());
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{base64}\n-----END PRIVATE KEY-----\n");
        // The format of Google's file, with members that are not used.
        let file = json!({
            "type": "service_account",
            "project_id": "my-project",
            "private_key_id": "key-7",
            "private_key": pem,
            "client_email": "horn@my-project.example.com",
            "client_id": "1",
            "token_uri": format!("{}/token", self.provider.url),
        });
        let service_account: ServiceAccount = serde_json::from_value(file).unwrap();
        let fcm = FcmSettings { service_account, base_url: self.provider.url.clone() };
        let phone = device("phone", By::Fcm, "registration:token_1");
        Bench::with_device(HornSettings { fcm: Some(fcm), ..settings() }, phone)
    }

    fn messages(&self) -> Vec<Asked> {
        self.provider.asked().into_iter().filter(|asked| asked.path == SEND).collect()
    }

    fn claims(&self) -> Vec<Asked> {
        self.provider.asked().into_iter().filter(|asked| asked.path == "/token").collect()
    }
}

fn accepted(_: &Asked) -> Answer {
    answer(200, r#"{"name":"projects/my-project/messages/0:1"}"#)
}

/// An error in FCM's format.
fn error(status: u16, general: &str, own: Option<&str>) -> String {
    let details: Vec<Value> = own
        .map(|code| json!({ "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code }))
        .into_iter()
        .collect();
    json!({ "error": { "code": status, "message": "no", "status": general, "details": details } }).to_string()
}

#[tokio::test]
async fn a_notice_is_sent_with_a_token_granted_for_a_signed_claim() {
    let google = Google::start(accepted).await;
    assert_eq!(google.bench().only_outcome(&notice("m1")).await, DeviceOutcome::Sent);

    let claim = google.claims().remove(0);
    assert_eq!((&*claim.method, claim.header("content-type")), ("POST", "application/x-www-form-urlencoded"));
    let form = String::from_utf8(claim.body.to_vec()).unwrap();
    let fields: HashMap<_, _> = form.split('&').map(|field| field.split_once('=').unwrap()).collect();
    assert_eq!(fields["grant_type"], "urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer");
    let (header, claims) = rs256(fields["assertion"], google.key.public_key().as_ref());
    assert_eq!(header["kid"], "key-7");
    let wanted = json!({
        "iss": "horn@my-project.example.com",
        "scope": "https://www.googleapis.com/auth/firebase.messaging",
        "aud": format!("{}/token", google.provider.url),
        "iat": NOW_MS / 1000,
        "exp": NOW_MS / 1000 + 3600,
    });
    assert_eq!(claims, wanted);

    let message = google.messages().remove(0);
    assert_eq!((&*message.method, message.header("authorization")), ("POST", "Bearer token-1"));
    assert_eq!(message.header("content-type"), "application/json");
    let mut body = message.json();
    let tag = body["message"]["android"]["notification"]["tag"].take();
    assert!(tag.as_str().is_some_and(|tag| !tag.is_empty()));
    let wanted = json!({ "message": {
        "token": "registration:token_1",
        "notification": { "title": "Dinner", "body": "It is ready" },
        "data": { "id": "m1", "data": "{\"room\":7}" },
        "android": { "priority": "HIGH", "ttl": "3600s", "notification": { "tag": null } },
    } });
    assert_eq!(body, wanted);
}

#[tokio::test]
async fn a_notice_without_an_alert_has_low_priority_and_its_collapse_key() {
    let google = Google::start(accepted).await;
    let silent = Notice { collapse_key: Some("chat 7".to_owned()), ..silent_notice("m1") };
    assert_eq!(google.bench().only_outcome(&silent).await, DeviceOutcome::Sent);
    let body = google.messages().remove(0).json();
    let android = json!({ "priority": "NORMAL", "ttl": "3600s", "collapse_key": "chat 7" });
    assert_eq!(body["message"]["android"], android);
    assert_eq!(body["message"].get("notification"), None);
}

#[tokio::test]
async fn a_granted_token_is_used_until_shortly_before_it_expires() {
    let google = Google::start(accepted).await;
    let bench = google.bench();
    for (id, minutes) in [("m1", 0), ("m2", 54), ("m3", 2)] {
        bench.pass(Duration::from_secs(minutes * 60));
        assert_eq!(bench.only_outcome(&notice(id)).await, DeviceOutcome::Sent);
    }
    let used: Vec<_> = google.messages().iter().map(|asked| asked.header("authorization").to_owned()).collect();
    assert_eq!(used, ["Bearer token-1", "Bearer token-1", "Bearer token-2"]);
}

#[tokio::test]
async fn concurrent_notices_request_one_token() {
    let google = Google::start(accepted).await;
    let bench = google.bench();
    for number in 0..8 {
        bench.devices.add("u1", device(&format!("d{number}"), By::Fcm, &format!("t{number}")));
    }
    assert!(bench.outcomes(&notice("m1")).await.iter().all(|(_, got)| *got == DeviceOutcome::Sent));
    assert_eq!((google.claims().len(), google.messages().len()), (1, 9));
}

#[tokio::test]
async fn a_rejected_token_is_replaced_and_the_call_retried_once() {
    let google = Google::start(|asked| match asked.header("authorization") {
        "Bearer token-1" => answer(401, &error(401, "UNAUTHENTICATED", None)),
        _ => accepted(asked),
    })
    .await;
    assert_eq!(google.bench().only_outcome(&notice("m1")).await, DeviceOutcome::Sent);
    assert_eq!((google.claims().len(), google.messages().len()), (2, 2));
}

#[tokio::test]
async fn a_device_that_fcm_does_not_know_any_more_is_removed_from_the_registry() {
    let violation = json!({ "error": { "code": 400, "status": "INVALID_ARGUMENT", "details": [
        { "@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{ "field": "message.token" }] },
    ] } });
    let answers = [
        (404, error(404, "NOT_FOUND", Some("UNREGISTERED"))),
        (404, error(404, "NOT_FOUND", None)),
        (400, violation.to_string()),
    ];
    for (status, body) in answers {
        let google = Google::start(move |_| answer(status, &body)).await;
        let bench = google.bench();
        let got = bench.only_outcome(&notice("m1")).await;
        assert!(matches!(got, DeviceOutcome::Gone { .. }), "{got:?}");
        assert!(!bench.devices.has("u1", "phone"));
    }
}

#[tokio::test]
async fn a_404_of_another_server_removes_no_device() {
    let google = Google::start(|_| answer(404, "<html>no such page</html>")).await;
    let bench = google.bench();
    assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Misconfigured { .. }));
    assert!(bench.devices.has("u1", "phone"));
}

#[tokio::test]
async fn an_exceeded_quota_pauses_fcm() {
    for (retry_after, wait) in [(Some(90), 90), (None, 60)] {
        let body = error(429, "RESOURCE_EXHAUSTED", Some("QUOTA_EXCEEDED"));
        let google = Google::start(move |_| match retry_after {
            Some(seconds) => answer_later(429, &body, seconds),
            None => answer(429, &body),
        })
        .await;
        let bench = google.bench();
        for _ in 0..2 {
            assert_eq!(delay_of(&bench.only_outcome(&notice("m1")).await), Some(Duration::from_secs(wait)));
        }
        assert_eq!(google.messages().len(), 1, "it was paused");
        bench.pass(Duration::from_secs(wait + 1));
        bench.only_outcome(&notice("m1")).await;
        assert_eq!(google.messages().len(), 2);
    }
}

#[tokio::test]
async fn an_error_of_google_is_temporary() {
    for (status, general, own) in [(503, "UNAVAILABLE", "UNAVAILABLE"), (500, "INTERNAL", "INTERNAL")] {
        let google = Google::start(move |_| answer_later(status, &error(status, general, Some(own)), 12)).await;
        let got = google.bench().only_outcome(&notice("m1")).await;
        assert_eq!(delay_of(&got), Some(Duration::from_secs(12)));
        assert!(reason_of(&got).contains(own));
    }
}

#[tokio::test]
async fn an_error_has_fcms_code_and_is_either_permanent_or_a_rejected_setting() {
    let kinds = [
        (403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH", "refused"),
        (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "refused"),
        (401, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR", "misconfigured"),
        (403, "PERMISSION_DENIED", "PERMISSION_DENIED", "misconfigured"),
        (400, "FAILED_PRECONDITION", "FAILED_PRECONDITION", "misconfigured"),
    ];
    for (status, general, own, word) in kinds {
        let google = Google::start(move |_| answer(status, &error(status, general, Some(own)))).await;
        let bench = google.bench();
        let got = bench.only_outcome(&notice("m1")).await;
        assert!(got.word() == word && reason_of(&got).contains(own), "{got:?}");
        assert!(bench.devices.has("u1", "phone"));
        assert_eq!(google.messages().len(), 1);
    }
}

#[tokio::test]
async fn an_unknown_account_is_a_rejected_setting_and_an_unavailable_google_is_temporary() {
    let refusing = || answer(400, r#"{"error":"invalid_grant"}"#);
    let got = Google::start_granting(accepted, refusing).await.bench().only_outcome(&notice("m1")).await;
    assert!(
        matches!(&got, DeviceOutcome::Misconfigured { .. }) && reason_of(&got).contains("invalid_grant"),
        "{got:?}"
    );
    for broken in [answer(503, ""), answer(200, "no token")] {
        let broken = Arc::new(broken);
        let google = Google::start_granting(accepted, move || Answer::clone(&broken)).await;
        assert!(matches!(google.bench().only_outcome(&notice("m1")).await, DeviceOutcome::Later { .. }));
        assert!(google.messages().is_empty());
    }
}
