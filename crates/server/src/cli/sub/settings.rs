//! What a subscription is on a command line: flags, a file of JSON, or a file with flags that go before it.

use std::path::PathBuf;

use serde_json::{Map, Value};
use whimbrel_client::{EndpointSettings, RetrySettings, SubscriptionSettings};

use crate::cli::Failure;

#[derive(Debug, clap::Args)]
pub struct SettingsArgs {
    /// A file with the subscription as JSON; the flags go before it
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A topic to read, as often as needed
    #[arg(short, long)]
    topic: Vec<String>,
    /// Where messages are delivered; without it they are pulled
    #[arg(short, long)]
    url: Option<String>,
    /// Hand messages out to whoever pulls
    #[arg(long, conflicts_with = "url")]
    pull: bool,
    /// How long one call may take: 3s
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// A header of every call, as often as needed
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = name_and_value)]
    header: Vec<(String, String)>,
    /// What keeps its order: key, partition or none
    #[arg(long)]
    ordering: Option<String>,
    /// Calls at the same time
    #[arg(long, value_name = "COUNT")]
    concurrency: Option<u32>,
    /// Retries after the first attempt
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,
    /// How long to wait before each retry: 1s,10s,60s
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',')]
    schedule: Vec<String>,
    /// What becomes of a message after them: dead_letter, block or drop
    #[arg(long)]
    on_exhausted: Option<String>,
    /// How long to wait between tries of a message that blocks: 2s
    #[arg(long, value_name = "DURATION")]
    blocked_sleep: Option<String>,
    /// Where it begins: earliest, latest or a time
    #[arg(long, value_name = "PLACE")]
    start: Option<String>,
    /// Calls per time at most: 1000/s
    #[arg(long)]
    rate: Option<String>,
    /// Only messages that have it, as often as needed: headers.type=order.paid
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_equals)]
    filter: Vec<(String, String)>,
    /// The form of a call: binary, structured or kmq
    #[arg(long)]
    envelope: Option<String>,
    /// What calls are signed with: whsec_… or generate
    #[arg(long)]
    secret: Option<String>,
    /// The statuses that are success: 200,202
    #[arg(long, value_name = "STATUSES", value_delimiter = ',')]
    success: Vec<u16>,
    /// What an answer of 410 means: disable or fail
    #[arg(long)]
    gone: Option<String>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn name_and_equals(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl SettingsArgs {
    pub fn settings(self) -> Result<SubscriptionSettings, Failure> {
        let mut settings = self.told_by_file()?;
        if !self.topic.is_empty() {
            settings.topics = self.topic;
        }
        if settings.topics.is_empty() {
            return Err(Failure::new("no topic is named").with_hint("name one with --topic, as often as needed"));
        }
        if self.pull {
            settings.mode = Some("pull".into());
        }
        let is_endpoint_told = self.url.is_some() || self.timeout.is_some() || !self.header.is_empty();
        if is_endpoint_told || settings.endpoint.is_some() {
            let mut endpoint = settings.endpoint.unwrap_or_default();
            endpoint.url = self.url.unwrap_or(endpoint.url);
            endpoint.timeout = self.timeout.or(endpoint.timeout);
            endpoint.headers.extend(texts(self.header));
            settings.endpoint = Some(endpoint).filter(|endpoint| *endpoint != EndpointSettings::default());
        } else if settings.mode.is_none() {
            return Err(Failure::new("nothing says where messages go")
                .with_hint("name an endpoint with --url, or hand them out with --pull"));
        }
        if self.retries.is_some() || !self.schedule.is_empty() {
            let retry = settings.retry.unwrap_or_default();
            let schedule = if self.schedule.is_empty() { retry.schedule } else { self.schedule };
            settings.retry = Some(RetrySettings { times: self.retries.or(retry.times), schedule });
        }
        settings.ordering = self.ordering.or(settings.ordering);
        settings.concurrency = self.concurrency.or(settings.concurrency);
        settings.on_exhausted = self.on_exhausted.or(settings.on_exhausted);
        settings.blocked_sleep = self.blocked_sleep.or(settings.blocked_sleep);
        settings.start = self.start.or(settings.start);
        settings.rate = self.rate.or(settings.rate);
        settings.filter.extend(texts(self.filter));
        settings.envelope = self.envelope.or(settings.envelope);
        settings.secret = self.secret.or(settings.secret);
        settings.success = Some(self.success).filter(|statuses| !statuses.is_empty()).or(settings.success);
        settings.gone = self.gone.or(settings.gone);
        Ok(settings)
    }

    fn told_by_file(&self) -> Result<SubscriptionSettings, Failure> {
        let Some(path) = &self.file else { return Ok(SubscriptionSettings::default()) };
        let name = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::new(format!("{name} cannot be read: {error}")))?;
        serde_json::from_str(&text).map_err(|error| Failure::new(format!("{name} is not a subscription: {error}")))
    }
}

fn texts(pairs: Vec<(String, String)>) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    fn of(line: &[&str]) -> Result<Value, String> {
        let line = Line::try_parse_from([&["sub"], line].concat()).map_err(|error| error.to_string())?;
        let settings = line.settings.settings().map_err(|failure| failure.to_string())?;
        Ok(serde_json::to_value(settings).unwrap())
    }

    #[test]
    fn flags_are_a_subscription_with_only_what_was_given() {
        let line = ["-t", "orders", "-u", "http://h/x", "--retries", "2", "--schedule", "1s,5s", "-H", "X-Env: prod"];
        let expected = serde_json::json!({
            "topics": ["orders"], "endpoint": { "url": "http://h/x", "headers": { "X-Env": "prod" } },
            "retry": { "times": 2, "schedule": ["1s", "5s"] },
        });
        assert_eq!(of(&line).unwrap(), expected);
        assert_eq!(of(&["-t", "a", "--pull"]).unwrap(), serde_json::json!({ "topics": ["a"], "mode": "pull" }));
    }

    #[test]
    fn what_is_needed_is_asked_for() {
        assert!(of(&["-u", "http://h/x"]).unwrap_err().contains("no topic is named"));
        assert!(of(&["-t", "a"]).unwrap_err().contains("nothing says where messages go"));
        assert!(of(&["-t", "a", "--pull", "-u", "http://h"]).is_err());
    }

    #[test]
    fn flags_go_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sub.json");
        let text = r#"{"topics":["a"],"endpoint":{"url":"http://h/1","timeout":"3s"},"lease":"1m","concurrency":4}"#;
        std::fs::write(&file, text).unwrap();
        let found = of(&["-f", file.to_str().unwrap(), "-u", "http://h/2", "--concurrency", "8"]).unwrap();
        let expected = serde_json::json!({
            "topics": ["a"], "endpoint": { "url": "http://h/2", "timeout": "3s" }, "lease": "1m", "concurrency": 8,
        });
        assert_eq!(found, expected);
    }
}
