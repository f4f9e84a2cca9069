//! Subscriptions in tables: the list, one with its partitions, dead letters, pulled messages.

use serde_json::{Map, Value};
use whimbrel_client::{DeadLetterPage, PulledMessage, SeekInfo, SubscriptionInfo};

use crate::cli::output::{members, more_after, shown_payload, table};

/// Maximum length of a payload in a table, in characters.
const PAYLOAD_SHOWN_CHARS: usize = 60;
/// Members that the headline or a table of their own shows.
const SHOWN_APART: [&str; 7] = ["name", "topics", "mode", "state", "partitions", "disabled", "note"];
/// Members that show the state, in the order of their rows.
const STATE_MEMBERS: [&str; 14] = [
    "lag",
    "in_flight",
    "owner",
    "stalled",
    "parked",
    "retry_holds",
    "next_try",
    "delivered_rate",
    "failed_rate",
    "breaker",
    "concurrency_now",
    "dead_letters",
    "last_error",
    "replays",
];
/// Members that are settings, shown after the state. A member in neither list counts as state, after these.
const SETTING_MEMBERS: [&str; 19] = [
    "endpoint",
    "ordering",
    "concurrency",
    "retry",
    "on_exhausted",
    "blocked_sleep",
    "rate",
    "filter",
    "envelope",
    "secret",
    "success",
    "gone",
    "disable_after",
    "lease",
    "workers",
    "start",
    "run",
    "number",
    "created_at",
];

pub fn list(subscriptions: &[SubscriptionInfo]) -> String {
    if subscriptions.is_empty() {
        return "no subscriptions yet; create one with `whimbrel sub create`".to_owned();
    }
    let mut shown = table([
        "subscription",
        "state",
        "topics",
        "endpoint",
        "lag",
        "in flight",
        "parked",
        "per second",
        "last error",
    ]);
    for one in subscriptions {
        let all = members(one);
        shown.add_row([
            one.name.clone(),
            state(&all),
            one.settings.topics.join(" "),
            target(&all),
            fact(&all, "lag"),
            fact(&all, "in_flight"),
            fact(&all, "parked"),
            fact(&all, "delivered_rate"),
            last_error(&all),
        ]);
    }
    shown.to_string()
}

pub fn one(subscription: &SubscriptionInfo) -> String {
    let all = members(subscription);
    let topics = subscription.settings.topics.join(" ");
    let mut lines = vec![format!("{}: {}, {topics} → {}", subscription.name, state(&all), target(&all))];
    for (heading, rows) in [("state", state_rows(&all)), ("settings", setting_rows(&all))] {
        if !rows.is_empty() {
            let mut shown = table([heading, ""]);
            rows.into_iter().for_each(|(name, value)| {
                shown.add_row([name, value]);
            });
            lines.push(shown.to_string());
        }
    }
    lines.extend(subscription.note.clone());
    if let Some(partitions) = &subscription.status.partitions {
        let mut shown = table(["partition", "watermark", "read offset", "end offset", "unfinished"]);
        for of in partitions {
            let place = format!("{}/{}", of.topic, of.partition);
            let [watermark, read_to, end, unfinished] =
                [of.watermark, of.read_to, of.end, of.unfinished].map(|number| number.to_string());
            shown.add_row([place, watermark, read_to, end, unfinished]);
        }
        lines.push(shown.to_string());
    }
    lines.join("\n")
}

pub fn dead(page: &DeadLetterPage) -> String {
    if page.dead_letters.is_empty() {
        return "no dead letters".to_owned();
    }
    let mut shown = table(["failed at", "message", "key", "attempts", "status", "reason", "id"]);
    for letter in &page.dead_letters {
        shown.add_row([
            letter.died_at.clone().unwrap_or_default(),
            format!("{}/{}@{}", letter.topic, letter.partition, letter.offset),
            letter.key.clone().unwrap_or_default(),
            letter.attempts.to_string(),
            letter.last_status.map_or(String::new(), |status| status.to_string()),
            letter.reason.clone(),
            letter.id.clone(),
        ]);
    }
    let mut lines = vec![shown.to_string()];
    lines.extend(more_after(page.cursor.as_ref()));
    lines.join("\n")
}

pub fn pulled(messages: &[PulledMessage]) -> String {
    if messages.is_empty() {
        return "nothing to pull".to_owned();
    }
    let mut shown = table(["message", "key", "attempt", "payload", "ack id"]);
    for pulled in messages {
        let message = &pulled.message;
        shown.add_row([
            &format!("{}/{}@{}", message.topic, message.partition, message.offset),
            message.key.as_deref().unwrap_or_default(),
            &pulled.attempt.to_string(),
            &shown_payload(message, PAYLOAD_SHOWN_CHARS),
            &pulled.ack_id,
        ]);
    }
    shown.to_string()
}

/// The start position of a seek or a replay, partition by partition.
pub fn sought(answer: &SeekInfo, sentence: &str) -> String {
    let mut shown = table(["partition", "from offset"]);
    for (place, offset) in &answer.offsets {
        let is_truncated = answer.truncated.contains(place);
        let remark = if is_truncated { ", the oldest message: the requested position was removed" } else { "" };
        shown.add_row([place.clone(), format!("{offset}{remark}")]);
    }
    format!("{sentence}\n{shown}")
}

type Members = Map<String, Value>;
type MemberRow = (String, String);

/// The state as far as the answer has it: it lacks members if the owner did not answer.
fn state_rows(subscription: &Members) -> Vec<MemberRow> {
    let mut rows: Vec<MemberRow> = STATE_MEMBERS.iter().filter_map(|name| row(subscription, name)).collect();
    let is_other = |name: &str| {
        [&STATE_MEMBERS[..], &SETTING_MEMBERS, &SHOWN_APART, &["parked_messages"]].iter().all(|l| !l.contains(&name))
    };
    let others = subscription.keys().filter(|name| is_other(name));
    rows.extend(others.filter_map(|name| row(subscription, name)));
    rows
}

fn setting_rows(subscription: &Members) -> Vec<MemberRow> {
    SETTING_MEMBERS.iter().filter_map(|name| row(subscription, name)).collect()
}

/// The row of a member.
fn row(subscription: &Members, name: &str) -> Option<MemberRow> {
    let value = subscription.get(name).filter(|value| !value.is_null())?;
    let text = match name {
        "parked" => parked(subscription, value),
        "delivered_rate" | "failed_rate" => format!("{} per second", plain(value)),
        "last_error" => last_error(subscription),
        "endpoint" => endpoint(value),
        "retry" => retry(value),
        "replays" => replays(value),
        _ => plain(value),
    };
    let name = match name {
        "delivered_rate" => "delivered".to_owned(),
        "failed_rate" => "failed".to_owned(),
        other => other.replace('_', " "),
    };
    Some((name, text))
}

fn parked(subscription: &Members, lanes: &Value) -> String {
    let is_by_partition = subscription.get("ordering").and_then(Value::as_str) == Some("partition");
    let what = if is_by_partition { "by partition" } else { "by key" };
    match subscription.get("parked_messages").and_then(Value::as_u64) {
        Some(messages) if messages > 0 => format!("{} ({what}), with {messages} messages", plain(lanes)),
        _ => plain(lanes),
    }
}

fn endpoint(value: &Value) -> String {
    let Value::Object(members) = value else { return plain(value) };
    let url = members.get("url").map_or("each message's own".to_owned(), plain);
    let others = members.iter().filter(|(name, value)| *name != "url" && !value.is_null());
    let others = others.map(|(name, value)| match value {
        Value::Object(headers) => {
            let each = headers.iter().map(|(name, value)| format!("{name}: {}", plain(value)));
            format!(", {name} {}", each.collect::<Vec<_>>().join("; "))
        }
        value => format!(", {} {}", name.replace('_', " "), plain(value)),
    });
    format!("{url}{}", others.collect::<String>())
}

fn retry(value: &Value) -> String {
    let times = value.get("times").map_or(String::new(), plain);
    match value.get("schedule").and_then(Value::as_array).filter(|schedule| !schedule.is_empty()) {
        Some(schedule) => {
            format!("{times} times, after {}", schedule.iter().map(plain).collect::<Vec<_>>().join(", "))
        }
        None => format!("{times} times"),
    }
}

fn replays(value: &Value) -> String {
    let Value::Array(replays) = value else { return plain(value) };
    let each = replays.iter().map(|replay| {
        let of = |name: &str| replay.get(name).filter(|value| !value.is_null()).map(plain);
        let key = of("key").map_or(String::new(), |key| format!(" of the key {key}"));
        let far =
            of("done").zip(of("left")).map_or(String::new(), |(done, left)| format!(", {done} done, {left} left"));
        format!("run {}{key}{far}", of("run").unwrap_or_default())
    });
    each.collect::<Vec<_>>().join("; ")
}

fn state(subscription: &Members) -> String {
    let why = subscription.get("disabled").and_then(|disabled| disabled.get("reason")).map_or(String::new(), plain);
    let state = fact(subscription, "state");
    if why.is_empty() { state } else { format!("{state}: {why}") }
}

fn target(subscription: &Members) -> String {
    if fact(subscription, "mode") == "pull" {
        return "pulled".to_owned();
    }
    let url = subscription.get("endpoint").and_then(|endpoint| endpoint.get("url"));
    url.and_then(Value::as_str).unwrap_or("each message's own").to_owned()
}

fn last_error(subscription: &Members) -> String {
    let Some(Value::Object(error)) = subscription.get("last_error") else { return String::new() };
    let of = |name: &str| error.get(name).filter(|value| !value.is_null()).map_or(String::new(), plain);
    let (status, reason) = (of("status"), of("reason"));
    // A reason such as `answered 500` contains the status.
    let has_status = reason.split(' ').any(|word| word == status);
    let facts = [if has_status { String::new() } else { status }, reason, of("at")];
    facts.into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(", ")
}

fn fact(members: &Members, name: &str) -> String {
    members.get(name).filter(|value| !value.is_null()).map_or(String::new(), plain)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(rate) => format!("{rate:.2}"),
            None => number.to_string(),
        },
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Object(members) => {
            let each = members.iter().filter(|(_, value)| !value.is_null());
            each.map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value)))
                .collect::<Vec<_>>()
                .join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(more: Value) -> Members {
        let mut json = serde_json::json!({ "name": "a", "mode": "push", "state": "active" });
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        members(&json)
    }

    fn names(rows: &[MemberRow]) -> Vec<&str> {
        rows.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn the_last_error_has_a_status_once() {
        let error = |error: Value| last_error(&subscription(serde_json::json!({ "last_error": error })));
        let answered = serde_json::json!({ "status": 500, "reason": "answered 500", "at": "t" });
        assert_eq!(error(answered), "answered 500, t");
        let other = serde_json::json!({ "status": 410, "reason": "gone", "at": "t" });
        assert_eq!(error(other), "410, gone, t");
        let unanswered = serde_json::json!({ "reason": "connect: refused", "at": "t" });
        assert_eq!(error(unanswered), "connect: refused, t");
    }

    #[test]
    fn the_state_comes_before_the_settings() {
        let shown = subscription(serde_json::json!({
            "lag": 3, "in_flight": 1, "parked": 1, "parked_messages": 2, "ordering": "key", "breaker": "open", "dead_letters": 0,
            "delivered_rate": 0.25, "retry": { "times": 5, "schedule": ["1s", "10s"] }, "heard_of_later": 7,
            "endpoint": { "url": "http://h/x", "timeout": "10s", "headers": { "x-env": "prod" } },
        }));
        let rows = state_rows(&shown);
        let expected = ["lag", "in flight", "parked", "delivered", "breaker", "dead letters", "heard of later"];
        assert_eq!(names(&rows), expected);
        assert_eq!((rows[2].1.as_str(), rows[3].1.as_str()), ("1 (by key), with 2 messages", "0.25 per second"));
        let rows = setting_rows(&shown);
        assert_eq!(names(&rows), ["endpoint", "ordering", "retry"]);
        assert_eq!(rows[0].1, "http://h/x, headers x-env: prod, timeout 10s");
        assert_eq!(rows[2].1, "5 times, after 1s, 10s");
    }

    #[test]
    fn an_unknown_value_has_no_row() {
        assert!(state_rows(&subscription(serde_json::json!({ "ordering": "key", "last_error": null }))).is_empty());
    }
}
