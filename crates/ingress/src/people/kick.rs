//! `POST /v1/users/{uid}/kick`: ends sessions of a user, with a reason.

use std::sync::Arc;

use axum::extract::{Request, State};
use whimbrel_api::people::{Kick, TaskAnswer};
use whimbrel_api::problem::Problem;
use whimbrel_model::people::{Platform, SessionId, Uid};
use whimbrel_model::push::{PushKick, PushTask};

use super::tasks::{accepted, append_task};
use super::{fields_of, uid_in_path};
use crate::api_state::ApiState;
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::shown;

/// The maximum bytes of a reason: the size of a WebSocket close frame.
const REASON_MAX_BYTES: usize = 120;

/// Kick a user's devices
///
/// Ends all sessions of the user, those of a platform, or one. The request is durable when it is answered, and is executed in order with
/// the user's pushes. A device can connect again afterwards.
#[utoipa::path(
    post, path = "/v1/users/{uid}/kick", tag = "people", operation_id = "kick",
    params(("uid" = String, Path, description = "The user")),
    request_body(content = Kick, content_type = "application/json"),
    responses(
        (status = 202, description = "The sessions will be ended", body = TaskAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_platform`, `bad_parameter`, `bad_json`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `log_closed`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn kick(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let uid = uid_in_path(parts.uri.path())?;
    let mut fields = fields_of(&api, &parts, body).await?;
    let (platform, session) = (fields.text("platform")?, fields.text("session")?);
    let Some(reason) = fields.text("reason")? else { return Err(fields.wrong("reason", "is missing")) };
    fields.end()?;
    let kick = kick_of(&uid, platform.as_deref(), session.as_deref(), &reason)?;
    Ok(accepted(append_task(&api, &uid, &PushTask::Kick(kick)).await?))
}

/// Validates a kick.
pub(super) fn kick_of(
    uid: &Uid,
    platform: Option<&str>,
    session: Option<&str>,
    reason: &str,
) -> Result<PushKick, ApiProblem> {
    let wrong = |field: &str, what: String| {
        ApiProblem::new(Code::BadParameter, format!("`{field}` {what}")).with("field", field)
    };
    let platform = platform.map(Platform::new).transpose()?;
    if let Some(session) = session.filter(|session| SessionId::parse(session).is_none()) {
        return Err(wrong("session", format!("must be a session id from presence, got `{}`", shown(session))));
    }
    if !(1..=REASON_MAX_BYTES).contains(&reason.len()) || reason.chars().any(char::is_control) {
        return Err(wrong("reason", format!("must have 1 to {REASON_MAX_BYTES} bytes and no control characters")));
    }
    let (uid, session) = (uid.to_string(), session.map(str::to_owned));
    Ok(PushKick { uid, platform, session, reason: reason.to_owned() })
}
