//! Named limits that belong to no single module, with their defaults. Configuration settings take their defaults from here.

pub const NAME_MAX_CHARS: usize = 200;
/// Characters of a system topic's name, which consists of a prefix and a user's name: as many as Kafka allows.
pub const SYSTEM_NAME_MAX_CHARS: usize = 249;
/// Characters of an id that a publisher chooses.
pub const BROUGHT_ID_MAX_CHARS: usize = 128;
pub const IDEMPOTENCY_KEY_MAX_CHARS: usize = 256;
pub const KEY_MAX_BYTES: usize = 4096;
/// Partitions of one topic: the field of a minted id, minus the value that marks a hold.
pub const PARTITIONS_MAX: u32 = (1 << 14) - 1;
/// Topics that ever existed: the field of a minted id.
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
/// Partitions of a topic that is created without a number of partitions.
pub const PARTITIONS_DEFAULT: u32 = 4;
/// The retention of a topic without a setting: one week.
pub const RETENTION_DEFAULT_MS: u64 = 7 * 86_400_000;
/// How long a receipt is stored: 12 hours.
pub const RECEIPT_WINDOW_DEFAULT_MS: u64 = 12 * 3_600_000;
pub const READ_MESSAGES_MAX: usize = 10_000;
/// Messages of one read that sets no limit.
pub const READ_MESSAGES_DEFAULT: usize = 100;
/// Maximum time for which a read waits for new messages.
pub const READ_WAIT_MAX_MS: u64 = 60_000;
