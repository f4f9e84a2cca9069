//! Lists and counts: what the store has, with what only memory knows put in its place. And the withdrawal of a whole topic,
//! which lists and withdraws until nothing is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::ports::{
    Ask, At, CountQuery, DueCursor, HoldQuery, HoldView, HoldsError, Known, TimersError, Told, bucket_start,
};
use whimbrel_model::{Ending, Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

use super::super::IdMap;
use super::super::settings::PAGE_HOLDS;
use super::commands::{AskId, Waiting};
use super::{Effect, Judged, Shard, Token};

/// A list or a count that the store is asked for.
#[derive(Debug)]
pub(super) struct Looking {
    pub(super) waiting: Waiting,
    /// Where the next page begins, and what was gathered before it: without the messages, which may be large.
    query: HoldQuery,
    gathered: Vec<HoldView>,
    asked_after: u64,
}

/// A topic's holds on their way out.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    outstanding: usize,
    withdrawn: u64,
    failed: Option<HoldsError>,
    /// What is to be asked again when nothing is outstanding.
    pub(super) waiting: Option<Waiting>,
}

/// Holds of a topic that are withdrawn at once.
const SWEEP_HOLDS: usize = PAGE_HOLDS;

fn all_of(topic: TopicNumber) -> HoldQuery {
    HoldQuery { topic: Some(topic), from: None, to: None, after: None, limit: SWEEP_HOLDS }
}

fn is_asked_for(query: &HoldQuery, topic: TopicNumber, due: Timestamp, id: &HoldId) -> bool {
    query.topic.is_none_or(|wanted| wanted == topic)
        && query.from.is_none_or(|from| due >= from)
        && query.to.is_none_or(|to| due < to)
        && query.after.as_ref().is_none_or(|after| (due, id) > (after.due, &after.id))
}

impl Shard {
    /// Everything is folded that was there when the question came.
    pub(super) fn look(&mut self, waiting: Waiting, effects: &mut Vec<Effect>) {
        let query = match &waiting.what {
            Ask::List(query) | Ask::Dead(query) => query.clone(),
            Ask::WithdrawTopic { topic } => all_of(*topic),
            _ => HoldQuery { topic: None, from: None, to: None, after: None, limit: 0 },
        };
        self.ask_for(Looking { waiting, query, gathered: Vec::new(), asked_after: self.saves }, effects);
    }

    fn ask_for(&mut self, mut looking: Looking, effects: &mut Vec<Effect>) {
        let token = self.token();
        looking.asked_after = self.saves;
        let query = looking.query.clone();
        effects.push(match &looking.waiting.what {
            Ask::Count(query) => Effect::Count { token, query: query.clone() },
            Ask::Dead(_) => Effect::Dead { token, query },
            _ => Effect::List { token, query },
        });
        self.looking.insert(token, looking);
    }

    /// What the store answered, where that counts; otherwise it is asked again, or nothing is answered yet.
    fn sound<T>(
        &mut self,
        token: Token,
        found: Result<At<T>, TimersError>,
        effects: &mut Vec<Effect>,
    ) -> Option<(Looking, u64, T)> {
        let looking = self.looking.remove(&token)?;
        match found {
            Ok(at) => match self.judge(at.applied, looking.asked_after) {
                Judged::Sound => return Some((looking, at.applied, at.found)),
                Judged::AskAgain => self.ask_for(looking, effects),
                Judged::Fallen => {
                    self.has_fallen = true;
                    self.arrived.push(looking.waiting);
                }
            },
            Err(error) => {
                self.store_failed(&error);
                self.answer(looking.waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
            }
        }
        None
    }

    pub(super) fn listed(
        &mut self,
        token: Token,
        found: Result<At<Vec<Arc<Hold>>>, TimersError>,
        effects: &mut Vec<Effect>,
    ) {
        let Some((mut looking, _, page)) = self.sound(token, found, effects) else { return };
        let query = &looking.query;
        // Beyond the last of a page the store may have more that come before what memory has.
        let last = page.last().map(|hold| DueCursor { due: hold.due, id: hold.id.clone() });
        let mut holds: Vec<Arc<Hold>> = page.into_iter().filter(|hold| self.unsaved.get(&hold.id).is_none()).collect();
        for (id, state, _) in self.unsaved.each(false) {
            if let Known::Pending(hold) = state
                && is_asked_for(query, hold.topic, hold.due, id)
                && last.as_ref().is_none_or(|last| (hold.due, id) <= (last.due, &last.id))
            {
                holds.push(Arc::clone(hold));
            }
        }
        holds.sort_unstable_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        looking.gathered.extend(holds.iter().map(|hold| HoldView::of(hold)));
        // What has changed since its page was read is in its new place, or gone. Where all are withdrawn, what was only moved must go
        // too, and its new place may have been passed already.
        let is_sweep = matches!(looking.waiting.what, Ask::WithdrawTopic { .. });
        looking.gathered.retain(|view| match self.unsaved.get(&view.id) {
            Some(Known::Pending(now)) => is_sweep || now.version == view.version,
            Some(Known::Ended(_)) => false,
            None => true,
        });
        keep_newest(&mut looking.gathered);
        // A list that is shorter than asked for says that there is no more.
        let limit = looking.query.limit;
        if looking.gathered.len() < limit
            && let Some(last) = last
        {
            looking.query.after = Some(last);
            return self.ask_for(looking, effects);
        }
        looking.gathered.truncate(limit);
        if is_sweep {
            return self.sweep(looking.waiting, looking.gathered, effects);
        }
        self.answer(looking.waiting, Ok(Told::Listed(looking.gathered)), effects);
    }

    pub(super) fn listed_dead(
        &mut self,
        token: Token,
        found: Result<At<Vec<(HoldId, HoldEnd)>>, TimersError>,
        effects: &mut Vec<Effect>,
    ) {
        let Some((looking, _, mut dead)) = self.sound(token, found, effects) else { return };
        let query = &looking.query;
        let is_full = dead.len() >= query.limit;
        let last = dead.last().filter(|_| is_full).map(|(id, end)| (end.due, id.clone()));
        for (id, state, _) in self.unsaved.each(false) {
            if let Known::Ended(end @ HoldEnd { how: Ending::Dead { .. }, .. }) = state
                && is_asked_for(query, end.topic, end.due, id)
                && last.as_ref().is_none_or(|(due, last)| (end.due, id) <= (*due, last))
                && !dead.iter().any(|(known, _)| known == id)
            {
                dead.push((id.clone(), end.clone()));
            }
        }
        dead.sort_unstable_by(|a, b| (a.1.due, &a.0).cmp(&(b.1.due, &b.0)));
        dead.truncate(query.limit);
        self.answer(looking.waiting, Ok(Told::ListedDead(dead)), effects);
    }

    pub(super) fn counted(
        &mut self,
        token: Token,
        found: Result<At<Vec<(Timestamp, u64)>>, TimersError>,
        effects: &mut Vec<Effect>,
    ) {
        let Some((looking, at, counts)) = self.sound(token, found, effects) else { return };
        let Ask::Count(query) = &looking.waiting.what else { return };
        let mut buckets: BTreeMap<Timestamp, i64> =
            counts.into_iter().map(|(from, count)| (from, i64::try_from(count).unwrap_or(i64::MAX))).collect();
        let is_saved = at != self.saved;
        for (_, state, row) in self.unsaved.each(is_saved) {
            if let Some(row) = row
                && is_counted(query, row.topic, row.due)
            {
                *buckets.entry(bucket_start(row.due, query.bucket)).or_default() -= 1;
            }
            if let Known::Pending(hold) = state
                && is_counted(query, hold.topic, hold.due)
            {
                *buckets.entry(bucket_start(hold.due, query.bucket)).or_default() += 1;
            }
        }
        let counts = buckets.into_iter().filter_map(|(from, count)| Some((from, u64::try_from(count).ok()?)));
        let counts = counts.filter(|(_, count)| *count > 0).collect();
        self.answer(looking.waiting, Ok(Told::Counted(counts)), effects);
    }

    /// A page of the topic's holds: each is withdrawn by a command of its own, and then the next page is looked for.
    fn sweep(&mut self, waiting: Waiting, holds: Vec<HoldView>, effects: &mut Vec<Effect>) {
        let ask = waiting.ask;
        if holds.is_empty() {
            let sweep = self.sweeps.remove(&ask).unwrap_or_default();
            let told = sweep.failed.map_or(Ok(Told::WithdrawnMany(sweep.withdrawn)), Err);
            return self.answer(waiting, told, effects);
        }
        for hold in &holds {
            self.waiting += 1;
            self.arrived.push(Waiting {
                ask,
                what: Ask::Withdraw { id: hold.id.clone() },
                expires_at: waiting.expires_at,
                is_folded: true,
                got: None,
                asked_after: 0,
                version_before: None,
                doubt: None,
                sweep: Some(ask),
            });
        }
        let sweep = self.sweeps.entry(ask).or_default();
        sweep.outstanding = holds.len();
        sweep.waiting = Some(waiting);
    }

    /// One of the topic's holds was answered for.
    pub(super) fn swept_one(&mut self, ask: AskId, told: Result<Told, HoldsError>, effects: &mut Vec<Effect>) {
        let Some(sweep) = self.sweeps.get_mut(&ask) else { return };
        sweep.outstanding = sweep.outstanding.saturating_sub(1);
        match told {
            Ok(Told::Withdrawn) => sweep.withdrawn += 1,
            Ok(_) => {}
            Err(error) => sweep.failed = Some(error),
        }
        if sweep.outstanding == 0
            && sweep.failed.is_some()
            && let Some(mut sweep) = self.sweeps.remove(&ask)
            && let (Some(waiting), Some(error)) = (sweep.waiting.take(), sweep.failed)
        {
            self.answer(waiting, Err(error), effects);
        }
    }

    /// What was withdrawn is folded: sweeps with nothing outstanding look for more.
    pub(super) fn sweep_on(&mut self) {
        let expires_at = super::after(self.clock.now(), self.settings.answer_within);
        for sweep in self.sweeps.values_mut().filter(|sweep| sweep.outstanding == 0) {
            // It makes progress, however long it takes.
            self.arrived.extend(sweep.waiting.take().map(|waiting| Waiting { expires_at, is_folded: true, ..waiting }));
        }
    }
}

/// A hold that was moved and saved between two pages is in both: its newest view counts.
fn keep_newest(views: &mut Vec<HoldView>) {
    let mut newest = IdMap::default();
    for view in &*views {
        let version = newest.entry(view.id.clone()).or_insert(view.version);
        *version = view.version.max(*version);
    }
    if newest.len() < views.len() {
        views.retain(|view| newest.get(&view.id) == Some(&view.version) && newest.remove(&view.id).is_some());
    }
}

/// Counts are kept by the minute, so bounds count by whole minutes.
fn is_counted(query: &CountQuery, topic: TopicNumber, due: Timestamp) -> bool {
    const MINUTE_MS: i64 = 60_000;
    let minute = due.as_millis().div_euclid(MINUTE_MS);
    query.topic.is_none_or(|wanted| wanted == topic)
        && query.from.is_none_or(|from| minute >= from.as_millis().div_euclid(MINUTE_MS))
        && query.to.is_none_or(|to| minute <= (to.as_millis() - 1).div_euclid(MINUTE_MS))
}
