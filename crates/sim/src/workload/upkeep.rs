//! The maintenance of a log: checkpoints, retention, topics, a disk that fills up.

use std::time::Duration;

use whimbrel_storage::{AppendError, Core, PartitionKey, TopicRetention};

use super::{LogWorld, PARTITIONS_MAX, TOPICS_MAX};
use crate::checker::CheckResult;
use crate::model::{PartitionModel, TopicState};

impl LogWorld {
    /// Makes a checkpoint with group commits between its steps, which the running log has from its other thread.
    pub(super) fn checkpoint(&mut self, core: &Core) -> CheckResult {
        self.trace.note(|| "checkpoint begins".to_owned());
        let now = self.now;
        let mut between = Ok(());
        let made = core.checkpoint(now, &mut || {
            if between.is_ok() && self.rng.one_in(4) {
                between = self.commit_group(core);
            }
        });
        between?;
        self.trace.note(|| format!("checkpoint ends: {made:?}"));
        if made.is_ok() {
            self.model.partitions.values_mut().for_each(|partition| partition.first_durable = partition.first);
        }
        self.check_kept(made)
    }

    pub(super) fn relieve(&mut self, core: &Core) -> CheckResult {
        let relieved = core.relieve_memory(self.now);
        self.trace.note(|| format!("relieve memory: {relieved:?}"));
        self.check_kept(relieved)
    }

    fn check_kept(&mut self, kept: Result<(), AppendError>) -> CheckResult {
        match kept {
            Ok(()) => Ok(()),
            Err(AppendError::DiskFull(_)) if self.profile.fills_disk() => Ok(()),
            Err(AppendError::Poisoned(_)) if self.model.poisoned || self.something_failed() => Ok(()),
            Err(error) => Err(format!("maintenance failed: {error}")),
        }
    }

    pub(super) fn idle(&mut self, core: &Core) -> CheckResult {
        let (calls, refused) = (self.disk.calls(), self.disk.injected().refused_for_room);
        core.mark_idle();
        let wrote = self.disk.calls() > calls && self.disk.injected().refused_for_room == refused;
        if wrote && core.refusal().is_none() {
            self.model.last_frame_marked = true;
        }
        self.trace.note(|| format!("idle, marked: {}", self.model.last_frame_marked));
        Ok(())
    }

    pub(super) fn retain(&mut self, core: &Core) -> CheckResult {
        let topics = self.topics_in(|state| state == TopicState::Alive);
        if topics.is_empty() {
            return Ok(());
        }
        let topic = *self.rng.pick(&topics);
        let time = self.rng.one_in(2).then(|| Duration::from_millis(self.rng.between(100, 4000)));
        let bytes = self.rng.one_in(2).then(|| self.rng.between(0, 60_000));
        let retention = TopicRetention { time, bytes };
        core.set_retention(topic, retention);
        self.retention.insert(topic, retention);
        let alive = self.model.alive();
        let bytes_before: Vec<u64> = alive.iter().map(|key| core.bytes_on_disk(*key).unwrap_or(0)).collect();
        let retained = core.retain(self.now);
        self.trace.note(|| format!("retain, {topic} by {time:?} and {bytes:?} bytes: {retained:?}"));
        let no_room = self.profile.fills_disk() && matches!(core.refusal(), Some(AppendError::DiskFull(_)));
        if let Err(error) = retained
            && !self.something_failed()
            && !no_room
        {
            return Err(format!("retention failed: {error}"));
        }
        for (key, bytes_before) in alive.into_iter().zip(bytes_before) {
            self.check_retained(core, key, bytes_before)?;
        }
        Ok(())
    }

    fn check_retained(&mut self, core: &Core, key: PartitionKey, bytes_before: u64) -> CheckResult {
        let (first, next) = core.bounds(key).map_err(|error| error.to_string())?;
        let retention = self.retention.get(&key.topic).copied().unwrap_or_default();
        let limit = retention.time.map(|time| self.now - time.as_millis() as i64);
        let is_flipped = self.flipped.segments.iter().any(|(flipped, _)| *flipped == key);
        let Some(partition) = self.model.partitions.get_mut(&key) else { return Ok(()) };
        if first < partition.first || first > next || next != partition.next() {
            return Err(format!("{key} has bounds {first}..{next} after retention, and had {}", partition.first));
        }
        let is_over = retention.bytes.is_some_and(|max| bytes_before > max);
        let mut dropped = (partition.first..first).filter(|offset| !partition.holes.contains(offset));
        let is_young = |offset: &u64| limit.is_none_or(|limit| partition.entries[*offset as usize].timestamp >= limit);
        let young = dropped.find(is_young).filter(|_| !is_over && !is_flipped);
        if let Some(entry) = young.map(|offset| partition.entries[offset as usize]) {
            return Err(format!("{key}: retention dropped {entry:?}, which {retention:?} keeps"));
        }
        partition.first = first;
        Ok(())
    }

    pub(super) fn trim(&mut self, core: &Core) -> CheckResult {
        let Some(key) = self.any_partition() else { return Ok(()) };
        let (first, next) = (self.model.partitions[&key].first, self.model.partitions[&key].next());
        let before = self.rng.between(first, next + 2);
        let trimmed = core.trim(key, before);
        self.trace.note(|| format!("trim {key} before {before}: {trimmed:?}"));
        let expected = first.max(before.min(next));
        let (found, _) = core.bounds(key).map_err(|error| error.to_string())?;
        let is_right = match &trimmed {
            Ok(()) => found == expected,
            Err(_) => self.something_failed() && (first..=expected).contains(&found),
        };
        if !is_right {
            return Err(format!(
                "{key} begins at {found} after a trim before {before}, and began at {first}: {trimmed:?}"
            ));
        }
        if let Some(partition) = self.model.partitions.get_mut(&key) {
            partition.first = found;
        }
        Ok(())
    }

    /// Creates a topic, or grows one.
    pub(super) fn grow(&mut self, core: &Core) -> CheckResult {
        let growing = self.topics_in(|state| matches!(state, TopicState::Alive | TopicState::Growing { .. }));
        let next_topic = self.model.topics.keys().last().map_or(1, |topic| topic + 1);
        let is_new = growing.is_empty() || (next_topic <= TOPICS_MAX && self.rng.one_in(2));
        let topic = if is_new { next_topic } else { *self.rng.pick(&growing) };
        let least = match self.model.topics.get(&topic) {
            Some(TopicState::Growing { upto }) => *upto,
            _ => self.model.partitions_of(topic).max(1),
        };
        let upto = self.rng.between(least.into(), PARTITIONS_MAX.max(least).into()) as u32;
        let made = core.create_partitions(topic, upto);
        self.trace.note(|| format!("topic {topic} with {upto} partitions: {made:?}"));
        match made {
            Ok(()) => {
                self.model.topics.insert(topic, TopicState::Alive);
                for partition in 0..upto {
                    self.model.partitions.entry(PartitionKey { topic, partition }).or_default();
                }
                if core.partition_count(topic) != upto {
                    return Err(format!("topic {topic} has {} partitions, not {upto}", core.partition_count(topic)));
                }
                Ok(())
            }
            Err(_) if self.something_failed() => {
                self.model.topics.insert(topic, TopicState::Growing { upto });
                Ok(())
            }
            Err(error) => Err(format!("topic {topic} could not be created: {error}")),
        }
    }

    pub(super) fn delete(&mut self, core: &Core) -> CheckResult {
        let topics = self.topics_in(|state| state != TopicState::Gone);
        if topics.len() < 2 {
            return Ok(());
        }
        let topic = *self.rng.pick(&topics);
        let deleted = core.delete_topic(topic);
        self.trace.note(|| format!("delete topic {topic}: {deleted:?}"));
        let is_there = core.partition_count(topic) > 0;
        let state = match deleted {
            Ok(()) if is_there => return Err(format!("topic {topic} was deleted and still exists")),
            Ok(()) => {
                self.model.partitions.retain(|key, _| key.topic != topic);
                TopicState::Gone
            }
            Err(_) if !self.something_failed() => {
                return Err(format!("topic {topic} could not be deleted: {deleted:?}"));
            }
            // A name that was changing at the power loss may be old or new.
            Err(_) if is_there && !self.disk.is_off() => return Ok(()),
            Err(_) => TopicState::Deleting,
        };
        self.model.topics.insert(topic, state);
        Ok(())
    }

    /// Fills or frees the disk, and lets the log check its space.
    pub(super) fn room(&mut self, core: &Core) -> CheckResult {
        if self.profile.fills_disk() {
            let used = self.disk.used_bytes();
            let spare = *self.rng.pick(&[0, 4 << 10, 40 << 10, 200 << 10, 10 << 20]);
            self.trace.note(|| format!("the disk has room for {spare} bytes"));
            self.disk.set_budget(used + spare);
        }
        if self.rng.one_in(2) {
            core.prepare_journal();
        }
        let failed_before = self.disk.injected().total();
        core.watch_room(self.now);
        let free = self.disk_room();
        let enough = self.settings.disk_reserve_bytes * 2;
        let refusal = core.refusal();
        self.trace.note(|| format!("room was looked for, {free} bytes are free: {refusal:?}"));
        let was_tight = self.disk.injected().total() > failed_before;
        match refusal {
            Some(AppendError::DiskFull(why)) if free >= enough && !was_tight && !self.disk.is_off() => {
                Err(format!("{free} bytes are free, and the log reports: {why}"))
            }
            _ => Ok(()),
        }
    }

    fn disk_room(&self) -> u64 {
        use whimbrel_storage::disk::Disk;
        self.disk.free_bytes(Self::data_folder()).unwrap_or(0)
    }

    /// Adds an empty partition that a failed call created.
    pub(super) fn adopt(&mut self, key: PartitionKey) {
        self.model.partitions.insert(key, PartitionModel { is_adopted: true, ..PartitionModel::default() });
    }
}
