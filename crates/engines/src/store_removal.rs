//! Removes the store of holds, so that the next start rebuilds it from the log. It must never run beside a server that uses the store.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use whimbrel_storage::OpenError;

use crate::embedded;
use crate::resolve::{CoordinationEngine, EngineError, EngineSettings, HOLDS_FOLDER, StateEngine};

/// The folder is renamed to this name before it is removed, so that a server never finds a partly removed store.
const REMOVED_FOLDER: &str = "holds.removed";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemovedStore {
    Nothing,
    Folder(PathBuf),
    /// The number of removed keys, and the address of Redis.
    Keys(u64, String),
}

impl fmt::Display for RemovedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("there is no store of holds yet"),
            Self::Folder(path) => write!(f, "removed the store of holds in {}", path.display()),
            Self::Keys(0, place) => write!(f, "there is no store of holds in {place}"),
            Self::Keys(keys, place) => write!(f, "removed the store of holds in {place}: {keys} keys"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RemoveStoreError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the store of holds is in use by these processes: {0}")]
    InUse(String),
    #[error("the store of holds in {} cannot be removed: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl From<OpenError> for RemoveStoreError {
    fn from(error: OpenError) -> Self {
        Self::Engine(error.into())
    }
}

/// Removes the store of holds. `shards` is the maximum number of shards. The data folder stays locked meanwhile, so that no server starts
/// on it.
#[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "a folder is removed whole, with all its shards"))]
pub async fn remove_holds_store(settings: &EngineSettings, shards: u32) -> Result<RemovedStore, RemoveStoreError> {
    let is_there = settings.data.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    let folder = is_there.then(|| embedded::open_folder(&settings.data)).transpose()?;
    refuse_while_others_serve(&settings.coordination).await?;
    let forgotten = match &settings.timers_engine {
        StateEngine::Embedded => remove_folder(&settings.data)?,
        #[cfg(feature = "redis")]
        StateEngine::Redis(redis) => {
            let connection = crate::redis::RedisConnection::connect(redis.clone()).await.map_err(EngineError::from)?;
            let keys = crate::redis::remove_holds(&connection, shards).await.map_err(EngineError::from)?;
            RemovedStore::Keys(keys, connection.description().to_owned())
        }
    };
    drop(folder);
    Ok(forgotten)
}

async fn refuse_while_others_serve(coordination: &CoordinationEngine) -> Result<(), RemoveStoreError> {
    match coordination {
        // The only process of this engine locks the data folder.
        CoordinationEngine::InProcess => Ok(()),
        #[cfg(feature = "etcd")]
        CoordinationEngine::Etcd(settings) => {
            use whimbrel_model::ports::Coordination as _;
            let connection = crate::etcd::EtcdConnection::connect(settings.clone()).await.map_err(EngineError::from)?;
            let picture = crate::etcd::EtcdCoordination::new(connection).snapshot(0).await;
            let picture = picture.map_err(|error| RemoveStoreError::InUse(format!("unknown ({error})")))?;
            let names: Vec<_> = picture.nodes.into_iter().map(|node| node.member.name).collect();
            if names.is_empty() { Ok(()) } else { Err(RemoveStoreError::InUse(names.join(", "))) }
        }
    }
}

fn remove_folder(data: &Path) -> Result<RemovedStore, RemoveStoreError> {
    let (present, removed) = (data.join(HOLDS_FOLDER), data.join(REMOVED_FOLDER));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| RemoveStoreError::Io { path, error }
    };
    // Removes the rest of an earlier removal that was interrupted.
    remove_if_there(&removed).map_err(failed(&removed))?;
    match std::fs::rename(&present, &removed) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RemovedStore::Nothing),
        Err(error) => return Err(failed(&present)(error)),
    }
    remove_if_there(&removed).map_err(failed(&removed))?;
    Ok(RemovedStore::Folder(present))
}

fn remove_if_there(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::LogEngine;

    fn settings(data: &Path) -> EngineSettings {
        EngineSettings {
            data: data.to_owned(),
            log: LogEngine::Embedded(Default::default()),
            coordination: CoordinationEngine::InProcess,
            receipts: Default::default(),
            receipts_engine: StateEngine::Embedded,
            timers: Default::default(),
            timers_engine: StateEngine::Embedded,
            progress_engine: StateEngine::Embedded,
            inbox_engine: StateEngine::Embedded,
            sessions_engine: StateEngine::Embedded,
            devices_engine: StateEngine::Embedded,
            notebook: Default::default(),
        }
    }

    #[tokio::test]
    async fn a_missing_folder_is_not_created() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        assert_eq!(remove_holds_store(&settings(&data), 16).await.unwrap(), RemovedStore::Nothing);
        assert!(!data.exists());
    }

    #[tokio::test]
    async fn only_the_store_of_holds_is_removed() {
        let data = tempfile::tempdir().unwrap();
        drop(embedded::open_folder(data.path()).unwrap());
        for folder in [HOLDS_FOLDER, REMOVED_FOLDER, "receipts"] {
            std::fs::create_dir(data.path().join(folder)).unwrap();
            std::fs::write(data.path().join(folder).join("table"), "x").unwrap();
        }
        let forgotten = remove_holds_store(&settings(data.path()), 16).await.unwrap();
        assert_eq!(forgotten, RemovedStore::Folder(data.path().join(HOLDS_FOLDER)));
        let is_there = |folder: &str| data.path().join(folder).exists();
        assert_eq!([HOLDS_FOLDER, REMOVED_FOLDER, "receipts"].map(is_there), [false, false, true]);
    }

    #[tokio::test]
    async fn a_folder_in_use_is_not_changed() {
        let data = tempfile::tempdir().unwrap();
        let held = embedded::open_folder(data.path()).unwrap();
        std::fs::create_dir(data.path().join(HOLDS_FOLDER)).unwrap();
        let refused = remove_holds_store(&settings(data.path()), 16).await;
        assert!(
            matches!(refused, Err(RemoveStoreError::Engine(EngineError::Folder(OpenError::InUse(_))))),
            "{refused:?}"
        );
        assert!(data.path().join(HOLDS_FOLDER).exists());
        drop(held);
    }
}
