//! `POST /produce?format=json`: the door of MqProxy, for programs that already publish through it.
//!
//! It answers as that system does: always 200, `errno` 0 or -1, and `errmsg` with the reason.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::accept::{Standing, accept_one};
use super::answer::json_response;
use super::attributes::{check_user_topic, text_header};
use super::body::collect;
use super::door::Door;
use super::draft::{ContentType, Draft, OwnHeaders, check_key, check_payload_size};
use super::keys::Scope;
use super::problem::{Code, Problem};
use super::query::{Query, shown};

const TOPIC: &str = "x-kmq-topic";
const PARTITION_KEY: &str = "x-kmq-partition-key";
const LOG_ID: &str = "x-kmq-logid";

/// What MqProxy answers.
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

/// Publish as through MqProxy
#[utoipa::path(
    post, path = "/produce", tag = "older systems", operation_id = "mqproxy_produce",
    params(
        ("format" = Option<String>, Query, description = "`json`"),
        ("X-Kmq-Topic" = String, Header, description = "The topic"),
        ("X-Kmq-Partition-Key" = Option<String>, Header, description = "The partition key"),
        ("X-Kmq-Logid" = Option<String>, Header, description = "Travels with the message, as the header `x-kmq-logid`"),
    ),
    request_body(content = Vec<u8>, content_type = "*/*", description = "The payload"),
    responses((status = 200, description = "What happened, also on failure", body = MqProxyAnswer, content_type = "application/json")),
)]
pub(super) async fn produce(State(door): State<Arc<Door>>, request: Request) -> Response {
    let answer = match try_produce(&door, request).await {
        Ok((topic, Standing::InTopic { partition, offset })) => json!({
            "errno": 0, "errmsg": "",
            "data": { "Topic": topic, "Partition": partition, "Offset": offset },
        }),
        // Nothing is held that did not ask for it.
        Ok((topic, Standing::Held { .. })) => json!({ "errno": 0, "errmsg": "", "data": { "Topic": topic } }),
        Err(problem) => {
            metrics::counter!(crate::metric_names::REFUSALS, "code" => problem.code().word()).increment(1);
            json!({ "errno": -1, "errmsg": format!("{}: {}", problem.code().word(), problem.detail()), "data": {} })
        }
    };
    json_response(StatusCode::OK, answer.to_string())
}

async fn try_produce(door: &Arc<Door>, request: Request) -> Result<(String, Standing), Problem> {
    let (parts, body) = request.into_parts();
    let caller = door.keys.caller(&parts.headers)?;
    let mut query = Query::parse(parts.uri.query())?;
    if let Some(format) = query.take("format")?.filter(|format| format != "json") {
        return Err(Problem::new(Code::BadParameter, format!("`format` is `json`, not `{}`", shown(&format))));
    }
    let missing = || Problem::new(Code::BadName, "the header X-Kmq-Topic is missing");
    let topic = text_header(&parts.headers, TOPIC)?.ok_or_else(missing)?;
    check_user_topic(topic)?;
    caller.require_topic(Scope::Publish, topic)?;
    let key = text_header(&parts.headers, PARTITION_KEY)?.filter(|key| !key.is_empty());
    if let Some(key) = key {
        check_key(key.as_bytes())?;
    }
    let mut own = OwnHeaders::new(&door.settings);
    if let Some(log_id) = parts.headers.get(LOG_ID) {
        own.push(LOG_ID, log_id.as_bytes())?;
    }
    let content_type = match parts.headers.get(CONTENT_TYPE) {
        Some(value) => ContentType::checked(value.as_bytes(), &door.settings)?,
        None => ContentType::Absent,
    };
    let mut load = door.in_flight.begin();
    let too_large = || check_payload_size(usize::MAX, &door.settings).expect_err("nothing is that large");
    let (wait, limit) = (door.settings.body_wait, door.settings.payload_bytes_max);
    let payload = collect(body, &parts.headers, &mut load, wait, limit, too_large).await?;
    let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let draft = Draft { key, payload, content_type, headers: own.take(), brought: None, later: None, push: None };
    let accepted = accept_one(door, topic, caller.owner(), draft, load).await?;
    Ok((topic.to_owned(), accepted.standing))
}
