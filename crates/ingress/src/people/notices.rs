//! `GET /v1/notices/dead-letters` and `POST /v1/notices/redrive`: lists notifications that failed, and sends them again. They are the dead
//! letters of the system subscription to `_notices`.

use std::sync::Arc;

use axum::extract::{Request, State};
use whimbrel_api::dead_letters::{DeadLetterPage, Redrive, Redriven};
use whimbrel_api::problem::Problem;
use whimbrel_model::push::NOTICES_TOPIC;

use super::fields_of;
use crate::api_state::ApiState;
use crate::endpoints::dead_letters::{list_of, list_page, redrive_of, selected_ids};
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::Query;
use whimbrel_catalogue::subscriptions::Subscription;

/// List dead notifications
#[utoipa::path(
    get, path = "/v1/notices/dead-letters", tag = "people", operation_id = "list_dead_notices",
    params(
        ("limit" = Option<usize>, Query, description = "The maximum number of notifications: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "The dead notifications", body = DeadLetterPage, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_dead_notices(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let (from, limit) = list_page(Query::parse(request.uri().query())?)?;
    list_of(&api, &*notices(&api)?, from, limit).await
}

/// Redrive dead notifications
#[utoipa::path(
    post, path = "/v1/notices/redrive", tag = "people", operation_id = "redrive_notices",
    request_body(content = Redrive, content_type = "application/json"),
    responses(
        (status = 200, description = "The number of redriven notifications", body = Redriven, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `bad_json`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`: a repeat may send some notifications twice", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn redrive_notices(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Admin)?;
    let ids = selected_ids(fields_of(&api, &parts, body).await?)?;
    redrive_of(&api, &*notices(&api)?, ids).await
}

/// The system subscription to notices, which has the name of its topic.
fn notices(api: &ApiState) -> Result<Arc<Subscription>, ApiProblem> {
    let found = api.subscriptions.get(NOTICES_TOPIC).filter(|found| !found.stored.deleting);
    found.ok_or_else(|| ApiProblem::new(Code::Unavailable, "no process has the role `horn`, which sends notifications"))
}
