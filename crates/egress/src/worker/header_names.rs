//! The names of the headers of a callback.

use http::HeaderName;

pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

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
