//! `POST /produce?format=json`: the compatible API of MqProxy.
//!
//! As in MqProxy, the status is always 200, `errno` is 0 or -1, and `errmsg` has the reason.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::accept::draft::{ContentType, Draft, OwnHeaders, check_key};
use crate::accept::{AcceptedState, accept_one};
use crate::answer::json_response;
use crate::api_state::ApiState;
use crate::attributes::{check_user_topic, text_header};
use crate::body::collect_payload;
use crate::keys::Scope;
use crate::problem::{ApiProblem, Code};
use crate::query::{Query, shown};

const TOPIC: &str = "x-kmq-topic";
const PARTITION_KEY: &str = "x-kmq-partition-key";
const LOG_ID: &str = "x-kmq-logid";

/// The answer of MqProxy.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MqProxyAnswer {
    /// 0, or -1 on failure.
    pub errno: i32,
    pub errmsg: String,
    /// Empty on failure.
    pub data: MqProxyPlace,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct MqProxyPlace {
    #[serde(default)]
    pub topic: Option<String>,
    #[serde(default)]
    pub partition: Option<u32>,
    #[serde(default)]
    pub offset: Option<u64>,
}

/// Publish a message with the MqProxy API
#[utoipa::path(
    post, path = "/produce", tag = "older systems", operation_id = "mqproxy_produce",
    params(
        ("format" = Option<String>, Query, description = "`json`"),
        ("X-Kmq-Topic" = String, Header, description = "The topic"),
        ("X-Kmq-Partition-Key" = Option<String>, Header, description = "The partition key"),
        ("X-Kmq-Logid" = Option<String>, Header, description = "Stored with the message as the header `x-kmq-logid`"),
    ),
    request_body(content = Vec<u8>, content_type = "*/*", description = "The payload"),
    responses((status = 200, description = "Success or failure; see `errno`", body = MqProxyAnswer, content_type = "application/json")),
)]
pub(crate) async fn produce(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    let answer = match try_produce(&api, request).await {
        Ok((topic, AcceptedState::InTopic { partition, offset })) => json!({
            "errno": 0, "errmsg": "",
            "data": { "Topic": topic, "Partition": partition, "Offset": offset },
        }),
        // Cannot happen: the API of MqProxy has no delay.
        Ok((topic, AcceptedState::Held { .. })) => json!({ "errno": 0, "errmsg": "", "data": { "Topic": topic } }),
        Err(problem) => {
            metrics::counter!(crate::metric_names::REFUSALS, "code" => problem.code().word()).increment(1);
            json!({ "errno": -1, "errmsg": format!("{}: {}", problem.code().word(), problem.detail()), "data": {} })
        }
    };
    json_response(StatusCode::OK, answer.to_string())
}

async fn try_produce(api: &Arc<ApiState>, request: Request) -> Result<(String, AcceptedState), ApiProblem> {
    let (parts, body) = request.into_parts();
    let caller = api.keys.caller(&parts.headers)?;
    let mut query = Query::parse(parts.uri.query())?;
    if let Some(format) = query.take("format")?.filter(|format| format != "json") {
        return Err(ApiProblem::new(Code::BadParameter, format!("`format` must be `json`, got `{}`", shown(&format))));
    }
    let missing = || ApiProblem::new(Code::BadName, "the header X-Kmq-Topic is missing");
    let topic = text_header(&parts.headers, TOPIC)?.ok_or_else(missing)?;
    check_user_topic(topic)?;
    caller.require_topic(Scope::Publish, topic)?;
    let key = text_header(&parts.headers, PARTITION_KEY)?.filter(|key| !key.is_empty());
    if let Some(key) = key {
        check_key(key.as_bytes())?;
    }
    let mut own = OwnHeaders::new(&api.settings);
    if let Some(log_id) = parts.headers.get(LOG_ID) {
        own.push(LOG_ID, log_id.as_bytes())?;
    }
    let content_type = match parts.headers.get(CONTENT_TYPE) {
        Some(value) => ContentType::checked(value.as_bytes(), &api.settings)?,
        None => ContentType::Absent,
    };
    let mut load = api.in_flight.begin();
    let payload = collect_payload(api, &parts, body, &mut load, api.settings.payload_bytes_max).await?;
    let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let draft = Draft { key, payload, content_type, headers: own.take(), own_id: None, later: None, push: None };
    let accepted = accept_one(api, topic, caller.owner(), draft, load).await?;
    Ok((topic.to_owned(), accepted.state))
}
