//! Names of the headers that a callback has.

use http::HeaderName;

pub(super) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(super) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(super) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

pub(super) const SUBSCRIPTION: HeaderName = HeaderName::from_static("whimbrel-subscription");
pub(super) const TOPIC: HeaderName = HeaderName::from_static("whimbrel-topic");
pub(super) const PARTITION: HeaderName = HeaderName::from_static("whimbrel-partition");
pub(super) const OFFSET: HeaderName = HeaderName::from_static("whimbrel-offset");
pub(super) const ATTEMPT: HeaderName = HeaderName::from_static("whimbrel-attempt");
pub(super) const PUBLISHED_AT: HeaderName = HeaderName::from_static("whimbrel-published-at");

pub(super) const CE_PREFIX: &str = "ce-";
pub(super) const CE_SPECVERSION: HeaderName = HeaderName::from_static("ce-specversion");
pub(super) const CE_ID: HeaderName = HeaderName::from_static("ce-id");
pub(super) const CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
pub(super) const CE_TYPE: HeaderName = HeaderName::from_static("ce-type");
pub(super) const CE_TIME: HeaderName = HeaderName::from_static("ce-time");
pub(super) const CE_PARTITIONKEY: HeaderName = HeaderName::from_static("ce-partitionkey");

pub(super) const KMQ_PREFIX: &str = "x-kmq-";
pub(super) const KMQ_TOPIC: HeaderName = HeaderName::from_static("x-kmq-topic");
pub(super) const KMQ_PARTITION: HeaderName = HeaderName::from_static("x-kmq-partition");
pub(super) const KMQ_PARTITION_KEY: HeaderName = HeaderName::from_static("x-kmq-partition-key");
pub(super) const KMQ_OFFSET: HeaderName = HeaderName::from_static("x-kmq-offset");
pub(super) const KMQ_LOGID: HeaderName = HeaderName::from_static("x-kmq-logid");
pub(super) const KMQ_TIMESTAMP: HeaderName = HeaderName::from_static("x-kmq-timestamp");
pub(super) const RETRY_TIMES: HeaderName = HeaderName::from_static("x-retry-times");

/// Headers that say how bytes lie on one connection: neither a message nor an endpoint may set them.
pub(super) fn belongs_to_the_connection(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-connection",
    ];
    EXACT.contains(&name)
}

/// Headers of a record that do not travel: Whimbrel's own, those that a call sets itself, and what no door takes from a publisher but other
/// writers of a shared log may have put there.
pub(super) fn stays_behind(name: &str) -> bool {
    const EXACT: &[&str] =
        &["accept-encoding", "authorization", "content-encoding", "content-type", "cookie", "user-agent"];
    const PREFIXES: &[&str] = &["webhook-", "whimbrel-", "proxy-"];
    EXACT.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || belongs_to_the_connection(name)
}
