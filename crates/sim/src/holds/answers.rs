//! Questions, and whether what was answered is true.

use whimbrel_model::ports::{Ask, HoldQuery, HoldView, HoldsError, Known, Told};
use whimbrel_model::{Ending, Hold, HoldEnd, HoldId, TopicNumber};

use super::Check;
use super::store::{count_of, dead_of, is_asked_for};
use super::truth::{Step, Story, Truth};

#[derive(Debug)]
pub struct Question {
    pub what: Ask,
    pub asked_at: Step,
    /// It will be answered, unless its node crashes.
    pub is_open: bool,
    pub told: Option<Result<Told, HoldsError>>,
}

impl Question {
    pub fn new(what: Ask, asked_at: Step) -> Self {
        Self { what, asked_at, is_open: true, told: None }
    }
}

impl Truth {
    /// From now on this may happen.
    pub fn asked(&mut self, ask: &Ask) {
        match ask {
            Ask::Fire { id } => self.stories.entry(id.clone()).or_default().fires_asked += 1,
            Ask::Withdraw { id } => self.stories.entry(id.clone()).or_default().withdrawals_asked += 1,
            Ask::WithdrawTopic { topic } => {
                self.withdrawn_topics.insert(*topic);
            }
            _ => {}
        }
    }

    /// Nothing was done about the question, and nothing will be.
    fn not_done(&mut self, ask: &Ask) {
        match ask {
            Ask::Fire { id } => self.stories.entry(id.clone()).or_default().fires_asked -= 1,
            Ask::Withdraw { id } => self.stories.entry(id.clone()).or_default().withdrawals_asked -= 1,
            _ => {}
        }
    }

    /// Whether an answer is true, now and from now on.
    pub fn answered(&mut self, ask: &Ask, asked_at: Step, told: &Result<Told, HoldsError>) -> Check {
        let told = match told {
            Ok(told) => told,
            Err(HoldsError::OutcomeUnknown(_)) => return Ok(()),
            Err(_) => {
                self.not_done(ask);
                return Ok(());
            }
        };
        if !self.is_true(ask, asked_at, told) {
            let story = id_of(ask).and_then(|id| self.stories.get(id));
            return Err(format!("{ask:?} was answered with {told:?}, which is not true: {story:?}"));
        }
        Ok(())
    }

    fn is_true(&self, ask: &Ask, asked_at: Step, told: &Told) -> bool {
        let unheard = Story::default();
        let story = id_of(ask).and_then(|id| self.stories.get(id)).unwrap_or(&unheard);
        let ended = |end: &HoldEnd| story.now() == Some(&Known::Ended(end.clone()));
        let was_unknown = || match story.at(asked_at) {
            None => true,
            Some(Known::Ended(_)) => self.has_forgotten,
            Some(Known::Pending(_)) => false,
        };
        match (ask, told) {
            (Ask::Withdraw { .. } | Ask::Fire { .. } | Ask::Look { .. } | Ask::Extend { .. }, Told::Unknown) => {
                was_unknown()
            }
            (Ask::Withdraw { .. } | Ask::Fire { .. } | Ask::Look { .. } | Ask::Extend { .. }, Told::Ended(end)) => {
                ended(end)
            }
            (Ask::Withdraw { .. }, Told::Withdrawn) => {
                matches!(story.now(), Some(Known::Ended(HoldEnd { how: Ending::Withdrawn, .. })))
            }
            (Ask::Fire { .. }, Told::Fired { at, .. }) => {
                matches!(story.now(), Some(Known::Ended(HoldEnd { how: Ending::Fired { .. }, at: fired, .. })) if fired == at)
            }
            (Ask::Look { .. }, Told::Pending(view)) => {
                pending_since(story, asked_at).any(|hold| HoldView::of(hold) == *view)
            }
            (Ask::Extend { .. }, Told::Rescheduled { due, version }) => {
                pending_since(story, 0).any(|hold| hold.due == *due && hold.version == *version)
            }
            (Ask::Extend { if_version: Some(asked), .. }, Told::OtherVersion { version, due }) => {
                version != asked
                    && pending_since(story, asked_at).any(|hold| hold.version == *version && hold.due == *due)
            }
            (Ask::Extend { .. }, Told::TooFar) => true,
            (Ask::Accept(new), Told::Held { .. }) => body_of(story) == Some((new.topic, new.fingerprint())),
            (Ask::Accept(new), Told::Taken) => {
                body_of(story).is_some_and(|body| body != (new.topic, new.fingerprint()))
            }
            (Ask::List(query), Told::Listed(views)) => self.is_list(query, asked_at, views),
            (Ask::Dead(_), Told::ListedDead(dead)) if self.has_forgotten => {
                dead.iter().all(|(id, end)| self.stories[id].now() == Some(&Known::Ended(end.clone())))
            }
            (Ask::Dead(query), Told::ListedDead(dead)) => {
                self.at_some_moment(asked_at, |picture| dead_of(query, picture.all()) == *dead)
            }
            (Ask::Count(query), Told::Counted(counts)) => self.at_some_moment(asked_at, |picture| {
                let holds = picture.all().filter_map(|(_, known)| match known {
                    Known::Pending(hold) => Some(hold),
                    Known::Ended(_) => None,
                });
                count_of(query, holds) == *counts
            }),
            (Ask::WithdrawTopic { topic }, Told::WithdrawnMany(_)) => {
                // Whatever was pending when it was asked is pending no more.
                let still = |story: &Story| match (story.at(asked_at), story.pending()) {
                    (Some(Known::Pending(_)), Some(hold)) => hold.topic == *topic,
                    _ => false,
                };
                !self.stories.values().any(still)
            }
            _ => false,
        }
    }

    /// A list is made of several reads: each hold in it was so at some moment since the question, and whatever was pending without a
    /// change all the time is in it.
    fn is_list(&self, query: &HoldQuery, asked_at: Step, views: &[HoldView]) -> bool {
        let place = |view: &HoldView| (view.due, view.id.clone());
        let is_sorted = views.is_sorted_by(|a, b| place(a) < place(b)) && views.len() <= query.limit;
        let was_so = |view: &HoldView| {
            let story = &self.stories[&view.id];
            pending_since(story, asked_at).any(|hold| HoldView::of(hold) == *view && is_asked_for(query, hold))
        };
        let is_once = |view: &HoldView| views.iter().filter(|other| other.id == view.id).count() == 1;
        let last = views.last().filter(|_| views.len() == query.limit).map(place);
        let is_missing = |story: &Story| {
            let mut states = story.since(asked_at);
            let (Some(Some(Known::Pending(hold))), None) = (states.next(), states.next()) else { return false };
            let is_within = last.as_ref().is_none_or(|last| (hold.due, hold.id.clone()) <= *last);
            is_within && is_asked_for(query, hold) && !views.iter().any(|view| view.id == hold.id)
        };
        is_sorted && views.iter().all(|view| was_so(view) && is_once(view)) && !self.stories.values().any(is_missing)
    }

    /// Whether something was so at the moment of the question or at any moment since.
    fn at_some_moment(&self, asked_at: Step, was_so: impl Fn(Picture<'_>) -> bool) -> bool {
        let mut moments: Vec<Step> = self.landings.iter().copied().filter(|step| *step > asked_at).collect();
        moments.dedup();
        moments.push(asked_at);
        moments.into_iter().any(|step| was_so(Picture { truth: self, step }))
    }
}

/// Everything as it was at one moment.
#[derive(Clone, Copy)]
struct Picture<'a> {
    truth: &'a Truth,
    step: Step,
}

impl<'a> Picture<'a> {
    fn all(self) -> impl Iterator<Item = (&'a HoldId, &'a Known)> {
        self.truth.stories.iter().filter_map(move |(id, story)| Some((id, story.at(self.step)?)))
    }
}

fn id_of(ask: &Ask) -> Option<&HoldId> {
    match ask {
        Ask::Accept(hold) => Some(&hold.id),
        Ask::Extend { id, .. } | Ask::Withdraw { id } | Ask::Fire { id } | Ask::Look { id } => Some(id),
        Ask::List(_) | Ask::Dead(_) | Ask::Count(_) | Ask::WithdrawTopic { .. } => None,
    }
}

fn pending_since(story: &Story, step: Step) -> impl Iterator<Item = &Hold> {
    story.since(step).filter_map(|known| match known {
        Some(Known::Pending(hold)) => Some(&**hold),
        _ => None,
    })
}

/// What tells whether an id was brought with the same message again.
fn body_of(story: &Story) -> Option<(TopicNumber, Option<u64>)> {
    story.now().map(|known| match known {
        Known::Pending(hold) => (hold.topic, hold.fingerprint()),
        Known::Ended(end) => (end.topic, end.fingerprint),
    })
}
