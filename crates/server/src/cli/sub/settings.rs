//! The settings of a subscription from the command line: flags, a JSON file, or both. A flag overrides the file.

use std::path::PathBuf;

use serde_json::{Map, Value};
use whimbrel_client::{EndpointSettings, RetrySettings, SubscriptionSettings};

use crate::cli::CliError;

#[derive(Debug, clap::Args)]
pub struct SubscriptionSettingsArgs {
    /// A JSON file with the subscription; flags override it
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A topic to read, as often as needed
    #[arg(short, long)]
    topic: Vec<String>,
    /// The endpoint; without it messages are pulled
    #[arg(short, long)]
    url: Option<String>,
    /// Consumers pull the messages
    #[arg(long, conflicts_with = "url")]
    pull: bool,
    /// Timeout of one call: 3s
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// A header of every call, as often as needed
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = name_and_value)]
    header: Vec<(String, String)>,
    /// The order to keep: key, partition or none
    #[arg(long)]
    ordering: Option<String>,
    /// Concurrent calls
    #[arg(long, value_name = "COUNT")]
    concurrency: Option<u32>,
    /// Retries after the first attempt
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,
    /// The delay before each retry: 1s,10s,60s
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',')]
    schedule: Vec<String>,
    /// The outcome of a message after its retries: dead_letter, block or drop
    #[arg(long)]
    on_exhausted: Option<String>,
    /// The delay between attempts of a message that blocks: 2s
    #[arg(long, value_name = "DURATION")]
    blocked_sleep: Option<String>,
    /// Start position: earliest, latest or a time
    #[arg(long, value_name = "PLACE")]
    start: Option<String>,
    /// Maximum rate of calls: 1000/s
    #[arg(long)]
    rate: Option<String>,
    /// Only messages with this value, as often as needed: headers.type=order.paid
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_equals)]
    filter: Vec<(String, String)>,
    /// The format of a call: binary, structured or kmq
    #[arg(long)]
    envelope: Option<String>,
    /// The secret that signs calls: whsec_… or generate
    #[arg(long)]
    secret: Option<String>,
    /// The statuses that mean success: 200,202
    #[arg(long, value_name = "STATUSES", value_delimiter = ',')]
    success: Vec<u16>,
    /// The effect of a 410 response: disable or fail
    #[arg(long)]
    gone: Option<String>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn name_and_equals(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl SubscriptionSettingsArgs {
    pub fn settings(self) -> Result<SubscriptionSettings, CliError> {
        let mut settings = self.read_file()?;
        if !self.topic.is_empty() {
            settings.topics = self.topic;
        }
        if settings.topics.is_empty() {
            return Err(CliError::new("no topic is set").with_hint("set one with --topic, as often as needed"));
        }
        if self.pull {
            settings.mode = Some("pull".into());
        }
        let has_endpoint_flags = self.url.is_some() || self.timeout.is_some() || !self.header.is_empty();
        if has_endpoint_flags || settings.endpoint.is_some() {
            let mut endpoint = settings.endpoint.unwrap_or_default();
            endpoint.url = self.url.unwrap_or(endpoint.url);
            endpoint.timeout = self.timeout.or(endpoint.timeout);
            endpoint.headers.extend(texts(self.header));
            settings.endpoint = Some(endpoint).filter(|endpoint| *endpoint != EndpointSettings::default());
        } else if settings.mode.is_none() {
            return Err(CliError::new("no endpoint is set")
                .with_hint("set an endpoint with --url, or let consumers pull with --pull"));
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

    fn read_file(&self) -> Result<SubscriptionSettings, CliError> {
        let Some(path) = &self.file else { return Ok(SubscriptionSettings::default()) };
        let name = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| CliError::new(format!("{name} cannot be read: {error}")))?;
        serde_json::from_str(&text).map_err(|error| CliError::new(format!("{name} is not a subscription: {error}")))
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
        settings: SubscriptionSettingsArgs,
    }

    fn of(line: &[&str]) -> Result<Value, String> {
        let line = Line::try_parse_from([&["sub"], line].concat()).map_err(|error| error.to_string())?;
        let settings = line.settings.settings().map_err(|failure| failure.to_string())?;
        Ok(serde_json::to_value(settings).unwrap())
    }

    #[test]
    fn flags_set_only_their_own_fields() {
        let line = ["-t", "orders", "-u", "http://h/x", "--retries", "2", "--schedule", "1s,5s", "-H", "X-Env: prod"];
        let expected = serde_json::json!({
            "topics": ["orders"], "endpoint": { "url": "http://h/x", "headers": { "X-Env": "prod" } },
            "retry": { "times": 2, "schedule": ["1s", "5s"] },
        });
        assert_eq!(of(&line).unwrap(), expected);
        assert_eq!(of(&["-t", "a", "--pull"]).unwrap(), serde_json::json!({ "topics": ["a"], "mode": "pull" }));
    }

    #[test]
    fn required_fields_are_reported() {
        assert!(of(&["-u", "http://h/x"]).unwrap_err().contains("no topic is set"));
        assert!(of(&["-t", "a"]).unwrap_err().contains("no endpoint is set"));
        assert!(of(&["-t", "a", "--pull", "-u", "http://h"]).is_err());
    }

    #[test]
    fn flags_override_the_file() {
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
