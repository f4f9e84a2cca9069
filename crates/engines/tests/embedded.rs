//! The embedded engine, held to the contracts of the ports.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use services::copy_folder;
use tempfile::TempDir;
use whimbrel_engines::conformance::log::{LogFactory, LogPorts, LogTraits, new_spec};
use whimbrel_engines::conformance::receipts::ReceiptsFactory;
use whimbrel_engines::conformance::timers::{TimersFactory, hold};
use whimbrel_engines::conformance::{Engine, Opens, Place};
use whimbrel_engines::embedded::{
    EmbeddedLog, FileCatalogue, LsmDevices, LsmInbox, LsmProgress, LsmReceipts, LsmTimers, StoreReports, open_folder,
};
use whimbrel_engines::stores::{ReceiptSettings, TimerSettings};
use whimbrel_model::ports::{
    Catalogue, Claim, ClaimKind, ClaimState, Devices, Entry, Inbox, Log, PortFuture, Progress, ProgressKey,
    ProgressRow, Receipts, Timers,
};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, idempotency_header,
};
use whimbrel_model::{
    Clock, EventSink, Headers, Hold, HoldRecord, MessageBody, PartitionId, Record, SubscriptionNumber, SystemClock,
    Timestamp, TopicNumber, TopicSpec,
};
use whimbrel_storage::LogSettings;

#[path = "embedded/inbox_model.rs"]
mod inbox_model;
#[path = "embedded/receipts_from_log.rs"]
mod receipts_from_log;
mod services;

whimbrel_engines::conformance_suite!([log, catalogue, receipts, timers, progress, inbox, devices], Embedded);

struct Embedded;

const SEGMENT_BYTES: u64 = 16 << 10;

fn settings() -> LogSettings {
    LogSettings {
        frame_bytes_max: 1 << 20,
        frame_bytes_target: 256 << 10,
        journal_file_bytes: 2 << 20,
        journal_bytes_max: 32 << 20,
        checkpoint_bytes: 8 << 20,
        segment_bytes: SEGMENT_BYTES,
        disk_reserve_bytes: 0,
        ..LogSettings::default()
    }
}

fn silent() -> EventSink {
    Arc::new(|_| {})
}

fn open_log(path: &Path) -> LogPorts {
    let (log, _) = EmbeddedLog::open(open_folder(path).unwrap(), settings(), Arc::new(SystemClock), silent()).unwrap();
    let log = Arc::new(log);
    LogPorts { log: log.clone(), topics: log }
}

fn path_of(place: &Place) -> &Path {
    place.downcast_ref::<TempDir>().unwrap().path()
}

impl Engine for Embedded {
    fn new_place(&self) -> Place {
        Arc::new(tempfile::tempdir().unwrap())
    }
}

impl Opens<LogPorts> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<LogPorts>> {
        Box::pin(async move { Arc::new(open_log(path_of(&place))) })
    }
}

impl LogFactory for Embedded {
    fn traits(&self) -> LogTraits {
        LogTraits { record_bytes_max: settings().frame_bytes_max / 2 - 256, is_shared: false }
    }
}

impl Opens<dyn Catalogue> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Catalogue>> {
        let catalogue = FileCatalogue::open(open_folder(path_of(&place)).unwrap());
        Box::pin(async { Arc::new(catalogue.unwrap()) as Arc<dyn Catalogue> })
    }
}

impl Opens<dyn Receipts> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Receipts>> {
        Box::pin(async move {
            let settings = ReceiptSettings { window: self.window(), lease: self.lease(), ..ReceiptSettings::default() };
            let path = path_of(&place);
            Arc::new(receipts_in(path, open_log(path).log, settings).await) as Arc<dyn Receipts>
        })
    }
}

impl ReceiptsFactory for Embedded {
    fn window(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(10)
    }
}

impl Opens<dyn Timers> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Timers>> {
        let settings = TimerSettings { remember: self.remember() };
        let timers = LsmTimers::open(&path_of(&place).join("holds"), settings, StoreReports::default());
        Box::pin(async { Arc::new(timers.unwrap()) as Arc<dyn Timers> })
    }
}

impl TimersFactory for Embedded {
    fn remember(&self) -> Duration {
        Duration::from_secs(600)
    }
}

impl Opens<dyn Progress> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Progress>> {
        let progress = open_progress(path_of(&place));
        Box::pin(async { Arc::new(progress) as Arc<dyn Progress> })
    }
}

fn open_progress(path: &Path) -> LsmProgress {
    LsmProgress::open(&path.join("progress"), StoreReports::default()).unwrap()
}

impl Opens<dyn Inbox> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Inbox>> {
        let inbox = LsmInbox::open(&path_of(&place).join("inboxes"), StoreReports::default());
        Box::pin(async { Arc::new(inbox.unwrap()) as Arc<dyn Inbox> })
    }
}

impl Opens<dyn Devices> for Embedded {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Devices>> {
        let devices = LsmDevices::open(&path_of(&place).join("devices"), StoreReports::default());
        Box::pin(async { Arc::new(devices.unwrap()) as Arc<dyn Devices> })
    }
}

async fn receipts_in(path: &Path, log: Arc<dyn Log>, settings: ReceiptSettings) -> LsmReceipts {
    let receipts = open_receipts(path, log, settings);
    receipts.recover(&[]).await.unwrap();
    receipts
}

/// Receipts that have not read the log yet.
fn open_receipts(path: &Path, log: Arc<dyn Log>, settings: ReceiptSettings) -> LsmReceipts {
    let (path, clock) = (path.join("receipts"), Arc::new(SystemClock));
    LsmReceipts::open(&path, settings, log, Box::new(Vec::new), clock, StoreReports::default()).unwrap()
}

/// A log in a new folder, with topics of one partition.
async fn log_with_topics(topics: &[(TopicNumber, &str)]) -> (TempDir, LogPorts) {
    let folder = tempfile::tempdir().unwrap();
    let ports = open_log(folder.path());
    for (number, name) in topics {
        let spec = TopicSpec { number: *number, name: (*name).to_owned(), ..new_spec(1) };
        ports.topics.create(&spec).await.unwrap();
    }
    (folder, ports)
}

fn claim(partition: u32) -> Claim {
    let partition = PartitionId::new(TopicNumber(1), partition);
    Claim {
        owner: String::new(),
        kind: ClaimKind::Key,
        text: "order-1".to_owned(),
        topic: partition.topic,
        partition,
        fingerprint: 7,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1000)
}

#[tokio::test]
async fn a_claim_whose_append_takes_long_does_not_lapse() {
    let receipts = Opens::<dyn Receipts>::open(&Embedded).await;
    assert_eq!(receipts.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    assert_eq!(receipts.begin(&claim(0), 6, at(50_000)).await, Ok(ClaimState::UnderWay));
}

#[tokio::test]
async fn a_claim_with_an_unknown_outcome_lapses_after_its_lease_with_all_its_places() {
    let (folder, ports) = log_with_topics(&[]).await;
    let receipts = receipts_in(folder.path(), ports.log, ReceiptSettings::default()).await;
    assert_eq!(receipts.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    receipts.leave(&claim(0)).await.unwrap();
    assert_eq!(receipts.begin(&claim(1), 8, at(30)).await, Ok(ClaimState::UnderWay), "what was sent may still land");
    let first = (claim(0).partition, 5);
    assert_eq!(receipts.begin(&claim(1), 8, at(61)).await, Ok(ClaimState::Lapsed { places: vec![first] }));
    receipts.leave(&claim(1)).await.unwrap();
    let second = (claim(1).partition, 8);
    assert_eq!(receipts.begin(&claim(2), 9, at(130)).await, Ok(ClaimState::Lapsed { places: vec![first, second] }));
    receipts.leave(&claim(2)).await.unwrap();
    assert!(matches!(receipts.begin(&claim(2), 9, at(12 * 3600 - 100)).await, Ok(ClaimState::Lapsed { .. })));
    receipts.leave(&claim(2)).await.unwrap();
    assert_eq!(
        receipts.begin(&claim(2), 9, at(12 * 3600 + 61)).await,
        Ok(ClaimState::New),
        "the window is that of the first try"
    );
}

#[tokio::test]
async fn a_record_with_a_key_and_an_id_restores_the_answers_to_both() {
    let partition = PartitionId::new(TopicNumber(1), 0);
    let (folder, ports) = log_with_topics(&[(partition.topic, "_push")]).await;
    let mut headers = Headers::builder();
    headers.push(HEADER_ID, b"m-1").push(HEADER_IDEMPOTENCY_KEY, &idempotency_header("", ""));
    headers.push(HEADER_FINGERPRINT, b"0000000000000007").push(HEADER_ALSO_ID, b"origin-1");
    let (now, value) = (SystemClock.now(), Default::default());
    let record = Record { key: None, value, headers: headers.take(), timestamp: now };
    assert!(ports.log.append(vec![Entry { partition, record }]).await[0].is_ok());
    let receipts = open_receipts(folder.path(), ports.log, ReceiptSettings::default());
    receipts.recover(&[partition]).await.unwrap();
    for text in ["m-1", "origin-1"] {
        let claim = Claim { kind: ClaimKind::Id, text: text.to_owned(), ..claim(0) };
        let Ok(ClaimState::Earlier(answer)) = receipts.begin(&claim, 1, now).await else {
            panic!("{text} was answered")
        };
        assert_eq!((answer.id.as_str(), answer.offset), ("m-1", 0), "{text}");
    }
}

#[tokio::test]
async fn a_save_of_progress_is_in_the_files_before_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    let progress = open_progress(folder.path());
    let subscription = SubscriptionNumber(7);
    let place = ProgressKey { line: 0, partition: PartitionId::new(TopicNumber(1), 0) };
    for number in 0..20u8 {
        let row = ProgressRow { place, run: 1, state: vec![number; 100].into() };
        progress.save(subscription, 1, vec![row.clone()]).await.unwrap();
        // The files that another process would find if this one crashed now.
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), copy.path());
        let found = open_progress(copy.path()).open(subscription, 2).await;
        assert_eq!(found, Ok(vec![row]));
    }
}

#[tokio::test]
async fn the_answer_to_a_hold_is_restored_after_it_fired_and_the_store_was_lost() {
    let (orders, holds) = (PartitionId::new(TopicNumber(1), 0), PartitionId::new(TopicNumber(2), 0));
    let (_folder, ports) = log_with_topics(&[(orders.topic, "orders"), (holds.topic, "_holds")]).await;
    let mut headers = Headers::builder();
    headers.push(HEADER_ID, b"a").push(HEADER_IDEMPOTENCY_KEY, &idempotency_header("", "order-1"));
    headers.push(HEADER_FINGERPRINT, b"0000000000000007");
    let now = SystemClock.now();
    let message = MessageBody { key: None, value: Default::default(), headers: headers.take() };
    let hold = Hold { topic: orders.topic, version: 0, due: now, published_at: now, message, ..hold("a", 0) };
    let entries = vec![
        Entry { partition: orders, record: hold.fire(now) },
        Entry { partition: holds, record: HoldRecord::Held(hold).to_record(now) },
    ];
    assert!(ports.log.append(entries).await.iter().all(Result::is_ok));
    for order in [[orders, holds], [holds, orders]] {
        let lost = tempfile::tempdir().unwrap();
        let receipts = open_receipts(lost.path(), ports.log.clone(), ReceiptSettings::default());
        for partition in order {
            receipts.recover(&[partition]).await.unwrap();
        }
        let Ok(ClaimState::Earlier(answer)) = receipts.begin(&claim(0), 1, now).await else {
            panic!("it was answered")
        };
        assert_eq!((answer.partition, answer.due), (holds, Some(now)));
    }
}
