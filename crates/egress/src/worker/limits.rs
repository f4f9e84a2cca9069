//! Bounds of the worker, each with its reason.

use std::time::Duration;

/// How long a connection may take to stand, TLS included, unless the endpoint says otherwise.
pub(super) const CONNECT_WITHIN_DEFAULT: Duration = Duration::from_secs(5);
/// The longest timeout that a message can bring itself: other writers of a shared log are bound by no door.
pub(super) const OWN_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Bytes of an answer that are read so that its connection can be used again. Beyond, a new connection is cheaper.
pub(super) const ANSWER_READ_BYTES_MAX: usize = 64 << 10;
/// How long the body of a success is waited for. Its status has said all that counts.
pub(super) const SUCCESS_BODY_WITHIN: Duration = Duration::from_millis(500);
/// Bytes that an answer's head may take, and that wait to be written.
pub(super) const CONNECTION_BUFFER_BYTES_MAX: usize = 128 << 10;
/// Connections of one thread to one target that wait for the next call.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 1024;
/// How long one waits. Most servers close idle connections after a minute or more.
pub(super) const IDLE_CONNECTION_FOR: Duration = Duration::from_secs(30);
/// How often a thread that calls looks for targets that nobody else knows any more.
pub(super) const FORGET_UNUSED_EVERY: Duration = Duration::from_secs(5);
/// Kept connections that turn out to be closed before one call gives up on them and dials.
pub(super) const STALE_CONNECTIONS_MAX: u32 = 3;
/// Targets that a thread keeps prepared; beyond, those that nobody else holds go.
pub(super) const PREPARED_TARGETS_MAX: usize = 4096;
/// Places that messages bring themselves whose connections a thread keeps; beyond, all are forgotten.
pub(super) const OWN_ORIGINS_MAX: usize = 1024;
/// Names of those that are looked up at one time, each with a thread of its own.
pub(super) const BROUGHT_LOOKUPS_MAX: usize = 64;
/// Bytes of the text that says why a call failed.
pub(super) const DETAIL_BYTES_MAX: usize = 500;
/// Bytes of one call from another process: the largest message that any door lets in, and its framing.
pub(super) const CALL_BYTES_MAX: usize = 256 << 20;
/// Pairs of target and topic whose workers are remembered; beyond, they are found anew.
pub(super) const GROUPS_MAX: usize = 4096;
/// How long a worker that could not be reached is asked after all others.
pub(super) const SET_ASIDE_FOR: Duration = Duration::from_secs(3);
/// Workers that one call is handed to, one after the other, where they cannot be reached.
pub(super) const HANDS_MAX: usize = 3;
/// How much longer than the call itself a worker elsewhere may take to say how it went.
pub(super) const HANDING_GRACE: Duration = Duration::from_secs(2);
/// How often workers elsewhere are asked for their load, and how long they may take to answer.
pub(super) const LOAD_EVERY: Duration = Duration::from_secs(1);
