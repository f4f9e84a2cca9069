//! `/healthz`, `/readyz`, and what is answered where there is nothing.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::answer::json_response;
use super::documents::Ready;
use super::door::Door;
use super::problem::{Code, Problem};
use super::query::shown;

/// Whether the process lives
#[utoipa::path(
    get, path = "/healthz", tag = "operating", operation_id = "healthz",
    responses((status = 200, description = "It does", body = String, content_type = "text/plain")),
)]
pub(super) async fn healthz() -> &'static str {
    "ok"
}

/// Whether the process should get requests
#[utoipa::path(
    get, path = "/readyz", tag = "operating", operation_id = "readyz",
    responses(
        (status = 200, description = "It should; `warnings` say what an operator should know all the same", body = Ready, content_type = "application/json"),
        (status = 503, description = "`not_ready`, with `reasons`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn readyz(State(door): State<Arc<Door>>) -> Response {
    readiness(door.reasons_not_ready().await, door.warnings())
}

/// How `/readyz` answers, for every process: also for one without this door.
pub fn readiness(reasons: Vec<String>, warnings: Vec<String>) -> Response {
    if reasons.is_empty() {
        let ready = Ready { ready: true, warnings };
        return json_response(StatusCode::OK, serde_json::to_vec(&ready).expect("a few texts are always JSON"));
    }
    let problem = Problem::new(Code::NotReady, reasons.join("; ")).with("reasons", reasons);
    let problem = if warnings.is_empty() { problem } else { problem.with("warnings", warnings) };
    problem.into_response()
}

pub(super) async fn unknown_path(request: Request) -> Problem {
    Problem::new(Code::UnknownPath, format!("there is nothing at `{}`", shown(request.uri().path())))
}

pub(super) async fn method_not_allowed(request: Request) -> Problem {
    let detail = format!("`{}` does not take {}", shown(request.uri().path()), shown(request.method().as_str()));
    Problem::new(Code::MethodNotAllowed, detail)
}
