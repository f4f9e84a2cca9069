//! All HTTP paths, with their methods. A test compares the API document with this list.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use crate::admin::{page, people_page};
use crate::api_state::ApiState;
use crate::compat::{delay_queue, mqproxy, soraka};
use crate::endpoints::{
    batch, dead_letters, event_stream, health, hold_list, holds, messages, publish, pull, read, search, stats,
    subscription_runs, subscriptions, tail, topic_workers, topics,
};
use crate::{openapi, people};

pub(super) struct Route {
    pub(super) path: &'static str,
    /// In lower case, as in the API document.
    pub(super) methods: &'static [&'static str],
    pub(super) serve: MethodRouter<Arc<ApiState>>,
}

fn route(path: &'static str, methods: &'static [&'static str], serve: MethodRouter<Arc<ApiState>>) -> Route {
    Route { path, methods, serve }
}

pub(super) fn routes() -> Vec<Route> {
    let areas =
        [topic_routes(), subscription_routes(), hold_routes(), people_routes(), legacy_routes(), operator_routes()];
    areas.into_iter().flatten().collect()
}

/// Topics and their messages.
fn topic_routes() -> Vec<Route> {
    vec![
        route("/v1/topics/{topic}/messages", &["get", "post"], post(publish::publish).get(read::read)),
        route("/v1/topics/{topic}/batch", &["post"], post(batch::publish_batch)),
        route("/v1/topics/{topic}/tail", &["get"], get(tail::tail)),
        route("/v1/topics", &["get"], get(topics::list_topics)),
        route(
            "/v1/topics/{topic}",
            &["delete", "get", "put"],
            get(topics::get_topic).put(topics::put_topic).delete(topics::delete_topic),
        ),
        route(
            "/v1/topics/{topic}/workers/{id}",
            &["delete", "post"],
            post(topic_workers::add_worker).delete(topic_workers::remove_worker),
        ),
        route("/v1/messages", &["get"], get(search::search)),
        route("/v1/messages/{id}", &["get"], get(messages::get_message)),
    ]
}

fn subscription_routes() -> Vec<Route> {
    vec![
        route("/v1/subscriptions", &["get"], get(subscriptions::list_subscriptions)),
        route(
            "/v1/subscriptions/{name}",
            &["delete", "get", "put"],
            get(subscriptions::get_subscription)
                .put(subscriptions::put_subscription)
                .delete(subscriptions::delete_subscription),
        ),
        route("/v1/subscriptions/{name}/pause", &["post"], post(subscription_runs::pause)),
        route("/v1/subscriptions/{name}/resume", &["post"], post(subscription_runs::resume)),
        route("/v1/subscriptions/{name}/seek", &["post"], post(subscription_runs::seek)),
        route("/v1/subscriptions/{name}/replay", &["post"], post(subscription_runs::replay)),
        route("/v1/subscriptions/{name}/dead-letters", &["get"], get(dead_letters::list_dead_letters)),
        route("/v1/subscriptions/{name}/redrive", &["post"], post(dead_letters::redrive)),
        route("/v1/subscriptions/{name}/pull", &["post"], post(pull::pull)),
        route("/v1/subscriptions/{name}/ack", &["post"], post(pull::ack)),
        route("/v1/subscriptions/{name}/nack", &["post"], post(pull::nack)),
        route("/v1/subscriptions/{name}/extend", &["post"], post(pull::extend)),
    ]
}

fn hold_routes() -> Vec<Route> {
    vec![
        route("/v1/holds", &["get"], get(hold_list::list_holds)),
        route("/v1/holds/count", &["get"], get(hold_list::count_holds)),
        route("/v1/holds/{id}", &["delete", "get"], get(holds::get_hold).delete(holds::withdraw_hold)),
        route("/v1/holds/{id}/extend", &["post"], post(holds::extend_hold)),
        route("/v1/holds/{id}/fire", &["post"], post(holds::fire_hold)),
    ]
}

/// Pushes, presence, devices and platforms.
fn people_routes() -> Vec<Route> {
    vec![
        route("/v1/users/messages", &["post"], post(people::push::push_many)),
        route("/v1/users/batch", &["post"], post(people::push::push_batch)),
        route("/v1/users/{uid}/messages", &["post"], post(people::push::push)),
        route("/v1/users/{uid}/presence", &["get"], get(people::presence::get_presence)),
        route("/v1/users/{uid}/kick", &["post"], post(people::kick::kick)),
        route(
            "/v1/users/{uid}/inbox",
            &["delete", "get"],
            get(people::inbox::get_inbox).delete(people::inbox::delete_inbox),
        ),
        route("/v1/users/{uid}/devices", &["get"], get(people::devices::list_devices)),
        route(
            "/v1/users/{uid}/devices/{device}",
            &["delete", "get", "put"],
            get(people::devices::get_device).put(people::devices::put_device).delete(people::devices::delete_device),
        ),
        route("/v1/presence/query", &["post"], post(people::presence::query_presence)),
        route("/v1/presence/events", &["get"], get(people::presence::presence_events)),
        route("/v1/platforms", &["get"], get(people::platforms::list_platforms)),
        route(
            "/v1/platforms/{platform}",
            &["delete", "get", "put"],
            get(people::platforms::get_platform)
                .put(people::platforms::put_platform)
                .delete(people::platforms::delete_platform),
        ),
        route("/v1/push/dead-letters", &["get"], get(people::dead_pushes::list_dead_pushes)),
        route("/v1/push/redrive", &["post"], post(people::dead_pushes::redrive_pushes)),
        route("/v1/notices/dead-letters", &["get"], get(people::notices::list_dead_notices)),
        route("/v1/notices/redrive", &["post"], post(people::notices::redrive_notices)),
    ]
}

/// The endpoints of older systems.
fn legacy_routes() -> Vec<Route> {
    vec![
        route("/produce", &["post"], post(mqproxy::produce)),
        route("/dq/acceptMsg", &["post"], post(delay_queue::accept_msg)),
        route("/sorakaq/msg/submit", &["post"], post(soraka::submit)),
        route("/sorakaq/msg/cancel", &["post"], post(soraka::cancel)),
        route("/sorakaq/msg/addTime", &["post"], post(soraka::add_time)),
    ]
}

/// Events, statistics, health, documents and pages.
fn operator_routes() -> Vec<Route> {
    vec![
        route("/v1/events", &["get"], get(event_stream::events)),
        route("/v1/stats/topics/{topic}", &["get"], get(stats::topic_stats)),
        route("/healthz", &["get"], get(health::healthz)),
        route("/readyz", &["get"], get(health::readyz)),
        route("/openapi.json", &["get"], get(openapi::openapi)),
        route("/", &["get"], get(page::page)),
        route("/people", &["get"], get(people_page::people_page)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn router_and_document_have_the_same_paths_and_methods() {
        // Served by the metrics recorder and the gateway, beside this router.
        let beside =
            [("/metrics", "get"), ("/v1/connect", "get"), ("/v1/connect/sse", "get"), ("/v1/connect/ack", "post")];
        let beside = beside.map(|(path, method)| (path.to_owned(), method.to_owned()));
        let served: BTreeSet<(String, String)> = routes()
            .iter()
            .flat_map(|route| route.methods.iter().map(|method| (route.path.to_owned(), (*method).to_owned())))
            .chain(beside)
            .collect();
        let document = openapi::document();
        let documented: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
                methods.map(|method| (path.clone(), method.clone())).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(served, documented);
    }

    #[test]
    fn every_code_is_in_the_document() {
        let document = openapi::document();
        let codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"].as_array().unwrap();
        assert_eq!(codes.len(), super::super::Code::ALL.len());
    }

    #[test]
    fn every_reference_in_the_document_resolves() {
        let document = openapi::document();
        fn walk<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
            match value {
                serde_json::Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(|reference| reference.as_str()));
                    map.values().for_each(|value| walk(value, found));
                }
                serde_json::Value::Array(values) => values.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let mut references = Vec::new();
        walk(&document, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }
}
