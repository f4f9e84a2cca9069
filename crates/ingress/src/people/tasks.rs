//! What is asked of a user's owner beside messages: a record of `_push`, in order with the user's pushes.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use whimbrel_model::Record;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Entry, LogError};
use whimbrel_model::push::{PUSH_TOPIC, PushTask};
use whimbrel_model::record::HEADER_ID;

use super::super::accept::append_problem;
use super::super::answer::json_response;
use super::super::door::Door;
use super::super::problem::Problem;
use super::super::subscriptions::to_json;
use super::super::undisturbed::Undisturbed;
use super::documents::TaskAnswer;
use super::push_topic;
use whimbrel_catalogue::topics::Placement;

/// Appends a task for a user, and answers with the id of its record.
pub(super) async fn append_task(door: &Door, uid: &Uid, task: &PushTask) -> Result<String, Problem> {
    push_topic(door)?;
    let pass = door.registry.enter(PUSH_TOPIC, Placement::Free).await?;
    let now = door.ports.clock.now();
    let partition = pass.place(Some(uid.as_str().as_bytes()));
    let id = door.mint.mint(now, partition);
    let headers = task.headers().push(HEADER_ID, &id.to_text()).take();
    let key = Some(Bytes::copy_from_slice(uid.as_str().as_bytes()));
    let entry = Entry { partition, record: Record { key, value: Bytes::new(), headers, timestamp: now } };
    let log = Arc::clone(&door.ports.log);
    let outcome = Undisturbed::new(async move {
        let outcome = log.append(vec![entry]).await;
        drop(pass);
        outcome
    })
    .await;
    let no_answer = || Err(LogError::Unknown("the log gave no answer".to_owned()));
    outcome.into_iter().next().unwrap_or_else(no_answer).map_err(|error| append_problem(error, PUSH_TOPIC))?;
    Ok(id.to_string())
}

/// The task will be done.
pub(super) fn accepted(id: String) -> Response {
    json_response(StatusCode::ACCEPTED, to_json(&TaskAnswer { id }))
}
