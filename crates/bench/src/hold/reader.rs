//! A reader of one partition that records the lateness of each held message, by the clock of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_client::{Client, Position, ReadFrom};
use whimbrel_model::Timestamp;

use super::super::histogram::Histogram;
use crate::BenchError;

/// Partitions of the topic at a high rate: the reader reads one of them, a sample that costs the server little.
pub const PARTITIONS: u32 = 8;
const READ_LIMIT: usize = 1000;
/// Wait time of one read: the reader may run this long after its end.
const READ_WAIT: Duration = Duration::from_millis(200);

pub struct HoldReader {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<HoldReadResult, BenchError>>,
}

#[derive(Default)]
pub struct HoldReadResult {
    pub lateness: Histogram,
    /// Messages that arrived before their due time, by this clock. There must be none.
    pub early: u64,
}

impl HoldReader {
    /// Reads partition 0 of the topic from its current end; messages due before `from` are not counted.
    pub fn start(client: Client, topic: &'static str, from: Timestamp) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(read(&client, topic, from, &seen))
        });
        Self { ends, thread }
    }

    /// Stops at the end of the available messages.
    pub fn end(self) -> Result<HoldReadResult, BenchError> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| BenchError::new("the reader ended early"))?
    }
}

async fn read(client: &Client, topic: &str, from: Timestamp, ends: &AtomicBool) -> Result<HoldReadResult, BenchError> {
    let mut found = HoldReadResult::default();
    let mut position = Position::Latest;
    loop {
        let place = ReadFrom { partition: 0, position, limit: Some(READ_LIMIT), wait: Some(READ_WAIT) };
        let page = client.read(topic, &place).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for message in &page.messages {
            let due = message.due.as_deref().and_then(|due| Timestamp::parse(due).ok());
            let Some(due) = due.filter(|due| *due >= from) else { continue };
            let due = Duration::from_millis(due.as_millis().max(0).unsigned_abs());
            found.early += u64::from(now < due);
            found.lateness.record(now.saturating_sub(due));
        }
        if page.messages.is_empty() && ends.load(Ordering::Relaxed) {
            return Ok(found);
        }
        position = Position::Offset(page.next_offset);
    }
}
