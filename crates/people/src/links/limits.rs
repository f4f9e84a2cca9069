//! Bounds of the streams between gateways and carriers on different nodes.

use std::time::Duration;

/// The version of the stream protocol, in the first message of each side.
pub const LINK_VERSION: u32 = 1;
/// Bytes that wait on one stream, at most. Beyond, the stream is ended and opened again.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Above this fraction (1/2) of the queue, stored messages stay in the inbox, and the gateway requests them later.
pub const STORED_PART: usize = 2;
/// Above this fraction (1/4), ephemeral messages are dropped, so that a flood of them takes no room from stored ones.
pub const EPHEMERAL_PART: usize = 4;
/// Below this fraction (1/8), losses are reported: well below the previous one, so that one report covers many losses.
pub const LOSSES_PART: usize = 8;
const _: () = assert!(STORED_PART < EPHEMERAL_PART && EPHEMERAL_PART < LOSSES_PART);
/// Sessions of one gateway with unreported losses, at most. Losses of further sessions are counted in the metrics only.
pub const LOSERS_MAX: usize = 1 << 18;
/// Bytes of one message on a stream, and of one answer, at most. Batches end after [`BATCH_BYTES`], but one payload may be large.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Payload bytes after which a batch ends.
pub const BATCH_BYTES: usize = 1 << 20;
/// Messages in one batch, at most.
pub const TOGETHER_MAX: usize = 4096;
/// Bytes of an epoch, at most.
pub const EPOCH_MAX_BYTES: usize = 128;
/// Bytes of a message id, a content type or a reason, at most.
pub const TEXT_MAX_BYTES: usize = 4096;
/// Messages in one inbox view, at most.
pub const SHOWN_MAX: usize = 10_000;
/// Timeout for opening a stream, its first message included.
pub const OPEN_WITHIN: Duration = Duration::from_secs(3);
/// Delay before a broken stream is opened again. It doubles after each failed attempt, up to the longest.
pub const RECONNECT_DELAY: Duration = Duration::from_millis(50);
pub const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);
/// Partitions that a node may report as served, at most.
pub const PARTITIONS_SERVED_MAX: u32 = whimbrel_model::limits::PARTITIONS_MAX;
