//! The limits of the embedded log, with their defaults.

use std::time::Duration;

/// The largest frame of any settings, in bytes. A longer one is not a frame.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Bytes of the largest frame, and so of the largest append or commit. It exceeds the largest batch that the API accepts, so that an
    /// accepted batch is never too large later.
    pub frame_bytes_max: usize,
    /// The intended bytes of a group commit: 1 MiB takes about three times as long to sync as 4 KiB, and 8 MiB ten times as long again.
    pub frame_bytes_target: usize,
    /// Bytes of one journal file. The first start creates the first file, so its size adds to the time to the first message.
    pub journal_file_bytes: u64,
    /// Bytes of the whole journal. At this limit appends wait for a checkpoint.
    pub journal_bytes_max: u64,
    /// Bytes written since the last checkpoint that trigger the next one…
    pub checkpoint_bytes: u64,
    /// …or the time after which the next one is made if anything was written.
    pub checkpoint_interval: Duration,
    /// Bytes of a segment before the next one begins.
    pub segment_bytes: u64,
    /// Age of a segment before the next one begins, so that retention by time can drop whole segments.
    pub segment_age: Duration,
    /// Bytes between two entries of the sparse index.
    pub index_interval_bytes: u64,
    /// Bytes of recent frames that are kept in memory for readers at the tail.
    pub tail_bytes: u64,
    /// Bytes of batches that are not in segments. At a fourth of it they are written to segments; at the limit appends wait.
    pub unsaved_bytes_max: u64,
    /// Bytes that may wait for their group commit. Beyond it, appends fail as overload. A fourth is reserved for commits.
    pub queue_bytes_max: usize,
    /// Free bytes of the disk below which appends are rejected: the log needs space for checkpoints, and so do other users of the disk.
    pub disk_reserve_bytes: u64,
    /// Time for which a group commit waits for further callers if there are many. Zero disables the wait.
    pub gather_max: Duration,
    /// Quiet time of the journal before an empty frame records that the last one was synced.
    pub idle_after: Duration,
    /// Bytes of cold segments that a scrub reads per second, at most.
    pub scrub_rate: u64,
    /// Time for which a place must be unreadable before it counts as damaged and readers continue behind it.
    pub unreadable_for: Duration,
    /// Time from the beginning of one scrub of all cold segments to the beginning of the next. `None` disables the scrub.
    pub scrub_interval: Option<Duration>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            frame_bytes_max: 15 << 20,
            frame_bytes_target: 1 << 20,
            journal_file_bytes: 32 << 20,
            journal_bytes_max: 1 << 30,
            checkpoint_bytes: 256 << 20,
            checkpoint_interval: Duration::from_secs(10),
            segment_bytes: 128 << 20,
            segment_age: Duration::from_secs(86_400),
            index_interval_bytes: 32 << 10,
            tail_bytes: 32 << 20,
            unsaved_bytes_max: 128 << 20,
            queue_bytes_max: 64 << 20,
            disk_reserve_bytes: 128 << 20,
            gather_max: Duration::from_micros(200),
            idle_after: Duration::from_millis(20),
            scrub_rate: 4 << 20,
            unreadable_for: Duration::from_secs(10),
            scrub_interval: Some(Duration::from_secs(86_400)),
        }
    }
}

impl LogSettings {
    /// Describes the first problem with these settings; `None` if they are valid.
    pub fn problem(&self) -> Option<String> {
        let frame_room = 2 * self.frame_bytes_max as u64;
        let checks = [
            (
                (1 << 12..=FRAME_BYTES_MAX).contains(&self.frame_bytes_max),
                format!("frame_bytes_max must be between 4096 and {FRAME_BYTES_MAX}"),
            ),
            (self.journal_file_bytes >= frame_room, format!("journal_file_bytes must be at least {frame_room}")),
            (
                self.journal_bytes_max >= 3 * self.journal_file_bytes,
                "journal_bytes_max must be at least three journal files".to_owned(),
            ),
            (
                self.checkpoint_bytes <= self.journal_bytes_max / 2,
                "checkpoint_bytes must be at most half of journal_bytes_max".to_owned(),
            ),
            (
                (1 << 12..=1 << 31).contains(&self.segment_bytes),
                "segment_bytes must be between 4 KiB and 2 GiB".to_owned(),
            ),
            (self.index_interval_bytes >= 256, "index_interval_bytes must be at least 256".to_owned()),
            (
                (4096..=self.frame_bytes_max).contains(&self.frame_bytes_target),
                format!("frame_bytes_target must be between 4096 and {}", self.frame_bytes_max),
            ),
            (self.scrub_rate > 0, "scrub_rate must be above 0".to_owned()),
            (self.unsaved_bytes_max >= frame_room, format!("unsaved_bytes_max must be at least {frame_room}")),
        ];
        checks.into_iter().find(|(holds, _)| !holds).map(|(_, problem)| problem)
    }
}
