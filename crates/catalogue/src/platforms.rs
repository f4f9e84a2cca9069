//! The platforms and their settings: a view of the catalogue, kept up by a watch.
//!
//! A platform is there without anybody having made it: one that nobody configured has the defaults. Only what somebody decided is in the
//! catalogue, an entry for each platform. Asking takes no lock: carriers ask for every seat that they serve.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::{PLATFORM_PREFIX, Platform, PlatformSettings};
use whimbrel_model::ports::{Catalogue, CatalogueError};

/// Platforms that may be configured at one time.
pub const PLATFORMS_MAX: usize = 1_000;
/// Tries at a write that somebody else was faster at.
const CONFLICT_TRIES: usize = 16;
/// Between two looks at a catalogue that keeps changing or cannot be reached.
const RELOAD_PAUSE: Duration = Duration::from_millis(50);
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    #[error("{PLATFORMS_MAX} platforms are configured already; put one back to the defaults first")]
    TooMany,
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

pub struct Platforms {
    catalogue: Arc<dyn Catalogue>,
    map: ArcSwap<HashMap<Platform, Configured>>,
    /// What a platform has that nobody configured.
    defaults: Arc<PlatformSettings>,
    /// Whoever changes platforms in this process holds this, over catalogue and map.
    changing: Mutex<()>,
    changes: watch::Sender<u64>,
}

/// What somebody decided about a platform, with the version of the catalogue's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Configured {
    settings: Arc<PlatformSettings>,
    version: u64,
}

impl Platforms {
    /// Reads the catalogue. An entry that cannot be read is left out and reported.
    ///
    /// Whoever opens it also runs [`Platforms::watch`].
    pub async fn open(catalogue: Arc<dyn Catalogue>) -> Result<Self, PlatformError> {
        let platforms = Self {
            catalogue,
            map: ArcSwap::default(),
            defaults: Arc::default(),
            changing: Mutex::new(()),
            changes: watch::Sender::new(0),
        };
        let changing = platforms.changing.lock().await;
        platforms.reload(&changing).await?;
        drop(changing);
        Ok(platforms)
    }

    /// The settings that are in force for a platform.
    pub fn get(&self, platform: &Platform) -> Arc<PlatformSettings> {
        let map = self.map.load();
        Arc::clone(map.get(platform).map_or(&self.defaults, |configured| &configured.settings))
    }

    /// Those that somebody configured, by name.
    pub fn configured(&self) -> Vec<(Platform, Arc<PlatformSettings>)> {
        let map = self.map.load();
        let mut all: Vec<_> = map.iter().map(|(name, each)| (name.clone(), Arc::clone(&each.settings))).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    pub fn is_configured(&self, platform: &Platform) -> bool {
        self.map.load().contains_key(platform)
    }

    /// A number that grows whenever the settings of any platform changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Configures a platform: these are its settings from now on. Answers whether nobody had configured it before.
    pub async fn put(&self, platform: &Platform, settings: PlatformSettings) -> Result<bool, PlatformError> {
        let changing = self.changing.lock().await;
        let value = serde_json::to_vec(&settings).expect("a platform's settings are plain data");
        let key = key_of(platform);
        let mut tries = 0;
        loop {
            let found = self.catalogue.get(&key).await?.map(|found| found.version);
            if found.is_none() && self.map.load().len() >= PLATFORMS_MAX {
                return Err(PlatformError::TooMany);
            }
            match self.catalogue.put(&key, value.clone(), found).await {
                Ok(version) => {
                    self.show(platform, Some(Configured { settings: Arc::new(settings), version }), &changing);
                    return Ok(found.is_none());
                }
                Err(CatalogueError::Conflict { .. }) if tries < CONFLICT_TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts a platform back to the defaults. Answers whether somebody had configured it.
    pub async fn remove(&self, platform: &Platform) -> Result<bool, PlatformError> {
        let changing = self.changing.lock().await;
        let key = key_of(platform);
        let mut tries = 0;
        loop {
            let Some(found) = self.catalogue.get(&key).await? else {
                self.show(platform, None, &changing);
                return Ok(false);
            };
            match self.catalogue.remove(&key, found.version).await {
                Ok(()) => {
                    self.show(platform, None, &changing);
                    return Ok(true);
                }
                Err(CatalogueError::Conflict { .. }) if tries < CONFLICT_TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Follows the catalogue until the shutdown.
    pub async fn watch(&self, shutdown: CancellationToken) {
        let mut seen = 0;
        loop {
            let changed = tokio::select! {
                changed = self.catalogue.changed(seen) => changed,
                () = shutdown.cancelled() => return,
            };
            let outcome = match changed {
                Ok(revision) => {
                    let changing = self.changing.lock().await;
                    self.reload(&changing).await.map(|()| seen = revision)
                }
                Err(error) => Err(error.into()),
            };
            let pause = match outcome {
                Ok(()) => RELOAD_PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "platforms changed and could not be followed; trying again");
                    WATCH_RETRY_AFTER
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn reload(&self, _changing: &MutexGuard<'_, ()>) -> Result<(), PlatformError> {
        let entries = self.catalogue.list(PLATFORM_PREFIX).await?;
        let before = self.map.load_full();
        let mut map = HashMap::with_capacity(entries.len());
        for (key, found) in entries {
            let name = key.strip_prefix(PLATFORM_PREFIX).unwrap_or_default();
            let Ok(platform) = Platform::new(name) else {
                tracing::error!(key, "the catalogue has a platform that cannot be one; it is left out");
                continue;
            };
            let known = before.get(&platform);
            if let Some(known) = known.filter(|known| known.version == found.version) {
                map.insert(platform, known.clone());
                continue;
            }
            match serde_json::from_slice(&found.value) {
                Ok(settings) => {
                    map.insert(platform, Configured { settings: Arc::new(settings), version: found.version });
                }
                Err(error) => {
                    tracing::error!(%error, "the platform {platform:?} is as it was before until this is mended");
                    known.into_iter().for_each(|known| drop(map.insert(platform.clone(), known.clone())));
                }
            }
        }
        if map != *before {
            self.map.store(Arc::new(map));
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    fn show(&self, platform: &Platform, configured: Option<Configured>, _changing: &MutexGuard<'_, ()>) {
        let mut map = HashMap::clone(&self.map.load());
        match configured {
            Some(configured) => map.insert(platform.clone(), configured),
            None => map.remove(platform),
        };
        self.map.store(Arc::new(map));
        self.changes.send_modify(|count| *count += 1);
    }
}

fn key_of(platform: &Platform) -> String {
    format!("{PLATFORM_PREFIX}{platform}")
}
