//! Requests to an owner, and the check whether its answers are true.

use whimbrel_model::ports::{HoldQuery, HoldReply, HoldRequest, HoldView, HoldsError, StoredHold};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, TopicNumber};

use super::store::{count_of, dead_of, is_asked_for};
use super::truth::{HoldHistory, HoldsTruth, StepNumber};
use crate::CheckResult;

#[derive(Debug)]
pub struct HoldCall {
    pub what: HoldRequest,
    pub asked_at: StepNumber,
    /// Will be answered unless the node crashes.
    pub is_open: bool,
    pub reply: Option<Result<HoldReply, HoldsError>>,
}

impl HoldCall {
    pub fn new(what: HoldRequest, asked_at: StepNumber) -> Self {
        Self { what, asked_at, is_open: true, reply: None }
    }
}

impl HoldsTruth {
    /// Records a command. From now on its effect may happen.
    pub fn asked(&mut self, ask: &HoldRequest) {
        match ask {
            HoldRequest::Fire { id } => self.stories.entry(id.clone()).or_default().fires_asked += 1,
            HoldRequest::Withdraw { id } => self.stories.entry(id.clone()).or_default().withdrawals_asked += 1,
            HoldRequest::WithdrawTopic { topic } => {
                self.withdrawn_topics.insert(*topic);
            }
            _ => {}
        }
    }

    /// Records that the command was not executed, and will not be.
    fn not_done(&mut self, ask: &HoldRequest) {
        match ask {
            HoldRequest::Fire { id } => self.stories.entry(id.clone()).or_default().fires_asked -= 1,
            HoldRequest::Withdraw { id } => self.stories.entry(id.clone()).or_default().withdrawals_asked -= 1,
            _ => {}
        }
    }

    /// Checks that an answer is true, now and later.
    pub fn answered(
        &mut self,
        ask: &HoldRequest,
        asked_at: StepNumber,
        reply: &Result<HoldReply, HoldsError>,
    ) -> CheckResult {
        let reply = match reply {
            Ok(reply) => reply,
            Err(HoldsError::OutcomeUnknown(_)) => return Ok(()),
            Err(_) => {
                self.not_done(ask);
                return Ok(());
            }
        };
        if !self.is_true(ask, asked_at, reply) {
            let story = id_of(ask).and_then(|id| self.stories.get(id));
            return Err(format!("{ask:?} was answered with {reply:?}, which is wrong: {story:?}"));
        }
        Ok(())
    }

    fn is_true(&self, ask: &HoldRequest, asked_at: StepNumber, reply: &HoldReply) -> bool {
        let unheard = HoldHistory::default();
        let story = id_of(ask).and_then(|id| self.stories.get(id)).unwrap_or(&unheard);
        let ended = |end: &HoldEnd| story.now() == Some(&StoredHold::Ended(end.clone()));
        let was_unknown = || match story.at(asked_at) {
            None => true,
            Some(StoredHold::Ended(_)) => self.has_forgotten,
            Some(StoredHold::Pending(_)) => false,
        };
        match (ask, reply) {
            (
                HoldRequest::Withdraw { .. }
                | HoldRequest::Fire { .. }
                | HoldRequest::Look { .. }
                | HoldRequest::Extend { .. },
                HoldReply::Unknown,
            ) => was_unknown(),
            (
                HoldRequest::Withdraw { .. }
                | HoldRequest::Fire { .. }
                | HoldRequest::Look { .. }
                | HoldRequest::Extend { .. },
                HoldReply::Ended(end),
            ) => ended(end),
            (HoldRequest::Withdraw { .. }, HoldReply::Withdrawn) => {
                matches!(story.now(), Some(StoredHold::Ended(HoldEnd { how: HoldEndKind::Withdrawn, .. })))
            }
            (HoldRequest::Fire { .. }, HoldReply::Fired { at, .. }) => {
                matches!(story.now(), Some(StoredHold::Ended(HoldEnd { how: HoldEndKind::Fired { .. }, at: fired, .. })) if fired == at)
            }
            (HoldRequest::Look { .. }, HoldReply::Pending(view)) => {
                pending_since(story, asked_at).any(|hold| HoldView::of(hold) == *view)
            }
            (HoldRequest::Extend { .. }, HoldReply::Rescheduled { due, version }) => {
                pending_since(story, 0).any(|hold| hold.due == *due && hold.version == *version)
            }
            (HoldRequest::Extend { if_version: Some(asked), .. }, HoldReply::OtherVersion { version, due }) => {
                version != asked
                    && pending_since(story, asked_at).any(|hold| hold.version == *version && hold.due == *due)
            }
            (HoldRequest::Extend { .. }, HoldReply::TooFar) => true,
            (HoldRequest::Accept(new), HoldReply::Held { .. }) => {
                body_of(story) == Some((new.topic, new.fingerprint()))
            }
            (HoldRequest::Accept(new), HoldReply::Taken) => {
                body_of(story).is_some_and(|body| body != (new.topic, new.fingerprint()))
            }
            (HoldRequest::List(query), HoldReply::Listed(views)) => self.is_list(query, asked_at, views),
            (HoldRequest::Dead(_), HoldReply::ListedDead(dead)) if self.has_forgotten => {
                dead.iter().all(|(id, end)| self.stories[id].now() == Some(&StoredHold::Ended(end.clone())))
            }
            (HoldRequest::Dead(query), HoldReply::ListedDead(dead)) => {
                self.at_some_moment(asked_at, |picture| dead_of(query, picture.all()) == *dead)
            }
            (HoldRequest::Count(query), HoldReply::Counted(counts)) => self.at_some_moment(asked_at, |picture| {
                let holds = picture.all().filter_map(|(_, known)| match known {
                    StoredHold::Pending(hold) => Some(hold),
                    StoredHold::Ended(_) => None,
                });
                count_of(query, holds) == *counts
            }),
            (HoldRequest::WithdrawTopic { topic }, HoldReply::WithdrawnMany(_)) => {
                // No hold that was pending at the time of the request may be pending now.
                let still = |story: &HoldHistory| match (story.at(asked_at), story.pending()) {
                    (Some(StoredHold::Pending(_)), Some(hold)) => hold.topic == *topic,
                    _ => false,
                };
                !self.stories.values().any(still)
            }
            _ => false,
        }
    }

    /// Checks a list, which is made by several reads. Each listed hold had that state at some moment since the request. A hold that was
    /// pending without a change all the time must be listed.
    fn is_list(&self, query: &HoldQuery, asked_at: StepNumber, views: &[HoldView]) -> bool {
        let place = |view: &HoldView| (view.due, view.id.clone());
        let is_sorted = views.is_sorted_by(|a, b| place(a) < place(b)) && views.len() <= query.limit;
        let was_so = |view: &HoldView| {
            let story = &self.stories[&view.id];
            pending_since(story, asked_at).any(|hold| HoldView::of(hold) == *view && is_asked_for(query, hold))
        };
        let is_once = |view: &HoldView| views.iter().filter(|other| other.id == view.id).count() == 1;
        let last = views.last().filter(|_| views.len() == query.limit).map(place);
        let is_missing = |story: &HoldHistory| {
            let mut states = story.since(asked_at);
            let (Some(Some(StoredHold::Pending(hold))), None) = (states.next(), states.next()) else { return false };
            let is_within = last.as_ref().is_none_or(|last| (hold.due, hold.id.clone()) <= *last);
            is_within && is_asked_for(query, hold) && !views.iter().any(|view| view.id == hold.id)
        };
        is_sorted && views.iter().all(|view| was_so(view) && is_once(view)) && !self.stories.values().any(is_missing)
    }

    /// Whether a condition held at the time of the request, or at any moment since.
    fn at_some_moment(&self, asked_at: StepNumber, was_so: impl Fn(HoldsSnapshot<'_>) -> bool) -> bool {
        let mut moments: Vec<StepNumber> = self.landings.iter().copied().filter(|step| *step > asked_at).collect();
        moments.dedup();
        moments.push(asked_at);
        moments.into_iter().any(|step| was_so(HoldsSnapshot { truth: self, step }))
    }
}

/// All holds at one moment.
#[derive(Clone, Copy)]
struct HoldsSnapshot<'a> {
    truth: &'a HoldsTruth,
    step: StepNumber,
}

impl<'a> HoldsSnapshot<'a> {
    fn all(self) -> impl Iterator<Item = (&'a HoldId, &'a StoredHold)> {
        self.truth.stories.iter().filter_map(move |(id, story)| Some((id, story.at(self.step)?)))
    }
}

fn id_of(ask: &HoldRequest) -> Option<&HoldId> {
    match ask {
        HoldRequest::Accept(hold) => Some(&hold.id),
        HoldRequest::Extend { id, .. }
        | HoldRequest::Withdraw { id }
        | HoldRequest::Fire { id }
        | HoldRequest::Look { id } => Some(id),
        HoldRequest::List(_) | HoldRequest::Dead(_) | HoldRequest::Count(_) | HoldRequest::WithdrawTopic { .. } => None,
    }
}

fn pending_since(story: &HoldHistory, step: StepNumber) -> impl Iterator<Item = &Hold> {
    story.since(step).filter_map(|known| match known {
        Some(StoredHold::Pending(hold)) => Some(&**hold),
        _ => None,
    })
}

/// The topic and fingerprint that tell whether a publisher repeated the same message under an id.
fn body_of(story: &HoldHistory) -> Option<(TopicNumber, Option<u64>)> {
    story.now().map(|known| match known {
        StoredHold::Pending(hold) => (hold.topic, hold.fingerprint()),
        StoredHold::Ended(end) => (end.topic, end.fingerprint),
    })
}
