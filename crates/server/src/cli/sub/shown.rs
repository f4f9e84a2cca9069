//! Subscriptions for people to read: how each stands, one with its partitions, dead letters, what was pulled.

use std::process::ExitCode;

use serde_json::Value;
use whimbrel_client::{DeadLetterPage, PulledMessage, SubscriptionInfo};

use crate::cli::Failure;
use crate::cli::output::{print_json, print_line, shown_payload, table};

/// Characters of a payload that a table shows.
const PAYLOAD_SHOWN_CHARS: usize = 60;
/// Members that have a table or a line of their own.
const SHOWN_APART: [&str; 3] = ["partitions", "disabled", "last_error"];

pub fn list(subscriptions: &[SubscriptionInfo], json: bool) -> Result<ExitCode, Failure> {
    if json {
        print_json(&subscriptions)?;
        return Ok(ExitCode::SUCCESS);
    }
    if subscriptions.is_empty() {
        print_line("no subscriptions yet; make one with `whimbrel sub create`")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown =
        table(["subscription", "state", "topics", "to", "lag", "in flight", "parked", "per second", "last error"]);
    for one in subscriptions {
        shown.add_row([
            one.name.clone(),
            state(one),
            one.topics.join(" "),
            target(one),
            number(one.lag),
            number(one.in_flight),
            fact(&one.more, "parked"),
            fact(&one.more, "delivered_rate"),
            last_error(one),
        ]);
    }
    print_line(&shown.to_string())?;
    Ok(ExitCode::SUCCESS)
}

pub fn one(subscription: &SubscriptionInfo, json: bool) -> Result<ExitCode, Failure> {
    if json {
        print_json(subscription)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(&format!(
        "{}: {}, {} → {}",
        subscription.name,
        state(subscription),
        subscription.topics.join(" "),
        target(subscription)
    ))?;
    let mut shown = table(["", ""]);
    shown.add_row(["lag".to_owned(), number(subscription.lag)]);
    shown.add_row(["in flight".to_owned(), number(subscription.in_flight)]);
    for (name, value) in &subscription.more {
        if !value.is_null() && !SHOWN_APART.contains(&name.as_str()) {
            shown.add_row([name.replace('_', " "), plain(value)]);
        }
    }
    let error = last_error(subscription);
    if !error.is_empty() {
        shown.add_row(["last error".to_owned(), error]);
    }
    print_line(&shown.to_string())?;
    if let Some(Value::Array(partitions)) = subscription.more.get("partitions") {
        let mut shown = table(["partition", "done up to", "read up to", "end", "unfinished"]);
        for partition in partitions {
            let of = |name: &str| partition.get(name).map_or(String::new(), plain);
            let place = format!("{}/{}", of("topic"), of("partition"));
            shown.add_row([place, of("watermark"), of("read_to"), of("end"), of("unfinished")]);
        }
        print_line(&shown.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn dead(page: &DeadLetterPage, json: bool) -> Result<ExitCode, Failure> {
    if json {
        print_json(page)?;
        return Ok(ExitCode::SUCCESS);
    }
    if page.dead_letters.is_empty() {
        print_line("no dead letters")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown = table(["died", "message", "key", "attempts", "status", "reason", "id"]);
    for letter in &page.dead_letters {
        shown.add_row([
            letter.died_at.clone().unwrap_or_default(),
            format!("{}/{}@{}", letter.topic, letter.partition, letter.offset),
            letter.key.clone().unwrap_or_default(),
            letter.attempts.to_string(),
            letter.last_status.map_or(String::new(), |status| status.to_string()),
            letter.reason.clone().unwrap_or_default(),
            letter.id.clone(),
        ]);
    }
    print_line(&shown.to_string())?;
    if let Some(cursor) = &page.cursor {
        print_line(&format!("there are more: go on with --cursor {cursor}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn pulled(messages: &[PulledMessage], json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&messages);
    }
    if messages.is_empty() {
        return print_line("nothing to pull");
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
    print_line(&shown.to_string())
}

/// What an answer says in single words and figures, behind a sentence.
pub fn facts(answer: &Value) -> String {
    let Value::Object(members) = answer else { return String::new() };
    let facts = members.iter().filter(|(name, value)| {
        *name != "name" && *name != "state" && (value.is_string() || value.is_number() || value.is_boolean())
    });
    facts.map(|(name, value)| format!(", {} {}", name.replace('_', " "), plain(value))).collect()
}

fn state(subscription: &SubscriptionInfo) -> String {
    let why =
        subscription.more.get("disabled").and_then(|disabled| disabled.get("reason")).map_or(String::new(), plain);
    if why.is_empty() { subscription.state.clone() } else { format!("{}: {why}", subscription.state) }
}

fn target(subscription: &SubscriptionInfo) -> String {
    if subscription.mode == "pull" {
        return "pulled".to_owned();
    }
    let url = subscription.more.get("endpoint").and_then(|endpoint| endpoint.get("url"));
    url.and_then(Value::as_str).unwrap_or("each message's own").to_owned()
}

fn last_error(subscription: &SubscriptionInfo) -> String {
    let Some(Value::Object(error)) = subscription.more.get("last_error") else { return String::new() };
    let of = |name: &str| error.get(name).filter(|value| !value.is_null()).map_or(String::new(), plain);
    [of("status"), of("reason"), of("at")].into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(", ")
}

fn fact(members: &serde_json::Map<String, Value>, name: &str) -> String {
    members.get(name).filter(|value| !value.is_null()).map_or(String::new(), plain)
}

fn number(number: Option<u64>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(rate) => format!("{rate:.1}"),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_an_answer_are_said_in_words() {
        let answer = serde_json::json!({ "name": "a", "state": "active", "redriven": 3, "unknown": [], "run": 2 });
        let said = facts(&answer);
        assert!(said.contains(", redriven 3") && said.contains(", run 2") && !said.contains("unknown"), "{said}");
    }

    #[test]
    fn the_last_error_is_one_line() {
        let text =
            r#"{"name":"a","mode":"push","state":"active","last_error":{"status":500,"reason":"status","at":"t"}}"#;
        let subscription: SubscriptionInfo = serde_json::from_str(text).unwrap();
        assert_eq!(last_error(&subscription), "500, status, t");
    }
}
