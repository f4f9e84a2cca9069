//! Reaching people with the real binary. Every property is a function of a site, and is held on the embedded engines, each on a server of
//! its own, and on Kafka with Redis, one after the other on one server.

use whimbrel_client::{Kick, NewPush, PlatformInfo};

use super::deliver::Site;
use super::kafka_cluster::KafkaCluster;
use super::people_doors as doors;
use super::people_inbox as inbox;
use super::people_notices as notices;
use super::people_sessions as sessions;
use super::server::{converse, eventually};
use super::services::{OwnRedis, skip};

impl Site {
    pub fn push(&self, uid: &str, push: &NewPush) -> String {
        converse(self.client().push(uid, push)).unwrap().id
    }

    /// Pushes texts, one after the other.
    pub fn push_texts(&self, uid: &str, texts: impl IntoIterator<Item = impl Into<String>>) {
        for text in texts {
            self.push(uid, &NewPush::text(text));
        }
    }

    pub fn platform(&self, platform: &str, settings: &PlatformInfo) {
        converse(self.client().put_platform(platform, settings)).unwrap();
    }

    pub fn kick(&self, uid: &str, reason: &str) {
        converse(self.client().kick(uid, &Kick { reason: reason.into(), ..Kick::default() })).unwrap();
    }

    pub fn stored(&self, uid: &str) -> usize {
        converse(self.client().inbox(uid, None)).unwrap().messages.len()
    }

    /// Waits until so many messages are stored for the user.
    pub fn stores(&self, uid: &str, count: usize) {
        eventually(&format!("{count} messages are stored for {uid}"), || self.stored(uid) == count);
    }

    /// Waits until the user is online or not.
    pub fn is_online(&self, uid: &str, online: bool) {
        eventually(&format!("{uid} is online: {online}"), || {
            converse(self.client().presence(uid)).is_ok_and(|shown| shown.online == online)
        });
    }
}

macro_rules! properties {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod embedded {
            use super::*;
            $(#[test]
            fn $name() {
                $module::$name(&Site::start(&[notices::PROVIDERS_ARE_HERE.to_owned()]));
            })*
        }

        const ALL: &[(&str, fn(&Site))] = &[$((stringify!($name), $module::$name)),*];
    };
}

properties![
    inbox::a_push_reaches_a_device_that_is_there,
    inbox::every_platform_gets_it_and_each_acknowledges_for_itself,
    inbox::a_push_for_some_platforms_reaches_no_other,
    inbox::a_device_that_was_away_gets_everything_in_order,
    inbox::a_device_that_resumes_gets_neither_a_gap_nor_a_repeat,
    inbox::a_strange_epoch_is_not_resumed_and_says_why,
    inbox::an_ephemeral_push_reaches_who_is_there_and_is_kept_for_nobody,
    inbox::what_expired_is_told_as_truncated,
    inbox::what_overflows_is_told_as_truncated,
    inbox::a_newer_message_takes_the_place_of_one_with_its_collapse_key,
    inbox::a_push_repeated_under_its_id_is_seen_once,
    inbox::a_push_repeated_under_its_origin_is_seen_once,
    inbox::a_delayed_push_comes_when_it_is_due,
    inbox::a_push_to_many_reaches_each_of_them,
    inbox::an_inbox_that_is_wiped_has_nothing,
    sessions::the_newest_session_of_a_platform_wins,
    sessions::a_platform_that_rejects_lets_no_second_session_in,
    sessions::a_platform_of_many_has_a_seat_for_each_device,
    sessions::a_kick_says_why,
    sessions::a_device_that_never_acknowledges_is_closed_and_may_come_back,
    sessions::presence_knows_who_is_there_and_who_went,
    sessions::an_ack_from_the_future_is_a_bad_frame,
    sessions::a_frame_that_is_nonsense_or_out_of_turn_is_a_bad_frame,
    notices::a_notice_that_is_refused_for_good_is_dead_at_once_and_reaches_its_provider_when_redriven,
    notices::a_notice_that_a_provider_has_no_time_for_comes_back_and_an_operator_reads_why_in_words,
    notices::a_device_whose_provider_has_no_keys_is_told_when_it_is_registered_and_when_it_should_be_woken,
    notices::where_a_platform_has_many_devices_only_those_that_did_not_acknowledge_are_woken,
    notices::an_acknowledgement_of_a_platforms_one_seat_is_enough,
    notices::a_device_that_names_an_address_of_a_private_network_is_refused,
    doors::an_event_stream_is_a_device_too,
    doors::a_browser_that_reconnects_an_event_stream_gets_neither_a_gap_nor_a_repeat,
    doors::a_page_of_another_origin_streams_and_acknowledges_where_it_may,
    doors::an_event_id_that_was_never_given_is_not_resumed_and_says_why,
    doors::grpc_is_a_device_too,
    doors::the_command_line_is_a_device_too,
    doors::the_command_line_shows_devices_and_no_token_whole,
];

#[test]
fn people_on_kafka_with_redis_are_reached_the_same_way() {
    if skip(&["WHIMBREL_TEST_KAFKA_LIBS", "WHIMBREL_TEST_REDIS"]) {
        return;
    }
    let (kafka, redis) = (KafkaCluster::single(), OwnRedis::start());
    let mut settings = kafka.settings();
    settings.extend(redis.settings());
    settings.push(notices::PROVIDERS_ARE_HERE.to_owned());
    let site = Site::start(&settings);
    for (name, property) in ALL {
        println!("on Kafka with Redis: {name}");
        property(&site);
    }
}
