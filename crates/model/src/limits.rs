//! Every bound that has no better home, by name, with its default. What an operator may change is in the configuration and
//! takes its default from here.

/// Characters of a topic's or subscription's name.
pub const NAME_MAX_CHARS: usize = 200;
/// Characters of a name of the system's own, made of a user's name and what it is for: as long as Kafka takes.
pub const SYSTEM_NAME_MAX_CHARS: usize = 249;
/// Characters of an id that a publisher brings.
pub const BROUGHT_ID_MAX_CHARS: usize = 128;
/// Characters of an `Idempotency-Key`.
pub const IDEMPOTENCY_KEY_MAX_CHARS: usize = 256;
/// Bytes of a partition key.
pub const KEY_MAX_BYTES: usize = 4096;
/// Partitions of one topic: what fits into a minted id, less the value that says "held".
pub const PARTITIONS_MAX: u32 = (1 << 14) - 1;
/// Topics that ever existed: what fits into a minted id.
pub const TOPIC_NUMBER_MAX: u32 = (1 << 20) - 1;

/// Bytes of one payload, by default.
pub const PAYLOAD_BYTES_DEFAULT: usize = 1 << 20;
/// Messages of one batch, by default.
pub const BATCH_MESSAGES_DEFAULT: usize = 10_000;
/// Bytes of one batch, by default.
pub const BATCH_BYTES_DEFAULT: usize = 8 << 20;
/// Headers of one message, by default.
pub const HEADERS_DEFAULT: usize = 64;
/// Bytes of one header's name and value together, by default.
pub const HEADER_BYTES_DEFAULT: usize = 4096;
/// Partitions of a topic that nobody configured.
pub const PARTITIONS_DEFAULT: u32 = 4;
/// How long messages are kept unless a topic says otherwise: one week.
pub const RETENTION_DEFAULT_MS: u64 = 7 * 86_400_000;
/// How long the first answer to an idempotency key or a brought id is remembered: 12 hours.
pub const RECEIPT_WINDOW_DEFAULT_MS: u64 = 12 * 3_600_000;
/// Messages that one read returns at most.
pub const READ_MESSAGES_MAX: usize = 10_000;
/// Messages that one read returns unless it asks for another number.
pub const READ_MESSAGES_DEFAULT: usize = 100;
/// How long a read may wait at the tail.
pub const READ_WAIT_MAX_MS: u64 = 60_000;
