//! `GET /v1/notices/dead-letters` and `POST /v1/notices/redrive`: notices that no provider took, and another try at them. They are those
//! of the system's own subscription to `_notices`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use whimbrel_model::push::NOTICES_TOPIC;

use super::super::dead_letters::{
    DeadLetterList, REDRIVE_IDS_MAX, RedriveAnswer, RedriveBody, list_of, list_page, redrive_of, wanted_ids,
};
use super::super::documents::ProblemDocument;
use super::super::door::Door;
use super::super::keys::Scope;
use super::super::problem::{Code, Problem};
use super::super::query::Query;
use super::fields_of;
use whimbrel_catalogue::subscriptions::Subscription;

/// List dead notices
#[utoipa::path(
    get, path = "/v1/notices/dead-letters", tag = "people", operation_id = "list_dead_notices",
    params(
        ("limit" = Option<usize>, Query, description = "At most so many: 1 to 1000, 100 where it is not given"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "The dead notices", body = DeadLetterList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn list_dead_notices(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let (from, limit) = list_page(Query::parse(request.uri().query())?)?;
    list_of(&door, &*notices(&door)?, from, limit).await
}

/// Send dead notices anew
#[utoipa::path(
    post, path = "/v1/notices/redrive", tag = "people", operation_id = "redrive_notices",
    request_body(content = RedriveBody, content_type = "application/json"),
    responses(
        (status = 200, description = "How many", body = RedriveAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `bad_json`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`: some may be sent twice where it is repeated", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn redrive_notices(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    door.keys.caller(&parts.headers)?.require(Scope::Admin)?;
    let mut fields = fields_of(&door, &parts, body).await?;
    let (ids, all) = (fields.texts("ids", REDRIVE_IDS_MAX)?, fields.flag("all")?);
    fields.end()?;
    redrive_of(&door, &*notices(&door)?, wanted_ids(ids, all)?).await
}

/// The system's subscription to notices, which has its topic's name.
fn notices(door: &Door) -> Result<Arc<Subscription>, Problem> {
    let found = door.subscriptions.get(NOTICES_TOPIC).filter(|found| !found.stored.deleting);
    found.ok_or_else(|| Problem::new(Code::Unavailable, "nothing sends notices here: no process has the role `horn`"))
}
