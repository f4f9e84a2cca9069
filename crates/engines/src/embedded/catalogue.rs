//! The `Catalogue` port as one small file, replaced whole at each change.
//!
//! The file is JSON, so that an operator can read it. A version is the number of the change that made it, counted over all
//! keys: it only grows, also across a key's deletion.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use whimbrel_model::ports::{Catalogue, CatalogueError, PortFuture, Versioned};
use whimbrel_storage::disk::{Disk, ReplaceError, read_whole, replace_file};
use whimbrel_storage::{DataFolder, OpenError};

const FILE: &str = "catalogue.json";
const FORMAT: u32 = 1;

/// The catalogue of a data folder.
pub struct FileCatalogue {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    contents: Mutex<Contents>,
    revision: watch::Sender<u64>,
    _folder: Arc<DataFolder>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Contents {
    format: u32,
    revision: u64,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    version: u64,
    #[serde(flatten)]
    value: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
}

impl FileCatalogue {
    pub fn open(folder: Arc<DataFolder>) -> Result<Self, OpenError> {
        let path = folder.path.join(FILE);
        let failed = |source| OpenError::Io { what: format!("reading {}", path.display()), source };
        let contents = match read_whole(&*folder.disk, &path).map_err(failed)? {
            None => Contents { format: FORMAT, ..Contents::default() },
            Some(bytes) => {
                let unreadable =
                    |error: serde_json::Error| OpenError::Unreadable { path: path.clone(), why: error.to_string() };
                let contents: Contents = serde_json::from_slice(&bytes).map_err(unreadable)?;
                if contents.format != FORMAT {
                    let found = format!("{} in {FILE}", contents.format);
                    return Err(OpenError::OtherFormat { path: folder.path.clone(), found, known: FORMAT });
                }
                contents
            }
        };
        let revision = watch::Sender::new(contents.revision);
        Ok(Self { path, disk: folder.disk.clone(), contents: Mutex::new(contents), revision, _folder: folder })
    }

    /// Nothing was ever written to it.
    pub fn is_new(&self) -> bool {
        *self.revision.borrow() == 0
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a change, durably, if the key is at the expected version.
    async fn change(&self, key: &str, expected: Option<u64>, value: Option<Vec<u8>>) -> Result<u64, CatalogueError> {
        // The file is small and changes are rare; they are made one after the other, on the caller's thread.
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let found = contents.entries.get(key).map(|entry| entry.version);
        if found != expected {
            return Err(CatalogueError::Conflict { key: key.to_owned(), found });
        }
        let mut changed = contents.clone();
        changed.revision += 1;
        let version = changed.revision;
        match value {
            Some(value) => {
                let value = String::from_utf8(value).map_or_else(|error| Value::Bytes(error.into_bytes()), Value::Text);
                changed.entries.insert(key.to_owned(), Entry { version, value });
            }
            None => drop(changed.entries.remove(key)),
        }
        let bytes = serde_json::to_vec_pretty(&changed).map_err(|error| self.not_written(error.into()))?;
        let replaced = replace_file(&*self.disk, &self.path, &bytes);
        if let Err(ReplaceError::NotReplaced(error)) = replaced {
            return Err(self.not_written(error));
        }
        // The file has the change, whether that lasts or not: whoever reads or watches sees it, and so does the next start, most likely.
        *contents = changed;
        drop(contents);
        self.revision.send_replace(version);
        match replaced {
            Ok(()) => Ok(version),
            Err(error) => Err(self.maybe_written(&error)),
        }
    }

    fn maybe_written(&self, error: &ReplaceError) -> CatalogueError {
        tracing::warn!(%error, file = %self.path.display(), "whether the catalogue was written is not known");
        CatalogueError::OutcomeUnknown("the change is in place, and may not survive a power loss".to_owned())
    }

    /// Where the file lies is the operator's business, so it goes to the log of the process and not into an answer.
    fn not_written(&self, error: io::Error) -> CatalogueError {
        tracing::warn!(%error, file = %self.path.display(), "the catalogue could not be written");
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CatalogueError::DiskFull,
            _ => CatalogueError::Unavailable("it could not be written".to_owned()),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&BTreeMap<String, Entry>) -> T) -> T {
        look(&self.contents.lock().unwrap_or_else(PoisonError::into_inner).entries)
    }
}

impl Entry {
    fn versioned(&self) -> Versioned {
        let value = match &self.value {
            Value::Text(text) => text.clone().into_bytes(),
            Value::Bytes(bytes) => bytes.clone(),
        };
        Versioned { value, version: self.version }
    }
}

impl Catalogue for FileCatalogue {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>> {
        Box::pin(async move { Ok(self.look(|entries| entries.get(key).map(Entry::versioned))) })
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
