//! Bounds of the horn, each with its reason.

use std::time::Duration;

/// How long one device may take, where the settings do not say: connecting, a new access token and a second try included.
pub(super) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long a connection may take to stand, TLS included.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Bytes that are read of a provider's answer: its errors are short.
pub(super) const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Bytes of a provider's reason that an outcome shows.
pub(super) const REASON_BYTES_MAX: usize = 200;
/// Bytes of what is said about a notice that no device has, for all its devices together.
pub(super) const NOTICE_REASON_BYTES_MAX: usize = 1_000;
/// How often one provider's trouble of one kind is an event.
pub(super) const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// Connections to one place that wait for the next notice, and for how long.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 16;
pub(super) const IDLE_CONNECTION_FOR: Duration = Duration::from_secs(30);
/// Apple takes whoever connects anew all the time for an attacker: connections to it are kept, and asked whether they are still there.
pub(super) const IDLE_APNS_CONNECTION_FOR: Duration = Duration::from_secs(3_600);
/// An HTTP/2 connection to a provider is asked so often whether it is still there, and given up after so long.
pub(super) const PING_EVERY: Duration = Duration::from_secs(30);
pub(super) const PING_WITHIN: Duration = Duration::from_secs(10);
/// Names that are looked up at one time: each takes one of the machine's threads, and devices name as many as they like.
pub(super) const LOOKUPS_MAX: usize = 32;
/// Devices that are remembered as having got a notice; beyond, the oldest are forgotten. A retry comes within two hours.
pub(super) const REMEMBERED_MAX: usize = 1 << 16;
/// Places that asked to be left alone; beyond, those whose time comes first are forgotten.
pub(super) const PAUSES_MAX: usize = 1024;
/// The longest that a provider is left alone because it asked for it.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// The longest that the origin of a push service is left alone, whatever it asked for: all users of one browser are behind it.
pub(super) const ORIGIN_PAUSE_MAX: Duration = Duration::from_secs(60);
/// So many devices that are throttled within so long speak for the whole origin of their push service; fewer for themselves.
pub(super) const THROTTLED_DEVICES: usize = 5;
pub(super) const THROTTLED_WITHIN: Duration = Duration::from_secs(10);
/// Origins whose throttled devices are counted; beyond, all are counted anew.
pub(super) const THROTTLED_ORIGINS_MAX: usize = 256;
/// A place that did not answer so many times in a row is left alone for so long at first, and for so long at most.
pub(super) const SILENT_TIMES: u32 = 8;
pub(super) const SILENCE_PAUSE: Duration = Duration::from_secs(10);
pub(super) const SILENCE_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Places whose silence is counted; beyond, all are counted anew.
pub(super) const SILENCES_MAX: usize = 1024;
/// How long FCM is left alone when its quota is used up and it does not say: what its documentation asks for.
pub(super) const QUOTA_PAUSE: Duration = Duration::from_secs(60);
/// An APNs token is used so long: Apple refuses it after an hour, and wants no new one within twenty minutes.
pub(super) const APNS_TOKEN_FOR: Duration = Duration::from_secs(45 * 60);
/// A token that APNs calls expired is made anew at most so often, since it refuses whoever does that all the time.
pub(super) const APNS_RENEWAL_MIN: Duration = Duration::from_secs(60);
/// Google's tokens are asked for with the longest life that there is, and renewed so long before their end.
pub(super) const GOOGLE_GRANT_FOR: Duration = Duration::from_secs(3_600);
pub(super) const GOOGLE_TOKEN_MARGIN: Duration = Duration::from_secs(300);
/// How long a VAPID token is valid (a day at most), and how long it is used.
pub(super) const VAPID_TOKEN_VALID: Duration = Duration::from_secs(12 * 3_600);
pub(super) const VAPID_TOKEN_FOR: Duration = Duration::from_secs(6 * 3_600);
/// Origins of push services whose VAPID tokens are kept; beyond, all are made anew.
pub(super) const VAPID_TOKENS_MAX: usize = 256;
/// Bytes of an APNs payload, and of a collapse id.
pub(super) const APNS_PAYLOAD_BYTES_MAX: usize = 4_096;
pub(super) const APNS_COLLAPSE_BYTES_MAX: usize = 64;
/// Bytes of a Web Push payload before its encryption: what is left of the 4 096 that every push service takes.
pub(super) const WEBPUSH_PAYLOAD_BYTES_MAX: usize = 3_993;
/// How long FCM keeps a message at most: four weeks.
pub(super) const FCM_TTL_SECONDS_MAX: i64 = 28 * 86_400;
/// How long push services are asked to keep a message at most.
pub(super) const WEBPUSH_TTL_SECONDS_MAX: i64 = 28 * 86_400;
/// Horns elsewhere that one notice is handed to, one after the other, where they cannot be reached.
pub(super) const HANDS_MAX: usize = 3;
/// How much longer than the call itself a horn elsewhere may take to say how it went.
pub(super) const HANDING_GRACE: Duration = Duration::from_secs(2);

const _: () = assert!(APNS_TOKEN_FOR.as_secs() > 20 * 60 && APNS_TOKEN_FOR.as_secs() < 60 * 60);
const _: () = assert!(VAPID_TOKEN_FOR.as_secs() < VAPID_TOKEN_VALID.as_secs());
const _: () = assert!(VAPID_TOKEN_VALID.as_secs() <= 24 * 3_600);
