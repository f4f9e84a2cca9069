//! Limits of the horn, each with its reason.

use std::time::Duration;

/// The default timeout for one device, including the connect, a new access token and a second attempt.
pub(super) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The connect timeout, including TLS.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Bytes read of a provider's response. Its errors are short.
pub(super) const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Bytes of a provider's reason in an outcome.
pub(super) const REASON_BYTES_MAX: usize = 200;
/// Bytes of the reasons of a failed notice, for all its devices together.
pub(super) const NOTICE_REASON_BYTES_MAX: usize = 1_000;
/// The minimum interval between events of one kind about one provider.
pub(super) const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// Idle connections to one host, and how long they are kept.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 16;
pub(super) const IDLE_CONNECTION_FOR: Duration = Duration::from_secs(30);
/// Apple treats frequent reconnects as an attack, so its connections are kept open and checked with pings.
pub(super) const IDLE_APNS_CONNECTION_FOR: Duration = Duration::from_secs(3_600);
/// The interval of pings on an HTTP/2 connection, and the timeout after which the connection is closed.
pub(super) const PING_EVERY: Duration = Duration::from_secs(30);
pub(super) const PING_WITHIN: Duration = Duration::from_secs(10);
/// Concurrent name lookups. Each occupies a thread of the system, and devices can register any number of names.
pub(super) const LOOKUPS_MAX: usize = 32;
/// SentNotices pairs of a device and a notice. Beyond it, the oldest are dropped. A retry follows within 2 h.
pub(super) const REMEMBERED_MAX: usize = 1 << 16;
/// Paused endpoints. Beyond it, the pauses that end first are dropped.
pub(super) const PAUSES_MAX: usize = 1024;
/// The maximum pause that a provider can ask for.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// The maximum pause of a push service's origin: it serves all users of a browser.
pub(super) const ORIGIN_PAUSE_MAX: Duration = Duration::from_secs(60);
/// The number of devices that must be throttled within [`THROTTLED_WITHIN`] to pause the whole origin of their push service.
pub(super) const THROTTLED_DEVICES: usize = 5;
pub(super) const THROTTLED_WITHIN: Duration = Duration::from_secs(10);
/// Origins with counted throttled devices. Beyond it, all counts restart.
pub(super) const THROTTLED_ORIGINS_MAX: usize = 256;
/// Consecutive calls without a response before an endpoint is paused, the first pause, and the maximum pause.
pub(super) const SILENT_TIMES: u32 = 8;
pub(super) const SILENCE_PAUSE: Duration = Duration::from_secs(10);
pub(super) const SILENCE_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Endpoints with counted calls without a response. Beyond it, all counts restart.
pub(super) const SILENCES_MAX: usize = 1024;
/// The pause after FCM reports an exceeded quota without `Retry-After`; the value is from its documentation.
pub(super) const QUOTA_PAUSE: Duration = Duration::from_secs(60);
/// How long an APNs token is used. Apple rejects tokens older than 1 h, and new tokens more often than every 20 min.
pub(super) const APNS_TOKEN_FOR: Duration = Duration::from_secs(45 * 60);
/// The minimum age of an APNs token that is replaced because APNs reports it as expired. APNs rejects senders that replace tokens often.
pub(super) const APNS_RENEWAL_MIN: Duration = Duration::from_secs(60);
/// Google's access tokens are requested with the maximum lifetime, and renewed this long before they expire.
pub(super) const GOOGLE_GRANT_FOR: Duration = Duration::from_secs(3_600);
pub(super) const GOOGLE_TOKEN_MARGIN: Duration = Duration::from_secs(300);
/// How long a VAPID token is valid (at most one day), and how long it is used.
pub(super) const VAPID_TOKEN_VALID: Duration = Duration::from_secs(12 * 3_600);
pub(super) const VAPID_TOKEN_FOR: Duration = Duration::from_secs(6 * 3_600);
/// Cached VAPID tokens, one per origin of a push service. Beyond it, the cache is cleared.
pub(super) const VAPID_TOKENS_MAX: usize = 256;
/// Bytes of an APNs payload, and of a collapse id.
pub(super) const APNS_PAYLOAD_BYTES_MAX: usize = 4_096;
pub(super) const APNS_COLLAPSE_BYTES_MAX: usize = 64;
/// Bytes of a Web Push payload before encryption: push services accept at least 4 096 bytes after encryption.
pub(super) const WEBPUSH_PAYLOAD_BYTES_MAX: usize = 3_993;
/// The maximum time to live in FCM: four weeks.
pub(super) const FCM_TTL_SECONDS_MAX: i64 = 28 * 86_400;
/// The maximum time to live that is sent to push services.
pub(super) const WEBPUSH_TTL_SECONDS_MAX: i64 = 28 * 86_400;
/// Horns of other nodes that one notice is sent to, one after the other, while they are not reachable.
pub(super) const HANDS_MAX: usize = 3;
/// Time that is added to the timeout of the call itself for the response of another node's horn.
pub(super) const HANDING_GRACE: Duration = Duration::from_secs(2);

const _: () = assert!(APNS_TOKEN_FOR.as_secs() > 20 * 60 && APNS_TOKEN_FOR.as_secs() < 60 * 60);
const _: () = assert!(VAPID_TOKEN_FOR.as_secs() < VAPID_TOKEN_VALID.as_secs());
const _: () = assert!(VAPID_TOKEN_VALID.as_secs() <= 24 * 3_600);
