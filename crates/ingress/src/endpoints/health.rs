//! `/healthz`, `/readyz`, and the answers for unknown paths and methods.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use crate::answer::json_response;
use crate::api_state::ApiState;
use crate::problem::{ApiProblem, Code};
use crate::query::shown;
use whimbrel_api::problem::{Problem, Readiness};

/// Check that the process is alive
#[utoipa::path(
    get, path = "/healthz", tag = "operating", operation_id = "healthz",
    responses((status = 200, description = "The process is alive", body = String, content_type = "text/plain")),
)]
pub(crate) async fn healthz() -> &'static str {
    "ok"
}

/// Check that the process is ready for requests
#[utoipa::path(
    get, path = "/readyz", tag = "operating", operation_id = "readyz",
    responses(
        (status = 200, description = "The process is ready. `warnings` lists conditions that an operator should check", body = Readiness, content_type = "application/json"),
        (status = 503, description = "`not_ready`, with `reasons`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn readyz(State(api): State<Arc<ApiState>>) -> Response {
    readiness(api.reasons_not_ready().await, api.warnings())
}

/// The answer of `/readyz`, also for a process without this API.
pub fn readiness(reasons: Vec<String>, warnings: Vec<String>) -> Response {
    if reasons.is_empty() {
        let ready = Readiness { ready: true, warnings };
        return json_response(StatusCode::OK, serde_json::to_vec(&ready).expect("strings always serialize"));
    }
    let problem = ApiProblem::new(Code::NotReady, reasons.join("; ")).with("reasons", reasons);
    let problem = if warnings.is_empty() { problem } else { problem.with("warnings", warnings) };
    problem.into_response()
}

pub(crate) async fn unknown_path(request: Request) -> ApiProblem {
    ApiProblem::new(Code::UnknownPath, format!("unknown path `{}`", shown(request.uri().path())))
}

pub(crate) async fn method_not_allowed(request: Request) -> ApiProblem {
    let detail = format!("`{}` does not support {}", shown(request.uri().path()), shown(request.method().as_str()));
    ApiProblem::new(Code::MethodNotAllowed, detail)
}
