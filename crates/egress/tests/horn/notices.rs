//! Whole notices: their devices, repeats, and the outcomes for the dispatcher.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use whimbrel_egress::horn::{DeviceOutcome, HornCallbacks, HornSettings, NoticeOutcome, NoticeResult};
use whimbrel_model::ports::{
    Call, CallFailure, CallOutcome, CallReport, CallTarget, Callbacks, Device, PortFuture, Provider as By, RetryAdvice,
};
use whimbrel_model::push::{HORN_URL, Notice, NoticeDevice};
use whimbrel_model::subscription::{Endpoint, Envelope};
use whimbrel_model::{Headers, Record, Timestamp};

use crate::bench::{Bench, NOW_MS, device, notice, pager_at, plain_http, platform};
use crate::provider::{Provider, answer, answer_later};

pub fn call_to(url: &str, value: Vec<u8>) -> Call {
    let endpoint =
        Endpoint { url: Some(url.to_owned()), timeout_ms: 30_000, connect_timeout_ms: None, headers: Vec::new() };
    let target = CallTarget {
        subscription: "_notices".to_owned(),
        endpoint,
        envelope: Envelope::Binary,
        secrets: Vec::new(),
        workers: None,
    };
    let record = Record {
        key: Some(Bytes::from_static(b"u1")),
        value: value.into(),
        headers: Headers::EMPTY,
        timestamp: Timestamp::from_millis(NOW_MS),
    };
    Call {
        target: Arc::new(target),
        topic: "_notices".into(),
        partition: 0,
        offset: 0,
        attempt: 1,
        id: "n1".into(),
        published_at: Timestamp::from_millis(NOW_MS),
        record,
        rule: None,
    }
}

pub fn call_of(notice: &Notice) -> Call {
    call_to(HORN_URL, serde_json::to_vec(notice).unwrap())
}

pub fn status_of(called: &CallReport) -> u16 {
    match &called.outcome {
        CallOutcome::Answered { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

pub fn not_taken(called: &CallReport) -> (&str, RetryAdvice) {
    match &called.outcome {
        CallOutcome::NotTaken { reason, again } => (reason, *again),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_devices_of_the_selected_platforms_with_notifications_get_a_notice() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let bench = Bench::new(plain_http());
    for name in ["ios", "web", "quiet"] {
        let on = Device { platform: platform(name), ..device(name, By::Http, &format!("{}/{name}", provider.url)) };
        bench.devices.add("u1", on);
    }
    let names = async |notice: Notice| {
        let outcomes = bench.outcomes(&notice).await;
        assert!(outcomes.iter().all(|(_, outcome)| *outcome == DeviceOutcome::Sent), "{outcomes:?}");
        outcomes.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(notice("m1")).await, ["ios", "web"]);
    let wanted = Some(vec![platform("web"), platform("quiet")]);
    assert_eq!(names(Notice { platforms: wanted, ..notice("m2") }).await, ["web"]);
    assert_eq!(names(Notice { except_platforms: vec![platform("web")], ..notice("m3") }).await, ["ios"]);
    let acknowledged = |on: &str, device: &str| NoticeDevice { platform: platform(on), device: device.to_owned() };
    let except_devices = vec![acknowledged("web", "web"), acknowledged("web", "ios"), acknowledged("ios", "another")];
    assert_eq!(names(Notice { except_devices, ..notice("m4") }).await, ["ios"]);
}

#[tokio::test]
async fn an_expired_notice_is_not_sent() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let bench = pager_at(&provider.url);
    let over = Notice { expires_at_ms: NOW_MS, ..notice("m1") };
    assert_eq!(bench.horn.notify(&over).await.unwrap(), NoticeResult::Expired);
    assert_eq!(status_of(&bench.horn.call(call_of(&over)).await), 204, "the notice is complete");
    assert!(provider.asked().is_empty());
}

#[tokio::test]
async fn a_user_without_devices_is_no_error() {
    let bench = Bench::new(plain_http());
    assert_eq!(bench.horn.notify(&notice("m1")).await.unwrap().sum(), NoticeOutcome::NoDevice);
    assert_eq!(status_of(&bench.horn.call(call_of(&notice("m1"))).await), 204);
}

#[tokio::test]
async fn a_provider_without_settings_is_reported_and_delays_no_other_device() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let bench = pager_at(&provider.url);
    bench.devices.add("u1", device("phone", By::Apns, "ab12"));
    let outcomes = bench.outcomes(&notice("m1")).await;
    assert_eq!(
        outcomes,
        [("pager".to_owned(), DeviceOutcome::Sent), ("phone".to_owned(), DeviceOutcome::NotConfigured)]
    );
    assert_eq!(status_of(&bench.horn.call(call_of(&notice("m1"))).await), 204);
    let kinds: Vec<_> = bench.events.lock().unwrap().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["provider_not_configured"], "it is reported once for a while");
}

#[tokio::test]
async fn without_another_device_a_provider_without_settings_is_a_permanent_error_that_names_them() {
    let bench = Bench::new(plain_http());
    for (by, setting) in [(By::Apns, "horn.apns.key_file"), (By::Fcm, "horn.fcm.service_account")] {
        bench.devices.add("u1", device("phone", by, "ab12"));
        let called = bench.horn.call(call_of(&notice("m1"))).await;
        let (reason, again) = not_taken(&called);
        assert!(reason.contains(setting) && again == RetryAdvice::Never, "{reason}");
    }
}

#[tokio::test]
async fn a_repeat_notifies_only_devices_that_were_not_notified() {
    let is_up = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_up);
    let provider = Provider::start(move |asked| {
        let works = asked.path == "/a" || seen.load(Ordering::SeqCst);
        if works { answer(200, "") } else { answer_later(503, "", 9) }
    })
    .await;
    let bench = Bench::new(plain_http());
    bench.devices.add("u1", device("a", By::Http, &format!("{}/a", provider.url)));
    bench.devices.add("u1", device("b", By::Http, &format!("{}/b", provider.url)));
    let called = bench.horn.call(call_of(&notice("m1"))).await;
    let later = RetryAdvice::Later(Some(Duration::from_secs(9)));
    assert_eq!(not_taken(&called), ("b (http) failed temporarily: the device's URL answered 503", later));
    is_up.store(true, Ordering::SeqCst);
    assert_eq!(status_of(&bench.horn.call(call_of(&notice("m1"))).await), 204);
    let paths: Vec<_> = provider.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(paths.iter().filter(|path| *path == "/a").count(), 1, "{paths:?}");
    assert_eq!(paths.iter().filter(|path| *path == "/b").count(), 2, "{paths:?}");
}

#[tokio::test]
async fn the_same_message_notifies_the_devices_of_another_user() {
    let provider = Provider::start(|_| answer(200, "")).await;
    let bench = Bench::new(plain_http());
    for uid in ["u1", "u2"] {
        bench.devices.add(uid, device("pager", By::Http, &provider.url));
        assert_eq!(bench.only_outcome(&Notice { uid: uid.to_owned(), ..notice("m1") }).await, DeviceOutcome::Sent);
    }
    assert_eq!(provider.asked().len(), 2);
}

#[tokio::test]
async fn an_error_without_a_notified_device_has_its_reason_and_whether_to_retry() {
    let kinds = [
        (400, "pager (http) rejected permanently: the device's URL answered 400", RetryAdvice::Never),
        (
            403,
            "pager (http) settings rejected, will be retried: the device's URL answered 403",
            RetryAdvice::Later(None),
        ),
    ];
    for (status, reason, again) in kinds {
        let provider = Provider::start(move |_| answer(status, "")).await;
        let bench = pager_at(&provider.url);
        assert_eq!(not_taken(&bench.horn.call(call_of(&notice("m1"))).await), (reason, again));
    }
}

#[tokio::test]
async fn an_invalid_notice_is_never_retried_and_a_failed_registry_delays_all_notices() {
    let bench = Bench::new(plain_http());
    for value in [&b""[..], b"{", b"{\"v\":1}"] {
        let called = bench.horn.call(call_to(HORN_URL, value.to_vec())).await;
        let (why, again) = not_taken(&called);
        assert!(again == RetryAdvice::Never && why.contains("cannot be decoded"), "{why}");
    }
    let nobody = Notice { uid: String::new(), ..notice("m1") };
    assert_eq!(not_taken(&bench.horn.call(call_of(&nobody)).await).1, RetryAdvice::Never);
    bench.devices.is_down.store(true, Ordering::SeqCst);
    assert_eq!(not_taken(&bench.horn.call(call_of(&notice("m1"))).await).1, RetryAdvice::LaterForAll);
}

#[tokio::test]
async fn a_provider_that_never_responds_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let settings = HornSettings { timeout: Duration::from_millis(200), ..plain_http() };
    let bench = Bench::with_device(settings, device("pager", By::Http, &url));
    let outcome = bench.only_outcome(&notice("m1")).await;
    assert_eq!(outcome, DeviceOutcome::Later { reason: "no response in time".to_owned(), retry_after: None });
}

/// Counts its calls.
#[derive(Default)]
pub struct Others {
    calls: AtomicUsize,
}

impl Callbacks for Others {
    fn call(&self, _call: Call) -> PortFuture<'_, CallReport> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let outcome = CallOutcome::Answered { status: 299, retry_after: None, answer: Bytes::new() };
        Box::pin(std::future::ready(CallReport { outcome, took: Duration::ZERO }))
    }
}

#[tokio::test]
async fn notices_go_to_the_horn_and_all_other_calls_to_the_workers() {
    let bench = Bench::new(plain_http());
    let others = Arc::new(Others::default());
    let callbacks = HornCallbacks { horn: Some(bench.horn), remote: None, others: Arc::clone(&others) as _ };
    assert_eq!(status_of(&callbacks.call(call_of(&notice("m1"))).await), 204);
    assert_eq!(others.calls.load(Ordering::SeqCst), 0);
    assert_eq!(status_of(&callbacks.call(call_to("http://127.0.0.1:1/", Vec::new())).await), 299);
    assert_eq!(others.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn without_a_horn_a_notice_waits_and_the_call_does_not_count_as_an_attempt() {
    let callbacks = HornCallbacks { horn: None, remote: None, others: Arc::new(Others::default()) };
    let outcome = callbacks.call(call_of(&notice("m1"))).await.outcome;
    assert!(matches!(outcome, CallOutcome::Failed { why: CallFailure::NoWorker, .. }), "{outcome:?}");
}

#[tokio::test]
async fn garbage_and_endless_bodies_are_classified_by_their_status() {
    for (status, word) in [(200, "sent"), (500, "later"), (410, "gone")] {
        let provider = Provider::start(move |_| answer(status, &"\u{fffd}{".repeat(300_000))).await;
        let bench = pager_at(&provider.url);
        assert_eq!(bench.only_outcome(&notice("m1")).await.word(), word);
    }
}
