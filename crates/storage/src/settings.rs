//! Every bound of the embedded log, with its default.

use std::time::Duration;

/// No frame of any settings is larger: what claims to be is not a frame.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the largest frame, and so of the largest append or commit. It is above the largest batch that the doors
    /// accept, so that nothing accepted turns out too large later.
    pub frame_bytes_max: usize,
    /// What a group commit aims at: 1 MiB takes about three times as long to sync as 4 KiB, 8 MiB ten times as long again.
    pub frame_bytes_target: usize,
    /// Bytes of one journal file. The first is made at the first start, so it is part of the time to the first message.
    pub journal_file_bytes: u64,
    /// Bytes of the whole journal; at this bound appends wait for a checkpoint.
    pub journal_bytes_max: u64,
    /// A checkpoint is made when this much was written since the last one…
    pub checkpoint_bytes: u64,
    /// …or when this much time has passed and anything was written.
    pub checkpoint_interval: Duration,
    /// Bytes of a segment before the next one is begun.
    pub segment_bytes: u64,
    /// Age of a segment before the next one is begun, so that retention by time can drop it whole.
    pub segment_age: Duration,
    /// A sparse index has an entry each time this many bytes were written.
    pub index_interval_bytes: u64,
    /// Recent frames kept in memory for readers at the tail.
    pub tail_bytes: u64,
    /// Frames that are not in segments yet: at a fourth of it they are written out, at it appends wait.
    pub unsaved_bytes_max: u64,
    /// Bytes that may wait for their group commit; beyond, appends are refused as overload. A fourth of them is for commits.
    pub queue_bytes_max: usize,
    /// With less free space than this, appends are refused: the log needs room for checkpoints, and its neighbours for theirs.
    pub disk_reserve_bytes: u64,
    /// How long a group commit waits for callers that are on their way, when there are many. Zero: not at all.
    pub gather_max: Duration,
    /// How long the journal must be quiet before an empty frame says that the last one was synced.
    pub idle_after: Duration,
    /// Bytes of cold segments that a scrub reads in a second, at most.
    pub scrub_rate: u64,
    /// How long a place must have been unreadable before it counts as damaged, and readers go on behind it.
    pub unreadable_for: Duration,
    /// From the beginning of one scrub of all cold segments to the beginning of the next. `None`: they are not scrubbed.
    pub scrub_interval: Option<Duration>,
}

impl Default for Settings {
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

impl Settings {
    /// What is wrong with these settings, in a sentence; `None` where nothing is.
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
