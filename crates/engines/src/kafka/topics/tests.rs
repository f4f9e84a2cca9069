//! Tests of topics: settings, and topics that other applications created.

use std::sync::Mutex;

use kafka_protocol::messages::DescribeConfigsResponse;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use whimbrel_model::ports::LogTopics as _;

use super::*;
use crate::conformance::log::new_spec;
use crate::kafka::KafkaLog;
use crate::kafka::stub_cluster::{PARTITIONS, Respond, StubCluster, TOPIC};

/// Brokers that report these settings of every topic, or this error.
#[derive(Clone)]
struct Described {
    configs: &'static [(&'static str, &'static str)],
    code: i16,
    /// The settings that each request asked for.
    asked: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Respond for Described {
    fn describe_configs(&self, request: DescribeConfigsRequest) -> Option<DescribeConfigsResponse> {
        let keys = request.resources.iter().flat_map(|resource| resource.configuration_keys.iter().flatten());
        self.asked.lock().unwrap().push(keys.map(ToString::to_string).collect());
        let config = |(key, value): &(&'static str, &'static str)| {
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_static_str(key))
                .with_value(Some(StrBytes::from_static_str(value)))
        };
        let result = |resource: &DescribeConfigsResource| {
            DescribeConfigsResult::default()
                .with_error_code(self.code)
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
                .with_configs(self.configs.iter().map(config).collect())
        };
        Some(DescribeConfigsResponse::default().with_results(request.resources.iter().map(result).collect()))
    }
}

/// The topics that a start finds, and the requests for settings.
async fn found_on(
    configs: &'static [(&'static str, &'static str)],
    code: i16,
    is_skipped: bool,
) -> (Vec<ExistingTopic>, Vec<Vec<String>>) {
    let brokers = Described { configs, code, asked: Arc::default() };
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let log = KafkaLog::connect(KafkaSettings::new(stub.bootstrap()), Arc::new(|_| {})).await.unwrap();
    let found = log.found(&|_| is_skipped).await.unwrap();
    let asked = brokers.asked.lock().unwrap().clone();
    (found, asked)
}

#[tokio::test]
async fn a_topic_of_another_application_is_found_with_its_retention() {
    let configs = &[(RETENTION_MS, "86400000"), (RETENTION_BYTES, "-1")];
    let (found, asked) = found_on(configs, 0, false).await;
    let retention = Retention { time: Some(Duration::from_secs(86_400)), bytes: None };
    assert_eq!(found, [ExistingTopic { name: TOPIC.to_owned(), partitions: PARTITIONS as u32, retention }]);
    assert_eq!(asked, [[RETENTION_MS, RETENTION_BYTES]]);
}

#[tokio::test]
async fn a_topic_whose_settings_cannot_be_read_is_not_found() {
    let (found, _) = found_on(&[], Code::TopicAuthorizationFailed.code(), false).await;
    assert_eq!(found, []);
}

#[tokio::test]
async fn the_settings_of_topics_that_are_skipped_are_not_requested() {
    let (found, asked) = found_on(&[], 0, true).await;
    assert_eq!((found, asked), (Vec::new(), Vec::new()));
}

#[test]
fn a_replicated_topic_that_acknowledges_with_one_copy_is_weaker_than_it_looks() {
    assert!(is_weaker_than_it_looks(3, 1));
    assert!(!is_weaker_than_it_looks(3, 2));
    assert!(!is_weaker_than_it_looks(1, 1));
}

#[test]
fn a_new_setting_applies_before_every_broker_reports_it() {
    let defaults = [("max.message.bytes", "1048588"), ("min.insync.replicas", "1")];
    let asked = defaults.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    let set = [("max.message.bytes", "2000000".to_owned()), ("min.insync.replicas", "2".to_owned())];
    assert_eq!(EffectiveConfigs::of(&asked, &set), EffectiveConfigs { batch_bytes_max: 2_000_000, min_insync: 2 });
    assert_eq!(EffectiveConfigs::of(&asked, &[]), EffectiveConfigs { batch_bytes_max: 1_048_588, min_insync: 1 });
}

#[test]
fn only_the_bounds_that_a_change_names_are_set() {
    let retention = Retention { time: Some(Duration::from_secs(1)), bytes: None };
    let set = |time, bytes| retention_configs(retention, NamedBounds { time, bytes });
    assert_eq!(set(false, false), []);
    assert_eq!(set(true, false), [(RETENTION_MS, "1000".to_owned())]);
    assert_eq!(set(false, true), [(RETENTION_BYTES, "-1".to_owned())]);
}

#[test]
fn the_retention_of_a_topic_follows_from_its_settings() {
    let of = |time: &str, bytes: &str| {
        let configs = [(RETENTION_MS, time), (RETENTION_BYTES, bytes)];
        retention_of(&configs.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect())
    };
    assert_eq!(of("1000", "-1"), Retention { time: Some(Duration::from_secs(1)), bytes: None });
    assert_eq!(of("-1", "5"), Retention { time: None, bytes: Some(5) });
}

#[test]
fn a_topic_without_bounds_is_kept_for_good() {
    let spec = TopicSpec { min_insync: Some(2), ..new_spec(1) };
    let configs: BTreeMap<_, _> = new_configs(&spec, 5000).into_iter().collect();
    assert_eq!(configs["retention.ms"], "-1");
    assert_eq!(configs["retention.bytes"], "-1");
    assert_eq!(configs["max.message.bytes"], "5000");
    assert_eq!(configs["min.insync.replicas"], "2");
}
