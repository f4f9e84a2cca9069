//! Subscriptions in the real binary. Every property is a function of a site, and is held on the embedded engines, each on a server of its
//! own, and on Kafka with Redis, one after the other on one server.

use std::time::Duration;

use tempfile::TempDir;
use whimbrel_client::{Accepted, Client, NewMessage, Published, SubscriptionInfo, SubscriptionSettings, TopicSettings};

use super::deliver_changing as changing;
use super::deliver_doors as doors;
use super::deliver_moving as moving;
use super::deliver_pull as pull;
use super::deliver_push as push;
use super::kafka_cluster::KafkaCluster;
use super::server::{Server, converse, eventually};
use super::services::{OwnRedis, skip};

/// Settings under which nothing takes long.
const QUICK: [&str; 3] =
    ["subscriptions.breaker_pause=300ms", "subscriptions.breaker_pause_max=1s", "push.retry_after=100ms"];

/// A server with subscriptions.
pub struct Site {
    pub server: Server,
    pub folder: TempDir,
}

impl Site {
    pub fn start(settings: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings.iter().map(String::as_str).chain(QUICK);
        let arguments: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
        Self { server: Server::start(folder.path(), &arguments), folder }
    }

    pub fn client(&self) -> Client {
        self.server.client()
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
            Accepted::Held(held) => panic!("{held:?} was to be published at once"),
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

    /// Waits until it has nothing left to deliver.
    pub fn caught_up(&self, name: &str) {
        eventually(&format!("{name} caught up"), || {
            let shown = self.show(name);
            shown.lag == Some(0) && shown.in_flight == Some(0)
        });
    }
}

/// A retry after so long, as often as is needed.
pub fn retrying(settings: SubscriptionSettings, times: u32, after: &str) -> SubscriptionSettings {
    let retry = whimbrel_client::RetrySettings { times: Some(times), schedule: vec![after.to_owned()] };
    SubscriptionSettings { retry: Some(retry), ..settings }
}

/// Long enough that something which must not happen would have happened.
pub const A_WHILE: Duration = Duration::from_millis(400);

macro_rules! properties {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod embedded {
            use super::*;
            $(#[test]
            fn $name() {
                $module::$name(&Site::start(&[]));
            })*
        }

        const ALL: &[(&str, fn(&Site))] = &[$((stringify!($name), $module::$name)),*];
    };
}

properties![
    push::a_binary_callback_is_the_payload_with_its_metadata_and_a_true_signature,
    push::a_structured_callback_is_a_cloud_event_in_json,
    push::a_cloud_event_keeps_its_id_and_its_attributes_in_both_envelopes,
    push::a_kmq_callback_has_the_headers_of_a_pusher,
    push::during_a_rotation_both_secrets_sign,
    push::a_signed_payload_that_common_libraries_cannot_verify_is_shown,
    push::messages_of_a_key_come_in_order_and_keys_in_parallel,
    push::messages_of_a_partition_come_one_after_the_other,
    push::a_failing_key_holds_up_nobody_else,
    push::a_filter_leaves_others_out,
    push::a_rate_is_kept,
    push::an_endpoint_that_is_gone_disables_until_it_is_resumed,
    push::an_endpoint_that_fails_again_and_again_is_left_alone_for_a_while,
    push::a_forbidden_address_is_refused,
    push::a_held_message_is_delivered_when_it_has_fired,
    moving::a_retry_in_place_keeps_the_order_and_counts_attempts,
    moving::a_retry_without_order_comes_as_the_same_message,
    moving::retry_after_is_obeyed,
    moving::a_dead_letter_says_why_and_can_be_redriven,
    moving::a_dead_letter_of_an_unordered_subscription_can_be_redriven,
    moving::what_is_dropped_holds_up_nothing,
    moving::what_blocks_is_tried_until_it_succeeds,
    moving::nothing_comes_while_paused_and_everything_after,
    moving::a_seek_delivers_again_or_leaves_out,
    moving::a_seek_by_offset_begins_there,
    moving::a_replay_runs_beside_the_cursor,
    moving::a_key_keeps_its_order_when_its_topic_grows,
    moving::a_deleted_subscription_is_gone,
    moving::a_message_tells_how_its_deliveries_went,
    moving::figures_by_the_minute_count_deliveries,
    changing::a_key_whose_waiting_message_is_left_out_by_a_new_filter_goes_on,
    changing::a_topic_that_is_taken_away_and_given_back_goes_on_where_it_was,
    changing::what_one_endpoint_asked_for_does_not_bind_its_successor,
    changing::what_pullers_hold_is_pushed_when_it_is_pushed_instead,
    changing::an_event_that_cannot_be_delivered_makes_no_other,
    pull::what_is_acknowledged_does_not_come_again,
    pull::what_is_given_back_comes_again_with_its_attempt,
    pull::a_lease_that_is_over_hands_a_message_out_again,
    pull::a_lease_that_is_extended_keeps_it,
    pull::a_pull_waits_for_what_comes,
    pull::keys_are_pulled_in_order,
    doors::a_soraka_message_is_called_back_where_it_says,
    doors::a_soraka_callback_that_reports_failure_is_tried_again,
    doors::a_soraka_message_that_was_cancelled_never_comes,
    doors::one_callback_of_soraka_that_asks_to_wait_holds_up_no_other,
    doors::a_soraka_message_never_leaves_with_the_headers_of_another_subscription,
    doors::a_task_of_a_delay_queue_is_delivered_by_its_own_rule,
    doors::a_pusher_file_becomes_subscriptions_and_again_the_same,
];

#[test]
fn subscriptions_on_kafka_with_redis_hold_the_same_properties() {
    if skip(&["WHIMBREL_TEST_KAFKA_LIBS", "WHIMBREL_TEST_REDIS"]) {
        return;
    }
    let (kafka, redis) = (KafkaCluster::single(), OwnRedis::start());
    let mut settings = kafka.settings();
    settings.extend(redis.settings());
    let site = Site::start(&settings);
    for (name, property) in ALL {
        println!("on Kafka with Redis: {name}");
        property(&site);
    }
}
