//! The `Receipts` port on an LSM beside the log.
//!
//! Answers are in keyspaces by slices of time. A slice that is too old is dropped whole: no tombstones, no scans. Claims in progress are
//! only in memory. A crash loses them, and may lose the last answers. But every record has its claim in its headers, so
//! [`Receipts::recover`] finds them again in the log, from the offset up to which the store is known to be complete. That offset is stored
//! every few seconds: the end of the partition, or the offset where the oldest claim in progress began, whichever is lower. The LSM keeps
//! the order of its writes through a crash, so a stored offset never outlives the answers below it.
//!
//! The store is a view of the log ([`StoreGuard`]). After a failure it is opened again, or starts empty, and follows the log before the
//! next claim begins ([`log_follower`]). If a partition cannot be read, only claims of its topic are rejected. An empty store first reads
//! the records within the window of repeats, then publishers' ids of older records in the background. One thread does all I/O ([`claims`]):
//! a slow disk delays only publishes with an `Idempotency-Key` or an id.

mod claim_table;
mod claims;
mod keys;
mod log_follower;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use whimbrel_model::ports::{Claim, ClaimState, Log, PortFuture, PublishReceipt, Receipts, ReceiptsError};
use whimbrel_model::{Clock, PartitionId, StoreHealth, Timestamp};

use super::lsm::report::StoreReports;
use super::lsm::{StoreError, StoreGuard, WorkThread};
use super::thread_priority::lower_priority;
use crate::stores::ReceiptSettings;
use claims::ClaimStore;
use store::ReceiptStore;

/// The maximum number of calls in the queue of the thread; further callers wait until there is space.
const CALLS_WAITING_MAX: usize = 1024;
const STORE: &str = "receipts";
const THREAD: &str = "receipts";

pub type ListPartitions = Box<dyn Fn() -> Vec<PartitionId> + Send + Sync>;

/// Receipts in an LSM of the data folder. Clones share them.
#[derive(Clone)]
pub struct LsmReceipts(Arc<ReceiptsState>);

struct ReceiptsState {
    settings: ReceiptSettings,
    claims: WorkThread<ClaimStore>,
    /// Signalled when the store was opened again.
    reopened: Arc<Notify>,
    health: Arc<StoreHealth>,
    log: Arc<dyn Log>,
    partitions: ListPartitions,
    clock: Arc<dyn Clock>,
    /// Dropped after the thread, which completes the queued work.
    _store: StoreGuard<ReceiptStore>,
}

impl StoreError for ReceiptsError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

impl LsmReceipts {
    pub fn open(
        path: &Path,
        settings: ReceiptSettings,
        log: Arc<dyn Log>,
        partitions: ListPartitions,
        clock: Arc<dyn Clock>,
        reports: StoreReports,
    ) -> Result<Self, ReceiptsError> {
        let (opened, reopened) = (Arc::<AtomicU64>::default(), Arc::<Notify>::default());
        let after_open = {
            let (opened, reopened) = (Arc::clone(&opened), Arc::clone(&reopened));
            move |_: &Arc<ReceiptStore>| {
                lower_priority("fjall:worker");
                opened.fetch_add(1, Ordering::AcqRel);
                reopened.notify_one();
            }
        };
        let health = Arc::clone(&reports.health);
        let (window, id_window) = (settings.window, settings.id_window);
        let open = move |path: &Path| ReceiptStore::open(path, window, id_window);
        let store = StoreGuard::open(STORE, path, reports, open, after_open).map_err(ReceiptsError::Unavailable)?;
        let claims = ClaimStore::new(settings.clone(), store.handle(), opened);
        let claims = WorkThread::start(THREAD, CALLS_WAITING_MAX, claims);
        let claims = claims.map_err(|error| ReceiptsError::Unavailable(error.to_string()))?;
        Ok(Self(Arc::new(ReceiptsState { settings, claims, reopened, health, log, partitions, clock, _store: store })))
    }
}

impl Receipts for LsmReceipts {
    fn begin<'a>(
        &'a self,
        claim: &'a Claim,
        end: u64,
        now: Timestamp,
    ) -> PortFuture<'a, Result<ClaimState, ReceiptsError>> {
        let claim = claim.clone();
        // While the clock is in doubt, expiry lags behind.
        let expiry = self.0.clock.expiry_now();
        let lag_ms = self.0.clock.now().as_millis().saturating_sub(expiry.as_millis()).max(0);
        let expiry = now.saturating_sub(Duration::from_millis(lag_ms.unsigned_abs()));
        Box::pin(self.0.claims.write(move |claims| claims.begin(&claim, end, now, expiry)))
    }

    fn finish<'a>(&'a self, claim: &'a Claim, answer: PublishReceipt) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| claims.finish(&claim, answer)))
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| {
            claims.abandon(&claim);
            Ok(())
        }))
    }

    fn give_back<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| {
            claims.give_back(&claim);
            Ok(())
        }))
    }

    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| {
            claims.leave(&claim);
            Ok(())
        }))
    }

    fn recover<'a>(&'a self, partitions: &'a [PartitionId]) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            let inner = &self.0;
            match inner.follow_all(partitions).await {
                Ok(()) => {}
                // The store cannot be opened yet. The task below follows the log once it is open.
                Err(error) if !inner.is_store_open().await => {
                    tracing::warn!(%error, "cannot open the store of receipts; it follows the log once it is open");
                }
                Err(error) => return Err(error),
            }
            tokio::spawn(log_follower::keep_noting(Arc::downgrade(inner), inner.settings.note_interval));
            tokio::spawn(log_follower::keep_filling(Arc::downgrade(inner)));
            Ok(())
        })
    }

    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<PublishReceipt>, ReceiptsError>> {
        let id = id.to_owned();
        Box::pin(self.0.claims.read(move |claims| claims.find(&id)))
    }
}
