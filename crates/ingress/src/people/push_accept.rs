//! Pushes are accepted as any message is, and answered push by push: one whose users are of several partitions is taken when all of its
//! records are.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use whimbrel_model::Timestamp;
use whimbrel_model::push::PUSH_TOPIC;

use super::super::accept::{Accepted, Refusal, Standing, accept_many};
use super::super::door::Door;
use super::super::load::Load;
use super::super::problem::{Code, Problem};
use super::push_entry::{PushSize, Pushes};

/// A push that the log has.
#[derive(Debug, Clone)]
pub(super) struct Pushed {
    pub(super) id: String,
    /// When it is due, where it is held.
    pub(super) due: Option<Timestamp>,
    /// The holds of one that is held for users of several partitions; otherwise its id is its hold's.
    pub(super) holds: Vec<String>,
}

impl Pushed {
    /// `{"id"}`, or `{"id","state":"held","due"}`. Ids have no character that JSON would escape.
    pub(super) fn write_to(&self, out: &mut String) {
        let id = &self.id;
        let written = match self.due {
            None => write!(out, "{{\"id\":\"{id}\""),
            Some(due) => write!(out, "{{\"id\":\"{id}\",\"state\":\"held\",\"due\":\"{due}\""),
        };
        written.expect("a string takes all");
        if !self.holds.is_empty() {
            write!(out, ",\"holds\":[\"{}\"]", self.holds.join("\",\"")).expect("a string takes all");
        }
        out.push('}');
    }

    fn to_json(&self) -> Value {
        let mut text = String::new();
        self.write_to(&mut text);
        serde_json::from_str(&text).expect("an answer is JSON")
    }
}

/// Accepts pushes, each with its own outcome; or none, where one stands in the way.
pub(super) async fn accept_pushes(
    door: &Arc<Door>,
    owner: &str,
    pushes: Pushes,
    mut load: Load,
) -> Result<Vec<Result<Pushed, Problem>>, Refusal> {
    let Pushes { drafts, each, more_bytes } = pushes;
    load.grow(more_bytes).map_err(|problem| Refusal { index: None, problem })?;
    let outcomes = accept_many(door, PUSH_TOPIC, owner, drafts, load).await.map_err(|refusal| Refusal {
        index: refusal.index.map(|draft| push_of_draft(&each, draft)),
        problem: refusal.problem,
    })?;
    let mut outcomes = outcomes.into_iter();
    Ok(each.iter().map(|size| pushed(outcomes.by_ref().take(size.0).collect())).collect())
}

/// Which push a draft is of.
fn push_of_draft(each: &[PushSize], draft: usize) -> usize {
    let mut upto = 0;
    let is_beyond = |size: &PushSize| {
        upto += size.0;
        upto > draft
    };
    each.iter().position(is_beyond).unwrap_or(0)
}

/// What became of one push, by what became of its drafts.
fn pushed(mut outcomes: Vec<Result<Accepted, Problem>>) -> Result<Pushed, Problem> {
    if outcomes.len() == 1
        && let Some(outcome) = outcomes.pop()
    {
        let accepted = outcome?;
        return Ok(Pushed { id: accepted.id.to_text(), due: due_of(&accepted), holds: Vec::new() });
    }
    if outcomes.iter().any(Result::is_err) {
        return Err(partly_of_one(outcomes));
    }
    let taken: Vec<Accepted> = outcomes.into_iter().flatten().collect();
    let ids: Vec<String> = taken.iter().map(|accepted| accepted.id.to_text()).collect();
    let due = taken.first().and_then(due_of);
    let id = ids.first().cloned().unwrap_or_default();
    Ok(Pushed { id, due, holds: if due.is_some() { ids } else { Vec::new() } })
}

fn due_of(accepted: &Accepted) -> Option<Timestamp> {
    match accepted.standing {
        Standing::InTopic { .. } => None,
        Standing::Held { due } => Some(due),
    }
}

/// Some partitions took their record of a push and others did not.
fn partly_of_one(outcomes: Vec<Result<Accepted, Problem>>) -> Problem {
    let (total, taken) = (outcomes.len(), outcomes.iter().filter(|outcome| outcome.is_ok()).count());
    if let Some(reason) = one_reason(&outcomes) {
        return reason;
    }
    let messages: Vec<Value> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Ok(accepted) => json!({ "id": accepted.id.to_text() }),
            Err(problem) => json!({ "error": problem.to_json() }),
        })
        .collect();
    let detail = format!(
        "{taken} of the {total} partitions that the users are of took the push; repeated under its id it goes to the others"
    );
    Problem::new(Code::PartlyAppended, detail).with("messages", messages)
}

/// Not all pushes of a batch were taken. Where none was, and for one reason, that reason is the answer.
pub(super) fn partly(outcomes: Vec<Result<Pushed, Problem>>) -> Problem {
    let (total, taken) = (outcomes.len(), outcomes.iter().filter(|outcome| outcome.is_ok()).count());
    if let Some(reason) = one_reason(&outcomes) {
        return reason;
    }
    let messages: Vec<Value> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Ok(pushed) => pushed.to_json(),
            Err(problem) => json!({ "error": problem.to_json() }),
        })
        .collect();
    let detail = format!("{taken} of {total} pushes were taken; `messages` says which");
    Problem::new(Code::PartlyAppended, detail).with("messages", messages)
}

/// Why nothing at all was taken, where that is one reason.
fn one_reason<T>(outcomes: &[Result<T, Problem>]) -> Option<Problem> {
    let first = outcomes.first()?.as_ref().err()?;
    let is_same = |outcome: &Result<T, Problem>| outcome.as_ref().is_err_and(|other| other.code() == first.code());
    outcomes.iter().all(is_same).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_traced_to_its_push() {
        let each = [PushSize(1), PushSize(3), PushSize(1)];
        let found: Vec<usize> = (0..5).map(|draft| push_of_draft(&each, draft)).collect();
        assert_eq!(found, [0, 1, 1, 1, 2]);
    }
}
