//! Receipts that follow the log into an empty store: older ids, and partitions that cannot be read.

use std::sync::atomic::{AtomicBool, Ordering};

use whimbrel_model::ports::{
    AppendOutcome, Bounds, CommitOutcome, Fence, LogError, ReadBatch, ReadLimits, ReceiptsError,
};

use super::*;

const ORDERS: PartitionId = PartitionId::new(TopicNumber(1), 0);
const BILLS: PartitionId = PartitionId::new(TopicNumber(2), 0);
const DAY_MS: i64 = 86_400_000;
const PATIENCE: Duration = Duration::from_secs(20);

const TOPICS: [(TopicNumber, &str); 2] = [(ORDERS.topic, "orders"), (BILLS.topic, "bills")];

/// A message with a publisher's id that was accepted `age_ms` ago.
fn entry(partition: PartitionId, id: &str, age_ms: i64) -> Entry {
    let mut headers = Headers::builder();
    headers.push(HEADER_ID, id.as_bytes()).push(HEADER_IDEMPOTENCY_KEY, &idempotency_header("", ""));
    headers.push(HEADER_FINGERPRINT, b"0000000000000007");
    let timestamp = Timestamp::from_millis(SystemClock.now().as_millis() - age_ms);
    let record = Record { key: None, value: Default::default(), headers: headers.take(), timestamp };
    Entry { partition, record }
}

async fn append(log: &dyn Log, entries: Vec<Entry>) {
    assert!(log.append(entries).await.iter().all(Result::is_ok));
}

fn open(folder: &TempDir, log: Arc<dyn Log>, reports: StoreReports) -> LsmReceipts {
    let settings = ReceiptSettings { note_interval: Duration::from_millis(20), ..ReceiptSettings::default() };
    let partitions = Box::new(|| vec![ORDERS, BILLS]);
    LsmReceipts::open(&folder.path().join("receipts"), settings, log, partitions, Arc::new(SystemClock), reports)
        .unwrap()
}

fn id_claim(partition: PartitionId, id: &str) -> Claim {
    Claim { kind: ClaimKind::Id, text: id.to_owned(), topic: partition.topic, partition, ..claim(0) }
}

#[tokio::test]
async fn an_empty_store_finds_ids_again_that_are_older_than_the_window_of_repeats() {
    let (_folder, ports) = log_with_topics(&TOPICS).await;
    append(&*ports.log, vec![entry(ORDERS, "too-old", 8 * DAY_MS)]).await;
    append(&*ports.log, (0..3_000).map(|number| entry(ORDERS, &format!("old-{number}"), 3 * DAY_MS)).collect()).await;
    append(&*ports.log, vec![entry(ORDERS, "new", 0)]).await;
    let folder = tempfile::tempdir().unwrap();
    let receipts = open(&folder, ports.log.clone(), StoreReports::default());
    receipts.recover(&[ORDERS, BILLS]).await.unwrap();
    assert_eq!(receipts.find("new").await.unwrap().len(), 1, "the window of repeats is read before the first claim");
    let began = std::time::Instant::now();
    for id in ["old-0", "old-2999"] {
        while receipts.find(id).await.unwrap().is_empty() {
            assert!(began.elapsed() < PATIENCE, "`{id}` is not found");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(receipts.find("too-old").await.unwrap(), []);
    let now = SystemClock.now();
    assert_eq!(
        receipts.begin(&id_claim(ORDERS, "old-0"), 5, now).await,
        Ok(ClaimState::New),
        "repeats have their own window"
    );
}

/// A log with one partition that cannot be read.
struct PartlyAway {
    log: Arc<dyn Log>,
    away: PartitionId,
    is_away: AtomicBool,
}

impl PartlyAway {
    fn check(&self, partition: PartitionId) -> Result<(), LogError> {
        let is_away = partition == self.away && self.is_away.load(Ordering::Acquire);
        if is_away { Err(LogError::Unavailable("the partition has no leader".to_owned())) } else { Ok(()) }
    }
}

impl Log for PartlyAway {
    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        self.log.append(entries)
    }

    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        self.log.fence(name, epoch)
    }

    fn commit<'a>(&'a self, fence: &'a Fence, entries: Vec<Entry>) -> PortFuture<'a, CommitOutcome> {
        self.log.commit(fence, entries)
    }

    fn read(
        &self,
        partition: PartitionId,
        from: u64,
        limits: ReadLimits,
    ) -> PortFuture<'_, Result<ReadBatch, LogError>> {
        Box::pin(async move {
            self.check(partition)?;
            self.log.read(partition, from, limits).await
        })
    }

    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        self.log.bounds(partition)
    }

    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        self.log.offset_at(partition, time)
    }

    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>> {
        self.log.trim(partition, before)
    }
}

#[tokio::test]
async fn a_partition_that_cannot_be_read_refuses_only_claims_of_its_topic() {
    let (_folder, ports) = log_with_topics(&TOPICS).await;
    append(&*ports.log, vec![entry(ORDERS, "order", 0), entry(BILLS, "bill", 0)]).await;
    let log = Arc::new(PartlyAway { log: ports.log.clone(), away: BILLS, is_away: AtomicBool::new(true) });
    let (folder, reports) = (tempfile::tempdir().unwrap(), StoreReports::default());
    let receipts = open(&folder, log.clone(), reports.clone());
    receipts.recover(&[ORDERS, BILLS]).await.unwrap();
    let now = SystemClock.now();
    assert!(matches!(receipts.begin(&id_claim(ORDERS, "order"), 1, now).await, Ok(ClaimState::Earlier(_))));
    assert_eq!(receipts.begin(&id_claim(ORDERS, "another"), 1, now).await, Ok(ClaimState::New));
    let refused = receipts.begin(&id_claim(BILLS, "bill"), 1, now).await;
    assert!(matches!(refused, Err(ReceiptsError::Unavailable(_))), "{refused:?}");
    assert!(reports.health.problems().is_empty(), "other topics are served");
    assert_eq!(reports.health.warnings().len(), 1);
    log.is_away.store(false, Ordering::Release);
    let began = std::time::Instant::now();
    loop {
        match receipts.begin(&id_claim(BILLS, "bill"), 1, now).await {
            Ok(ClaimState::Earlier(_)) => break,
            Err(ReceiptsError::Unavailable(_)) => assert!(began.elapsed() < PATIENCE, "the partition is not followed"),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(reports.health.warnings().is_empty());
}

#[tokio::test]
async fn an_unreadable_log_does_not_count_as_followed() {
    let (_folder, ports) = log_with_topics(&TOPICS).await;
    append(&*ports.log, vec![entry(BILLS, "bill", 0)]).await;
    let log = Arc::new(PartlyAway { log: ports.log.clone(), away: BILLS, is_away: AtomicBool::new(true) });
    let folder = tempfile::tempdir().unwrap();
    let receipts = open(&folder, log, StoreReports::default());
    assert!(matches!(receipts.recover(&[BILLS]).await, Err(ReceiptsError::Log(_))), "the start tries again");
}
