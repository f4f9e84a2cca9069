//! A local copy of the keys under a prefix of etcd: one read, then a watch.
//!
//! A watch ends when etcd restarts, compacts, or loses its leader. The mirror then reads all keys again, so that its content is always a
//! state that etcd had. Its revision increases, except when etcd was restored from a backup or replaced: a read with a lower revision
//! replaces the content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;
use whimbrel_model::{Event, EventSink};

use super::connection::{EtcdConnection, reason, under};
use super::wire::event::EventType;
use super::wire::{Event as Change, KeyValue};

/// The pause before the mirror reads again.
const PAUSE: Duration = Duration::from_millis(200);

/// The content of a prefix at the latest revision that the mirror received.
#[derive(Clone, Default)]
pub(super) struct MirrorContents {
    /// Zero before the first read.
    pub revision: u64,
    /// The highest revision that readers saw before etcd went back. Zero: etcd never went back.
    before_restore: u64,
    pub entries: Arc<BTreeMap<Vec<u8>, KeyValue>>,
    /// The reason why the first read has not succeeded yet.
    failure: Option<String>,
}

impl MirrorContents {
    fn replace(&mut self, revision: u64, entries: BTreeMap<Vec<u8>, KeyValue>) {
        (self.revision, self.entries, self.failure) = (revision, Arc::new(entries), None);
    }

    /// Whether a reader that has seen revision `seen` needs this content: etcd is beyond that revision, or went back below it.
    fn is_news(&self, seen: u64) -> bool {
        self.revision > seen || (self.revision < seen && seen <= self.before_restore)
    }
}

/// etcd answered with a lower revision than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RevisionWentBack {
    from: u64,
    to: u64,
}

impl RevisionWentBack {
    fn event(self) -> Event {
        let Self { from, to } = self;
        let detail = format!(
            "etcd went back from revision {from} to {to}: it was restored from a backup, or replaced. This node uses the entries that etcd \
             has now; changes after the backup are lost"
        );
        Event::failure("etcd_rolled_back", detail).with("from", from).with("to", to)
    }
}

/// A mirror of one prefix. Dropping it ends its task.
pub(super) struct PrefixMirror {
    mirrored: watch::Receiver<MirrorContents>,
    patience: Duration,
    task: JoinHandle<()>,
}

impl PrefixMirror {
    /// Reports to `events` when etcd went back to an earlier revision.
    pub fn new(connection: EtcdConnection, prefix: Vec<u8>, events: EventSink) -> Self {
        let (sender, mirrored) = watch::channel(MirrorContents::default());
        let patience = connection.settings().request_timeout;
        let task = tokio::spawn(async move {
            loop {
                let Err(status) = follow(&connection, &prefix, &sender, &events).await;
                tracing::debug!(%status, "the watch of etcd ended; reading again");
                sender.send_if_modified(|mirrored| {
                    mirrored.failure = (mirrored.revision == 0).then(|| reason(&status));
                    mirrored.failure.is_some()
                });
                connection.switch_endpoint();
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { mirrored, patience, task }
    }

    /// Waits for content with a revision above `seen`, or until etcd went back to a revision below `seen`. The first read has the timeout
    /// of one request.
    pub async fn newer_than(&self, seen: u64) -> Result<MirrorContents, String> {
        let mut mirrored = self.mirrored.clone();
        if mirrored.borrow().revision == 0 {
            let is_late = timeout(self.patience, mirrored.wait_for(|mirrored| mirrored.revision > 0)).await.is_err();
            if is_late {
                let failure = mirrored.borrow().failure.clone();
                return Err(failure.unwrap_or_else(|| "etcd does not answer".to_owned()));
            }
        }
        let newer = mirrored.wait_for(|mirrored| mirrored.is_news(seen)).await;
        newer.map(|mirrored| mirrored.clone()).map_err(|_| "the watch has ended".to_owned())
    }
}

impl Drop for PrefixMirror {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads all keys and follows the watch until it ends.
async fn follow(
    connection: &EtcdConnection,
    prefix: &[u8],
    sender: &watch::Sender<MirrorContents>,
    events: &EventSink,
) -> Result<std::convert::Infallible, Status> {
    let read = connection.range(under(prefix)).await?;
    let mut revision = read.header.map_or(0, |header| header.revision);
    let entries = read.kvs.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
    if let Some(went_back) = show_reading(sender, revision, entries) {
        events(went_back.event());
    }
    let mut changes = connection.watch(prefix, revision + 1).await?;
    loop {
        let Some(change) = changes.message().await? else {
            return Err(Status::unavailable("etcd ended the watch"));
        };
        if change.canceled {
            return Err(Status::unavailable(format!("etcd ended the watch: {}", change.cancel_reason)));
        }
        // An answer may contain only a part of the changes of its header's revision. Only the revisions of its events are certain.
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

fn apply(entries: &mut BTreeMap<Vec<u8>, KeyValue>, event: Change) {
    let (is_removal, Some(entry)) = (event.r#type() == EventType::Delete, event.kv) else { return };
    if is_removal {
        entries.remove(&entry.key);
    } else {
        entries.insert(entry.key.clone(), entry);
    }
}

/// Publishes the state after a watch event, unless the published state is as new.
fn show(sender: &watch::Sender<MirrorContents>, revision: i64, entries: BTreeMap<Vec<u8>, KeyValue>) {
    let revision = u64::try_from(revision).unwrap_or(0);
    sender.send_if_modified(|mirrored| {
        let is_newer = revision > mirrored.revision;
        if is_newer {
            mirrored.replace(revision, entries);
        }
        is_newer
    });
}

/// Publishes a read of the whole prefix. Reads are linearizable: if the revision of one is lower than an earlier one, etcd went back.
fn show_reading(
    sender: &watch::Sender<MirrorContents>,
    revision: i64,
    entries: BTreeMap<Vec<u8>, KeyValue>,
) -> Option<RevisionWentBack> {
    let to = u64::try_from(revision).unwrap_or(0);
    let from = sender.borrow().revision;
    if to >= from {
        show(sender, revision, entries);
        return None;
    }
    sender.send_modify(|mirrored| {
        mirrored.before_restore = mirrored.before_restore.max(from);
        mirrored.replace(to, entries);
    });
    Some(RevisionWentBack { from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(keys: &[&str]) -> BTreeMap<Vec<u8>, KeyValue> {
        keys.iter().map(|key| (key.as_bytes().to_vec(), KeyValue::default())).collect()
    }

    fn keys(sender: &watch::Sender<MirrorContents>) -> Vec<String> {
        let shown = sender.borrow();
        shown.entries.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    fn mirror(sender: &watch::Sender<MirrorContents>) -> PrefixMirror {
        let task = tokio::spawn(std::future::pending());
        PrefixMirror { mirrored: sender.subscribe(), patience: Duration::from_secs(1), task }
    }

    #[tokio::test]
    async fn a_read_of_a_restored_etcd_replaces_the_mirror() {
        let sender = watch::Sender::new(MirrorContents::default());
        assert_eq!(show_reading(&sender, 90, entries(&["a", "b"])), None);
        show(&sender, 100, entries(&["a", "b", "c"]));
        let mirror = mirror(&sender);
        let waiting = mirror.newer_than(100);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(show_reading(&sender, 40, entries(&["a"])), Some(RevisionWentBack { from: 100, to: 40 }));
        assert_eq!(keys(&sender), ["a"]);
        assert_eq!(waiting.await.map(|mirrored| mirrored.revision), Ok(40), "readers of the old history receive it");
        let next = mirror.newer_than(40);
        tokio::pin!(next);
        assert!(futures_util::poll!(next.as_mut()).is_pending(), "and only once");
        show(&sender, 41, entries(&["a", "d"]));
        assert_eq!(next.await.map(|mirrored| mirrored.revision), Ok(41));
        assert_eq!(keys(&sender), ["a", "d"]);
    }

    #[tokio::test]
    async fn a_reader_that_is_ahead_of_the_mirror_waits_if_etcd_never_went_back() {
        let sender = watch::Sender::new(MirrorContents::default());
        show_reading(&sender, 90, entries(&["a"]));
        let mirror = mirror(&sender);
        let ahead = mirror.newer_than(95);
        tokio::pin!(ahead);
        assert!(futures_util::poll!(ahead.as_mut()).is_pending());
        assert_eq!(show_reading(&sender, 90, entries(&["a"])), None, "the same revision again");
        assert!(futures_util::poll!(ahead.as_mut()).is_pending());
    }

    #[test]
    fn a_watch_never_shows_an_older_state() {
        let sender = watch::Sender::new(MirrorContents::default());
        show(&sender, 90, entries(&["a", "b"]));
        show(&sender, 80, entries(&["a"]));
        assert_eq!(keys(&sender), ["a", "b"]);
    }
}
