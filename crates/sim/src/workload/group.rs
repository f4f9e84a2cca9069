//! Group commits: random requests, and the check of their answers.

use std::collections::BTreeMap;

use whimbrel_storage::{AppendError, Core, LogReply, LogWrite, PartitionKey, WritePart};

use super::LogWorld;
use crate::checker::CheckResult;
use crate::model::{GroupRecords, ModelRecord};

const WORKS_MAX: u64 = 4;
const PARTS_MAX: u64 = 3;
const RECORDS_MAX: u64 = 4;
const FENCES: [&str; 3] = ["holds/1", "holds/2", "push/1"];
/// The bytes of a batch beside its records.
const PART_OVERHEAD: usize = 64;

/// A request with its records, as the model has them.
struct GroupRequest {
    work: LogWrite,
    parts: Vec<(PartitionKey, Vec<ModelRecord>)>,
}

impl LogWorld {
    pub(super) fn commit(&mut self, core: &Core) -> CheckResult {
        // The running log waits for the keeper if memory or journal are full.
        if core.must_wait() && core.refusal().is_none() {
            self.checkpoint(core)?;
        }
        self.commit_group(core)
    }

    pub(super) fn commit_group(&mut self, core: &Core) -> CheckResult {
        let asked = self.ask();
        let works: Vec<LogWrite> = asked.iter().map(|asked| asked.work.clone()).collect();
        let refusal = core.refusal();
        let outcomes = core.commit(&works);
        self.trace.note(|| describe(&asked, &outcomes));
        match refusal {
            Some(refusal) => match outcomes.iter().find(|outcome| **outcome != LogReply::Failed(refusal.clone())) {
                Some(outcome) => Err(format!("a log that rejects appends with {refusal} answered {outcome:?}")),
                None => Ok(()),
            },
            None => self.settle(&asked, &outcomes),
        }
    }

    fn ask(&mut self) -> Vec<GroupRequest> {
        let mut room = self.settings.frame_bytes_max;
        let count = self.rng.between(1, WORKS_MAX);
        (0..count).filter_map(|_| self.ask_one(&mut room)).collect()
    }

    fn ask_one(&mut self, room: &mut usize) -> Option<GroupRequest> {
        let fence = (*self.rng.pick(&FENCES)).to_owned();
        let kind = self.rng.below(10);
        if kind == 0 {
            return Some(GroupRequest { work: LogWrite::OpenFence(fence), parts: Vec::new() });
        }
        let mut parts = Vec::new();
        let mut encoded = Vec::new();
        for _ in 0..self.rng.between(1, PARTS_MAX) {
            let partition = self.some_partition();
            let (part, entries) = self.part(partition);
            let size = part.records.len() + PART_OVERHEAD;
            if size > *room {
                break;
            }
            *room -= size;
            encoded.push(part);
            parts.push((partition, entries));
        }
        if parts.is_empty() {
            return None;
        }
        let work = if kind < 6 {
            LogWrite::Append(encoded)
        } else {
            let newest = self.model.fences.get(&fence).copied().unwrap_or(0);
            let token = if self.rng.one_in(6) { self.rng.below(newest + 2) } else { newest };
            LogWrite::Commit { fence, token, parts: encoded }
        };
        Some(GroupRequest { work, parts })
    }

    /// An existing partition, or rarely an unknown one.
    fn some_partition(&mut self) -> PartitionKey {
        let unknown = PartitionKey { topic: self.rng.below(12) as u32, partition: 99 };
        if self.rng.one_in(60) {
            return unknown;
        }
        self.any_partition().unwrap_or(unknown)
    }

    fn part(&mut self, partition: PartitionKey) -> (WritePart, Vec<ModelRecord>) {
        let (mut records, mut entries) = (Vec::new(), Vec::new());
        let count = if self.rng.one_in(40) { 30 } else { self.rng.between(1, RECORDS_MAX) };
        for _ in 0..count {
            let timestamp = self.now + self.rng.below(100) as i64 - 50;
            let entry = ModelRecord { number: self.next_number, timestamp, frame: 0 };
            self.next_number += 1;
            entry.encode(&mut records);
            entries.push(entry);
        }
        let max_timestamp = entries.iter().map(|entry| entry.timestamp).max().unwrap_or(i64::MIN);
        (WritePart { partition, count: entries.len() as u32, max_timestamp, records }, entries)
    }

    /// Checks the answers in the order of the calls, which the log must have kept.
    fn settle(&mut self, asked: &[GroupRequest], outcomes: &[LogReply]) -> CheckResult {
        if asked.len() != outcomes.len() {
            return Err(format!("{} answers to {} requests", outcomes.len(), asked.len()));
        }
        self.model.frames += 1;
        let frame_number = self.model.frames;
        let mut offsets: BTreeMap<PartitionKey, (u64, Vec<ModelRecord>)> = BTreeMap::new();
        let mut failed: Option<AppendError> = None;
        let mut wrote = false;
        for (asked, outcome) in asked.iter().zip(outcomes) {
            let Some(placed) = self.placed(asked, outcome)? else { continue };
            let mut expected = Vec::new();
            for index in placed {
                let (key, entries) = &asked.parts[index];
                let next = self.model.partitions[key].next();
                let (base, run) = offsets.entry(*key).or_insert_with(|| (next, Vec::new()));
                expected.push((index, *base + run.len() as u64));
                run.extend(entries.iter().map(|entry| ModelRecord { frame: frame_number, ..*entry }));
            }
            match outcome {
                LogReply::Failed(error) if !wrote && failed.as_ref().is_none_or(|other| other == error) => {
                    failed = Some(error.clone());
                }
                _ if failed.is_some() || matches!(outcome, LogReply::Failed(_)) => {
                    return Err(format!("one frame, and different answers: {outcomes:?}"));
                }
                outcome => {
                    wrote = true;
                    check_places(outcome, &expected)?;
                }
            }
        }
        let parts = offsets.into_iter().map(|(key, (base, entries))| (key, base, entries)).collect();
        self.settle_frame(GroupRecords { parts }, failed)
    }

    /// The parts that belong into the frame, or `None` if the request is answered without it.
    fn placed(&mut self, asked: &GroupRequest, outcome: &LogReply) -> CheckResult<Option<Vec<usize>>> {
        let is_known = |(key, _): &(PartitionKey, Vec<ModelRecord>)| self.model.alive().contains(key);
        let wrong = |expected: &str| Err(format!("{outcome:?} where {expected} was expected"));
        match &asked.work {
            LogWrite::OpenFence(name) => match outcome {
                LogReply::FenceOpened(token) if *token > self.model.newest_token => {
                    self.model.newest_token = *token;
                    self.model.fences.insert(name.clone(), *token);
                    Ok(None)
                }
                _ => wrong("a newer fence"),
            },
            LogWrite::Commit { fence, token, .. } => {
                if self.model.fences.get(fence) != Some(token) {
                    return if *outcome == LogReply::Fenced { Ok(None) } else { wrong("Fenced") };
                }
                match asked.parts.iter().position(|part| !is_known(part)) {
                    Some(part) => {
                        let error = AppendError::UnknownPartition(asked.parts[part].0);
                        let refused = *outcome == LogReply::Refused { part, error };
                        if refused { Ok(None) } else { wrong("a rejection") }
                    }
                    None => Ok(Some((0..asked.parts.len()).collect())),
                }
            }
            LogWrite::Append(_) => {
                let placed: Vec<usize> =
                    (0..asked.parts.len()).filter(|index| is_known(&asked.parts[*index])).collect();
                if let LogReply::Appended(answers) = outcome {
                    let unknown = |index: &usize| Err(AppendError::UnknownPartition(asked.parts[*index].0));
                    let refused = (0..answers.len()).filter(|index| !placed.contains(index));
                    if answers.len() != asked.parts.len() || refused.into_iter().any(|i| answers[i] != unknown(&i)) {
                        return wrong("a rejection of unknown partitions");
                    }
                }
                Ok((!placed.is_empty()).then_some(placed))
            }
        }
    }

    fn settle_frame(&mut self, frame: GroupRecords, failed: Option<AppendError>) -> CheckResult {
        match failed {
            None if frame.parts.is_empty() => Ok(()),
            None if self.model.poisoned => Err("the log was closed for writing, and acknowledged".to_owned()),
            None => {
                self.model.add(&frame);
                self.model.last_frame_marked = false;
                self.counts.group_commits += 1;
                self.counts.records += frame.parts.iter().map(|(_, _, entries)| entries.len() as u64).sum::<u64>();
                Ok(())
            }
            Some(AppendError::Unknown(why)) => {
                if !self.something_failed() {
                    return Err(format!("an unknown outcome although the disk did not fail: {why}"));
                }
                self.model.poisoned = true;
                self.model.limbo = Some(frame);
                Ok(())
            }
            // Nothing was written, and later reads must not find it.
            Some(AppendError::DiskFull(_)) if self.profile.fills_disk() => Ok(()),
            Some(AppendError::Poisoned(_)) if self.something_failed() => {
                self.model.poisoned = true;
                Ok(())
            }
            Some(error) => Err(format!("a group commit failed: {error}")),
        }
    }
}

fn check_places(outcome: &LogReply, expected: &[(usize, u64)]) -> CheckResult {
    let is_right = |(index, offset): &(usize, u64)| match outcome {
        LogReply::Appended(answers) => answers[*index] == Ok(*offset),
        LogReply::Committed(answers) => answers.get(*index) == Some(offset),
        _ => false,
    };
    match expected.iter().all(is_right) {
        true => Ok(()),
        false => Err(format!("{outcome:?} where (part, offset) {expected:?} were expected")),
    }
}

fn describe(asked: &[GroupRequest], outcomes: &[LogReply]) -> String {
    let one = |(asked, outcome): (&GroupRequest, &LogReply)| {
        let parts: Vec<String> = asked.parts.iter().map(|(key, entries)| format!("{key}x{}", entries.len())).collect();
        let kind = match &asked.work {
            LogWrite::Append(_) => "append".to_owned(),
            LogWrite::Commit { fence, token, .. } => format!("commit under {fence}#{token}"),
            LogWrite::OpenFence(name) => format!("fence {name}"),
        };
        format!("{kind} {} -> {outcome:?}", parts.join(" "))
    };
    asked.iter().zip(outcomes).map(one).collect::<Vec<_>>().join("; ")
}
