//! Tasks for a user's owner beside messages: records of `_push`, in order with the user's pushes.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use whimbrel_api::people::TaskAnswer;
use whimbrel_model::Record;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::Entry;
use whimbrel_model::push::{PUSH_TOPIC, PushTask};
use whimbrel_model::record::HEADER_ID;

use super::push_topic;
use crate::accept::append_one;
use crate::accept::cancel_safe::CancelSafe;
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::problem::ApiProblem;
use whimbrel_catalogue::topics::Placement;

/// Appends a task for a user, and returns the id of its record.
pub(super) async fn append_task(api: &ApiState, uid: &Uid, task: &PushTask) -> Result<String, ApiProblem> {
    push_topic(api)?;
    let pass = api.registry.enter(PUSH_TOPIC, Placement::Free).await?;
    let now = api.ports.clock.now();
    let partition = pass.place(Some(uid.as_str().as_bytes()));
    let id = api.mint.mint(now, partition);
    let headers = task.headers().push(HEADER_ID, &id.to_text()).take();
    let key = Some(Bytes::copy_from_slice(uid.as_str().as_bytes()));
    let entry = Entry { partition, record: Record { key, value: Bytes::new(), headers, timestamp: now } };
    let log = Arc::clone(&api.ports.log);
    CancelSafe::new(async move {
        let outcome = append_one(&*log, entry, PUSH_TOPIC).await;
        drop(pass);
        outcome
    })
    .await?;
    Ok(id.to_string())
}

/// The answer for an accepted task.
pub(super) fn accepted(id: String) -> Response {
    json_response(StatusCode::ACCEPTED, to_json(&TaskAnswer { id }))
}
