//! A reader of one partition that notes how late each held message came, by the clock of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_client::{Client, Position, ReadFrom};
use whimbrel_model::Timestamp;

use super::super::histogram::Histogram;
use crate::cli::Failure;

/// Partitions of the topic that is read at a high rate: the reader takes one of them, a sample that costs the server little.
pub const PARTITIONS: u32 = 8;
/// Messages of one read.
const READ_LIMIT: usize = 1000;
/// How long one read waits: at the end this is how long the reader may go on.
const READ_WAIT: Duration = Duration::from_millis(200);

/// A reader at work.
pub struct Reader {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<Read, Failure>>,
}

/// What it read.
#[derive(Default)]
pub struct Read {
    pub lateness: Histogram,
    /// Messages that came before they were due, by this clock. There must be none.
    pub early: u64,
}

impl Reader {
    /// Reads partition 0 of the topic from its present end on; messages due before `from` are not counted.
    pub fn start(client: Client, topic: &'static str, from: Timestamp) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(read(&client, topic, from, &seen))
        });
        Self { ends, thread }
    }

    /// Ends when it has come to the end of what is there.
    pub fn end(self) -> Result<Read, Failure> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| Failure::new("the reader ended early"))?
    }
}

async fn read(client: &Client, topic: &str, from: Timestamp, ends: &AtomicBool) -> Result<Read, Failure> {
    let mut found = Read::default();
    let mut position = Position::Latest;
    loop {
        let place = ReadFrom { partition: 0, position, limit: Some(READ_LIMIT), wait: Some(READ_WAIT) };
        let page = client.read(topic, &place).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for message in &page.messages {
            let due = message.more.get("due").and_then(|due| due.as_str()).and_then(|due| Timestamp::parse(due).ok());
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
