//! The bounds of what goes between gateways and carriers on different nodes.

use std::time::Duration;

/// The version of what goes over a stream, in the first message of each end.
pub const LINK_VERSION: u32 = 1;
/// Bytes that wait to be sent on one stream; beyond, the stream is ended and made anew.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Where more than this part of them waits, stored messages stay in the inbox, and are asked for.
pub const STORED_PART: usize = 2;
/// The same for ephemeral messages, which are dropped: so a flood of them takes nothing from what is stored.
pub const EPHEMERAL_PART: usize = 4;
/// What was dropped is told where less than this part waits: well below the one before, so that it is told for many at once.
pub const LOSSES_PART: usize = 8;
const _: () = assert!(STORED_PART < EPHEMERAL_PART && EPHEMERAL_PART < LOSSES_PART);
/// Sessions of one gateway whose losses are kept until it can be told of them; what others lose is counted and not told.
pub const LOSERS_MAX: usize = 1 << 18;
/// Bytes of one message on a stream, and of one answer: a batch is cut after [`BATCH_BYTES`], and one body may be large.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// A batch of news is cut when it has this many bytes of bodies.
pub const BATCH_BYTES: usize = 1 << 20;
/// Messages, or news, that travel together.
pub const TOGETHER_MAX: usize = 4096;
/// Bytes of an epoch's text.
pub const EPOCH_MAX_BYTES: usize = 128;
/// Bytes of a message's id, of its content type, and of a reason.
pub const TEXT_MAX_BYTES: usize = 4096;
/// Messages of an inbox that are asked for at once.
pub const SHOWN_MAX: u64 = 10_000;
/// How long opening a stream may take, the first message included.
pub const OPEN_WITHIN: Duration = Duration::from_secs(3);
/// How long a stream that ended is left alone; twice as long each time that it did not stand, up to the longest.
pub const AGAIN_AFTER: Duration = Duration::from_millis(50);
pub const AGAIN_AFTER_LONGEST: Duration = Duration::from_secs(2);
/// Partitions that a node may say that it serves.
pub const PARTITIONS_SERVED_MAX: u32 = whimbrel_model::limits::PARTITIONS_MAX;
