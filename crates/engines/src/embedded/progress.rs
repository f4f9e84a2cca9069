//! The `Progress` port on an LSM of the data folder.
//!
//! A call is one batch of the LSM, which its journal takes whole or not at all, and which the machine's memory has before the caller
//! is answered: it survives the process at once. A second after the first save that the disk may not have, all of them are synced
//! together, so that many subscriptions cost one sync a second.
//!
//! [`keys`] has the formats. One thread does everything, in the order of the calls: no check can be overtaken by another's write, and
//! a disk that is slow holds up no one's runtime. Nothing is kept in memory by the number of rows.

pub(crate) mod keys;

use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode, Slice};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{PortFuture, Progress, ProgressError, ProgressRow};

use super::background::yields;
use super::slices::small_keyspace;

/// Memory that the LSM may use for blocks of its tables: rows are read when a subscription is opened, and then only written.
const CACHE_BYTES: u64 = 4 << 20;
/// The LSM's journal, which a start reads again. The LSM allows no less.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Calls that wait for their turn; more of them wait to be taken.
const CALLS_WAITING_MAX: usize = 256;
/// How long a save may be in no more than the machine's memory.
const SYNC_WITHIN: Duration = Duration::from_secs(1);
const THREAD: &str = "progress-writer";

/// Progress in an LSM of the data folder.
pub struct LsmProgress {
    calls: Option<mpsc::Sender<Call>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

type Call = Box<dyn FnOnce(&mut Store) + Send>;

fn unavailable(error: fjall::Error) -> ProgressError {
    ProgressError::Unavailable(error.to_string())
}

impl LsmProgress {
    pub fn open(path: &Path) -> Result<Self, ProgressError> {
        let builder = Database::builder(path).cache_size(CACHE_BYTES).worker_threads(1);
        let database = builder.max_journaling_size(JOURNAL_BYTES_MAX).open().map_err(unavailable)?;
        let epochs = database.keyspace("epochs", small_keyspace).map_err(unavailable)?;
        let rows = database.keyspace("rows", small_keyspace).map_err(unavailable)?;
        let store = Store { database, epochs, rows, sync_by: None };
        let (calls, asked) = mpsc::channel(CALLS_WAITING_MAX);
        let failed = |error: std::io::Error| ProgressError::Unavailable(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let thread = thread.spawn(move || runtime.block_on(store.serve(asked))).map_err(failed)?;
        yields("fjall:worker");
        yields(THREAD);
        Ok(Self { calls: Some(calls), thread: Mutex::new(Some(thread)) })
    }

    /// Does it after everything that was asked before.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, ProgressError> + Send + 'static,
    ) -> Result<T, ProgressError> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |store| {
            // Who asked may be gone; it is done all the same.
            let _ = answer.send(work(store));
        });
        if let Some(calls) = &self.calls {
            // Where the thread is gone, so is the answer.
            let _ = calls.send(call).await;
        }
        answered.await.unwrap_or_else(|_| Err(ProgressError::Unavailable("nobody writes any more".to_owned())))
    }
}

impl Drop for LsmProgress {
    fn drop(&mut self) {
        drop(self.calls.take());
        let thread = self.thread.get_mut().map_or(None, Option::take);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Progress for LsmProgress {
    fn open(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
    ) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>> {
        Box::pin(self.call(move |store| store.open(subscription, epoch)))
    }

    fn save(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: Vec<ProgressRow>,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(self.call(move |store| store.save(subscription, epoch, &rows)))
    }

    fn end_line(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        line: u32,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(self.call(move |store| store.end_line(subscription, epoch, line)))
    }

    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(self.call(move |store| store.forget(subscription)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.call(Store::sync).await {
                tracing::warn!(%error, "the last second of the subscriptions' progress may not survive this machine");
            }
        })
    }
}

/// What the thread works on.
struct Store {
    database: Database,
    epochs: Keyspace,
    rows: Keyspace,
    /// When what the disk may not have is synced at the latest.
    sync_by: Option<Instant>,
}

impl Store {
    /// Until nobody can call any more.
    async fn serve(mut self, mut calls: mpsc::Receiver<Call>) {
        loop {
            let next = match self.sync_by {
                None => calls.recv().await,
                Some(by) => match timeout_at(by, calls.recv()).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.sync_or_say();
                        continue;
                    }
                },
            };
            match next {
                Some(call) => call(&mut self),
                None => break,
            }
            if self.sync_by.is_some_and(|by| by <= Instant::now()) {
                self.sync_or_say();
            }
        }
        self.sync_or_say();
    }

    fn sync_or_say(&mut self) {
        if let Err(error) = self.sync() {
            tracing::warn!(%error, "the progress of subscriptions could not be synced; it is tried again");
            self.sync_by = Some(Instant::now() + SYNC_WITHIN);
        }
    }

    fn sync(&mut self) -> Result<(), ProgressError> {
        if self.sync_by.take().is_some() {
            self.database.persist(PersistMode::SyncData).map_err(unavailable)?;
        }
        Ok(())
    }

    fn open(&mut self, subscription: SubscriptionNumber, epoch: u64) -> Result<Vec<ProgressRow>, ProgressError> {
        let noted = self.refuse_older(subscription, epoch)?;
        let mut rows = Vec::new();
        for entry in self.rows.prefix(keys::subscription(subscription)) {
            let (key, value) = entry.into_inner().map_err(unavailable)?;
            match keys::decode_row(&key, &value) {
                Some(row) => rows.push(row),
                None => tracing::warn!(
                    subscription = subscription.0,
                    "a row of progress cannot be read: its partition begins again where the subscription began"
                ),
            }
        }
        if noted != Some(epoch) {
            let mut batch = self.batch();
            batch.insert(&self.epochs, keys::subscription(subscription), keys::encode_epoch(epoch));
            self.commit(batch)?;
        }
        Ok(rows)
    }

    fn save(
        &mut self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: &[ProgressRow],
    ) -> Result<(), ProgressError> {
        let noted = self.noted(subscription)?;
        if let Some(noted) = noted.filter(|noted| *noted != epoch) {
            return Err(ProgressError::Fenced { subscription: subscription.0, epoch: noted });
        }
        let mut batch = self.batch();
        for row in rows {
            let key = keys::row(subscription, row.place);
            let before = self.rows.get(key).map_err(unavailable)?;
            if let Some(run) = before.as_deref().and_then(keys::decode_run).filter(|run| *run > row.run) {
                return Err(ProgressError::NewerRun { place: row.place, run });
            }
            batch.insert(&self.rows, key, keys::encode_row(row));
        }
        if noted.is_none() {
            batch.insert(&self.epochs, keys::subscription(subscription), keys::encode_epoch(epoch));
        }
        self.commit(batch)
    }

    fn end_line(&mut self, subscription: SubscriptionNumber, epoch: u64, line: u32) -> Result<(), ProgressError> {
        self.refuse_older(subscription, epoch)?;
        let mut batch = self.batch();
        self.remove(&mut batch, &keys::line(subscription, line))?;
        self.commit(batch)
    }

    fn forget(&mut self, subscription: SubscriptionNumber) -> Result<(), ProgressError> {
        let mut batch = self.batch();
        self.remove(&mut batch, &keys::subscription(subscription))?;
        batch.remove(&self.epochs, keys::subscription(subscription));
        self.commit(batch)
    }

    fn remove(&self, batch: &mut OwnedWriteBatch, prefix: &[u8]) -> Result<(), ProgressError> {
        for entry in self.rows.prefix(prefix) {
            let key: Slice = entry.key().map_err(unavailable)?;
            batch.remove(&self.rows, key);
        }
        Ok(())
    }

    fn batch(&self) -> OwnedWriteBatch {
        self.database.batch().durability(Some(PersistMode::Buffer))
    }

    fn commit(&mut self, batch: OwnedWriteBatch) -> Result<(), ProgressError> {
        batch.commit().map_err(unavailable)?;
        self.sync_by.get_or_insert_with(|| Instant::now() + SYNC_WITHIN);
        Ok(())
    }

    fn refuse_older(&self, subscription: SubscriptionNumber, epoch: u64) -> Result<Option<u64>, ProgressError> {
        let noted = self.noted(subscription)?;
        match noted {
            Some(noted) if noted > epoch => Err(ProgressError::Fenced { subscription: subscription.0, epoch: noted }),
            _ => Ok(noted),
        }
    }

    /// An epoch that cannot be read counts as lost.
    fn noted(&self, subscription: SubscriptionNumber) -> Result<Option<u64>, ProgressError> {
        let noted = self.epochs.get(keys::subscription(subscription)).map_err(unavailable)?;
        Ok(noted.as_deref().and_then(keys::decode_epoch))
    }
}
