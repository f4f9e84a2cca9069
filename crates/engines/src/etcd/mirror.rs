//! What is under a prefix of etcd, read once and kept up by a watch.
//!
//! A watch that ends (etcd restarts, compacts, loses its leader) is begun anew with a reading, so that what is mirrored is
//! always a state that etcd had, and its revision only grows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;

use super::connection::{EtcdConnection, reason, under};
use super::wire::event::EventType;
use super::wire::{Event, KeyValue};

/// How long the mirror rests before it reads anew.
const PAUSE: Duration = Duration::from_millis(200);

/// A prefix as it was at the latest revision that was heard of.
#[derive(Clone, Default)]
pub(super) struct Mirrored {
    /// Zero before the first reading.
    pub revision: u64,
    pub entries: Arc<BTreeMap<Vec<u8>, KeyValue>>,
    /// Why the first reading has not succeeded yet.
    failure: Option<String>,
}

/// A mirror of one prefix. Its task ends with it.
pub(super) struct Mirror {
    mirrored: watch::Receiver<Mirrored>,
    patience: Duration,
    task: JoinHandle<()>,
}

impl Mirror {
    pub fn new(connection: EtcdConnection, prefix: Vec<u8>) -> Self {
        let (sender, mirrored) = watch::channel(Mirrored::default());
        let patience = connection.settings().request_timeout;
        let task = tokio::spawn(async move {
            loop {
                let Err(status) = follow(&connection, &prefix, &sender).await;
                tracing::debug!(%status, "the watch of etcd is begun anew");
                sender.send_if_modified(|mirrored| {
                    mirrored.failure = (mirrored.revision == 0).then(|| reason(&status));
                    mirrored.failure.is_some()
                });
                connection.turn_away();
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { mirrored, patience, task }
    }

    /// What is there once its revision is above `seen`. The first reading must come within the time for a request.
    pub async fn newer_than(&self, seen: u64) -> Result<Mirrored, String> {
        let mut mirrored = self.mirrored.clone();
        if mirrored.borrow().revision == 0 {
            let is_late = timeout(self.patience, mirrored.wait_for(|mirrored| mirrored.revision > 0)).await.is_err();
            if is_late {
                let failure = mirrored.borrow().failure.clone();
                return Err(failure.unwrap_or_else(|| "etcd does not answer".to_owned()));
            }
        }
        let newer = mirrored.wait_for(|mirrored| mirrored.revision > seen).await;
        newer.map(|mirrored| mirrored.clone()).map_err(|_| "the watch has ended".to_owned())
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads all and follows until the watch ends.
async fn follow(
    connection: &EtcdConnection,
    prefix: &[u8],
    sender: &watch::Sender<Mirrored>,
) -> Result<std::convert::Infallible, Status> {
    let read = connection.range(under(prefix)).await?;
    let mut revision = read.header.map_or(0, |header| header.revision);
    let entries = read.kvs.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
    show(sender, revision, entries);
    let mut changes = connection.watch(prefix, revision + 1).await?;
    loop {
        let Some(change) = changes.message().await? else {
            return Err(Status::unavailable("etcd ended the watch"));
        };
        if change.canceled {
            return Err(Status::unavailable(format!("etcd ended the watch: {}", change.cancel_reason)));
        }
        // An answer may hold a part of what happened at its header's revision; what is certain is what it tells of.
        let Some(latest) = change.events.iter().filter_map(|event| Some(event.kv.as_ref()?.mod_revision)).max() else {
            continue;
        };
        let mut entries = (*sender.borrow().entries).clone();
        for event in change.events {
            apply(&mut entries, event);
        }
        revision = revision.max(latest);
        show(sender, revision, entries);
    }
}

fn apply(entries: &mut BTreeMap<Vec<u8>, KeyValue>, event: Event) {
    let (is_removal, Some(entry)) = (event.r#type() == EventType::Delete, event.kv) else { return };
    if is_removal {
        entries.remove(&entry.key);
    } else {
        entries.insert(entry.key.clone(), entry);
    }
}

/// Shows a state, unless one that is as new is shown already.
fn show(sender: &watch::Sender<Mirrored>, revision: i64, entries: BTreeMap<Vec<u8>, KeyValue>) {
    let revision = u64::try_from(revision).unwrap_or(0);
    sender.send_if_modified(|mirrored| {
        let is_newer = revision > mirrored.revision;
        if is_newer {
            *mirrored = Mirrored { revision, entries: Arc::new(entries), failure: None };
        }
        is_newer
    });
}
