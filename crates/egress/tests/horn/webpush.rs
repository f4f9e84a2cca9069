//! Web Push: a push service that checks the sender's token, and a browser that decrypts the payload.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use whimbrel_egress::horn::{DeviceOutcome, HornSettings, WebPushSettings};
use whimbrel_model::ports::{Device, Provider as By};
use whimbrel_model::push::{Notice, Notify};

use crate::bench::{Bench, NOW_MS, device, notice, reason_of, settings, silent_notice};
use crate::proofs::{es256, unbase64};
use crate::provider::{Answer, Provider, answer, answer_later};

/// A browser with a subscription.
struct Browser {
    key: PrivateKey,
    auth: [u8; 16],
}

impl Browser {
    fn new() -> Self {
        let mut auth = [0; 16];
        aws_lc_rs::rand::fill(&mut auth).unwrap();
        Self { key: PrivateKey::generate(&ECDH_P256).unwrap(), auth }
    }

    fn point(&self) -> Vec<u8> {
        self.key.compute_public_key().unwrap().as_ref().to_vec()
    }

    fn device(&self, name: &str, endpoint: &str) -> Device {
        let p256dh = Some(URL_SAFE_NO_PAD.encode(self.point()));
        Device { p256dh, auth: Some(URL_SAFE_NO_PAD.encode(self.auth)), ..device(name, By::Webpush, endpoint) }
    }

    /// Decrypts a body by RFC 8188 and RFC 8291, with HKDF by its definition, not by the code under test.
    fn read(&self, body: &[u8]) -> Vec<u8> {
        let (salt, rest) = body.split_at(16);
        assert_eq!(rest[..4], 4096u32.to_be_bytes());
        let (sender, sealed) = rest[5..].split_at(usize::from(rest[4]));
        let shared = agree(&self.key, UnparsedPublicKey::new(&ECDH_P256, sender), (), |shared| Ok(shared.to_vec()));
        let info = [b"WebPush: info\0", &self.point()[..], sender].concat();
        let secret = hkdf(&self.auth, &shared.unwrap(), &info, 32);
        let key = hkdf(salt, &secret, b"Content-Encoding: aes128gcm\0", 16);
        let nonce = hkdf(salt, &secret, b"Content-Encoding: nonce\0", 12);
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
        let nonce = Nonce::try_assume_unique_for_key(&nonce).unwrap();
        let mut sealed = sealed.to_vec();
        let padded = key.open_in_place(nonce, Aad::empty(), &mut sealed).expect("it is not for this browser");
        let (last, content) = padded.split_last().unwrap();
        assert_eq!(*last, 2, "it is the last record");
        content.to_vec()
    }
}

fn hkdf(salt: &[u8], secret: &[u8], info: &[u8], length: usize) -> Vec<u8> {
    let mac = |key: &[u8], parts: &[&[u8]]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    };
    let mut out = mac(&mac(salt, &[secret]), &[info, &[1]]);
    out.truncate(length);
    out
}

/// A VAPID key in the format of tools, and its public point.
fn vapid_key() -> (String, Vec<u8>) {
    let key = PrivateKey::generate(&ECDH_P256).unwrap();
    let number = AsBigEndian::<EcPrivateKeyBin<'_>>::as_be_bytes(&key).unwrap();
    (URL_SAFE_NO_PAD.encode(number.as_ref()), key.compute_public_key().unwrap().as_ref().to_vec())
}

fn settings_with(private_key: String) -> HornSettings {
    let webpush = WebPushSettings { private_key, subject: "mailto:ops@example.com".to_owned() };
    HornSettings { webpush: Some(webpush), ..settings() }
}

fn bench(browser: &Browser, provider: &Provider) -> Bench {
    let laptop = browser.device("laptop", &format!("{}/push/abc", provider.url));
    Bench::with_device(settings_with(vapid_key().0), laptop)
}

async fn outcome_after(answer: impl Fn() -> Answer + Send + Sync + 'static) -> (DeviceOutcome, Bench, Provider) {
    let provider = Provider::start(move |_| answer()).await;
    let bench = bench(&Browser::new(), &provider);
    (bench.only_outcome(&notice("m1")).await, bench, provider)
}

/// The token and the key of a `vapid` authorization.
fn vapid_parts(authorization: &str) -> (&str, Vec<u8>) {
    let (token, key) = authorization.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
    (token, unbase64(key))
}

#[tokio::test]
async fn a_notice_is_encrypted_for_the_browser_and_identifies_the_sender() {
    let (browser, (private_key, public)) = (Browser::new(), vapid_key());
    let provider = Provider::start_with_tls(|_| answer(201, "")).await;
    let mut settings = settings_with(private_key);
    settings.extra_roots_pem = provider.certificate.clone().into_bytes();
    let bench = Bench::new(settings);
    bench.devices.add("u1", browser.device("laptop", &format!("{}/push/abc?d=1", provider.url)));
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);

    let asked = provider.only();
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/push/abc?d=1"));
    let (token, key) = vapid_parts(asked.header("authorization"));
    assert_eq!(key, public);
    let claims = json!({ "aud": provider.url, "exp": NOW_MS / 1000 + 12 * 3600, "sub": "mailto:ops@example.com" });
    assert_eq!(es256(token, &key).1, claims);
    assert_eq!(asked.header("content-encoding"), "aes128gcm");
    assert_eq!(asked.header("content-type"), "application/octet-stream");
    assert_eq!((asked.header("ttl"), asked.header("urgency")), ("3600", "high"));
    let topic = asked.header("topic");
    assert!((1..=32).contains(&topic.len()) && topic.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
    let content: Value = serde_json::from_slice(&browser.read(&asked.body)).unwrap();
    let wanted = json!({ "id": "m1", "title": "Dinner", "body": "It is ready", "data": { "room": 7 } });
    assert_eq!(content, wanted);
}

#[tokio::test]
async fn each_notice_is_encrypted_with_its_own_key() {
    let provider = Provider::start(|_| answer(201, "")).await;
    let bench = bench(&Browser::new(), &provider);
    for id in ["m1", "m2"] {
        assert_eq!(bench.only_outcome(&notice(id)).await, DeviceOutcome::Sent);
    }
    let asked = provider.asked();
    assert_ne!(asked[0].body[..16], asked[1].body[..16], "the salt");
    assert_ne!(asked[0].body[21..86], asked[1].body[21..86], "the sender's key");
    assert_eq!(asked[0].header("authorization"), asked[1].header("authorization"), "the sender stays the same");
}

#[tokio::test]
async fn a_token_is_replaced_long_before_it_expires() {
    let provider = Provider::start(|_| answer(201, "")).await;
    let bench = bench(&Browser::new(), &provider);
    for (id, hours) in [("m1", 0), ("m2", 7)] {
        bench.pass(Duration::from_secs(hours * 3600));
        let late = Notice { expires_at_ms: NOW_MS + 10 * 3_600_000, ..notice(id) };
        assert_eq!(bench.only_outcome(&late).await, DeviceOutcome::Sent);
    }
    let asked = provider.asked();
    let (token, key) = vapid_parts(asked[1].header("authorization"));
    assert_eq!(es256(token, &key).1["exp"], NOW_MS / 1000 + 19 * 3600);
}

#[tokio::test]
async fn notices_of_one_collapse_key_have_the_same_topic() {
    let provider = Provider::start(|_| answer(201, "")).await;
    let bench = bench(&Browser::new(), &provider);
    for (id, key) in [("m1", "chat 7"), ("m2", "chat 7"), ("m3", "chat 8")] {
        let notice = Notice { collapse_key: Some(key.to_owned()), ..silent_notice(id) };
        assert_eq!(bench.only_outcome(&notice).await, DeviceOutcome::Sent);
    }
    let asked = provider.asked();
    assert_eq!(asked[0].header("topic"), asked[1].header("topic"));
    assert_ne!(asked[0].header("topic"), asked[2].header("topic"));
    assert_eq!(asked[0].header("urgency"), "normal", "the notice has no alert");
}

#[tokio::test]
async fn a_key_in_pem_and_keys_in_the_other_base64_are_accepted() {
    let (browser, provider) = (Browser::new(), Provider::start(|_| answer(201, "")).await);
    let pem = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().serialize_pem();
    let bench = Bench::new(settings_with(pem));
    let padded = Device {
        p256dh: Some(STANDARD.encode(browser.point())),
        auth: Some(STANDARD.encode(browser.auth)),
        ..browser.device("laptop", &provider.url)
    };
    bench.devices.add("u1", padded);
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);
    browser.read(&provider.only().body);
}

#[tokio::test]
async fn responses_are_classified_by_status_and_no_body_is_shown() {
    for (status, word) in [
        (404, "gone"),
        (410, "gone"),
        (400, "refused"),
        (413, "refused"),
        (401, "misconfigured"),
        (403, "misconfigured"),
        (302, "misconfigured"),
        (500, "later"),
        (502, "later"),
        (503, "later"),
    ] {
        let (got, bench, _provider) = outcome_after(move || answer(status, "BadJwtToken")).await;
        assert_eq!(got.word(), word, "{got:?}");
        assert_eq!(reason_of(&got), format!("the push service answered {status}"));
        assert!(!matches!(got, DeviceOutcome::Later { retry_after: Some(_), .. }), "{got:?}");
        assert_eq!(bench.devices.has("u1", "laptop"), word != "gone", "{status}: the registry");
    }
}

#[tokio::test]
async fn a_throttled_device_is_paused_and_no_other_of_its_push_service() {
    let count = AtomicUsize::new(0);
    let throttling = Provider::start(move |asked| match &*asked.path {
        "/push/abc" if count.fetch_add(1, Ordering::SeqCst) == 0 => answer_later(429, "", 3_600),
        _ => answer(201, ""),
    })
    .await;
    let browser = Browser::new();
    let bench = bench(&browser, &throttling);
    assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Later { .. }));
    bench.devices.add("u1", browser.device("tablet", &format!("{}/push/other", throttling.url)));
    let outcomes = bench.outcomes(&notice("m2")).await;
    assert!(matches!(outcomes[0].1, DeviceOutcome::Later { retry_after: Some(_), .. }), "{outcomes:?}");
    assert_eq!(outcomes[1].1, DeviceOutcome::Sent);
    assert_eq!(throttling.asked().len(), 2, "the throttled device is not called");
    bench.pass(Duration::from_secs(3_600));
    let late = Notice { expires_at_ms: NOW_MS + 2 * 3_600_000, ..notice("m1") };
    assert_eq!(bench.outcomes(&late).await[0].1, DeviceOutcome::Sent);
}

#[tokio::test]
async fn many_throttled_devices_pause_their_push_service_for_at_most_a_minute() {
    let throttling = Provider::start(|_| answer_later(429, "", 3_600)).await;
    let other = Provider::start(|_| answer(201, "")).await;
    let (browser, bench) = (Browser::new(), Bench::new(settings_with(vapid_key().0)));
    for number in 0..6 {
        let uid = format!("u{number}");
        bench.devices.add(&uid, browser.device("laptop", &format!("{}/{number}", throttling.url)));
        assert!(matches!(bench.only_outcome(&Notice { uid, ..notice("m1") }).await, DeviceOutcome::Later { .. }));
    }
    assert_eq!(throttling.asked().len(), 5, "five devices pause the service");
    bench.devices.add("u7", browser.device("laptop", &other.url));
    assert_eq!(bench.only_outcome(&Notice { uid: "u7".to_owned(), ..notice("m1") }).await, DeviceOutcome::Sent);
    bench.pass(Duration::from_secs(61));
    bench.only_outcome(&Notice { uid: "u5".to_owned(), ..notice("m1") }).await;
    assert_eq!(throttling.asked().len(), 6);
}

#[tokio::test]
async fn a_push_service_with_a_retry_after_is_paused_for_at_most_a_minute() {
    let count = AtomicUsize::new(0);
    let troubled = Provider::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => answer_later(503, "", 3_600),
        _ => answer(201, ""),
    })
    .await;
    let bench = bench(&Browser::new(), &troubled);
    for _ in 0..2 {
        assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Later { .. }));
    }
    assert_eq!(troubled.asked().len(), 1);
    bench.pass(Duration::from_secs(61));
    assert_eq!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Sent);
}

#[tokio::test]
async fn a_notice_larger_than_push_services_accept_is_rejected_before_it_is_sent() {
    let provider = Provider::start(|_| answer(201, "")).await;
    let bench = bench(&Browser::new(), &provider);
    let long = |bytes: usize| Notice {
        notify: Notify { title: Some("x".repeat(bytes)), body: None, data: None },
        ..notice("m1")
    };
    assert!(matches!(bench.only_outcome(&long(4_000)).await, DeviceOutcome::Refused { .. }));
    assert!(provider.asked().is_empty());
    // The payload adds `{"id":"m1","title":""}`.
    assert_eq!(bench.only_outcome(&long(3_993 - 22)).await, DeviceOutcome::Sent);
    assert_eq!(provider.only().body.len(), 4_096);
}

#[tokio::test]
async fn a_subscription_without_valid_keys_is_a_permanent_error() {
    let provider = Provider::start(|_| answer(201, "")).await;
    let (browser, bench) = (Browser::new(), Bench::new(settings_with(vapid_key().0)));
    let whole = browser.device("laptop", &provider.url);
    let broken = [
        Device { p256dh: None, ..whole.clone() },
        Device { auth: Some("?".to_owned()), ..whole.clone() },
        Device { p256dh: Some(URL_SAFE_NO_PAD.encode([4; 65])), ..whole },
    ];
    for device in broken {
        bench.devices.add("u1", device);
        assert!(matches!(bench.only_outcome(&notice("m1")).await, DeviceOutcome::Refused { .. }));
    }
    assert!(provider.asked().is_empty());
}

#[tokio::test]
async fn an_endpoint_on_the_servers_own_network_is_called_only_if_allowed() {
    let provider = Provider::start(|_| answer(201, "")).await;
    let guard = HornSettings::default().guard;
    let bench = Bench::new(HornSettings { guard, ..settings_with(vapid_key().0) });
    bench.devices.add("u1", Browser::new().device("laptop", &provider.url));
    let got = bench.only_outcome(&notice("m1")).await;
    assert!(matches!(&got, DeviceOutcome::Refused { .. }) && reason_of(&got).contains("127.0.0.1"), "{got:?}");
    assert!(reason_of(&got).contains("horn.allow"), "{got:?}");
    assert!(provider.asked().is_empty());
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let inner = Provider::start(|_| answer(201, "")).await;
    let target = inner.url.clone();
    let outer = Provider::start(move |_| (307, vec![("location", target.clone())], String::new())).await;
    let bench = bench(&Browser::new(), &outer);
    assert_eq!(bench.only_outcome(&notice("m1")).await.word(), "misconfigured");
    assert!(inner.asked().is_empty());
}
