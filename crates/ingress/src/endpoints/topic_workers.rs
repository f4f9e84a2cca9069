//! `POST|DELETE /v1/topics/{topic}/workers/{id}`: adds or removes a worker for the callbacks of a topic.
//!
//! A pool without a live worker stops the deliveries of its topic. [`check_pool`] prevents requests from naming one by mistake.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use http::request::Parts;
use whimbrel_api::problem::Problem;
use whimbrel_api::subscriptions::WorkersInfo;
use whimbrel_model::subscription::WorkerChoice;

use crate::accept::cancel_safe::CancelSafe;
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::{check_user_topic, topic_in_path};
use crate::endpoints::subscription_body::is_worker_name;
use crate::endpoints::subscription_json::workers_document;
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, decode, shown};
use whimbrel_catalogue::topics::{TopicChange, WorkersChange};

/// The names of the live nodes with the role `worker`.
pub type LiveWorkers = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// The maximum number of names in an error.
const NAMES_SHOWN_MAX: usize = 20;

/// Add a worker to a topic's pool
///
/// A topic whose callbacks all workers made until now has only this worker from now on.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/workers/{id}", tag = "topics", operation_id = "add_topic_worker",
    params(("topic" = String, Path, description = "The topic"), ("id" = String, Path, description = "The worker's name")),
    responses(
        (status = 200, description = "The pool", body = WorkersInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `unknown_worker` (no live node with the role `worker` has that name), `bad_name`, `bad_parameter` (the pool is chosen by `count`), `conflict`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn add_worker(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    change(&api, &request.into_parts().0, WorkersChange::Add, true).await
}

/// Remove a worker from a topic's pool
#[utoipa::path(
    delete, path = "/v1/topics/{topic}/workers/{id}", tag = "topics", operation_id = "remove_topic_worker",
    params(("topic" = String, Path, description = "The topic"), ("id" = String, Path, description = "The worker's name")),
    responses(
        (status = 200, description = "The pool", body = WorkersInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `unknown_worker`, `bad_name`, `bad_parameter` (it is the last worker, or the pool is chosen by `count`), `conflict`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn remove_worker(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    change(&api, &request.into_parts().0, WorkersChange::Remove, false).await
}

async fn change(
    api: &Arc<ApiState>,
    parts: &Parts,
    how: impl FnOnce(String) -> WorkersChange,
    must_live: bool,
) -> ApiResult {
    let path = parts.uri.path();
    let topic = topic_in_path(path)?.into_owned();
    let caller = api.keys.caller(&parts.headers)?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Admin, &topic)?;
    Query::parse(parts.uri.query())?.end()?;
    let id = decode(path.rsplit('/').next().unwrap_or_default(), false)?.into_owned();
    if !is_worker_name(&id) || id == "*" {
        return Err(ApiProblem::new(Code::BadName, format!("`{}` is not a valid worker name", shown(&id))));
    }
    // The request changes a topic and never creates one.
    api.registry.find(&topic).await?;
    let live = (api.ports.workers)();
    if must_live && !live.contains(&id) {
        let detail = format!("no live node with the role `worker` is named `{}`; {}", shown(&id), names_of(&live));
        return Err(ApiProblem::new(Code::UnknownWorker, detail));
    }
    let change = TopicChange { workers: Some(how(id)), ..TopicChange::default() };
    let owned = Arc::clone(api);
    let put = CancelSafe::new(async move { owned.registry.put(&topic, change).await }).await?;
    let document = put.topic.stored.workers.as_ref().map(workers_document).unwrap_or_default();
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

/// Rejects a new pool without a live worker. An unchanged pool may have lost its workers since.
pub(crate) fn check_pool(
    api: &ApiState,
    choice: Option<&WorkerChoice>,
    before: Option<&WorkerChoice>,
) -> Result<(), ApiProblem> {
    let Some(choice) = choice.filter(|choice| before != Some(*choice) && !choice.pool.is_empty()) else {
        return Ok(());
    };
    let live = (api.ports.workers)();
    if choice.pool.iter().any(|name| name == "*" || live.contains(name)) {
        return Ok(());
    }
    let detail = format!("`workers.pool` names no live node with the role `worker`; {}", names_of(&live));
    Err(ApiProblem::new(Code::BadParameter, detail).with("field", "workers.pool"))
}

fn names_of(live: &[String]) -> String {
    if live.is_empty() {
        return "no worker is live at the moment".to_owned();
    }
    let names: Vec<String> = live.iter().take(NAMES_SHOWN_MAX).map(|name| format!("`{}`", shown(name))).collect();
    format!("{} live: {}", live.len(), names.join(", "))
}
