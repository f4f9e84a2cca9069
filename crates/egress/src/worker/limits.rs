//! Limits of the worker, each with its reason.

use std::time::Duration;

/// The default connect timeout, including TLS.
pub(super) const CONNECT_WITHIN_DEFAULT: Duration = Duration::from_secs(5);
/// The maximum timeout of a message's own. It also bounds records that other applications wrote to a shared log without validation.
pub(super) const OWN_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Bytes of a response that are read so that its connection can be reused. Beyond, a new connection is cheaper.
pub(super) const ANSWER_READ_BYTES_MAX: usize = 64 << 10;
/// How long the worker waits for the body of a success. The status is sufficient.
pub(super) const SUCCESS_BODY_WITHIN: Duration = Duration::from_millis(500);
/// The buffer of a connection: it bounds the head of a response and the bytes that wait to be written.
pub(super) const CONNECTION_BUFFER_BYTES_MAX: usize = 128 << 10;
/// Idle connections of one thread to one target.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 1024;
/// How long an idle connection is kept. Most servers close theirs after a minute or more.
pub(super) const IDLE_CONNECTION_FOR: Duration = Duration::from_secs(30);
/// The interval at which a calling thread drops targets without other references.
pub(super) const FORGET_UNUSED_EVERY: Duration = Duration::from_secs(5);
/// Closed idle connections that one call tries before it dials a new one.
pub(super) const STALE_CONNECTIONS_MAX: u32 = 3;
/// PreparedTarget targets of a thread. Beyond it, those without other references are dropped.
pub(super) const PREPARED_TARGETS_MAX: usize = 4096;
/// Origins of callbacks that messages name, per thread. Beyond it, all are dropped.
pub(super) const OWN_ORIGINS_MAX: usize = 1024;
/// Concurrent name lookups for these origins, each with a thread of the system.
pub(super) const BROUGHT_LOOKUPS_MAX: usize = 64;
/// Bytes of the reason of a failed call.
pub(super) const DETAIL_BYTES_MAX: usize = 500;
/// Bytes of one call from another node: the largest message that the API accepts, and its framing.
pub(super) const CALL_BYTES_MAX: usize = 256 << 20;
/// Cached pairs of target and topic with their workers. Beyond it, they are computed again.
pub(super) const GROUPS_MAX: usize = 4096;
/// How long an unreachable worker is selected only after all others.
pub(super) const SET_ASIDE_FOR: Duration = Duration::from_secs(3);
/// Workers that one call is sent to, one after the other, while they are not reachable.
pub(super) const HANDS_MAX: usize = 3;
/// Time that is added to the timeout of the call itself for the response of another node's worker.
pub(super) const HANDING_GRACE: Duration = Duration::from_secs(2);
/// The interval of load requests to the workers of other nodes, and their timeout.
pub(super) const LOAD_EVERY: Duration = Duration::from_secs(1);
