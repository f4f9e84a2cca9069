//! The `Progress` port on an LSM of the data folder.
//!
//! A call is one batch of the LSM, which its journal takes whole or not at all. The batch is in the page cache before the caller gets the
//! answer: it survives a crash of the process at once. One second after the first unsynced save, all saves are synced together, so that
//! many subscriptions cost one sync per second. No log has the progress, so the LSM has two copies ([`LsmMirror`]).
//!
//! [`keys`] defines the formats. One thread executes all calls in order: no write overtakes a check, and a slow disk blocks no runtime.
//! Memory does not grow with the number of rows.

mod keys;

use std::path::Path;
use std::time::Duration;

use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{PortFuture, Progress, ProgressError, ProgressRow};

use super::lsm::StoreError;
use super::lsm::mirror::{LsmMirror, MirrorBatch, MirrorFault, MirrorSettings, MirrorThread, RowChange, SyncRule};
use super::lsm::report::StoreReports;
use crate::stores::progress_row;

const MIRROR: MirrorSettings = MirrorSettings {
    store: "progress",
    keyspaces: &["epochs", "rows"],
    // Rows are read when a subscription is opened; after that they are only written.
    cache_bytes: 2 << 20,
    // The minimum of the LSM.
    journal_bytes_max: 64 << 20,
};
const EPOCHS: usize = 0;
const ROWS: usize = 1;
/// The maximum time for which a save is unsynced.
const SYNC_WITHIN: Duration = Duration::from_secs(1);
const THREAD: &str = "progress-writer";

/// Progress in an LSM of the data folder.
pub struct LsmProgress(MirrorThread);

impl StoreError for ProgressError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

impl From<MirrorFault> for ProgressError {
    fn from(fault: MirrorFault) -> Self {
        Self::Unavailable(fault.0)
    }
}

impl LsmProgress {
    pub fn open(path: &Path, reports: StoreReports) -> Result<Self, ProgressError> {
        let mirror = LsmMirror::open(path, MIRROR, reports)?;
        let thread = MirrorThread::start(THREAD, mirror, SyncRule::Within(SYNC_WITHIN));
        thread.map(Self).map_err(|error| ProgressError::Unavailable(error.to_string()))
    }
}

impl Progress for LsmProgress {
    fn open(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
    ) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>> {
        Box::pin(self.0.call(move |mirror| open(mirror, subscription, epoch)))
    }

    fn save(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: Vec<ProgressRow>,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(self.0.call(move |mirror| save(mirror, subscription, epoch, &rows)))
    }

    fn end_line(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        line: u32,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(self.0.call(move |mirror| end_line(mirror, subscription, epoch, line)))
    }

    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(self.0.call(move |mirror| forget(mirror, subscription)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.0.call(|mirror| mirror.sync().map_err(ProgressError::from)).await {
                tracing::warn!(%error, "cannot sync the progress of subscriptions; a crash of the machine may lose its last second");
            }
        })
    }
}

fn open(
    mirror: &mut LsmMirror,
    subscription: SubscriptionNumber,
    epoch: u64,
) -> Result<Vec<ProgressRow>, ProgressError> {
    let noted = refuse_older(mirror, subscription, epoch)?;
    let mut rows = Vec::new();
    for (key, value) in mirror.prefix(ROWS, &keys::subscription(subscription), usize::MAX)? {
        match keys::decode_row(&key, &value) {
            Some(row) => rows.push(row),
            None => tracing::warn!(
                subscription = subscription.0,
                "cannot decode a row of progress: its partition starts again at the start of the subscription"
            ),
        }
    }
    if noted != Some(epoch) {
        mirror.commit(&vec![(EPOCHS, insert_epoch(subscription, epoch))])?;
    }
    Ok(rows)
}

fn save(
    mirror: &mut LsmMirror,
    subscription: SubscriptionNumber,
    epoch: u64,
    rows: &[ProgressRow],
) -> Result<(), ProgressError> {
    let noted = noted(mirror, subscription)?;
    if let Some(noted) = noted.filter(|noted| *noted != epoch) {
        return Err(ProgressError::Fenced { subscription: subscription.0, epoch: noted });
    }
    let mut batch = MirrorBatch::with_capacity(rows.len() + 1);
    for row in rows {
        let key = keys::row(subscription, row.place);
        let before = mirror.get(ROWS, &key)?;
        if let Some(run) = before.as_deref().and_then(progress_row::decode_run).filter(|run| *run > row.run) {
            return Err(ProgressError::NewerRun { place: row.place, run });
        }
        batch.push((ROWS, RowChange::Insert(key, progress_row::encode_row(row))));
    }
    if noted.is_none() {
        batch.push((EPOCHS, insert_epoch(subscription, epoch)));
    }
    Ok(mirror.commit(&batch)?)
}

fn end_line(
    mirror: &mut LsmMirror,
    subscription: SubscriptionNumber,
    epoch: u64,
    line: u32,
) -> Result<(), ProgressError> {
    refuse_older(mirror, subscription, epoch)?;
    let batch = removal(mirror, &keys::line(subscription, line))?;
    Ok(mirror.commit(&batch)?)
}

fn forget(mirror: &mut LsmMirror, subscription: SubscriptionNumber) -> Result<(), ProgressError> {
    let mut batch = removal(mirror, &keys::subscription(subscription))?;
    batch.push((EPOCHS, RowChange::Remove(keys::subscription(subscription).to_vec())));
    Ok(mirror.commit(&batch)?)
}

/// Removes all rows whose keys have this prefix.
fn removal(mirror: &mut LsmMirror, prefix: &[u8]) -> Result<MirrorBatch, ProgressError> {
    let rows = mirror.prefix(ROWS, prefix, usize::MAX)?;
    Ok(rows.into_iter().map(|(key, _)| (ROWS, RowChange::Remove(key.to_vec()))).collect())
}

fn insert_epoch(subscription: SubscriptionNumber, epoch: u64) -> RowChange {
    RowChange::Insert(keys::subscription(subscription).to_vec(), keys::encode_epoch(epoch).to_vec())
}

fn refuse_older(
    mirror: &mut LsmMirror,
    subscription: SubscriptionNumber,
    epoch: u64,
) -> Result<Option<u64>, ProgressError> {
    let noted = noted(mirror, subscription)?;
    match noted {
        Some(noted) if noted > epoch => Err(ProgressError::Fenced { subscription: subscription.0, epoch: noted }),
        _ => Ok(noted),
    }
}

/// An epoch that cannot be decoded counts as lost.
fn noted(mirror: &mut LsmMirror, subscription: SubscriptionNumber) -> Result<Option<u64>, ProgressError> {
    let noted = mirror.get(EPOCHS, &keys::subscription(subscription))?;
    Ok(noted.as_deref().and_then(keys::decode_epoch))
}
