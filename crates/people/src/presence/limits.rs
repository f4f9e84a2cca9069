//! The bounds of presence.

/// Changes in one packet, at most. Further changes go into the next packet.
pub const NEWS_PER_PACKET_MAX: usize = 4_096;
/// Attempts of a query to a gateway, the first one included. Then the writer requests a snapshot, or pauses.
pub const ASKS_MAX: u32 = 3;
/// Packets in one query, at most. If more are missing, a snapshot is smaller.
pub const ASKED_NUMBERS_MAX: usize = 256;
/// Packets and changes of one gateway that a shard buffers behind a gap, at most. Further ones count as lost.
pub const BUFFERED_PACKETS_MAX: usize = 4_096;
pub const BUFFERED_NEWS_MAX: usize = 262_144;
/// Packets that wait for a shard's writer, and messages that wait for one other node, at most.
pub const WRITER_QUEUE_MAX: usize = 1_024;
pub const POSTS_QUEUED_MAX: usize = 1_024;
/// Messages in one call, and changes in them, at most. A single packet may exceed the latter.
pub const POSTS_PER_CALL_MAX: usize = 256;
pub const NEWS_PER_CALL_MAX: usize = 16_384;
/// Answers that wait for a shard's writer, at most. Each gateway has at most one open query.
pub const ANSWERS_QUEUED_MAX: usize = 256;
/// Other nodes with a queue, at most.
pub const OUTLETS_MAX: usize = 4_096;
/// Users whose change waits to be published, at most. Beyond, the oldest are published early.
pub const PENDING_EVENTS_MAX: usize = 131_072;
/// Events in one append, at most.
pub const EVENTS_PER_APPEND_MAX: usize = 512;
/// Bytes of one message on the internal port, at most: a snapshot of one shard with its framing.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Users in one query to a reader, at most.
pub const READ_USERS_MAX: usize = 10_000;
/// Packets that a writer takes before it handles other inputs, at most.
pub const STEPS_AT_ONCE_MAX: usize = 256;
