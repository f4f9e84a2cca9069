//! Every bound of presence, in one place.

/// News of one packet; more that came in the same moment go into the next.
pub const NEWS_PER_PACKET_MAX: usize = 4_096;
/// Times that a writer asks for the same, the first included, before it turns to something else.
pub const ASKS_MAX: u32 = 3;
/// Packets that one question asks for; where more are missing, the whole picture is smaller.
pub const ASKED_NUMBERS_MAX: usize = 256;
/// Packets and news of one gateway that wait in a shard's memory for what is missing before them. What comes beyond is as if it was lost.
pub const BUFFERED_PACKETS_MAX: usize = 4_096;
pub const BUFFERED_NEWS_MAX: usize = 262_144;
/// Packets that wait for a shard's writer, and posts that wait for one other node.
pub const WRITER_QUEUE_MAX: usize = 1_024;
pub const POSTS_QUEUED_MAX: usize = 1_024;
/// Posts that one call takes, and news therein at most (and one packet's).
pub const POSTS_PER_CALL_MAX: usize = 256;
pub const NEWS_PER_CALL_MAX: usize = 16_384;
/// Answers to questions that wait for a shard's writer: of each gateway at most one question is open.
pub const ANSWERS_QUEUED_MAX: usize = 256;
/// Other nodes that posts go to.
pub const OUTLETS_MAX: usize = 4_096;
/// Users whose change waits to be published; beyond, the oldest are published early.
pub const PENDING_EVENTS_MAX: usize = 131_072;
/// Events of one append.
pub const EVENTS_PER_APPEND_MAX: usize = 512;
/// Bytes of one message on the internal port: a whole picture of one shard with its framing.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Users of one question to a reader.
pub const READ_USERS_MAX: usize = 10_000;
/// Steps that a writer takes before it looks at what else there is.
pub const STEPS_AT_ONCE_MAX: usize = 256;
