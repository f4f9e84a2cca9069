//! `GET /openapi.json`: the API document, generated from the handlers' descriptions and amended by [`crate::contract`].
//!
//! A test keeps the router and this document in step: both must have the same paths.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::schema::{AdditionalProperties, Object, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{HttpMethod, OpenApi as Document, RefOr, Response, SecurityRequirement};
use utoipa::{Modify, OpenApi};
use whimbrel_api::CLOSED_SCHEMAS;

use crate::admin::{page, people_page};
use crate::answer::json_response;
use crate::compat::{delay_queue, mqproxy, soraka};
use crate::endpoints::{
    batch, dead_letters, event_stream, health, hold_list, holds, messages, publish, pull, read, search, stats,
    subscription_runs, subscriptions, tail, topic_workers, topics,
};
use crate::problem::Code;
use crate::{contract, people};

/// The serialized document, built once.
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| serde_json::to_vec(&document()).expect("the document is plain data").into());

/// The API document
#[utoipa::path(
    get, path = "/openapi.json", tag = "operating", operation_id = "openapi",
    responses((status = 200, description = "The API document", body = Object, content_type = "application/json")),
)]
pub(super) async fn openapi() -> axum::response::Response {
    json_response(StatusCode::OK, DOCUMENT.clone())
}

/// The API document of everything that is served over HTTP.
pub fn document() -> Value {
    contract::amended(serde_json::to_value(generated()).expect("the document is plain data"))
}

/// The descriptions of the handlers.
pub(super) fn generated() -> Document {
    WhimbrelApi::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Whimbrel",
        description = "Message delivery: immediate or delayed, to services and to users. Errors are `application/problem+json` with a stable `code`. Times are RFC 3339 in UTC with milliseconds; durations are strings such as `250ms`, `30s`, `1h30m`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    paths(
        publish::publish,
        batch::publish_batch,
        read::read,
        tail::tail,
        messages::get_message,
        search::search,
        topics::put_topic,
        topics::list_topics,
        topics::get_topic,
        topics::delete_topic,
        topic_workers::add_worker,
        topic_workers::remove_worker,
        subscriptions::put_subscription,
        subscriptions::list_subscriptions,
        subscriptions::get_subscription,
        subscriptions::delete_subscription,
        subscription_runs::pause,
        subscription_runs::resume,
        subscription_runs::seek,
        subscription_runs::replay,
        dead_letters::list_dead_letters,
        dead_letters::redrive,
        pull::pull,
        pull::ack,
        pull::nack,
        pull::extend,
        holds::get_hold,
        holds::extend_hold,
        holds::withdraw_hold,
        holds::fire_hold,
        hold_list::list_holds,
        hold_list::count_holds,
        people::push::push,
        people::push::push_many,
        people::push::push_batch,
        people::presence::get_presence,
        people::presence::query_presence,
        people::presence::presence_events,
        people::kick::kick,
        people::inbox::get_inbox,
        people::inbox::delete_inbox,
        people::devices::put_device,
        people::devices::get_device,
        people::devices::delete_device,
        people::devices::list_devices,
        people::platforms::put_platform,
        people::platforms::get_platform,
        people::platforms::delete_platform,
        people::platforms::list_platforms,
        people::dead_pushes::list_dead_pushes,
        people::dead_pushes::redrive_pushes,
        people::notices::list_dead_notices,
        people::notices::redrive_notices,
        mqproxy::produce,
        delay_queue::accept_msg,
        soraka::submit,
        soraka::cancel,
        soraka::add_time,
        event_stream::events,
        stats::topic_stats,
        health::healthz,
        health::readyz,
        openapi,
        page::page,
        people_page::people_page,
    ),
    modifiers(&CodesAndKeys),
)]
struct WhimbrelApi;

/// The property `code` of a part of the schema of problems.
fn property_code(part: &mut RefOr<Schema>) -> Option<&mut Object> {
    let RefOr::T(Schema::Object(part)) = part else { return None };
    match part.properties.get_mut("code") {
        Some(RefOr::T(Schema::Object(code))) => Some(code),
        _ => None,
    }
}

/// Adds the parts that do not belong to one handler: the list of codes, the API key, and `/metrics`, which the metrics recorder serves
/// beside this router.
struct CodesAndKeys;

impl Modify for CodesAndKeys {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("Required if the server has API keys. Scopes: publish, consume, push, admin."))
            .build();
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
        for name in CLOSED_SCHEMAS {
            if let Some(RefOr::T(Schema::Object(answer))) = components.schemas.get_mut(name) {
                answer.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            }
        }
        if let Some(RefOr::T(Schema::AllOf(problem))) = components.schemas.get_mut("Problem")
            && let Some(code) = problem.items.iter_mut().find_map(property_code)
        {
            code.enum_values = Some(Code::ALL.iter().map(|code| code.word().into()).collect());
            let lines =
                Code::ALL.iter().map(|code| format!("- `{}` ({}): {}", code.word(), code.status(), code.title()));
            code.description = Some(lines.collect::<Vec<_>>().join("\n"));
        }
        let metrics = OperationBuilder::new()
            .tag("operating")
            .operation_id(Some("metrics"))
            .summary(Some("Metrics in the Prometheus text format"))
            .response("200", Response::builder().description("The metrics of this process").build())
            .build();
        document.paths.add_path_operation("/metrics", vec![HttpMethod::Get], metrics);
        document.security =
            Some(vec![SecurityRequirement::default(), SecurityRequirement::new("key", std::iter::empty::<String>())]);
    }
}
