//! Conversion of a kafka-pusher's configuration to subscriptions, field by field. Pure code: the input is a text, the output
//! subscriptions or all errors.

use std::collections::BTreeSet;
use std::time::Duration;

use whimbrel_client::{EndpointSettings, RetrySettings, SubscriptionSettings};
use whimbrel_model::{check_topic_name, format_duration, parse_duration};

use super::lenient_json::{JsonNode, JsonValue, parse};

/// Prefix of the names of imported subscriptions.
const NAME_PREFIX: &str = "pusher.";
/// Maximum length of a name in characters; a longer one ends in a hash of the whole name instead.
const NAME_CHARS_MAX: usize = 120;
/// The delay of a kafka-pusher before a retry, by default.
const FAILED_SLEEP_DEFAULT: Duration = Duration::from_secs(1);
const WORKERS_DEFAULT: u32 = 1;

/// The result of an import.
#[derive(Debug, Default)]
pub struct ImportPlan {
    pub subscriptions: Vec<PlannedSubscription>,
    /// Ignored fields, each with its line.
    pub remarks: Vec<String>,
}

#[derive(Debug)]
pub struct PlannedSubscription {
    pub name: String,
    /// The line on which its entry begins.
    pub line: usize,
    pub settings: SubscriptionSettings,
}

/// Plans the subscriptions of a configuration, or returns all of its errors.
pub fn plan(text: &str) -> Result<ImportPlan, Vec<String>> {
    let root = parse(text).map_err(|wrong| vec![wrong.to_string()])?;
    let mut reading = PusherReader::default();
    let mut plan = ImportPlan::default();
    let JsonValue::Object(members) = root.value else {
        return Err(vec![format!("line {}: the file is {}, not an object", root.line, root.value.kind())]);
    };
    let groups = members.iter().find(|(name, _)| name == "consumer_groups");
    for (name, node) in members.iter().filter(|(name, _)| name != "consumer_groups") {
        reading.remark(node, name, "is ignored: Whimbrel has no such setting");
    }
    match groups {
        Some((_, JsonNode { value: JsonValue::List(entries), .. })) => {
            for (index, entry) in entries.iter().enumerate() {
                if let Some(settings) = reading.entry(entry, &format!("consumer_groups[{index}]")) {
                    plan.subscriptions.push(PlannedSubscription { name: String::new(), line: entry.line, settings });
                }
            }
        }
        Some((_, node)) => reading.wrong(node, "consumer_groups", &format!("is {}, not a list", node.value.kind())),
        None => reading.problems.push(format!("line {}: consumer_groups is missing", root.line)),
    }
    if !reading.problems.is_empty() {
        return Err(reading.problems);
    }
    name_all(&mut plan.subscriptions);
    plan.remarks = reading.remarks;
    Ok(plan)
}

#[derive(Default)]
struct PusherReader {
    problems: Vec<String>,
    remarks: Vec<String>,
}

impl PusherReader {
    fn wrong(&mut self, node: &JsonNode, field: &str, what: &str) {
        self.problems.push(format!("line {}: {field} {what}", node.line));
    }

    fn remark(&mut self, node: &JsonNode, field: &str, what: &str) {
        self.remarks.push(format!("line {}: {field} {what}", node.line));
    }

    /// One consumer group; `None` if it has an error, which is then recorded.
    fn entry(&mut self, entry: &JsonNode, path: &str) -> Option<SubscriptionSettings> {
        let JsonValue::Object(members) = &entry.value else {
            self.wrong(entry, path, &format!("is {}, not an object", entry.value.kind()));
            return None;
        };
        let problems_before = self.problems.len();
        let mut settings = SubscriptionSettings {
            concurrency: Some(WORKERS_DEFAULT),
            ordering: Some("partition".into()),
            envelope: Some("kmq".into()),
            success: Some(vec![200]),
            gone: Some("fail".into()),
            ..SubscriptionSettings::default()
        };
        let (mut url, mut timeout, mut retries, mut sleep, mut bypass) = (None, None, 0, FAILED_SLEEP_DEFAULT, false);
        for (name, node) in members {
            let field = &format!("{path}.{name}");
            match name.as_str() {
                "url" => url = self.url(node, field),
                "topics" => settings.topics = self.topics(node, field),
                "timeout" => timeout = self.duration(node, field),
                "worker_num" => settings.concurrency = self.count(node, field, 1).or(settings.concurrency),
                "retry_times" => retries = self.count(node, field, 0).unwrap_or(retries),
                "failed_sleep" => sleep = self.duration(node, field).unwrap_or(sleep),
                "bypass_failed" => bypass = self.flag(node, field).unwrap_or(bypass),
                "zookeepers" | "zk_path" => {
                    self.remark(
                        node,
                        field,
                        "is ignored: its offsets are not read, deliveries begin with the next message",
                    );
                }
                _ => self.remark(node, field, "is ignored: Whimbrel has no such setting"),
            }
        }
        for required in ["url", "topics"] {
            if !members.iter().any(|(name, _)| name == required) {
                self.wrong(entry, &format!("{path}.{required}"), "is missing");
            }
        }
        let sleep = format_duration(sleep);
        settings.retry = Some(RetrySettings { times: Some(retries), schedule: vec![sleep.clone()] });
        settings.on_exhausted = Some(if bypass { "drop" } else { "block" }.into());
        settings.blocked_sleep = Some(sleep);
        settings.endpoint = url.map(|url| EndpointSettings {
            url,
            timeout: timeout.map(format_duration),
            ..EndpointSettings::default()
        });
        (self.problems.len() == problems_before).then_some(settings)
    }

    fn url(&mut self, node: &JsonNode, field: &str) -> Option<String> {
        let JsonValue::Text(text) = &node.value else {
            self.wrong(node, field, &format!("is {}, not a URL", node.value.kind()));
            return None;
        };
        let parsed = text.parse::<http::Uri>().ok();
        let is_http = parsed.as_ref().is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
        });
        if !is_http {
            self.wrong(node, field, &format!("`{text}` is not a URL: expected http://host/path"));
            return None;
        }
        Some(text.clone())
    }

    fn topics(&mut self, node: &JsonNode, field: &str) -> Vec<String> {
        let JsonValue::List(entries) = &node.value else {
            self.wrong(node, field, &format!("is {}, not a list of topics", node.value.kind()));
            return Vec::new();
        };
        if entries.is_empty() {
            self.wrong(node, field, "is empty: name at least one topic");
        }
        let mut topics = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match &entry.value {
                JsonValue::Text(topic) => match check_topic_name(topic) {
                    Ok(()) if topics.contains(topic) => self.wrong(entry, &field, &format!("names `{topic}` again")),
                    Ok(()) => topics.push(topic.clone()),
                    Err(error) => self.wrong(entry, &field, &format!("`{topic}` is not a topic's name: {error}")),
                },
                other => self.wrong(entry, &field, &format!("is {}, not a topic's name", other.kind())),
            }
        }
        topics
    }

    fn duration(&mut self, node: &JsonNode, field: &str) -> Option<Duration> {
        let text = match &node.value {
            JsonValue::Text(text) => text.clone(),
            JsonValue::Number(millis) if *millis >= 0.0 && millis.fract() == 0.0 => format!("{millis:.0}"),
            other => {
                self.wrong(node, field, &format!("is {}, not a duration such as \"3s\"", other.kind()));
                return None;
            }
        };
        match parse_duration(&text) {
            Ok(duration) => Some(duration),
            Err(error) => {
                self.wrong(node, field, &format!("`{text}` is not a duration: {error}"));
                None
            }
        }
    }

    fn count(&mut self, node: &JsonNode, field: &str, least: u32) -> Option<u32> {
        match &node.value {
            JsonValue::Number(count)
                if count.fract() == 0.0 && (f64::from(least)..=f64::from(u32::MAX)).contains(count) =>
            {
                Some(*count as u32)
            }
            _ => {
                self.wrong(node, field, &format!("is not a whole number of at least {least}"));
                None
            }
        }
    }

    fn flag(&mut self, node: &JsonNode, field: &str) -> Option<bool> {
        if let JsonValue::Flag(flag) = node.value {
            return Some(flag);
        }
        self.wrong(node, field, &format!("is {}, not true or false", node.value.kind()));
        None
    }
}

/// Names that a repeated import produces again: from the topics and the path, not the host, so that a service may move.
fn name_all(planned: &mut [PlannedSubscription]) {
    let mut taken = BTreeSet::new();
    for one in planned {
        let name = name_of(&one.settings);
        let numbered = (2u32..).map(|number| format!("{name}.{number}"));
        let mut candidates = std::iter::once(name.clone()).chain(numbered);
        one.name = candidates.by_ref().find(|name| taken.insert(name.clone())).unwrap_or(name);
    }
}

fn name_of(settings: &SubscriptionSettings) -> String {
    let url = settings.endpoint.as_ref().map_or("", |endpoint| endpoint.url.as_str());
    let path = url.parse::<http::Uri>().map_or(String::new(), |uri| uri.path().to_owned());
    let path = path.trim_matches('/');
    let whole = if path.is_empty() {
        format!("{NAME_PREFIX}{}", settings.topics.join("-"))
    } else {
        format!("{NAME_PREFIX}{}.{path}", settings.topics.join("-"))
    };
    let is_of_name = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let name: String = whole.chars().map(|character| if is_of_name(character) { character } else { '-' }).collect();
    if name.len() <= NAME_CHARS_MAX {
        return name;
    }
    // FNV-1a: the same hash on every machine and in every version.
    let number = whole
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{}-{number:016x}", &name[..NAME_CHARS_MAX - 17])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"// the shop's pusher
{
  "consumer_groups": [
    {
      "url": "http://10.0.0.7:8080/order/paid", // moved in May
      "topics": ["orders", "refunds",],
      "worker_num": 4,
      "timeout": "3s",
      "retry_times": 2,
      "failed_sleep": "500ms",
      "bypass_failed": true,
      "zookeepers": ["10.0.0.1:2181"],
      "zk_path": "/kafka",
    },
    { "url": "http://10.0.0.8/order/paid", "topics": ["orders", "refunds"] },
  ],
}
"#;

    #[test]
    fn each_field_is_converted() {
        let plan = plan(FILE).unwrap();
        let [first, second] = &plan.subscriptions[..] else { panic!() };
        let expected = serde_json::json!({
            "topics": ["orders", "refunds"],
            "endpoint": { "url": "http://10.0.0.7:8080/order/paid", "timeout": "3s" },
            "ordering": "partition", "concurrency": 4, "envelope": "kmq", "success": [200], "gone": "fail",
            "retry": { "times": 2, "schedule": ["500ms"] }, "on_exhausted": "drop", "blocked_sleep": "500ms",
        });
        assert_eq!(serde_json::to_value(&first.settings).unwrap(), expected);
        let expected = serde_json::json!({
            "topics": ["orders", "refunds"], "endpoint": { "url": "http://10.0.0.8/order/paid" },
            "ordering": "partition", "concurrency": 1, "envelope": "kmq", "success": [200], "gone": "fail",
            "retry": { "times": 0, "schedule": ["1s"] }, "on_exhausted": "block", "blocked_sleep": "1s",
        });
        assert_eq!(serde_json::to_value(&second.settings).unwrap(), expected);
        assert!(plan.remarks[0].starts_with("line 12: consumer_groups[0].zookeepers is ignored"), "{:?}", plan.remarks);
        assert!(plan.remarks[1].starts_with("line 13: consumer_groups[0].zk_path is ignored"), "{:?}", plan.remarks);
    }

    #[test]
    fn names_are_stable_and_distinct() {
        let names = |text: &str| plan(text).unwrap().subscriptions.into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(names(FILE), ["pusher.orders-refunds.order-paid", "pusher.orders-refunds.order-paid.2"]);
        assert_eq!(names(FILE), names(&FILE.replace("10.0.0.7:8080", "10.9.9.9")));
        let long = FILE.replace("/order/paid", &"/a".repeat(400));
        assert!(names(&long).iter().all(|name| name.len() <= NAME_CHARS_MAX + 2), "{:?}", names(&long));
    }

    #[test]
    fn every_error_has_its_line_and_field() {
        let text = FILE
            .replace("\"worker_num\": 4", "\"worker_num\": 0")
            .replace("\"timeout\": \"3s\"", "\"timeout\": \"soon\"")
            .replace("http://10.0.0.8/order/paid", "ftp://x")
            .replace("\"refunds\"] }", "\"_x\"] }")
            .replace("\"bypass_failed\": true", "\"bypass_failed\": 1");
        let problems = plan(&text).unwrap_err().join("\n");
        for expected in [
            "line 7: consumer_groups[0].worker_num is not a whole number of at least 1",
            "line 8: consumer_groups[0].timeout `soon` is not a duration",
            "line 11: consumer_groups[0].bypass_failed is a number, not true or false",
            "line 15: consumer_groups[1].url `ftp://x` is not a URL",
            "line 15: consumer_groups[1].topics[1] `_x` is not a topic's name",
        ] {
            assert!(problems.contains(expected), "{expected}\n---\n{problems}");
        }
    }

    #[test]
    fn missing_fields_are_reported() {
        let problems = plan("{\"consumer_groups\":[{}]}").unwrap_err();
        assert_eq!(
            problems,
            ["line 1: consumer_groups[0].url is missing", "line 1: consumer_groups[0].topics is missing"]
        );
        assert_eq!(plan("{}").unwrap_err(), ["line 1: consumer_groups is missing"]);
    }
}
