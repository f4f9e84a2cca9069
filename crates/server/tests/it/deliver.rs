//! Subscriptions in the real binary. Every property is a function of a site. It is tested with the embedded engines, each property on its
//! own server, and with Kafka and Redis, all properties on one server.

use std::time::Duration;

use whimbrel_client::{Accepted, Client, NewMessage, Published, SubscriptionInfo, SubscriptionSettings, TopicSettings};

use super::commands::on;
use super::deliver_changes as changes;
use super::deliver_failures as failures;
use super::deliver_legacy_apis as legacy_apis;
use super::deliver_pull as pull;
use super::deliver_push as push;
use super::kafka_cluster::kafka_with_redis;
use super::server::{Server, converse, eventually, stderr_of, stdout_of};

/// Settings with short times.
const QUICK: [&str; 3] =
    ["subscriptions.breaker_pause=300ms", "subscriptions.breaker_pause_max=1s", "push.retry_after=100ms"];

/// A server with subscriptions.
pub struct Site {
    pub server: Server,
}

impl Site {
    pub fn start(settings: &[String]) -> Self {
        let settings = settings.iter().map(String::as_str).chain(QUICK);
        let arguments: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
        Self { server: Server::fresh(&arguments) }
    }

    pub fn client(&self) -> Client {
        self.server.client()
    }

    /// The output of a command against the server, which must succeed.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = on(&self.server, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr_of(&output));
        stdout_of(&output)
    }

    pub fn topic(&self, topic: &str, partitions: u32) {
        let settings = TopicSettings { partitions: Some(partitions), ..TopicSettings::default() };
        converse(self.client().put_topic(topic, &settings)).unwrap();
    }

    pub fn subscribe(&self, name: &str, settings: &SubscriptionSettings) -> SubscriptionInfo {
        converse(self.client().put_subscription(name, settings)).unwrap()
    }

    pub fn publish(&self, topic: &str, message: &NewMessage) -> Published {
        match converse(self.client().publish(topic, message)).unwrap() {
            Accepted::Published(place) => place,
            Accepted::Held(held) => panic!("{held:?} should be published at once"),
        }
    }

    /// Publishes payloads `0`, `1`, … with these keys in turn.
    pub fn publish_numbers(&self, topic: &str, count: usize, keys: &[&str]) {
        let messages: Vec<NewMessage> =
            (0..count).map(|number| NewMessage::text(number.to_string()).key(keys[number % keys.len()])).collect();
        converse(self.client().publish_batch(topic, &messages)).unwrap();
    }

    pub fn show(&self, name: &str) -> SubscriptionInfo {
        converse(self.client().subscription(name)).unwrap()
    }

    /// Waits until the subscription has no lag.
    pub fn caught_up(&self, name: &str) {
        eventually(&format!("{name} caught up"), || {
            let shown = self.show(name);
            shown.status.lag == Some(0) && shown.status.in_flight == Some(0)
        });
    }
}

/// A retry schedule of `times` times the same delay.
pub fn retrying(settings: SubscriptionSettings, times: u32, after: &str) -> SubscriptionSettings {
    let retry = whimbrel_client::RetrySettings { times: Some(times), schedule: vec![after.to_owned()] };
    SubscriptionSettings { retry: Some(retry), ..settings }
}

/// Long enough that a forbidden delivery would have happened.
pub const A_WHILE: Duration = Duration::from_millis(400);

/// Declares a test of each property with the embedded engines, and one of all properties with Kafka and Redis.
macro_rules! properties {
    ($all:ident with $settings:expr; $($module:ident::$name:ident),* $(,)?) => {
        mod embedded {
            use super::*;
            $(#[test]
            fn $name() {
                $module::$name(&Site::start(&$settings));
            })*
        }

        #[test]
        fn $all() {
            let Some((_kafka, _redis, settings)) = kafka_with_redis() else { return };
            let site = Site::start(&[&settings[..], &$settings].concat());
            $(
                println!("on Kafka with Redis: {}", stringify!($name));
                $module::$name(&site);
            )*
        }
    };
}
pub(super) use properties;

properties![
    subscriptions_on_kafka_with_redis_hold_the_same_properties with [];
    push::a_binary_callback_has_the_payload_its_metadata_and_a_valid_signature,
    push::a_structured_callback_is_a_cloud_event_in_json,
    push::a_cloud_event_keeps_its_id_and_its_attributes_in_both_envelopes,
    push::a_kmq_callback_has_the_headers_of_a_pusher,
    push::during_a_rotation_both_secrets_sign,
    push::a_signed_payload_that_common_libraries_cannot_verify_is_reported,
    push::messages_of_a_key_are_delivered_in_order_and_keys_in_parallel,
    push::messages_of_a_partition_are_delivered_in_sequence,
    push::a_failing_key_does_not_block_other_keys,
    push::a_filter_excludes_other_messages,
    push::a_rate_is_kept,
    push::an_endpoint_that_answers_410_disables_the_subscription,
    push::repeated_failures_open_the_circuit_breaker,
    push::a_forbidden_address_is_rejected,
    push::a_held_message_is_delivered_when_it_has_fired,
    failures::a_retry_in_place_keeps_the_order_and_counts_attempts,
    failures::a_retry_without_order_delivers_the_same_message,
    failures::retry_after_is_obeyed,
    failures::a_dead_letter_has_its_reason_and_can_be_redriven,
    failures::a_dead_letter_of_an_unordered_subscription_can_be_redriven,
    failures::a_dropped_message_does_not_block_others,
    failures::a_blocking_message_is_retried_until_it_succeeds,
    failures::a_paused_subscription_delivers_after_it_is_resumed,
    failures::a_seek_repeats_or_skips_messages,
    failures::a_seek_by_offset_starts_at_the_offset,
    failures::a_replay_runs_beside_the_cursor,
    failures::a_key_keeps_its_order_when_its_topic_grows,
    failures::a_deleted_subscription_is_gone,
    failures::a_message_has_its_delivery_attempts,
    failures::statistics_by_the_minute_count_deliveries,
    changes::a_new_filter_that_excludes_a_parked_message_unblocks_its_key,
    changes::a_topic_that_is_removed_and_added_again_keeps_its_progress,
    changes::a_new_endpoint_does_not_inherit_the_retry_after_of_the_old_one,
    changes::leased_messages_are_delivered_after_a_change_to_push_mode,
    changes::a_failed_delivery_of_an_event_causes_no_further_event,
    pull::an_acknowledged_message_is_not_delivered_again,
    pull::a_returned_message_is_delivered_again_with_its_attempt,
    pull::an_expired_lease_makes_a_message_available_again,
    pull::an_extended_lease_keeps_its_message,
    pull::a_pull_waits_for_the_next_message,
    pull::keys_are_pulled_in_order,
    legacy_apis::a_soraka_message_is_delivered_to_its_own_url,
    legacy_apis::a_soraka_callback_that_reports_failure_is_retried,
    legacy_apis::a_cancelled_soraka_message_is_never_delivered,
    legacy_apis::a_soraka_callback_that_asks_to_wait_blocks_no_other,
    legacy_apis::a_soraka_message_never_has_the_headers_of_another_subscription,
    legacy_apis::a_task_of_a_delay_queue_has_its_own_retry_rule,
    legacy_apis::a_second_import_of_a_pusher_file_creates_the_same_subscriptions,
];
