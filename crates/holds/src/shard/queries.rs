//! Lists and counts: the contents of the store, corrected by the unsaved changes in memory. Also the withdrawal of all holds of a topic,
//! which lists and withdraws until none is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::ports::{
    AtOffset, CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest, HoldView, HoldsError, StoredHold, TimersError,
    bucket_start,
};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, Timestamp, TopicNumber};

use super::super::IdMap;
use super::super::settings::PAGE_HOLDS;
use super::request_queues::{HoldRequestId, WaitingRequest};
use super::{CallToken, HoldEffect, HoldShard, StoreRead};

#[derive(Debug)]
pub(super) struct PendingQuery {
    pub(super) waiting: WaitingRequest,
    /// The query of the next page, and the views from earlier pages: without the messages, which may be large.
    query: HoldQuery,
    gathered: Vec<HoldView>,
    asked_after: u64,
}

/// The withdrawal of all holds of a topic.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    outstanding: usize,
    withdrawn: u64,
    failed: Option<HoldsError>,
    /// The request that lists again when no withdrawal is outstanding.
    pub(super) waiting: Option<WaitingRequest>,
}

/// The most holds of a topic that are withdrawn at once.
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

impl HoldShard {
    /// Starts a list or count. The log is folded to its end as of the request's arrival.
    pub(super) fn look(&mut self, waiting: WaitingRequest, effects: &mut Vec<HoldEffect>) {
        let query = match &waiting.what {
            HoldRequest::List(query) | HoldRequest::Dead(query) => query.clone(),
            HoldRequest::WithdrawTopic { topic } => all_of(*topic),
            _ => HoldQuery { topic: None, from: None, to: None, after: None, limit: 0 },
        };
        self.ask_for(PendingQuery { waiting, query, gathered: Vec::new(), asked_after: self.store.saves }, effects);
    }

    fn ask_for(&mut self, mut looking: PendingQuery, effects: &mut Vec<HoldEffect>) {
        let token = self.token();
        looking.asked_after = self.store.saves;
        let query = looking.query.clone();
        effects.push(match &looking.waiting.what {
            HoldRequest::Count(query) => HoldEffect::Count { token, query: query.clone() },
            HoldRequest::Dead(_) => HoldEffect::Dead { token, query },
            _ => HoldEffect::List { token, query },
        });
        self.requests.queries.insert(token, looking);
    }

    /// The store's reply if it is usable. Otherwise the query is repeated, waits for a new start, or fails.
    fn sound<T>(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<T>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) -> Option<(PendingQuery, u64, T)> {
        let looking = self.requests.queries.remove(&token)?;
        match found {
            Ok(at) => match self.store.check_read(at.applied, looking.asked_after) {
                StoreRead::Sound => return Some((looking, at.applied, at.found)),
                StoreRead::AskAgain => self.ask_for(looking, effects),
                StoreRead::Fallen => {
                    self.store.has_fallen = true;
                    self.requests.arrived.push(looking.waiting);
                }
            },
            Err(error) => {
                self.store.failed(&error);
                self.answer(looking.waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
            }
        }
        None
    }

    pub(super) fn listed(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<Vec<Arc<Hold>>>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) {
        let Some((mut looking, _, page)) = self.sound(token, found, effects) else { return };
        let query = &looking.query;
        // After the last hold of the page, the store may have holds that precede those in memory.
        let last = page.last().map(|hold| DueCursor { due: hold.due, id: hold.id.clone() });
        let mut holds: Vec<Arc<Hold>> =
            page.into_iter().filter(|hold| self.memory.unsaved.get(&hold.id).is_none()).collect();
        for (id, state, _) in self.memory.unsaved.each(false) {
            if let StoredHold::Pending(hold) = state
                && is_asked_for(query, hold.topic, hold.due, id)
                && last.as_ref().is_none_or(|last| (hold.due, id) <= (last.due, &last.id))
            {
                holds.push(Arc::clone(hold));
            }
        }
        holds.sort_unstable_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        looking.gathered.extend(holds.iter().map(|hold| HoldView::of(hold)));
        // A hold that changed after its page was read is at its new place, or has ended. A withdrawal of a topic keeps moved holds in the
        // list, because their new place may have been passed already.
        let is_sweep = matches!(looking.waiting.what, HoldRequest::WithdrawTopic { .. });
        looking.gathered.retain(|view| match self.memory.unsaved.get(&view.id) {
            Some(StoredHold::Pending(now)) => is_sweep || now.version == view.version,
            Some(StoredHold::Ended(_)) => false,
            None => true,
        });
        keep_newest(&mut looking.gathered);
        // A list that is shorter than its limit means that there are no more holds.
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
        self.answer(looking.waiting, Ok(HoldReply::Listed(looking.gathered)), effects);
    }

    pub(super) fn listed_dead(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<Vec<(HoldId, HoldEnd)>>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) {
        let Some((looking, _, mut dead)) = self.sound(token, found, effects) else { return };
        let query = &looking.query;
        let is_full = dead.len() >= query.limit;
        let last = dead.last().filter(|_| is_full).map(|(id, end)| (end.due, id.clone()));
        for (id, state, _) in self.memory.unsaved.each(false) {
            if let StoredHold::Ended(end @ HoldEnd { how: HoldEndKind::Dead { .. }, .. }) = state
                && is_asked_for(query, end.topic, end.due, id)
                && last.as_ref().is_none_or(|(due, last)| (end.due, id) <= (*due, last))
                && !dead.iter().any(|(known, _)| known == id)
            {
                dead.push((id.clone(), end.clone()));
            }
        }
        dead.sort_unstable_by(|a, b| (a.1.due, &a.0).cmp(&(b.1.due, &b.0)));
        dead.truncate(query.limit);
        self.answer(looking.waiting, Ok(HoldReply::ListedDead(dead)), effects);
    }

    pub(super) fn counted(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<Vec<(Timestamp, u64)>>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) {
        let Some((looking, at, counts)) = self.sound(token, found, effects) else { return };
        let HoldRequest::Count(query) = &looking.waiting.what else { return };
        let mut buckets: BTreeMap<Timestamp, i64> =
            counts.into_iter().map(|(from, count)| (from, i64::try_from(count).unwrap_or(i64::MAX))).collect();
        let is_saved = at != self.store.saved;
        for (_, state, row) in self.memory.unsaved.each(is_saved) {
            if let Some(row) = row
                && is_counted(query, row.topic, row.due)
            {
                *buckets.entry(bucket_start(row.due, query.bucket)).or_default() -= 1;
            }
            if let StoredHold::Pending(hold) = state
                && is_counted(query, hold.topic, hold.due)
            {
                *buckets.entry(bucket_start(hold.due, query.bucket)).or_default() += 1;
            }
        }
        let counts = buckets.into_iter().filter_map(|(from, count)| Some((from, u64::try_from(count).ok()?)));
        let counts = counts.filter(|(_, count)| *count > 0).collect();
        self.answer(looking.waiting, Ok(HoldReply::Counted(counts)), effects);
    }

    /// Withdraws a page of the topic's holds, each with a command of its own. Then the next page is listed.
    fn sweep(&mut self, waiting: WaitingRequest, holds: Vec<HoldView>, effects: &mut Vec<HoldEffect>) {
        let ask = waiting.ask;
        if holds.is_empty() {
            let sweep = self.requests.sweeps.remove(&ask).unwrap_or_default();
            let told = sweep.failed.map_or(Ok(HoldReply::WithdrawnMany(sweep.withdrawn)), Err);
            return self.answer(waiting, told, effects);
        }
        for hold in &holds {
            let withdraw = HoldRequest::Withdraw { id: hold.id.clone() };
            let one = WaitingRequest::new(ask, withdraw, waiting.expires_at);
            self.requests.count += 1;
            self.requests.arrived.push(WaitingRequest { is_folded: true, sweep: Some(ask), ..one });
        }
        let sweep = self.requests.sweeps.entry(ask).or_default();
        sweep.outstanding = holds.len();
        sweep.waiting = Some(waiting);
    }

    /// Takes the answer for one hold of the topic.
    pub(super) fn swept_one(
        &mut self,
        ask: HoldRequestId,
        told: Result<HoldReply, HoldsError>,
        effects: &mut Vec<HoldEffect>,
    ) {
        let Some(sweep) = self.requests.sweeps.get_mut(&ask) else { return };
        sweep.outstanding = sweep.outstanding.saturating_sub(1);
        match told {
            Ok(HoldReply::Withdrawn) => sweep.withdrawn += 1,
            Ok(_) => {}
            Err(error) => sweep.failed = Some(error),
        }
        if sweep.outstanding == 0
            && sweep.failed.is_some()
            && let Some(mut sweep) = self.requests.sweeps.remove(&ask)
            && let (Some(waiting), Some(error)) = (sweep.waiting.take(), sweep.failed)
        {
            self.answer(waiting, Err(error), effects);
        }
    }

    /// Lists more holds for the sweeps without outstanding withdrawals. All earlier withdrawals are folded.
    pub(super) fn sweep_on(&mut self) {
        let expires_at = super::after(self.time.now(), self.settings.answer_within);
        for sweep in self.requests.sweeps.values_mut().filter(|sweep| sweep.outstanding == 0) {
            // A sweep may take long; each page renews its timeout.
            self.requests.arrived.extend(sweep.waiting.take().map(|waiting| WaitingRequest {
                expires_at,
                is_folded: true,
                ..waiting
            }));
        }
    }
}

/// Keeps the newest view of a hold that is in two pages because it was moved and saved in between.
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

/// The store counts by the minute, so the query's bounds are whole minutes.
fn is_counted(query: &CountQuery, topic: TopicNumber, due: Timestamp) -> bool {
    const MINUTE_MS: i64 = 60_000;
    let minute = due.as_millis().div_euclid(MINUTE_MS);
    query.topic.is_none_or(|wanted| wanted == topic)
        && query.from.is_none_or(|from| minute >= from.as_millis().div_euclid(MINUTE_MS))
        && query.to.is_none_or(|to| minute <= (to.as_millis() - 1).div_euclid(MINUTE_MS))
}
