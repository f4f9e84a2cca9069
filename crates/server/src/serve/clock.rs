//! The clock of this process: the machine's steady clock plus an offset to the wall clock, protected from steps of the wall clock.
//!
//! The steady clock is `CLOCK_BOOTTIME`: it cannot be set. Unlike `CLOCK_MONOTONIC` it counts the time of a suspend, so that a resume is
//! no step of the wall clock. The kernel slews both clocks alike; only setting the wall clock moves them apart.
//!
//! The file `clock` of the data folder stores the offset with the id of its boot. A process that starts while the wall clock is wrong
//! reads it. The file is a hint and is not synced. A start ignores a note of another boot, and reports a damaged one.
//! While a start ahead of the log is in doubt, the note has the latest time of the log instead: if the process ends meanwhile, the next
//! start must not trust the times that it wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_engines::deep_check::DamageFinding;
use whimbrel_model::clock::{ClockChange, ClockSample, ClockSource, StartDoubt, StepLimits};
use whimbrel_model::{Clock, Event, EventSink, GuardedClock, Timestamp, format_duration};

use crate::config::Config;

/// Interval of comparing the wall clock with the steady clock.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// A sample is repeated while its two steady readings are further apart than this, up to `SAMPLE_TRIES` times.
const SAMPLE_WIDTH_MAX_US: i64 = 1_000;
const SAMPLE_TRIES: usize = 8;
/// A settled offset is written again after it moved by this much.
const NOTED_AGAIN_US: i64 = 50_000;

/// The clocks of this machine.
pub struct MachineClocks;

impl ClockSource for MachineClocks {
    fn steady_us(&self) -> i64 {
        let time = clock_gettime(ClockId::Boottime);
        time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000)
    }

    /// The wall clock between two readings of the steady clock; the narrowest of several samples.
    fn sample(&self) -> ClockSample {
        let mut best = self.sample_once();
        for _ in 1..SAMPLE_TRIES {
            if best.0 <= SAMPLE_WIDTH_MAX_US {
                break;
            }
            best = best.min_by_width(self.sample_once());
        }
        best.1
    }
}

/// A sample, with the time that it took in microseconds.
struct TimedSample(i64, ClockSample);

impl TimedSample {
    fn min_by_width(self, other: Self) -> Self {
        if other.0 < self.0 { other } else { self }
    }
}

impl MachineClocks {
    fn sample_once(&self) -> TimedSample {
        let before = self.steady_us();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let after = self.steady_us();
        let wall_us = i64::try_from(wall.as_micros()).unwrap_or(i64::MAX);
        TimedSample(after - before, ClockSample { wall_us, steady_us: before + (after - before) / 2 })
    }
}

/// The clock of the process, with the state of its watch.
pub struct ProcessClock {
    clock: Arc<GuardedClock<MachineClocks>>,
    note: PathBuf,
    /// Damage of the note, reported as soon as events can be emitted.
    finding: Option<DamageFinding>,
    skew: Duration,
    stepout: Duration,
}

impl ProcessClock {
    pub fn start(config: &Config) -> Self {
        let limits = StepLimits { skew: config.coordination.clock_skew, stepout: config.coordination.clock_stepout };
        let note = note_in(&config.process.data);
        let known = read_note(&note, boot_id().as_deref());
        let settled_us = known.and_then(Note::settled_us);
        let clock =
            GuardedClock::start(MachineClocks, limits, settled_us).trusting_until(known.and_then(Note::ahead_of));
        let clock = Arc::new(clock);
        let finding = check_note(&config.process.data);
        Self { clock, note, finding, skew: config.coordination.clock_skew, stepout: config.coordination.clock_stepout }
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// Reports how the log engine judged the clock against its latest record. Then watches the clock until `ends` is cancelled.
    pub fn watch(self, events: EventSink, ends: CancellationToken) -> JoinHandle<()> {
        metrics::gauge!("whimbrel_clock_step_seconds").set(0.0);
        for outcome in ["detected", "returned", "followed"] {
            metrics::counter!("whimbrel_clock_steps_total", "outcome" => outcome).absolute(0);
        }
        self.finding.iter().for_each(|finding| events(note_damaged(finding)));
        if let Some((latest, doubt)) = self.clock.take_start_doubt() {
            events(self.doubted_at_start(latest, doubt));
        }
        tokio::spawn(async move {
            let mut noted: Option<Note> = None;
            let mut interval = tokio::time::interval(CHECK_INTERVAL);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = ends.cancelled() => return,
                    _ = interval.tick() => {}
                }
                if let Some(change) = self.clock.check() {
                    events(self.told(change));
                }
                metrics::gauge!("whimbrel_clock_step_seconds").set(self.clock.unfollowed_ms() as f64 / 1000.0);
                let found = self.note();
                if found.is_some_and(|found| noted.is_none_or(|noted| found.is_news_after(noted))) {
                    noted = found;
                    let path = self.note.clone();
                    // A failed write only deprives the next start of the hint.
                    tokio::task::spawn_blocking(move || found.map(|found| write_note(&path, found)));
                }
            }
        })
    }

    /// The note for the next start.
    fn note(&self) -> Option<Note> {
        let ahead_of = self.clock.ahead_of().map(Note::AheadOf);
        ahead_of.or_else(|| self.clock.settled_us().map(Note::Settled))
    }

    fn doubted_at_start(&self, latest: Timestamp, doubt: StartDoubt) -> Event {
        let stepout = format_duration(self.stepout);
        let shown = |by_ms: i64| format_duration(Duration::from_millis(by_ms.unsigned_abs()));
        match doubt {
            StartDoubt::Behind { by_ms } => {
                let detail = format!(
                    "the clock of this machine is {} behind the latest record of the log ({latest}). Nothing expires until it has caught \
                     up, for {stepout} at most; check the clock",
                    shown(by_ms)
                );
                Event::warning("clock_behind_log", detail).with("behind_ms", by_ms)
            }
            StartDoubt::Ahead { by_ms } => {
                let detail = format!(
                    "the clock of this machine is {} ahead of the latest record of the log ({latest}), after a downtime or because it is \
                     wrong. Nothing newer than that record expires until the clock was steady for {stepout}. Holds that are due \
                     fire; check the clock",
                    shown(by_ms)
                );
                Event::warning("clock_ahead_of_log", detail).with("ahead_ms", by_ms)
            }
        }
    }

    fn told(&self, change: ClockChange) -> Event {
        let stepout = format_duration(self.stepout);
        match change {
            ClockChange::Doubted { by_ms } => {
                metrics::counter!("whimbrel_clock_steps_total", "outcome" => "detected").increment(1);
                let detail = format!(
                    "the wall clock was set {} by {}; the limit is {}. Whimbrel ignores the step, and nothing expires, until the \
                     clock has kept its new time for {stepout} or was set back",
                    if by_ms < 0 { "back" } else { "forward" },
                    format_duration(Duration::from_millis(by_ms.unsigned_abs())),
                    format_duration(self.skew),
                );
                Event::warning("clock_stepped", detail).with("by_ms", by_ms)
            }
            ClockChange::Returned { lasted } => {
                metrics::counter!("whimbrel_clock_steps_total", "outcome" => "returned").increment(1);
                let detail = format!(
                    "the wall clock was set back after {}; Whimbrel had not followed it",
                    format_duration(lasted)
                );
                Event::new("clock_step_returned", detail).with("lasted_ms", lasted.as_millis())
            }
            ClockChange::Followed { by_ms } => {
                metrics::counter!("whimbrel_clock_steps_total", "outcome" => "followed").increment(1);
                let detail = format!(
                    "the wall clock has kept its new time for {stepout}: Whimbrel follows it, {} by {}",
                    if by_ms < 0 { "back" } else { "forward" },
                    format_duration(Duration::from_millis(by_ms.unsigned_abs())),
                );
                Event::warning("clock_step_followed", detail).with("by_ms", by_ms)
            }
            ClockChange::Accepted => Event::new("clock_accepted", "the clock is accepted; expiry is active again"),
        }
    }
}

fn note_damaged(finding: &DamageFinding) -> Event {
    let (file, why, used) = (finding.file.display(), &finding.what, "the wall clock");
    let detail = format!(
        "{file} cannot be used: {why}. This start compares the wall clock only with the log, and no message is affected; check the disk"
    );
    Event::warning("file_damaged", detail).with("file", file).with("reason", why).with("used", used)
}

/// The id of the boot that the steady clock counts from.
fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// The content of the note for the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    /// The offset between the clocks of this boot, in microseconds.
    Settled(i64),
    /// The wall clock is ahead of the log and in doubt. The value is the log's latest time.
    AheadOf(Timestamp),
}

/// The boot id of a note that is valid for any boot.
const ANY_BOOT: &str = "ahead-of";

impl Note {
    fn settled_us(self) -> Option<i64> {
        if let Self::Settled(offset_us) = self { Some(offset_us) } else { None }
    }

    fn ahead_of(self) -> Option<Timestamp> {
        if let Self::AheadOf(latest) = self { Some(latest) } else { None }
    }

    fn is_news_after(self, earlier: Self) -> bool {
        match (self, earlier) {
            (Self::Settled(now_us), Self::Settled(noted_us)) => {
                now_us.saturating_sub(noted_us).saturating_abs() >= NOTED_AGAIN_US
            }
            (now, noted) => now != noted,
        }
    }

    /// `whimbrel-clock 1 <boot> <offset in µs> <check>`, or `whimbrel-clock 1 ahead-of <latest time in ms> <check>`. The check covers
    /// everything before it.
    fn encode(self, boot: &str) -> String {
        let text = match self {
            Self::Settled(offset_us) => format!("whimbrel-clock 1 {boot} {offset_us}"),
            Self::AheadOf(latest) => format!("whimbrel-clock 1 {ANY_BOOT} {}", latest.as_millis()),
        };
        format!("{text} {:08x}\n", check_of(&text))
    }

    fn decode(text: &str, boot: Option<&str>) -> Option<Self> {
        match parse_note(text)? {
            (ANY_BOOT, latest_ms) => Some(Self::AheadOf(Timestamp::from_millis(latest_ms))),
            (noted_boot, offset_us) => (Some(noted_boot) == boot).then_some(Self::Settled(offset_us)),
        }
    }
}

/// The boot and the number of a note with a valid check.
fn parse_note(text: &str) -> Option<(&str, i64)> {
    let (text, check) = text.trim_end().rsplit_once(' ')?;
    let rest = text.strip_prefix("whimbrel-clock 1 ")?;
    let (boot, number) = rest.split_once(' ')?;
    let is_sound = u32::from_str_radix(check, 16).ok()? == check_of(text);
    if is_sound { Some((boot, number.parse().ok()?)) } else { None }
}

/// The damage of the note in that data folder, if any. The server replaces the file atomically, so it may run at the same time.
pub fn check_note(data: &Path) -> Option<DamageFinding> {
    let file = note_in(data);
    let what = match std::fs::read(&file) {
        Ok(bytes) if std::str::from_utf8(&bytes).ok().and_then(parse_note).is_some() => return None,
        Ok(_) => "its checksum is wrong".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    Some(DamageFinding {
        file,
        position: 0,
        what,
        meaning: "no message is affected: the next start cannot compare the clock with the last run".to_owned(),
        advice: "none needed; the server writes the file again".to_owned(),
        is_harmless: true,
    })
}

fn note_in(data: &Path) -> PathBuf {
    data.join("clock")
}

/// The first four bytes of the SHA-256 of the text.
fn check_of(text: &str) -> u32 {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(4).fold(0, |check, byte| check << 8 | u32::from(*byte))
}

fn read_note(path: &Path, boot: Option<&str>) -> Option<Note> {
    Note::decode(&std::fs::read_to_string(path).ok()?, boot)
}

fn write_note(path: &Path, note: Note) {
    let Some(boot) = boot_id() else { return };
    let new = path.with_extension("new");
    let written = std::fs::write(&new, note.encode(&boot)).and_then(|()| std::fs::rename(&new, path));
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write the clock's offset");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_valid_only_if_it_is_whole_and_of_the_same_boot() {
        let settled = Note::Settled(-1_234_567);
        let note = settled.encode("a-boot");
        assert_eq!(Note::decode(&note, Some("a-boot")), Some(settled));
        assert_eq!(Note::decode(&note, Some("another")), None);
        let ahead = Note::AheadOf(Timestamp::from_millis(1_700_000_000_000));
        assert_eq!(
            Note::decode(&ahead.encode("a-boot"), Some("another")),
            Some(ahead),
            "the log does not depend on the boot"
        );
        for note in [note, ahead.encode("a-boot")] {
            for at in 0..note.len() - 1 {
                let mut bytes = note.clone().into_bytes();
                bytes[at] ^= 1;
                let text = String::from_utf8(bytes).unwrap();
                assert_eq!(Note::decode(&text, Some("a-boot")), None, "{text}");
            }
            assert_eq!(Note::decode(&note[..10], Some("a-boot")), None);
        }
    }

    #[test]
    fn a_sample_reads_both_clocks_at_once() {
        let (first, second) = (MachineClocks.sample(), MachineClocks.sample());
        assert!(second.steady_us >= first.steady_us);
        let apart = (second.wall_us - second.steady_us) - (first.wall_us - first.steady_us);
        assert!(apart.abs() < 1_000_000, "{apart}");
    }
}
