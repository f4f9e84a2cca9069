//! APNs: HTTP/2, tokens of the team's key, Apple's headers, and the outcomes of its reasons.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Version;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use serde_json::json;
use whimbrel_egress::horn::{ApnsSettings, DeviceOutcome, Horn, HornError, HornParts, HornSettings};
use whimbrel_model::ports::{Device, Provider as By};
use whimbrel_model::push::Notice;

use crate::bench::{Bench, NOW_MS, delay_of, device, notice, reason_of, settings, silent_notice};
use crate::proofs::es256;
use crate::provider::{Answer, Provider, answer, answer_later};

const TOKEN: &str = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0";

struct Team {
    key: KeyPair,
}

impl Team {
    fn new() -> Self {
        Self { key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap() }
    }

    fn settings(&self, provider: &Provider) -> HornSettings {
        let apns = ApnsSettings {
            key_pem: self.key.serialize_pem(),
            key_id: "ABC123DEFG".to_owned(),
            team_id: "DEF123GHIJ".to_owned(),
            topic: "com.example.app".to_owned(),
            base_url: provider.url.clone(),
        };
        HornSettings { apns: Some(apns), extra_roots_pem: provider.certificate.clone().into_bytes(), ..settings() }
    }
}

/// A horn and a user with one device.
fn bench(provider: &Provider) -> Bench {
    Bench::with_device(Team::new().settings(provider), device("phone", By::Apns, TOKEN))
}

async fn outcome_after(answer: impl Fn() -> Answer + Send + Sync + 'static) -> (DeviceOutcome, Bench, Provider) {
    let provider = Provider::start(move |_| answer()).await;
    let bench = bench(&provider);
    (bench.only_outcome(&notice("m1")).await, bench, provider)
}

fn said(reason: &str) -> String {
    json!({ "reason": reason }).to_string()
}

#[tokio::test]
async fn a_notice_is_sent_over_http2_and_tls_with_all_required_headers() {
    let team = Team::new();
    let provider = Provider::start_with_tls(|_| answer(200, "")).await;
    let bench = Bench::with_device(team.settings(&provider), device("phone", By::Apns, TOKEN));
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);

    let asked = provider.only();
    assert_eq!(asked.version, Version::HTTP_2);
    assert_eq!((&*asked.method, &*asked.path), ("POST", &*format!("/3/device/{TOKEN}")));
    let token = asked.header("authorization").strip_prefix("bearer ").unwrap();
    let (header, claims) = es256(token, team.key.der_bytes());
    assert_eq!(header["kid"], "ABC123DEFG");
    assert_eq!(claims, json!({ "iss": "DEF123GHIJ", "iat": NOW_MS / 1000 }));
    assert_eq!(asked.header("apns-topic"), "com.example.app");
    assert_eq!(asked.header("apns-push-type"), "alert");
    assert_eq!(asked.header("apns-priority"), "10");
    assert_eq!(asked.header("apns-expiration"), (NOW_MS / 1000 + 3_600).to_string());
    let id: Vec<usize> = asked.header("apns-id").split('-').map(str::len).collect();
    assert_eq!(id, [8, 4, 4, 4, 12], "it is a UUID");
    assert!((1..=64).contains(&asked.header("apns-collapse-id").len()));
    let alert = json!({ "title": "Dinner", "body": "It is ready" });
    let payload = json!({ "aps": { "alert": alert, "sound": "default" }, "id": "m1", "data": { "room": 7 } });
    assert_eq!(asked.json(), payload);
}

#[tokio::test]
async fn a_notice_without_an_alert_has_low_priority() {
    let provider = Provider::start(|_| answer(200, "")).await;
    assert_eq!(bench(&provider).only_outcome(&silent_notice("m1")).await, DeviceOutcome::Sent);
    let asked = provider.only();
    assert_eq!((asked.header("apns-push-type"), asked.header("apns-priority")), ("background", "5"));
    assert_eq!(asked.json()["aps"], json!({ "content-available": 1 }));
}

#[tokio::test]
async fn a_repeat_after_a_restart_has_the_same_ids_and_another_notice_has_others() {
    let provider = Provider::start(|_| answer(200, "")).await;
    for id in ["m1", "m1", "m2"] {
        assert_eq!(bench(&provider).only_outcome(&notice(id)).await, DeviceOutcome::Sent);
    }
    let names: Vec<_> = provider
        .asked()
        .iter()
        .map(|asked| (asked.header("apns-id").to_owned(), asked.header("apns-collapse-id").to_owned()))
        .collect();
    assert_eq!(names[0], names[1]);
    assert!(names[0].0 != names[2].0 && names[0].1 != names[2].1);
}

#[tokio::test]
async fn a_collapse_key_and_a_devices_own_topic_are_sent() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let own = Device { topic: Some("com.example.other".to_owned()), ..device("phone", By::Apns, TOKEN) };
    let bench = Bench::with_device(Team::new().settings(&provider), own);
    let notice = Notice { collapse_key: Some("chat-7".to_owned()), ..notice("m1") };
    assert_eq!(bench.only_outcome(&notice).await, DeviceOutcome::Sent);
    let asked = provider.only();
    assert_eq!((asked.header("apns-collapse-id"), asked.header("apns-topic")), ("chat-7", "com.example.other"));
}

#[tokio::test]
async fn without_a_topic_apns_is_not_called_and_the_reason_names_the_setting() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let mut settings = Team::new().settings(&provider);
    settings.apns.as_mut().unwrap().topic = String::new();
    let bench = Bench::with_device(settings, device("phone", By::Apns, TOKEN));
    let got = bench.only_outcome(&notice("m1")).await;
    assert!(matches!(&got, DeviceOutcome::Misconfigured { reason } if reason.contains("horn.apns.topic")), "{got:?}");
    assert!(provider.asked().is_empty());
}

#[tokio::test]
async fn a_token_is_reused_for_a_while_and_then_replaced() {
    let team = Team::new();
    let provider = Provider::start(|_| answer(200, "")).await;
    let bench = Bench::with_device(team.settings(&provider), device("phone", By::Apns, TOKEN));
    for (id, minutes) in [("m1", 0), ("m2", 40), ("m3", 15)] {
        bench.pass(Duration::from_secs(minutes * 60));
        assert_eq!(bench.only_outcome(&notice(id)).await, DeviceOutcome::Sent);
    }
    let asked = provider.asked();
    let issued = |index: usize| {
        let token = asked[index].header("authorization").strip_prefix("bearer ").unwrap();
        es256(token, team.key.der_bytes()).1["iat"].as_i64().unwrap()
    };
    assert_eq!((issued(0), issued(1), issued(2)), (NOW_MS / 1000, NOW_MS / 1000, NOW_MS / 1000 + 55 * 60));
}

#[tokio::test]
async fn a_device_with_a_new_token_stays_when_the_old_one_is_gone() {
    use std::sync::{Arc, OnceLock};
    let devices: Arc<OnceLock<Arc<whimbrel_engines::memory::MemoryDevices>>> = Arc::default();
    let seen = Arc::clone(&devices);
    let provider = Provider::start(move |_| {
        // The app registers its new token while the notice is in progress.
        seen.get().unwrap().add("u1", device("phone", By::Apns, "ab12"));
        answer(410, &said("Unregistered"))
    })
    .await;
    let bench = bench(&provider);
    devices.set(Arc::clone(&bench.devices)).ok().unwrap();
    assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Gone { .. }));
    assert!(bench.devices.has("u1", "phone"));
}

#[tokio::test]
async fn an_invalid_device_token_is_not_sent() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let bench = Bench::with_device(Team::new().settings(&provider), device("phone", By::Apns, "../../admin"));
    assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Gone { .. }));
    assert!(provider.asked().is_empty() && !bench.devices.has("u1", "phone"));
}

#[tokio::test]
async fn an_expired_provider_token_is_replaced_and_the_call_retried_once() {
    let count = AtomicUsize::new(0);
    let provider = Provider::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        1 => answer(403, &said("ExpiredProviderToken")),
        _ => answer(200, ""),
    })
    .await;
    let bench = bench(&provider);
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);
    bench.pass(Duration::from_secs(120));
    assert_eq!(bench.only_outcome(&notice("m2")).await, DeviceOutcome::Sent);
    let tokens: Vec<_> = provider.asked().iter().map(|asked| asked.header("authorization").to_owned()).collect();
    assert_eq!(tokens.len(), 3);
    assert!(tokens[0] == tokens[1] && tokens[1] != tokens[2]);
}

#[tokio::test]
async fn a_call_with_a_repeatedly_expired_token_is_made_twice_and_fails_temporarily() {
    let (got, bench, provider) = outcome_after(|| answer(403, &said("ExpiredProviderToken"))).await;
    assert!(matches!(got, DeviceOutcome::Later { .. }), "{got:?}");
    assert_eq!(provider.asked().len(), 2);
    assert!(bench.devices.has("u1", "phone"));
}

#[tokio::test]
async fn too_many_requests_for_one_device_delay_only_that_device() {
    let provider = Provider::start(|asked| {
        if asked.path.contains(TOKEN) { answer_later(429, &said("TooManyRequests"), 30) } else { answer(200, "") }
    })
    .await;
    let bench = bench(&provider);
    assert_eq!(delay_of(&bench.only_outcome(&notice("m1")).await), Some(Duration::from_secs(30)));
    bench.devices.add("u2", device("tablet", By::Apns, "ab12"));
    let other = Notice { uid: "u2".to_owned(), ..notice("m2") };
    assert_eq!(bench.only_outcome(&other).await, DeviceOutcome::Sent);
}

#[tokio::test]
async fn a_service_that_asks_for_a_pause_is_not_called_until_it_ends() {
    let count = AtomicUsize::new(0);
    let provider = Provider::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => answer_later(503, &said("ServiceUnavailable"), 20),
        _ => answer(200, ""),
    })
    .await;
    let bench = bench(&provider);
    assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Later { .. }));
    bench.pass(Duration::from_secs(5));
    assert_eq!(delay_of(&bench.only_outcome(&notice("m2")).await), Some(Duration::from_secs(15)));
    assert_eq!(provider.asked().len(), 1, "it was not called again");
    bench.pass(Duration::from_secs(16));
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);
}

#[tokio::test]
async fn responses_are_classified_by_apples_reasons() {
    for (status, reason, word) in [
        (410, "Unregistered", "gone"),
        (410, "ExpiredToken", "gone"),
        (400, "BadDeviceToken", "gone"),
        (500, "InternalServerError", "later"),
        (503, "Shutdown", "later"),
        (429, "TooManyProviderTokenUpdates", "later"),
        (400, "DeviceTokenNotForTopic", "refused"),
        (400, "BadExpirationDate", "refused"),
        (400, "BadCollapseId", "refused"),
        (400, "PayloadEmpty", "refused"),
        (400, "SomethingNew", "refused"),
        (413, "PayloadTooLarge", "refused"),
        (400, "BadTopic", "misconfigured"),
        (400, "TopicDisallowed", "misconfigured"),
        (403, "InvalidProviderToken", "misconfigured"),
        (403, "BadCertificate", "misconfigured"),
        (404, "BadPath", "misconfigured"),
        (405, "MethodNotAllowed", "misconfigured"),
    ] {
        let (got, bench, _provider) = outcome_after(move || answer(status, &said(reason))).await;
        assert!(got.word() == word && reason_of(&got).contains(reason), "{status} {reason}: {got:?}");
        assert!(!matches!(got, DeviceOutcome::Later { retry_after: Some(_), .. }), "{status} {reason}: {got:?}");
        assert_eq!(bench.devices.has("u1", "phone"), word != "gone", "{status} {reason}: the registry");
    }
}

#[tokio::test]
async fn a_response_of_another_server_removes_no_device_and_is_retried() {
    for (status, body) in [(410, ""), (410, "<html>gone</html>"), (400, "{"), (302, ""), (404, "nginx")] {
        let (got, bench, _provider) = outcome_after(move || answer(status, body)).await;
        assert!(matches!(got, DeviceOutcome::Misconfigured { .. } | DeviceOutcome::Later { .. }), "{status}: {got:?}");
        assert!(bench.devices.has("u1", "phone"), "{status}");
    }
}

#[tokio::test]
async fn an_unreachable_provider_is_a_temporary_failure() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let mut settings = Team::new().settings(&provider);
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    settings.apns.as_mut().unwrap().base_url = format!("http://{closed}");
    let bench = Bench::with_device(settings, device("phone", By::Apns, TOKEN));
    assert_eq!(delay_of(&bench.only_outcome(&notice("m1")).await), None);
}

#[tokio::test]
async fn a_self_signed_certificate_is_not_trusted() {
    let provider = Provider::start_with_tls(|_| answer(200, "")).await;
    let settings = HornSettings { extra_roots_pem: Vec::new(), ..Team::new().settings(&provider) };
    let bench = Bench::with_device(settings, device("phone", By::Apns, TOKEN));
    let got = bench.only_outcome(&notice("m1")).await;
    assert!(matches!(&got, DeviceOutcome::Later { reason, .. } if reason.contains("TLS")), "{got:?}");
    assert!(provider.asked().is_empty());
}

#[tokio::test]
async fn an_invalid_key_is_rejected_at_the_start() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let mut settings = Team::new().settings(&provider);
    settings.apns.as_mut().unwrap().key_pem = "no key".to_owned();
    let clock = std::sync::Arc::new(whimbrel_model::SystemClock);
    let devices = std::sync::Arc::new(whimbrel_engines::memory::MemoryDevices::default());
    let (is_notifiable, events) = (std::sync::Arc::new(|_: &_| true), std::sync::Arc::new(|_| {}));
    let parts = HornParts { devices, is_notifiable, clock, events };
    let error = Horn::new(settings, parts).err().unwrap();
    assert!(matches!(error, HornError::Key { provider: "apns", .. }), "{error}");
}
