//! The registry follows the catalogue: it applies changes, finishes deletions and growths that a crash interrupted, and adopts topics
//! that other applications created.
//!
//! When the catalogue has replaced a mapping, the registry stops using it before it does anything else for the topic.

use std::cmp::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio_util::sync::CancellationToken;
use whimbrel_model::limits::{PARTITIONS_MAX, TOPIC_NUMBER_MAX};
use whimbrel_model::ports::{CatalogueError, LogError, Versioned};
use whimbrel_model::{ExistingTopic, Retention};

use super::conflicts::Conflicts;
use super::gate::ClosedGate;
use super::growth::{Growth, ends_of};
use super::growth_driver::Memberships;
use super::registry::{Registry, TopicChange, TopicError, TopicMap, UnappliedGuard, encode};
use super::stored::{StoredTopic, TOPIC_PREFIX, key_of};
use super::topic::{Topic, is_system_name};
use super::unopened_topics::UnopenedTopics;

/// The pause between two reads of a catalogue that keeps changing.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The entry of a topic, as it was read and applied.
pub(super) enum CurrentEntry {
    Absent,
    /// The entry recorded a deletion, which is finished now.
    Deleted,
    Topic(Arc<Topic>),
}

impl Registry {
    /// Follows the catalogue until the shutdown. If several nodes share the topics, it also performs this node's steps in growths, under
    /// its present session.
    pub async fn watch(&self, memberships: Memberships, shutdown: CancellationToken) {
        let Some(coordination) = &self.ports.coordination else { return self.follow_catalogue(&shutdown).await };
        tokio::select! {
            ((), ()) = futures_util::future::join(
                self.follow_catalogue(&shutdown),
                self.drive_growths(&**coordination, memberships.clone(), &shutdown),
            ) => {}
            () = self.follow_sessions(memberships.clone()) => {}
        }
    }

    async fn follow_catalogue(&self, shutdown: &CancellationToken) {
        let mut seen = 0;
        loop {
            let changed = tokio::select! {
                changed = self.ports.catalogue.changed(seen) => changed,
                () = self.unsettled_for_long() => Ok(seen),
                () = self.reread.notified() => Ok(seen),
                () = shutdown.cancelled() => return,
            };
            let pause = match changed {
                Ok(revision) => {
                    let changing = self.changing.lock().await;
                    match self.reload(&changing).await {
                        Ok(()) => {
                            seen = revision;
                            RELOAD_PAUSE
                        }
                        Err(error) => {
                            tracing::warn!(%error, "cannot apply the changes of the catalogue; retrying");
                            self.reread.notify_one();
                            WATCH_RETRY_AFTER
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot watch the catalogue; retrying");
                    WATCH_RETRY_AFTER
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// Applies the current entries of the catalogue. An entry that cannot be applied does not stop the others.
    pub(super) async fn reload(&self, changing: &MutexGuard<'_, i64>) -> Result<(), TopicError> {
        self.read_entries(changing).await?.map_or(Ok(()), Err)
    }

    /// Reads all entries of the catalogue and applies them. After `Ok`, this node no longer uses any mapping that the catalogue has
    /// replaced. The value is the error of a topic that the log could not open, if there is one.
    pub(super) async fn read_entries(&self, changing: &MutexGuard<'_, i64>) -> Result<Option<TopicError>, TopicError> {
        let changed = self.leave_all(changing).await?;
        let unopened = self.open_changed(changed, changing).await?;
        // The gates of replaced mappings were retired above; the others may open again.
        let settled = std::mem::take(&mut *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner));
        drop(settled);
        Ok(unopened)
    }

    /// Stops publishes by all mappings that the catalogue has replaced. Returns the entries that are not applied. Their versions may be
    /// lower than those of the known topics: an operator may have restored the catalogue from a backup.
    async fn leave_all(&self, _changing: &MutexGuard<'_, i64>) -> Result<Vec<(String, Versioned)>, TopicError> {
        let read_before = self.unapplied().clone();
        let mut entries = self.ports.catalogue.list(TOPIC_PREFIX).await?;
        let map = self.map.load_full();
        let mut unapplied = self.unapplied();
        // This list is newer than those entries. No other change of topics is in progress until it is applied.
        unapplied.retain(|name, version| read_before.get(name) != Some(version));
        for name in map.by_name.keys().filter(|name| !has_entry(&entries, name)) {
            self.hide_under(name, &unapplied);
        }
        entries.retain(|(key, found)| {
            let known = map.by_name.get(name_in(key));
            known.is_none_or(|topic| topic.version != found.version)
        });
        for (key, found) in &entries {
            self.leave_old_mapping(key, found, &unapplied);
        }
        Ok(entries)
    }

    /// Stops publishes by all mappings that the catalogue has replaced. It waits for no call to the log, and for no change of a topic in
    /// progress: such a change may have read an earlier entry, and then fails to show it. The registry's watch applies the entries.
    pub(super) async fn leave_replaced_mappings(&self) -> Result<(), TopicError> {
        let before = self.map.load_full();
        let entries = self.ports.catalogue.list(TOPIC_PREFIX).await?;
        let left = self.leave_newer(&before, &entries);
        if left != ReplacedMappings::Nothing {
            self.reread.notify_one();
        }
        if left == ReplacedMappings::Unsure {
            let changing = self.changing.lock().await;
            self.leave_all(&changing).await?;
        }
        Ok(())
    }

    /// Stops publishes by mappings that newer entries have replaced.
    fn leave_newer(&self, before: &TopicMap, entries: &[(String, Versioned)]) -> ReplacedMappings {
        let mut unapplied = self.unapplied();
        for known in before.by_name.values().filter(|known| !has_entry(entries, &known.name)) {
            if self.get(&known.name).is_some_and(|now| now.version == known.version) {
                self.hide_under(&known.name, &unapplied);
            }
        }
        let mut left = ReplacedMappings::Nothing;
        for (key, found) in entries {
            match self.get(name_in(key)).map(|known| known.version.cmp(&found.version)) {
                Some(Ordering::Equal) => {}
                Some(Ordering::Greater) => left = ReplacedMappings::Unsure,
                Some(Ordering::Less) | None => {
                    unapplied.insert(name_in(key).to_owned(), found.version);
                    self.leave_old_mapping(key, found, &unapplied);
                    left = left.max(ReplacedMappings::Newer);
                }
            }
        }
        left
    }

    /// Applies entries whose old mappings are not used any more. It ends at the first topic that the log cannot open, since each may take
    /// a whole timeout of the log. The next attempt starts with the topics whose last attempt is the oldest.
    async fn open_changed(
        &self,
        mut entries: Vec<(String, Versioned)>,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<Option<TopicError>, TopicError> {
        let failed = {
            let mut unopened = self.unopened();
            unopened.keep_only(entries.iter().map(|(key, _)| key));
            unopened.clone()
        };
        entries.sort_by_key(|(key, _)| failed.turn_of(key));
        let mut unread = None;
        for (key, found) in &entries {
            match self.take_in_changing(key, found, changing).await {
                Err(error @ TopicError::Log(LogError::Unavailable(_))) => {
                    if self.unopened().failed(key) {
                        tracing::warn!(%error, "the topic under `{key}` cannot be opened now; retrying");
                    }
                    return unread.map_or(Ok(Some(error)), Err);
                }
                // The entry has changed again, and its new value is unknown.
                Err(error @ TopicError::Catalogue(_)) => unread = Some(error),
                Err(error) => tracing::error!(%error, "skipped the topic under `{key}` until its entry is repaired"),
                Ok(()) => self.unopened().opened(key),
            }
        }
        unread.map_or(Ok(None), Err)
    }

    fn unopened(&self) -> std::sync::MutexGuard<'_, UnopenedTopics> {
        self.unopened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an entry that other nodes may change at the same time.
    async fn take_in_changing(
        &self,
        key: &str,
        found: &Versioned,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<(), TopicError> {
        let mut conflicts = Conflicts::default();
        let mut taken = self.take_in(key, found, changing).await;
        loop {
            match taken {
                Err(error) => conflicts.try_again(error).await?,
                Ok(_) => return Ok(()),
            }
            taken = self.read_entry(name_in(key), changing).await;
        }
    }

    /// Applies the entry that the catalogue has now.
    pub(super) async fn read_entry(
        &self,
        name: &str,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<CurrentEntry, TopicError> {
        let key = key_of(name);
        match self.ports.catalogue.get(&key).await? {
            Some(found) => self.take_in(&key, &found, changing).await,
            None => Ok(CurrentEntry::Absent),
        }
    }

    /// Applies one entry of the catalogue, or finishes the deletion of its topic.
    async fn take_in(
        &self,
        key: &str,
        found: &Versioned,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<CurrentEntry, TopicError> {
        let name = name_in(key);
        // If the entry is malformed, the current mapping is unknown: publishes must not use the old one.
        let mut stored = decode(key, found).inspect_err(|_| self.hide(name))?;
        if !stored.deleting {
            // A single process has no other nodes to agree with: it does not continue a growth that a cluster began.
            stored.growing = stored.growing.filter(|_| self.lease.is_shared());
            self.leave_mapping_before(name, &stored);
            return self.bring_up(name, stored, found.version, changing).await.map(CurrentEntry::Topic);
        }
        self.hide(name);
        self.finish_deleting(name, stored, found.version, changing).await?;
        Ok(CurrentEntry::Deleted)
    }

    /// Stops publishes by a mapping that the entry has replaced, without a call to the log.
    fn leave_old_mapping(&self, key: &str, found: &Versioned, unapplied: &UnappliedGuard<'_>) {
        match decode(key, found) {
            Ok(stored) if !stored.deleting => self.leave_mapping_before(name_in(key), &stored),
            // Applying a malformed entry reports the error.
            Ok(_) | Err(_) => self.hide_under(name_in(key), unapplied),
        }
    }

    /// Closes the gates of a mapping that the entry has replaced or is about to replace. A growth relies on this, so it happens before any
    /// call to the log, which may fail.
    fn leave_mapping_before(&self, name: &str, stored: &StoredTopic) {
        let Some(known) = self.get(name) else { return };
        if known.number() != stored.number {
            known.retire();
        } else if known.partitions() != stored.partitions {
            known.mapping_gate.retire();
        } else if stored.growing.is_some() {
            self.note_growing(&known, stored.growing);
        }
    }

    /// Adopts topics that other applications created in the engine. Never adopts system names.
    pub(super) async fn adopt_found(&self, changing: &mut MutexGuard<'_, i64>) -> Result<(), TopicError> {
        **changing = self.ports.clock.now().as_millis();
        let is_skipped = |name: &str| {
            whimbrel_model::check_topic_name(name).is_err()
                || self.get(name).is_some_and(|topic| !topic.stored.has_unknown_retention())
        };
        for ExistingTopic { name, partitions, retention } in self.ports.log_topics.found(&is_skipped).await? {
            if let Some(topic) = self.get(&name) {
                self.learn_retention(&topic, retention, changing).await?;
                continue;
            }
            if !(1..=PARTITIONS_MAX).contains(&partitions) {
                continue;
            }
            let as_it_is = TopicChange {
                partitions: Some(partitions),
                retention: Some(retention.time),
                retention_bytes: Some(retention.bytes),
                ..TopicChange::default()
            };
            match self.adopt(&name, as_it_is, changing).await {
                Ok(Some(_)) => tracing::info!(topic = name, partitions, "adopted a topic that was found in the log"),
                Ok(None) => tracing::debug!(topic = name, "a topic that was found in the log was deleted since"),
                Err(
                    error @ TopicError::Catalogue(CatalogueError::Unavailable(_) | CatalogueError::OutcomeUnknown(_)),
                ) => return Err(error),
                Err(error) => tracing::warn!(topic = name, %error, "cannot adopt a topic that was found in the log"),
            }
        }
        Ok(())
    }

    /// Stores the retention of a topic that was adopted by a version which did not read it.
    async fn learn_retention(
        &self,
        topic: &Topic,
        retention: Retention,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<(), TopicError> {
        if retention == topic.stored.retention() {
            return Ok(());
        }
        let stored = topic.stored.clone().with_retention(retention);
        match self.ports.catalogue.put(&key_of(&topic.name), encode(&stored), Some(topic.version)).await {
            // If this node has read a later entry, its watch applies that one.
            Ok(version) => drop(self.show(topic.succeeded_by(stored, version))),
            // Another node has changed the entry.
            Err(CatalogueError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Adopts one topic that the log has listed, unless another node has already adopted it, or it was deleted since.
    async fn adopt(
        &self,
        name: &str,
        as_it_is: TopicChange,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<Option<Arc<Topic>>, TopicError> {
        let mut conflicts = Conflicts::default();
        loop {
            let adopted = match self.read_entry(name, changing).await {
                // The listing is older than the entry's absence. A deletion removes a topic from the log first.
                Ok(CurrentEntry::Absent) => match self.ports.log_topics.exists(name).await {
                    Ok(true) => self.create(name, as_it_is.clone(), true, changing).await.map(Some),
                    Ok(false) => Ok(None),
                    Err(error) => Err(error.into()),
                },
                Ok(CurrentEntry::Deleted) => Ok(None),
                Ok(CurrentEntry::Topic(topic)) => Ok(Some(topic)),
                Err(error) => Err(error),
            };
            match adopted {
                Err(error) => conflicts.try_again(error).await?,
                adopted => return adopted,
            }
        }
    }

    /// Creates the topic in the log, records a growth that the entry does not have yet, and makes the topic visible.
    pub(super) async fn bring_up(
        &self,
        name: &str,
        mut stored: StoredTopic,
        mut version: u64,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<Arc<Topic>, TopicError> {
        let actual = self.ports.log_topics.create(&stored.spec(name)).await?;
        self.note_in_log(name, &stored, actual);
        // The partitions of system topics have fixed meanings: those of `_holds` are its shards, those of `_push` hold users. Whimbrel
        // does not use partitions that other applications added to them. Nodes that share a topic grow it by agreement.
        if actual > stored.partitions && !is_system_name(name) && !self.lease.is_shared() {
            let ends = ends_of(&*self.ports.log, stored.number, stored.partitions).await?;
            let growth =
                Growth { at_ms: self.ports.clock.now().as_millis(), from: stored.partitions, to: actual, ends };
            stored.partitions = actual;
            if growth.has_barriers() {
                stored.growths.push(growth.clone());
                self.report_growth(name, &growth);
            }
            version = self.ports.catalogue.put(&key_of(name), encode(&stored), Some(version)).await?;
        }
        let topic = match self.get(name).filter(|known| known.number() == stored.number) {
            Some(known) => known.succeeded_by(stored, version),
            None => Topic::new(name, stored, version),
        };
        self.show(topic)
    }

    /// Keeps gates closed until the catalogue has been read again: the current mapping is unknown.
    pub(super) fn keep_closed(&self, gates: impl IntoIterator<Item = ClosedGate>) {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).extend(gates);
        self.changes.send_modify(|count| *count += 1);
    }

    fn is_unsettled(&self) -> bool {
        !self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns [`WATCH_RETRY_AFTER`] after a write had an unknown outcome.
    async fn unsettled_for_long(&self) {
        let mut changes = self.changes.subscribe();
        while !self.is_unsettled() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        tokio::time::sleep(WATCH_RETRY_AFTER).await;
    }
}

/// The result of leaving replaced mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReplacedMappings {
    /// Every entry is applied.
    Nothing,
    /// Some entries are newer than the known topics.
    Newer,
    /// Some entries are older than the known topics: this node has written newer ones since they were read, or an operator restored the
    /// catalogue from a backup.
    Unsure,
}

fn name_in(key: &str) -> &str {
    key.strip_prefix(TOPIC_PREFIX).unwrap_or(key)
}

/// Whether the entries, in the order of their keys, have one of this topic.
fn has_entry(entries: &[(String, Versioned)], name: &str) -> bool {
    entries.binary_search_by(|(key, _)| key.as_str().cmp(&key_of(name))).is_ok()
}

fn decode(key: &str, found: &Versioned) -> Result<StoredTopic, TopicError> {
    let malformed = |why: String| TopicError::Malformed { key: key.to_owned(), why };
    let stored: StoredTopic = serde_json::from_slice(&found.value).map_err(|error| malformed(error.to_string()))?;
    if !(1..=PARTITIONS_MAX).contains(&stored.partitions) || stored.number.0 > TOPIC_NUMBER_MAX {
        return Err(malformed("the topic number or the number of partitions is out of range".to_owned()));
    }
    Ok(stored)
}
