//! Pushes to users with the real binary. Every property is a function of a site. It is tested with the embedded engines, each property on
//! its own server, and with Kafka and Redis, all properties on one server.

use whimbrel_client::{Kick, NewPush, PlatformBody};

use super::deliver::{Site, properties};
use super::kafka_cluster::kafka_with_redis;
use super::people_inbox as inbox;
use super::people_interfaces as interfaces;
use super::people_notices as notices;
use super::people_sessions as sessions;
use super::server::{converse, eventually};

impl Site {
    pub fn push(&self, uid: &str, push: &NewPush) -> String {
        converse(self.client().push(uid, push)).unwrap().id
    }

    pub fn push_texts(&self, uid: &str, texts: impl IntoIterator<Item = impl Into<String>>) {
        for text in texts {
            self.push(uid, &NewPush::text(text));
        }
    }

    pub fn platform(&self, platform: &str, settings: &PlatformBody) {
        converse(self.client().put_platform(platform, settings)).unwrap();
    }

    pub fn kick(&self, uid: &str, reason: &str) {
        converse(self.client().kick(uid, &Kick { reason: reason.into(), ..Kick::default() })).unwrap();
    }

    pub fn stored(&self, uid: &str) -> usize {
        converse(self.client().inbox(uid, None)).unwrap().messages.len()
    }

    /// Waits until the inbox of the user has this many messages.
    pub fn stores(&self, uid: &str, count: usize) {
        eventually(&format!("{count} messages are stored for {uid}"), || self.stored(uid) == count);
    }

    /// Waits until the user is online, or offline.
    pub fn is_online(&self, uid: &str, online: bool) {
        eventually(&format!("{uid} is online: {online}"), || {
            converse(self.client().presence(uid)).is_ok_and(|shown| shown.online == online)
        });
    }
}

properties![
    pushes_on_kafka_with_redis_have_the_same_properties with [notices::PROVIDERS_ARE_HERE.to_owned()];
    inbox::a_push_reaches_a_connected_device,
    inbox::every_platform_receives_a_push_and_acknowledges_separately,
    inbox::a_push_for_some_platforms_reaches_no_other,
    inbox::an_offline_device_receives_everything_in_order,
    inbox::a_resumed_device_gets_neither_a_gap_nor_a_repeat,
    inbox::an_unknown_epoch_is_not_resumed_and_the_reason_is_reported,
    inbox::an_ephemeral_push_reaches_connected_devices_and_is_not_stored,
    inbox::expired_messages_are_reported_as_truncated,
    inbox::overflowing_messages_are_reported_as_truncated,
    inbox::a_newer_message_replaces_one_with_its_collapse_key,
    inbox::a_push_repeated_under_its_id_is_delivered_once,
    inbox::a_push_repeated_under_its_origin_is_delivered_once,
    inbox::a_delayed_push_arrives_at_its_due_time,
    inbox::a_push_to_many_reaches_each_of_them,
    inbox::a_wiped_inbox_is_empty,
    sessions::a_newer_session_replaces_that_of_the_platform,
    sessions::a_rejecting_platform_permits_no_second_session,
    sessions::a_platform_of_many_has_a_seat_for_each_device,
    sessions::a_kick_has_its_reason,
    sessions::a_device_that_never_acknowledges_is_closed_and_may_reconnect,
    sessions::presence_reports_online_and_offline_users,
    sessions::an_ack_from_the_future_is_a_bad_frame,
    sessions::an_invalid_or_unexpected_frame_is_a_bad_frame,
    notices::a_permanently_rejected_notice_is_dead_and_can_be_redriven,
    notices::a_temporarily_rejected_notice_is_retried_and_its_reason_is_shown,
    notices::a_provider_without_keys_is_reported_at_registration_and_at_notification,
    notices::only_devices_that_did_not_acknowledge_are_notified,
    notices::an_acknowledgement_of_a_shared_seat_stops_notifications,
    notices::a_device_with_a_private_address_is_rejected,
    interfaces::an_event_stream_is_a_device_too,
    interfaces::a_browser_that_reconnects_an_event_stream_gets_neither_a_gap_nor_a_repeat,
    interfaces::a_permitted_page_of_another_origin_streams_and_acknowledges,
    interfaces::an_unknown_event_id_is_not_resumed_and_the_reason_is_reported,
    interfaces::grpc_is_a_device_too,
    interfaces::the_command_line_is_a_device_too,
    interfaces::the_command_line_shows_devices_without_complete_tokens,
];
