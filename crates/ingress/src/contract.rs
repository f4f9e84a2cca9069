//! Amendments to the generated API document that the handlers' descriptions cannot express: patterns, limits, enumerations, binary bodies,
//! headers, and the paths that devices connect to.
//!
//! `contract.json` has the amendments as data. Each is applied to the generated document once. A test fails if an amendment names something
//! that the document does not have.

use serde_json::{Map, Value};

const AMENDMENTS: &str = include_str!("contract.json");

/// The document with all amendments.
pub(super) fn amended(mut document: Value) -> Value {
    let amendments: Value = serde_json::from_str(AMENDMENTS).expect("the amendments are JSON");
    flatten_schemas(&mut document);
    copy_schemas(&mut document, &amendments["copies"]);
    merge(&mut document["components"]["schemas"], &amendments["schemas"]);
    for_each_operation(&mut document, |operation| {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        describe_parameters(operation, &id, &amendments["parameters"]);
        if let Some(Value::Array(added)) = amendments["added_parameters"].get(&id) {
            parameters_of(operation).extend(added.iter().cloned());
        }
        if let Some(body) = amendments["bodies"].get(&id) {
            operation["requestBody"] = body.clone();
        }
    });
    merge(&mut document, &amendments["document"]);
    document
}

/// Calls `each` for every operation of every path.
fn for_each_operation(document: &mut Value, mut each: impl FnMut(&mut Value)) {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    for item in paths {
        item.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(&mut each);
    }
}

fn parameters_of(operation: &mut Value) -> &mut Vec<Value> {
    let parameters = &mut operation["parameters"];
    if !parameters.is_array() {
        *parameters = Value::Array(Vec::new());
    }
    parameters.as_array_mut().expect("it was made an array")
}

/// Turns an `allOf` schema into one object. A closed part would otherwise reject the members of the other parts.
fn flatten_schemas(document: &mut Value) {
    let known = document["components"]["schemas"].clone();
    let resolved = |part: &Value| match part["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        Some(name) => known[name].clone(),
        None => part.clone(),
    };
    let schemas = document["components"]["schemas"].as_object_mut().into_iter().flat_map(Map::values_mut);
    for schema in schemas {
        let Some(parts) = schema["allOf"].as_array() else { continue };
        let parts: Vec<Value> = parts.iter().map(resolved).collect();
        let (mut whole, mut required) = (serde_json::json!({ "type": "object", "properties": {} }), Vec::new());
        for part in &parts {
            merge(&mut whole["properties"], &part["properties"]);
            for name in part["required"].as_array().into_iter().flatten() {
                if !required.contains(name) {
                    required.push(name.clone());
                }
            }
        }
        if !required.is_empty() {
            whole["required"] = required.into();
        }
        if parts.iter().any(|part| part["additionalProperties"] == false) {
            whole["additionalProperties"] = false.into();
        }
        if let Some(description) = schema.get("description") {
            whole["description"] = description.clone();
        }
        *schema = whole;
    }
}

fn copy_schemas(document: &mut Value, copies: &Value) {
    for (copy, original) in copies.as_object().into_iter().flatten() {
        let schemas = &mut document["components"]["schemas"];
        schemas[copy] = schemas[original.as_str().unwrap_or_default()].clone();
    }
}

/// Gives each parameter the schema for its name. A later rule overrides an earlier one.
fn describe_parameters(operation: &mut Value, id: &str, rules: &Value) {
    let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) else { return };
    for parameter in parameters {
        for rule in rules.as_array().into_iter().flatten() {
            let is_for_it = rule["operations"].as_array().is_none_or(|ids| ids.iter().any(|each| each == id));
            if rule["in"] != parameter["in"] || rule["name"] != parameter["name"] || !is_for_it {
                continue;
            }
            match rule["ref"].as_str() {
                Some(name) => parameter["schema"] = reference(name),
                None => merge(&mut parameter["schema"], &rule["schema"]),
            }
        }
    }
}

fn reference(name: &str) -> Value {
    serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A merge patch of RFC 7396: replaces members one by one; `null` removes a member.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        if !patch.is_null() {
            *target = patch.clone();
        }
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let into = target.as_object_mut().expect("it was made an object");
    for (name, value) in members {
        if value.is_null() {
            into.remove(name);
        } else {
            merge(into.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amendments() -> Value {
        serde_json::from_str(AMENDMENTS).unwrap()
    }

    #[test]
    fn every_amendment_is_about_something_that_the_document_has() {
        let mut document = serde_json::to_value(crate::openapi::generated()).unwrap();
        let amendments = amendments();
        let (mut ids, mut parameters) = (Vec::new(), Vec::new());
        for_each_operation(&mut document, |operation| {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                parameters.push((id.clone(), parameter["in"].clone(), parameter["name"].clone()));
            }
            ids.push(id);
        });
        for rule in amendments["parameters"].as_array().unwrap() {
            let is_it = |(_, place, name): &&(String, Value, Value)| *place == rule["in"] && *name == rule["name"];
            assert!(parameters.iter().any(|each| is_it(&each)), "{rule}");
            for id in rule["operations"].as_array().into_iter().flatten() {
                assert!(parameters.iter().any(|each| is_it(&each) && *id == each.0), "{id}: {rule}");
            }
        }
        for section in ["added_parameters", "bodies"] {
            for id in amendments[section].as_object().unwrap().keys() {
                assert!(ids.contains(id), "{section}: {id}");
            }
        }
        for original in amendments["copies"].as_object().unwrap().values() {
            assert!(document["components"]["schemas"].get(original.as_str().unwrap()).is_some(), "{original}");
        }
    }

    #[test]
    fn bodies_of_bytes_are_binary_strings() {
        let document = crate::openapi::document();
        for path in ["/v1/topics/{topic}/messages", "/produce"] {
            let content = &document["paths"][path]["post"]["requestBody"]["content"];
            let schema = &content["application/octet-stream"]["schema"];
            assert_eq!((&schema["type"], &schema["format"]), (&"string".into(), &"binary".into()), "{path}");
            assert_eq!(content.get("*/*"), None, "{path}");
        }
    }

    #[test]
    fn a_closed_part_refuses_nothing_of_the_whole() {
        let document = crate::openapi::document();
        let found = &document["components"]["schemas"]["MessageState"];
        for member in ["id", "offset", "state", "subscriptions"] {
            assert!(found["properties"].get(member).is_some(), "{member}: {found}");
        }
        assert_eq!(found.get("allOf"), None);
    }

    #[test]
    fn the_paths_that_devices_connect_to_are_described() {
        let document = crate::openapi::document();
        for (path, method) in [("/v1/connect", "get"), ("/v1/connect/sse", "get"), ("/v1/connect/ack", "post")] {
            assert!(document["paths"][path][method]["responses"].is_object(), "{method} {path}");
        }
        assert!(!document["servers"].as_array().unwrap().is_empty());
    }
}
