//! The `Catalogue` port as one small file, replaced whole at each change.
//!
//! The file is JSON, so that an operator can read it: contents, and their checksum. The previous version is kept beside it
//! (`catalogue.json.previous`), and is used if the file is damaged or missing. A damaged file is renamed. The version of an entry is the
//! number of the change that made it, counted over all keys. Versions only increase, also across the deletion of a key.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;
use whimbrel_model::ports::{Catalogue, CatalogueError, PortFuture, Versioned};
use whimbrel_model::{Event, EventSink};
use whimbrel_storage::disk::{Disk, ReplaceError, beside, read_whole, replace_file, replace_file_keeping};
use whimbrel_storage::fallback::{ContentsError, Fallback, Replacement, read_or_fallback, set_aside};
use whimbrel_storage::format::crc;
use whimbrel_storage::verify::DamageFinding;
use whimbrel_storage::{DataFolder, OpenError};

const FILE: &str = "catalogue.json";
const PREVIOUS: &str = "catalogue.json.previous";
const FORMAT: u32 = 2;
/// The same contents without a checksum. Files of this format are read; the next change writes [`FORMAT`].
const FORMAT_UNCHECKED: u32 = 1;

/// The pause before a check reads a file again, which a running server may be replacing.
const CHECKED_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The catalogue of a data folder.
pub struct FileCatalogue {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    state: Mutex<CatalogueState>,
    revision: watch::Sender<u64>,
    finding: Option<Event>,
    events: EventSink,
    /// Whether a failed write was reported and no later write has succeeded.
    has_failed: AtomicBool,
    _folder: Arc<DataFolder>,
}

struct CatalogueState {
    contents: CatalogueContents,
    file: FileState,
}

/// The location of the contents on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// No valid file has the name of the catalogue.
    Missing,
    /// Only the file beside the catalogue is valid: a change was about to rename it. The next change would overwrite that file.
    Beside,
    /// The next change keeps the file as the previous version.
    InPlace,
}

impl FileState {
    /// The state after a rename or a sync that may have failed. If the disk reports nothing, the next change renames the file beside the
    /// catalogue, if there is one, and does not overwrite it: it may be the only file with the contents.
    fn of(disk: &dyn Disk, path: &Path) -> Self {
        if disk.exists(path).unwrap_or(false) {
            Self::InPlace
        } else if disk.exists(&beside(path)).unwrap_or(true) {
            Self::Beside
        } else {
            Self::Missing
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct CatalogueContents {
    format: u32,
    revision: u64,
    entries: BTreeMap<String, CatalogueEntry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CatalogueEntry {
    version: u64,
    #[serde(flatten)]
    value: CatalogueValue,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CatalogueValue {
    Text(String),
    Bytes(Vec<u8>),
}

/// The file: the contents, and the CRC of exactly those bytes.
#[derive(Deserialize)]
struct ChecksummedFile<'a> {
    checksum: String,
    #[serde(borrow)]
    contents: &'a RawValue,
}

impl CatalogueContents {
    fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let contents = serde_json::to_string_pretty(self)?;
        let checksum = crc(contents.as_bytes());
        Ok(format!("{{\n\"checksum\": \"{checksum:08x}\",\n\"contents\": {contents}\n}}\n").into_bytes())
    }

    fn decode(bytes: &[u8], folder: &Path) -> Result<Self, ContentsError> {
        let damaged = |error: serde_json::Error| ContentsError::Damaged(error.to_string());
        let (contents, known) = match serde_json::from_slice::<ChecksummedFile<'_>>(bytes) {
            Ok(ChecksummedFile { checksum, contents }) => {
                let contents = contents.get();
                if u32::from_str_radix(&checksum, 16) != Ok(crc(contents.as_bytes())) {
                    return Err(ContentsError::Damaged("its checksum is wrong".to_owned()));
                }
                (serde_json::from_str::<Self>(contents).map_err(damaged)?, FORMAT)
            }
            Err(error) => match serde_json::from_slice::<Self>(bytes) {
                Ok(contents) => (contents, FORMAT_UNCHECKED),
                Err(_) => return Err(damaged(error)),
            },
        };
        if contents.format != known {
            let found = format!("{} in {FILE}", contents.format);
            let other = OpenError::OtherFormat { path: folder.to_owned(), found, known: FORMAT };
            return Err(ContentsError::Refused(other));
        }
        Ok(Self { format: FORMAT, ..contents })
    }
}

impl FileCatalogue {
    pub fn open(folder: Arc<DataFolder>) -> Result<Self, OpenError> {
        let (path, previous) = (folder.path.join(FILE), folder.path.join(PREVIOUS));
        let failed = |what: &str| {
            let what = format!("{what} {}", path.display());
            move |source| OpenError::Io { what, source }
        };
        let decode = |bytes: &[u8]| CatalogueContents::decode(bytes, &folder.path);
        let mut is_beside = false;
        let (contents, finding) = match read_or_fallback(&*folder.disk, &path, Fallback::Earlier(&previous), decode)? {
            None => (CatalogueContents { format: FORMAT, ..CatalogueContents::default() }, None),
            Some((contents, None)) => (contents, None),
            Some((before, Some(replaced))) => match cut_off_change(&folder, &path, before.revision) {
                Some(changed) => {
                    // If the disk rejects the rename, the server starts nevertheless; the next change retries it.
                    is_beside = put_in_place(&*folder.disk, &path).is_err();
                    (changed, None)
                }
                None => {
                    set_aside(&*folder.disk, &path).map_err(failed("renaming"))?;
                    (before, Some(damaged_event(&replaced)))
                }
            },
        };
        let file = match folder.disk.exists(&path).map_err(failed("looking for"))? {
            true => FileState::InPlace,
            false if is_beside => FileState::Beside,
            false => FileState::Missing,
        };
        let revision = watch::Sender::new(contents.revision);
        let state = Mutex::new(CatalogueState { contents, file });
        let (disk, events, has_failed) = (folder.disk.clone(), Arc::new(|_| {}), AtomicBool::new(false));
        Ok(Self { path, disk, state, revision, finding, events, has_failed, _folder: folder })
    }

    /// The same catalogue, with a sink for reports of failed writes.
    pub fn reporting_to(self, events: EventSink) -> Self {
        Self { events, ..self }
    }

    /// The problem with the file at its opening, as an event.
    pub fn finding(&self) -> Option<&Event> {
        self.finding.as_ref()
    }

    fn state(&self) -> MutexGuard<'_, CatalogueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the catalogue was never written.
    pub fn is_new(&self) -> bool {
        *self.revision.borrow() == 0
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a change durable if the key is at the expected version.
    async fn change(&self, key: &str, expected: Option<u64>, value: Option<Vec<u8>>) -> Result<u64, CatalogueError> {
        // The file is small and changes are rare, so changes run one at a time, on the caller's thread.
        let mut state = self.state();
        let found = state.contents.entries.get(key).map(|entry| entry.version);
        if found != expected {
            return Err(CatalogueError::Conflict { key: key.to_owned(), found });
        }
        let mut changed = state.contents.clone();
        changed.revision += 1;
        let version = changed.revision;
        match value {
            Some(value) => {
                let value = String::from_utf8(value)
                    .map_or_else(|error| CatalogueValue::Bytes(error.into_bytes()), CatalogueValue::Text);
                changed.entries.insert(key.to_owned(), CatalogueEntry { version, value });
            }
            None => drop(changed.entries.remove(key)),
        }
        let bytes = changed.encode().map_err(|error| self.not_written(error.into()))?;
        if state.file == FileState::Beside {
            let put = put_in_place(&*self.disk, &self.path);
            state.file = FileState::of(&*self.disk, &self.path);
            if let Err(error) = put
                && state.file == FileState::Beside
            {
                return Err(self.not_written(error));
            }
        }
        let replaced = if state.file == FileState::InPlace {
            replace_file_keeping(&*self.disk, &self.path, &self.path.with_file_name(PREVIOUS), &bytes)
        } else {
            replace_file(&*self.disk, &self.path, &bytes)
        };
        if let Err(ReplaceError::NotReplaced(error)) = replaced {
            return Err(self.not_written(error));
        }
        // The file has the change, which may not be durable. Readers and watchers see it, and most likely the next start too.
        let file = if replaced.is_ok() { FileState::InPlace } else { FileState::of(&*self.disk, &self.path) };
        *state = CatalogueState { contents: changed, file };
        drop(state);
        self.revision.send_replace(version);
        match replaced {
            Ok(()) => {
                self.has_failed.store(false, Ordering::Release);
                Ok(version)
            }
            Err(error) => Err(self.maybe_written(&error)),
        }
    }

    /// Emits one event per incident. An incident ends with the next write that succeeds.
    fn report_failure(&self, error: &dyn std::fmt::Display) {
        let file = self.path.display();
        tracing::warn!(%error, %file, "cannot write the catalogue");
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            let detail = format!(
                "cannot write {file}: {error}. Changes of topics, subscriptions and platforms fail; publishes to existing topics continue"
            );
            (self.events)(Event::failure("catalogue_not_written", detail).with("file", file).with("error", error));
        }
    }

    fn maybe_written(&self, error: &ReplaceError) -> CatalogueError {
        self.report_failure(error);
        CatalogueError::OutcomeUnknown("the change is in place, and may not survive a power loss".to_owned())
    }

    /// Logs the path of the file and leaves it out of the answer: only the operator needs it.
    fn not_written(&self, error: io::Error) -> CatalogueError {
        self.report_failure(&error);
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CatalogueError::DiskFull,
            _ => CatalogueError::Unavailable("cannot write the catalogue file".to_owned()),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&BTreeMap<String, CatalogueEntry>) -> T) -> T {
        look(&self.state().contents.entries)
    }
}

/// The problems with the files of the catalogue in a data folder. A running server may be replacing a file: a damaged or missing one is
/// read again.
pub(crate) fn check_files(data: &Path) -> Vec<DamageFinding> {
    let problem_of = |name: &str| match std::fs::read(data.join(name)) {
        Ok(bytes) => match CatalogueContents::decode(&bytes, data) {
            Ok(_) => None,
            Err(ContentsError::Damaged(why)) => Some(why),
            Err(ContentsError::Refused(error)) => Some(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some("it is missing".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    let again = |name: &str| {
        // The file is missing for a moment between two renames.
        problem_of(name)?;
        std::thread::sleep(CHECKED_AGAIN_AFTER);
        problem_of(name)
    };
    let has_previous = data.join(PREVIOUS).exists();
    if !has_previous && !data.join(FILE).exists() && !data.join("log/topics").exists() {
        return Vec::new();
    }
    let finding = |name: &str, what: String, meaning: &str, advice: &str| DamageFinding {
        file: data.join(name),
        position: 0,
        what,
        meaning: meaning.to_owned(),
        advice: advice.to_owned(),
        is_harmless: false,
    };
    let previous = if has_previous { again(PREVIOUS) } else { None };
    let is_covered = has_previous && previous.is_none();
    let mut findings = Vec::new();
    findings.extend(again(FILE).map(|what| {
        let (meaning, advice) = if is_covered {
            (
                "the next start uses the version before it: the last change of a topic, a subscription or a platform may be missing",
                "if a server runs on the folder, change any topic: it then writes the file again. Otherwise start it and repeat the last \
                 change",
            )
        } else {
            ("the server does not start: the numbers of the topics have no names", "restore the file from a backup")
        };
        finding(FILE, what, meaning, advice)
    }));
    findings.extend(previous.map(|what| {
        let meaning = "nothing is lost: the file is used only where catalogue.json is damaged";
        let advice =
            "check the disk (`dmesg`, SMART); the next change of a topic or a subscription writes the file again";
        finding(PREVIOUS, what, meaning, advice)
    }));
    findings
}

/// The contents of a change whose process ended between the two renames. They are complete, and no caller got an error.
fn cut_off_change(folder: &DataFolder, path: &Path, revision_before: u64) -> Option<CatalogueContents> {
    if folder.disk.exists(path).ok()? {
        return None;
    }
    let bytes = read_whole(&*folder.disk, &beside(path)).ok()??;
    let changed = CatalogueContents::decode(&bytes, &folder.path).ok()?;
    (changed.revision == revision_before + 1).then_some(changed)
}

/// Completes the renames of a change that was cut off.
fn put_in_place(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.rename(&beside(path), path)?;
    disk.sync_dir(path.parent().unwrap_or(Path::new(".")))
}

fn damaged_event(replaced: &Replacement) -> Event {
    let (file, why) = (replaced.file.display(), &replaced.why);
    let detail = format!(
        "{file} cannot be used: {why}. The version before it, {PREVIOUS}, is used: the last change of a topic, a subscription or a \
         platform may be missing"
    );
    Event::warning("catalogue_damaged", detail).with("file", file).with("reason", why).with("used", PREVIOUS)
}

impl CatalogueEntry {
    fn versioned(&self) -> Versioned {
        let value = match &self.value {
            CatalogueValue::Text(text) => text.clone().into_bytes(),
            CatalogueValue::Bytes(bytes) => bytes.clone(),
        };
        Versioned { value, version: self.version }
    }
}

impl Catalogue for FileCatalogue {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>> {
        Box::pin(async move { Ok(self.look(|entries| entries.get(key).map(CatalogueEntry::versioned))) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> PortFuture<'a, Result<Vec<(String, Versioned)>, CatalogueError>> {
        Box::pin(async move {
            Ok(self.look(|entries| {
                let from = entries.range(prefix.to_owned()..);
                let matching = from.take_while(|(key, _)| key.starts_with(prefix));
                matching.map(|(key, entry)| (key.clone(), entry.versioned())).collect()
            }))
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> PortFuture<'a, Result<u64, CatalogueError>> {
        Box::pin(self.change(key, expected, Some(value)))
    }

    fn remove<'a>(&'a self, key: &'a str, expected: u64) -> PortFuture<'a, Result<(), CatalogueError>> {
        Box::pin(async move { self.change(key, Some(expected), None).await.map(drop) })
    }

    fn changed(&self, seen: u64) -> PortFuture<'_, Result<u64, CatalogueError>> {
        let mut revisions = self.revision.subscribe();
        Box::pin(async move {
            let revision = revisions.wait_for(|revision| *revision > seen).await;
            revision.map(|revision| *revision).map_err(|error| CatalogueError::Unavailable(error.to_string()))
        })
    }
}

#[cfg(test)]
#[path = "catalogue/tests.rs"]
pub(super) mod tests;
