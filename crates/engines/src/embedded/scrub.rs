//! Reads all cold segments of the log at a regular interval and a limited rate, to find damage before a reader meets it.
//!
//! One low-priority thread reads small pieces and pauses in between: `scrub_rate` bounds its disk bandwidth. It exits at the next read
//! when the log closes. The log emits an event for each damaged place, once; metrics show the progress.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use whimbrel_model::Clock;
use whimbrel_storage::verify::ReadMeter;
use whimbrel_storage::{LogStore, ScrubResult};

use super::thread_priority;

/// The thread's name, by which its priority is lowered.
const THREAD: &str = "scrub";
/// The delay of the first pass: a starting server has other reads to do first.
const FIRST_PASS_AFTER: Duration = Duration::from_secs(60);

/// The scrub of a log. It ends when `stop` is called or this is dropped.
pub(super) struct Scrub {
    ending: Arc<StopSignal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The stop flag of the scrub, and the condition that wakes its thread.
#[derive(Default)]
struct StopSignal {
    is_asked: Mutex<bool>,
    asked: Condvar,
}

impl Scrub {
    /// Starts the scrub, if the settings of the log enable it.
    pub fn start(store: Arc<LogStore>, clock: Arc<dyn Clock>) -> Self {
        let ending = Arc::<StopSignal>::default();
        let Some(interval) = store.settings().scrub_interval else {
            return Self { ending, thread: Mutex::new(None) };
        };
        metrics::counter!("whimbrel_scrub_bytes_total").absolute(0);
        metrics::gauge!("whimbrel_scrub_damaged_places").set(0.0);
        metrics::gauge!("whimbrel_scrub_last_pass_timestamp_seconds").set(0.0);
        let told = Arc::clone(&ending);
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            thread_priority::lower_priority(THREAD);
            run(&store, &*clock, interval, &told);
        });
        if let Err(error) = &thread {
            tracing::warn!(%error, "cannot start the thread that scrubs cold segments; they are not scrubbed until a restart");
        }
        Self { ending, thread: Mutex::new(thread.ok()) }
    }

    /// Stops the scrub after the read in progress.
    pub fn stop(&self) {
        *self.ending.lock() = true;
        self.ending.asked.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StopSignal {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits. Fails if the scrub must stop.
    fn pause(&self, pause: Duration) -> io::Result<()> {
        let waited = self.asked.wait_timeout_while(self.lock(), pause, |is_asked| !*is_asked);
        let (is_asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *is_asked { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

fn run(store: &LogStore, clock: &dyn Clock, interval: Duration, ending: &Arc<StopSignal>) {
    let mut wait = FIRST_PASS_AFTER.min(interval);
    let mut damaged_before = 0;
    while ending.pause(wait).is_ok() {
        let began = Instant::now();
        let Ok(damaged) = pass(store, damaged_before, ending) else { return };
        damaged_before = damaged;
        metrics::gauge!("whimbrel_scrub_last_pass_timestamp_seconds").set(clock.now().as_millis() as f64 / 1000.0);
        wait = interval.saturating_sub(began.elapsed());
    }
}

/// Reads every segment that is cold now, and returns the number of damaged places. Fails if the scrub must stop.
fn pass(store: &LogStore, damaged_before: usize, ending: &Arc<StopSignal>) -> io::Result<usize> {
    let (rate, ending) = (store.settings().scrub_rate, Arc::clone(ending));
    let meter: ReadMeter = Arc::new(move |bytes| {
        metrics::counter!("whimbrel_scrub_bytes_total").increment(bytes);
        ending.pause(Duration::from_secs_f64(bytes as f64 / rate as f64))
    });
    let mut segments = store.cold_segments();
    // A random first segment: with frequent restarts, every segment is still read at some time.
    let first = RandomState::new().hash_one(segments.len()) as usize % segments.len().max(1);
    segments.rotate_left(first);
    let mut damaged = 0;
    for segment in segments {
        if let ScrubResult::Read { damaged: places } = store.scrub(segment, &meter)? {
            damaged += places;
            metrics::gauge!("whimbrel_scrub_damaged_places").set(damaged.max(damaged_before) as f64);
        }
    }
    metrics::gauge!("whimbrel_scrub_damaged_places").set(damaged as f64);
    Ok(damaged)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use whimbrel_model::{Event, SystemClock};
    use whimbrel_storage::{LogRecord, LogSettings, LogWrite, PartitionKey, WritePart};

    use super::*;
    use crate::embedded::{EmbeddedLog, open_folder};

    const KEY: PartitionKey = PartitionKey { topic: 1, partition: 0 };

    fn open(folder: &Path, settings: LogSettings) -> (EmbeddedLog, mpsc::Receiver<Event>) {
        let (told, events) = mpsc::channel();
        let sink = Arc::new(move |event| drop(told.send(event)));
        let folder = open_folder(folder).unwrap();
        (EmbeddedLog::open(folder, settings, Arc::new(SystemClock), sink).unwrap().0, events)
    }

    fn settings(interval: Duration, rate: u64) -> LogSettings {
        LogSettings { segment_bytes: 4096, scrub_interval: Some(interval), scrub_rate: rate, ..LogSettings::default() }
    }

    /// Fills a few segments.
    fn fill(log: &EmbeddedLog) {
        log.store.create_partitions(1, 1).unwrap();
        for _ in 0..8 {
            let mut records = Vec::new();
            LogRecord::encode(&mut records, 0, None, &[], &[7; 3000]);
            let part = WritePart { partition: KEY, count: 1, max_timestamp: 0, records };
            log.store.submit(LogWrite::Append(vec![part])).unwrap().wait();
        }
        log.store.checkpoint(0, &mut || {}).unwrap();
    }

    #[tokio::test]
    async fn damage_of_a_cold_segment_becomes_an_event_without_a_reader() {
        let folder = tempfile::tempdir().unwrap();
        let (log, events) = open(folder.path(), settings(Duration::from_millis(20), 1 << 30));
        fill(&log);
        let cold = log.store.cold_segments()[2];
        let path = folder.path().join(format!("log/topics/1/0/{:020}.segment", cold.base));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let event = events.recv().unwrap();
        let field = |name: &str| event.fields.iter().find(|(found, _)| *found == name).unwrap().1.clone();
        assert_eq!(
            (event.kind, field("file"), field("position")),
            ("damage_found", path.display().to_string(), "0".into())
        );
        log.close().await;
        assert_eq!(events.try_iter().count(), 0, "once, over all passes");
    }

    /// At one byte per second the first segment alone would take an hour: a close that waits for it would not return.
    #[tokio::test]
    async fn a_close_does_not_wait_for_a_pass_in_progress() {
        let folder = tempfile::tempdir().unwrap();
        let (log, _events) = open(folder.path(), settings(Duration::from_millis(1), 1));
        fill(&log);
        log.close().await;
        drop(log);
        let (log, _events) = open(folder.path(), settings(Duration::from_millis(1), 1));
        drop(log);
    }
}
