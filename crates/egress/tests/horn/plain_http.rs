//! Plain HTTP: JSON to the device's URL, signed if there is a secret.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::json;
use sha2::Sha256;
use whimbrel_egress::horn::{DeviceOutcome, HornSettings, HttpSettings};
use whimbrel_model::ports::Provider as By;
use whimbrel_model::subscription::SigningSecret;

use crate::bench::{Bench, NOW_MS, delay_of, device, notice, pager_at, plain_http, reason_of, settings};
use crate::provider::{Provider, answer, answer_later};

const KEY: [u8; 32] = [7; 32];

#[tokio::test]
async fn a_notice_is_json_with_a_standard_webhooks_signature() {
    let provider = Provider::start(|_| answer(204, "")).await;
    let secret = SigningSecret { secret: format!("whsec_{}", STANDARD.encode(KEY)), until_ms: None };
    let settings = HornSettings { http: Some(HttpSettings { secrets: vec![secret] }), ..settings() };
    let pager = device("pager", By::Http, &format!("{}/notify?x=1#part", provider.url));
    let bench = Bench::with_device(settings, pager);
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);

    let asked = provider.only();
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/notify?x=1"));
    assert_eq!(asked.header("content-type"), "application/json");
    let wanted = json!({
        "id": "m1", "uid": "u1", "device": "pager", "platform": "mobile",
        "title": "Dinner", "body": "It is ready", "data": { "room": 7 }, "expires_at_ms": NOW_MS + 3_600_000,
    });
    assert_eq!(asked.json(), wanted);
    let (id, timestamp) = (asked.header("webhook-id"), asked.header("webhook-timestamp"));
    assert_eq!(timestamp, (NOW_MS / 1000).to_string());
    let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(&asked.body);
    assert_eq!(asked.header("webhook-signature"), format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())));
}

#[tokio::test]
async fn without_a_secret_a_notice_has_an_id_and_no_signature() {
    let provider = Provider::start(|_| answer(200, "")).await;
    assert_eq!(pager_at(&provider.url).only_outcome(&notice("m1")).await, DeviceOutcome::Sent);
    let asked = provider.only();
    assert!(!asked.headers.contains_key("webhook-signature") && asked.headers.contains_key("webhook-id"));
}

#[tokio::test]
async fn responses_are_classified_by_status() {
    for (status, word) in [
        (410, "gone"),
        (503, "later"),
        (429, "later"),
        (408, "later"),
        (400, "refused"),
        (413, "refused"),
        (422, "refused"),
        (401, "misconfigured"),
        (404, "misconfigured"),
        (302, "misconfigured"),
    ] {
        let provider = Provider::start(move |_| answer(status, "")).await;
        let bench = pager_at(&provider.url);
        assert_eq!(bench.only_outcome(&notice("m1")).await.word(), word, "{status}");
        assert_eq!(bench.devices.has("u1", "pager"), status != 410);
        assert_eq!(provider.asked().len(), 1, "nothing is followed or tried again");
    }
}

#[tokio::test]
async fn one_url_with_a_retry_after_delays_no_other_device() {
    let provider =
        Provider::start(|asked| if asked.path == "/a" { answer_later(429, "", 40) } else { answer(200, "") }).await;
    let bench = pager_at(&format!("{}/a", provider.url));
    assert_eq!(delay_of(&bench.only_outcome(&notice("m1")).await), Some(Duration::from_secs(40)));
    bench.devices.add("u1", device("other", By::Http, &format!("{}/b", provider.url)));
    let outcomes = bench.outcomes(&notice("m2")).await;
    assert_eq!((&*outcomes[0].0, &outcomes[0].1), ("other", &DeviceOutcome::Sent));
}

#[tokio::test]
async fn forbidden_addresses_are_not_called() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let guard = HornSettings::default().guard;
    let port = provider.url.rsplit(':').next().unwrap().to_owned();
    // The last ones are names until they are resolved.
    let own = ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "127.1", "2130706433"];
    let own = own.map(|host| format!("http://{host}:{port}/"));
    for url in own.into_iter().chain(["http://169.254.169.254/latest".to_owned(), "http://10.0.0.1/".to_owned()]) {
        let settings = HornSettings { guard: guard.clone(), ..plain_http() };
        let bench = Bench::with_device(settings, device("pager", By::Http, &url));
        let got = bench.only_outcome(&notice("m1")).await;
        let is_refused = matches!(&got, DeviceOutcome::Refused { .. }) && reason_of(&got).contains("horn.allow");
        assert!(is_refused, "{url}: {got:?}");
    }
    assert!(provider.asked().is_empty());
}

#[tokio::test]
async fn an_invalid_url_is_a_permanent_error() {
    for url in ["", "pager", "ftp://a/", "http://user:secret@127.0.0.1/"] {
        let got = pager_at(url).only_outcome(&notice("m1")).await;
        assert!(matches!(got, DeviceOutcome::Refused { .. }), "{url}: {got:?}");
    }
}
