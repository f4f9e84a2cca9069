//! The embedded engine, held to the contracts of the ports.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use whimbrel_engines::conformance;
use whimbrel_engines::conformance::catalogue::OpenCatalogue;
use whimbrel_engines::conformance::log::{LogTraits, OpenLog};
use whimbrel_engines::conformance::progress::OpenProgress;
use whimbrel_engines::conformance::receipts::OpenReceipts;
use whimbrel_engines::conformance::timers::OpenTimers;
use whimbrel_engines::embedded::{
    EmbeddedLog, FileCatalogue, LsmProgress, LsmReceipts, LsmTimers, StoreReports, open_folder,
};
use whimbrel_engines::stores::{ReceiptSettings, TimerSettings};
use whimbrel_model::ports::{Claim, ClaimKind, ClaimState, Entry, Log, PortFuture, ProgressKey, ProgressRow, Receipts};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, idempotency_header,
};
use whimbrel_model::{
    Clock, EventSink, Headers, Hold, HoldId, HoldRecord, MessageBody, PartitionId, Record, Retention,
    SubscriptionNumber, SystemClock, Timestamp, TopicNumber, TopicSpec,
};
use whimbrel_storage::LogSettings;

#[path = "embedded/receipts_from_log.rs"]
mod receipts_from_log;

whimbrel_engines::conformance_suite!(log, Embedded);
whimbrel_engines::conformance_suite!(catalogue, Embedded);
whimbrel_engines::conformance_suite!(receipts, Embedded);
whimbrel_engines::conformance_suite!(timers, Embedded);
whimbrel_engines::conformance_suite!(progress, Embedded);

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

fn open_log(path: &Path, store: Arc<TempDir>) -> OpenLog {
    let (log, _) = EmbeddedLog::open(open_folder(path).unwrap(), settings(), Arc::new(SystemClock), silent()).unwrap();
    let log = Arc::new(log);
    OpenLog { log: log.clone(), topics: log, store }
}

fn folder_of(store: Arc<dyn Any + Send + Sync>) -> Arc<TempDir> {
    store.downcast::<TempDir>().unwrap()
}

impl conformance::log::LogFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenLog> {
        Box::pin(async {
            let store = Arc::new(tempfile::tempdir().unwrap());
            open_log(store.clone().path(), store)
        })
    }

    fn open_beside<'a>(&'a self, _: &'a OpenLog) -> PortFuture<'a, Option<OpenLog>> {
        Box::pin(async { None })
    }

    fn reopen(&self, log: OpenLog) -> PortFuture<'_, OpenLog> {
        Box::pin(async {
            let store = folder_of(log.store);
            drop((log.log, log.topics));
            open_log(store.clone().path(), store)
        })
    }

    fn traits(&self) -> LogTraits {
        LogTraits { record_bytes_max: settings().frame_bytes_max / 2 - 256, trim_piece_bytes: 0 }
    }
}

impl conformance::catalogue::CatalogueFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenCatalogue> {
        Box::pin(async {
            let store = Arc::new(tempfile::tempdir().unwrap());
            let catalogue = Arc::new(FileCatalogue::open(open_folder(store.path()).unwrap()).unwrap());
            OpenCatalogue { catalogue, store }
        })
    }

    fn reopen(&self, open: OpenCatalogue) -> PortFuture<'_, OpenCatalogue> {
        Box::pin(async {
            let store = folder_of(open.store);
            drop(open.catalogue);
            let catalogue = Arc::new(FileCatalogue::open(open_folder(store.path()).unwrap()).unwrap());
            OpenCatalogue { catalogue, store }
        })
    }
}

impl conformance::receipts::ReceiptsFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenReceipts> {
        Box::pin(async {
            let store = Arc::new(tempfile::tempdir().unwrap());
            let opened = open_log(store.clone().path(), store.clone());
            let (window, lease) = (Duration::from_secs(60), Duration::from_millis(10));
            let settings = ReceiptSettings { window, lease, ..ReceiptSettings::default() };
            OpenReceipts { receipts: Arc::new(receipts_in(&store, opened.log, settings).await), window, lease, store }
        })
    }
}

async fn receipts_in(store: &TempDir, log: Arc<dyn Log>, settings: ReceiptSettings) -> LsmReceipts {
    let (path, partitions, clock) = (store.path().join("receipts"), Box::new(Vec::new), Arc::new(SystemClock));
    let receipts = LsmReceipts::open(&path, settings, log, partitions, clock, StoreReports::default()).unwrap();
    receipts.recover(&[]).await.unwrap();
    receipts
}

fn open_timers(store: Arc<TempDir>) -> OpenTimers {
    let remember = Duration::from_secs(600);
    let timers =
        LsmTimers::open(&store.path().join("holds"), TimerSettings { remember }, StoreReports::default()).unwrap();
    OpenTimers { timers: Arc::new(timers), remember, store }
}

impl conformance::timers::TimersFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenTimers> {
        Box::pin(async { open_timers(Arc::new(tempfile::tempdir().unwrap())) })
    }

    fn reopen(&self, open: OpenTimers) -> PortFuture<'_, OpenTimers> {
        Box::pin(async {
            drop(open.timers);
            open_timers(folder_of(open.store))
        })
    }
}

fn open_progress(store: Arc<TempDir>) -> OpenProgress {
    let progress = LsmProgress::open(&store.path().join("progress"), StoreReports::default()).unwrap();
    OpenProgress { progress: Arc::new(progress), store }
}

impl conformance::progress::ProgressFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenProgress> {
        Box::pin(async { open_progress(Arc::new(tempfile::tempdir().unwrap())) })
    }

    fn reopen(&self, open: OpenProgress) -> PortFuture<'_, OpenProgress> {
        Box::pin(async {
            drop(open.progress);
            open_progress(folder_of(open.store))
        })
    }
}

/// Receipts with a lease of a minute, on a log without topics.
async fn open_receipts() -> OpenReceipts {
    conformance::receipts::ReceiptsFactory::open(&Embedded).await
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
    let receipts = open_receipts().await.receipts;
    assert_eq!(receipts.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    assert_eq!(receipts.begin(&claim(0), 6, at(50_000)).await, Ok(ClaimState::UnderWay));
}

#[tokio::test]
async fn a_claim_with_an_unknown_outcome_lapses_after_its_lease_with_all_its_places() {
    let store = Arc::new(tempfile::tempdir().unwrap());
    let opened = open_log(store.clone().path(), store.clone());
    let receipts = receipts_in(&store, opened.log, ReceiptSettings::default()).await;
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
    let store = Arc::new(tempfile::tempdir().unwrap());
    let opened = open_log(store.clone().path(), store.clone());
    let partition = PartitionId::new(TopicNumber(1), 0);
    let (name, retention) = ("_push".to_owned(), Retention::default());
    let spec = TopicSpec { number: partition.topic, name, partitions: 1, retention, replicas: None, min_insync: None };
    opened.topics.create(&spec).await.unwrap();
    let mut headers = Headers::builder();
    headers.push(HEADER_ID, b"m-1").push(HEADER_IDEMPOTENCY_KEY, &idempotency_header("", ""));
    headers.push(HEADER_FINGERPRINT, b"0000000000000007").push(HEADER_ALSO_ID, b"origin-1");
    let (now, value) = (SystemClock.now(), Default::default());
    let record = Record { key: None, value, headers: headers.take(), timestamp: now };
    assert!(opened.log.append(vec![Entry { partition, record }]).await[0].is_ok());
    let path = tempfile::tempdir().unwrap();
    let log = opened.log.clone();
    let receipts = LsmReceipts::open(
        path.path(),
        ReceiptSettings::default(),
        log,
        Box::new(Vec::new),
        Arc::new(SystemClock),
        StoreReports::default(),
    )
    .unwrap();
    receipts.recover(&[partition]).await.unwrap();
    for text in ["m-1", "origin-1"] {
        let claim = Claim { kind: ClaimKind::Id, text: text.to_owned(), ..claim(0) };
        let Ok(ClaimState::Earlier(answer)) = receipts.begin(&claim, 1, now).await else {
            panic!("{text} was answered")
        };
        assert_eq!((answer.id.as_str(), answer.offset), ("m-1", 0), "{text}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn a_save_of_progress_is_in_the_files_before_its_answer() {
    let open = open_progress(Arc::new(tempfile::tempdir().unwrap()));
    let subscription = SubscriptionNumber(7);
    let place = ProgressKey { line: 0, partition: PartitionId::new(TopicNumber(1), 0) };
    for number in 0..20u8 {
        let row = ProgressRow { place, run: 1, state: vec![number; 100].into() };
        open.progress.save(subscription, 1, vec![row.clone()]).await.unwrap();
        // The files that another process would find if this one crashed now.
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder_of(open.store.clone()).path(), copy.path());
        let found = open_progress(Arc::new(copy)).progress.open(subscription, 2).await;
        assert_eq!(found, Ok(vec![row]));
    }
}

#[tokio::test]
async fn the_answer_to_a_hold_is_restored_after_it_fired_and_the_store_was_lost() {
    let store = Arc::new(tempfile::tempdir().unwrap());
    let opened = open_log(store.clone().path(), store.clone());
    let (orders, holds) = (PartitionId::new(TopicNumber(1), 0), PartitionId::new(TopicNumber(2), 0));
    for (number, name) in [(orders.topic, "orders"), (holds.topic, "_holds")] {
        let (name, retention) = (name.to_owned(), Retention::default());
        let spec = TopicSpec { number, name, partitions: 1, retention, replicas: None, min_insync: None };
        opened.topics.create(&spec).await.unwrap();
    }
    let mut headers = Headers::builder();
    headers.push(HEADER_ID, b"a").push(HEADER_IDEMPOTENCY_KEY, &idempotency_header("", "order-1"));
    headers.push(HEADER_FINGERPRINT, b"0000000000000007");
    let now = SystemClock.now();
    let hold = Hold {
        id: HoldId::new("a"),
        topic: orders.topic,
        topic_name: "orders".into(),
        due: now,
        published_at: now,
        version: 0,
        fresh: true,
        moves: Vec::new(),
        message: MessageBody { key: None, value: Default::default(), headers: headers.take() },
    };
    let entries = vec![
        Entry { partition: orders, record: hold.fire(now) },
        Entry { partition: holds, record: HoldRecord::Held(hold).to_record(now) },
    ];
    assert!(opened.log.append(entries).await.iter().all(Result::is_ok));
    for order in [[orders, holds], [holds, orders]] {
        let path = tempfile::tempdir().unwrap();
        let log = opened.log.clone();
        let receipts = LsmReceipts::open(
            path.path(),
            ReceiptSettings::default(),
            log,
            Box::new(Vec::new),
            Arc::new(SystemClock),
            StoreReports::default(),
        )
        .unwrap();
        for partition in order {
            receipts.recover(&[partition]).await.unwrap();
        }
        let Ok(ClaimState::Earlier(answer)) = receipts.begin(&claim(0), 1, now).await else {
            panic!("it was answered")
        };
        assert_eq!((answer.partition, answer.due), (holds, Some(now)));
    }
}
