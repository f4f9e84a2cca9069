//! Group commits: what is asked for, and whether the answers are what they must be.

use std::collections::BTreeMap;

use whimbrel_storage::{AppendError, Core, Outcome, Part, PartitionKey, Work};

use super::World;
use crate::checker::Check;
use crate::model::{Entry, Frame};

const WORKS_MAX: u64 = 4;
const PARTS_MAX: u64 = 3;
const RECORDS_MAX: u64 = 4;
const FENCES: [&str; 3] = ["holds/1", "holds/2", "push/1"];
/// What a batch has beside its records.
const PART_OVERHEAD: usize = 64;

/// One piece of work with the records that it carries, as the model knows them.
struct Asked {
    work: Work,
    parts: Vec<(PartitionKey, Vec<Entry>)>,
}

impl World {
    pub(super) fn commit(&mut self, core: &Core) -> Check {
        // The running log lets the keeper go first where memory or journal have no room left.
        if core.must_wait() && core.refusal().is_none() {
            self.checkpoint(core)?;
        }
        self.commit_group(core)
    }

    pub(super) fn commit_group(&mut self, core: &Core) -> Check {
        let asked = self.ask();
        let works: Vec<Work> = asked.iter().map(|asked| asked.work.clone()).collect();
        let refusal = core.refusal();
        let outcomes = core.commit(&works);
        self.trace.note(|| describe(&asked, &outcomes));
        match refusal {
            Some(refusal) => match outcomes.iter().find(|outcome| **outcome != Outcome::Failed(refusal.clone())) {
                Some(outcome) => Err(format!("a log that refuses with {refusal} answered {outcome:?}")),
                None => Ok(()),
            },
            None => self.settle(&asked, &outcomes),
        }
    }

    fn ask(&mut self) -> Vec<Asked> {
        let mut room = self.settings.frame_bytes_max;
        let count = self.rng.between(1, WORKS_MAX);
        (0..count).filter_map(|_| self.ask_one(&mut room)).collect()
    }

    fn ask_one(&mut self, room: &mut usize) -> Option<Asked> {
        let fence = (*self.rng.pick(&FENCES)).to_owned();
        let kind = self.rng.below(10);
        if kind == 0 {
            return Some(Asked { work: Work::OpenFence(fence), parts: Vec::new() });
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
            Work::Append(encoded)
        } else {
            let newest = self.model.fences.get(&fence).copied().unwrap_or(0);
            let token = if self.rng.one_in(6) { self.rng.below(newest + 2) } else { newest };
            Work::Commit { fence, token, parts: encoded }
        };
        Some(Asked { work, parts })
    }

    /// One that is there, or seldom one that is not.
    fn some_partition(&mut self) -> PartitionKey {
        let unknown = PartitionKey { topic: self.rng.below(12) as u32, partition: 99 };
        if self.rng.one_in(60) {
            return unknown;
        }
        self.any_partition().unwrap_or(unknown)
    }

    fn part(&mut self, partition: PartitionKey) -> (Part, Vec<Entry>) {
        let (mut records, mut entries) = (Vec::new(), Vec::new());
        let count = if self.rng.one_in(40) { 30 } else { self.rng.between(1, RECORDS_MAX) };
        for _ in 0..count {
            let timestamp = self.now + self.rng.below(100) as i64 - 50;
            let entry = Entry { number: self.next_number, timestamp, frame: 0 };
            self.next_number += 1;
            entry.encode(&mut records);
            entries.push(entry);
        }
        let max_timestamp = entries.iter().map(|entry| entry.timestamp).max().unwrap_or(i64::MIN);
        (Part { partition, count: entries.len() as u32, max_timestamp, records }, entries)
    }

    /// Goes through the answers in the order of the calls, as the log must have.
    fn settle(&mut self, asked: &[Asked], outcomes: &[Outcome]) -> Check {
        if asked.len() != outcomes.len() {
            return Err(format!("{} answers to {} works", outcomes.len(), asked.len()));
        }
        self.model.frames += 1;
        let frame_number = self.model.frames;
        let mut offsets: BTreeMap<PartitionKey, (u64, Vec<Entry>)> = BTreeMap::new();
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
                run.extend(entries.iter().map(|entry| Entry { frame: frame_number, ..*entry }));
            }
            match outcome {
                Outcome::Failed(error) if !wrote && failed.as_ref().is_none_or(|other| other == error) => {
                    failed = Some(error.clone());
                }
                _ if failed.is_some() || matches!(outcome, Outcome::Failed(_)) => {
                    return Err(format!("one frame, and different answers: {outcomes:?}"));
                }
                outcome => {
                    wrote = true;
                    check_places(outcome, &expected)?;
                }
            }
        }
        let parts = offsets.into_iter().map(|(key, (base, entries))| (key, base, entries)).collect();
        self.settle_frame(Frame { parts }, failed)
    }

    /// The parts that belong into the frame, or `None` where the work is answered without it.
    fn placed(&mut self, asked: &Asked, outcome: &Outcome) -> Check<Option<Vec<usize>>> {
        let is_known = |(key, _): &(PartitionKey, Vec<Entry>)| self.model.alive().contains(key);
        let wrong = |expected: &str| Err(format!("{outcome:?} where {expected} was due"));
        match &asked.work {
            Work::OpenFence(name) => match outcome {
                Outcome::FenceOpened(token) if *token > self.model.newest_token => {
                    self.model.newest_token = *token;
                    self.model.fences.insert(name.clone(), *token);
                    Ok(None)
                }
                _ => wrong("a newer fence"),
            },
            Work::Commit { fence, token, .. } => {
                if self.model.fences.get(fence) != Some(token) {
                    return if *outcome == Outcome::Fenced { Ok(None) } else { wrong("Fenced") };
                }
                match asked.parts.iter().position(|part| !is_known(part)) {
                    Some(part) => {
                        let error = AppendError::UnknownPartition(asked.parts[part].0);
                        let refused = *outcome == Outcome::Refused { part, error };
                        if refused { Ok(None) } else { wrong("a refusal") }
                    }
                    None => Ok(Some((0..asked.parts.len()).collect())),
                }
            }
            Work::Append(_) => {
                let placed: Vec<usize> =
                    (0..asked.parts.len()).filter(|index| is_known(&asked.parts[*index])).collect();
                if let Outcome::Appended(answers) = outcome {
                    let unknown = |index: &usize| Err(AppendError::UnknownPartition(asked.parts[*index].0));
                    let refused = (0..answers.len()).filter(|index| !placed.contains(index));
                    if answers.len() != asked.parts.len() || refused.into_iter().any(|i| answers[i] != unknown(&i)) {
                        return wrong("a refusal of unknown partitions");
                    }
                }
                Ok((!placed.is_empty()).then_some(placed))
            }
        }
    }

    fn settle_frame(&mut self, frame: Frame, failed: Option<AppendError>) -> Check {
        match failed {
            None if frame.parts.is_empty() => Ok(()),
            None if self.model.poisoned => Err("the log was closed for writing, and acknowledged".to_owned()),
            None => {
                self.model.add(&frame);
                self.model.last_frame_marked = false;
                self.report.group_commits += 1;
                self.report.records += frame.parts.iter().map(|(_, _, entries)| entries.len() as u64).sum::<u64>();
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
            // Nothing was written, and it must not be found later.
            Some(AppendError::DiskFull(_)) if self.profile.fills_disk() => Ok(()),
            Some(AppendError::Poisoned(_)) if self.something_failed() => {
                self.model.poisoned = true;
                Ok(())
            }
            Some(error) => Err(format!("a group commit failed: {error}")),
        }
    }
}

fn check_places(outcome: &Outcome, expected: &[(usize, u64)]) -> Check {
    let is_right = |(index, offset): &(usize, u64)| match outcome {
        Outcome::Appended(answers) => answers[*index] == Ok(*offset),
        Outcome::Committed(answers) => answers.get(*index) == Some(offset),
        _ => false,
    };
    match expected.iter().all(is_right) {
        true => Ok(()),
        false => Err(format!("{outcome:?} where (part, offset) {expected:?} were due")),
    }
}

fn describe(asked: &[Asked], outcomes: &[Outcome]) -> String {
    let one = |(asked, outcome): (&Asked, &Outcome)| {
        let parts: Vec<String> = asked.parts.iter().map(|(key, entries)| format!("{key}x{}", entries.len())).collect();
        let kind = match &asked.work {
            Work::Append(_) => "append".to_owned(),
            Work::Commit { fence, token, .. } => format!("commit under {fence}#{token}"),
            Work::OpenFence(name) => format!("fence {name}"),
        };
        format!("{kind} {} -> {outcome:?}", parts.join(" "))
    };
    asked.iter().zip(outcomes).map(one).collect::<Vec<_>>().join("; ")
}
