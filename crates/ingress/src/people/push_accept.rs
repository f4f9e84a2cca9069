//! Accepts pushes like other messages, and answers push by push. A push to users of several partitions is accepted when all of its records
//! are stored.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use whimbrel_model::Timestamp;
use whimbrel_model::push::PUSH_TOPIC;

use super::push_entry::{PushSize, Pushes};
use crate::accept::{AcceptError, AcceptedMessage, AcceptedState, accept_many, partly_appended};
use crate::api_state::ApiState;
use crate::load::LoadGuard;
use crate::problem::ApiProblem;

/// A push that the log has stored.
#[derive(Debug, Clone)]
pub(super) struct StoredPush {
    pub(super) id: String,
    /// The due time, for a held push.
    pub(super) due: Option<Timestamp>,
    /// The ids of the holds, for a held push to users of several partitions. Otherwise `id` is the id of the hold.
    pub(super) holds: Vec<String>,
}

impl StoredPush {
    /// `{"id"}`, or `{"id","state":"held","due"}`. Ids have no character that JSON would escape.
    pub(super) fn write_to(&self, out: &mut String) {
        let id = &self.id;
        let written = match self.due {
            None => write!(out, "{{\"id\":\"{id}\""),
            Some(due) => write!(out, "{{\"id\":\"{id}\",\"state\":\"held\",\"due\":\"{due}\""),
        };
        written.expect("writing to a string cannot fail");
        if !self.holds.is_empty() {
            write!(out, ",\"holds\":[\"{}\"]", self.holds.join("\",\"")).expect("writing to a string cannot fail");
        }
        out.push('}');
    }

    fn to_json(&self) -> Value {
        let mut text = String::new();
        self.write_to(&mut text);
        serde_json::from_str(&text).expect("an answer is JSON")
    }
}

/// Accepts pushes, each with its own outcome. If one is invalid, it accepts none.
pub(super) async fn accept_pushes(
    api: &Arc<ApiState>,
    owner: &str,
    pushes: Pushes,
    mut load: LoadGuard,
) -> Result<Vec<Result<StoredPush, ApiProblem>>, AcceptError> {
    let Pushes { drafts, each, more_bytes } = pushes;
    load.grow(more_bytes).map_err(|problem| AcceptError { index: None, problem })?;
    let outcomes = accept_many(api, PUSH_TOPIC, owner, drafts, load).await.map_err(|refusal| AcceptError {
        index: refusal.index.map(|draft| push_of_draft(&each, draft)),
        problem: refusal.problem,
    })?;
    let mut outcomes = outcomes.into_iter();
    Ok(each.iter().map(|size| pushed(outcomes.by_ref().take(size.0).collect())).collect())
}

/// The index of the push that a draft belongs to.
fn push_of_draft(each: &[PushSize], draft: usize) -> usize {
    let mut upto = 0;
    let is_beyond = |size: &PushSize| {
        upto += size.0;
        upto > draft
    };
    each.iter().position(is_beyond).unwrap_or(0)
}

/// The outcome of one push, from the outcomes of its drafts.
fn pushed(mut outcomes: Vec<Result<AcceptedMessage, ApiProblem>>) -> Result<StoredPush, ApiProblem> {
    if outcomes.len() == 1
        && let Some(outcome) = outcomes.pop()
    {
        let accepted = outcome?;
        return Ok(StoredPush { id: accepted.id.to_text(), due: due_of(&accepted), holds: Vec::new() });
    }
    if outcomes.iter().any(Result::is_err) {
        return Err(partly_of_one(outcomes));
    }
    let taken: Vec<AcceptedMessage> = outcomes.into_iter().flatten().collect();
    let ids: Vec<String> = taken.iter().map(|accepted| accepted.id.to_text()).collect();
    let due = taken.first().and_then(due_of);
    let id = ids.first().cloned().unwrap_or_default();
    Ok(StoredPush { id, due, holds: if due.is_some() { ids } else { Vec::new() } })
}

fn due_of(accepted: &AcceptedMessage) -> Option<Timestamp> {
    match accepted.state {
        AcceptedState::InTopic { .. } => None,
        AcceptedState::Held { due } => Some(due),
    }
}

/// The problem for a push that only some partitions have stored.
fn partly_of_one(outcomes: Vec<Result<AcceptedMessage, ApiProblem>>) -> ApiProblem {
    let shown = |accepted: AcceptedMessage| json!({ "id": accepted.id.to_text() });
    partly_appended(outcomes, shown, |taken, total| {
        format!("{taken} of {total} partitions stored the push; repeat it under its id for the others")
    })
}

/// The answer if some pushes of a batch failed.
pub(super) fn partly(outcomes: Vec<Result<StoredPush, ApiProblem>>) -> ApiProblem {
    partly_appended(
        outcomes,
        |pushed| pushed.to_json(),
        |taken, total| format!("{taken} of {total} pushes were appended; `messages` lists the result of each"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_draft_maps_to_its_push() {
        let each = [PushSize(1), PushSize(3), PushSize(1)];
        let found: Vec<usize> = (0..5).map(|draft| push_of_draft(&each, draft)).collect();
        assert_eq!(found, [0, 1, 1, 1, 2]);
    }
}
