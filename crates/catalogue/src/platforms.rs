//! The platforms and their settings: a view of the catalogue, updated by a watch.
//!
//! Every platform exists; one that is not configured has the defaults. The catalogue has one entry for each configured platform. Reads
//! take no lock, because carriers read the settings for every seat.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::{PLATFORM_PREFIX, Platform, PlatformSettings};
use whimbrel_model::ports::{Catalogue, CatalogueError};

use crate::follow::follow_catalogue;

pub const PLATFORMS_MAX: usize = 1_000;
/// The most attempts at a write that conflicts with other writers.
const CONFLICT_TRIES: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    #[error("{PLATFORMS_MAX} platforms are configured already; reset one to the defaults first")]
    TooMany,
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

pub struct Platforms {
    catalogue: Arc<dyn Catalogue>,
    map: ArcSwap<HashMap<Platform, ConfiguredPlatform>>,
    defaults: Arc<PlatformSettings>,
    /// Held by the task that changes platforms in this process, over catalogue and map.
    changing: Mutex<()>,
    changes: watch::Sender<u64>,
}

/// The settings of a configured platform, with the version of the catalogue's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConfiguredPlatform {
    settings: Arc<PlatformSettings>,
    version: u64,
}

impl Platforms {
    /// Reads the catalogue. An entry that cannot be decoded is skipped and reported.
    ///
    /// The caller must also run [`Platforms::watch`].
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

    pub fn get(&self, platform: &Platform) -> Arc<PlatformSettings> {
        let map = self.map.load();
        Arc::clone(map.get(platform).map_or(&self.defaults, |configured| &configured.settings))
    }

    pub fn configured(&self) -> Vec<(Platform, Arc<PlatformSettings>)> {
        let map = self.map.load();
        let mut all: Vec<_> = map.iter().map(|(name, each)| (name.clone(), Arc::clone(&each.settings))).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    pub fn is_configured(&self, platform: &Platform) -> bool {
        self.map.load().contains_key(platform)
    }

    /// A number that grows when the settings of any platform change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Configures a platform. Returns whether it was not configured before.
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
                    self.show(platform, Some(ConfiguredPlatform { settings: Arc::new(settings), version }), &changing);
                    return Ok(found.is_none());
                }
                Err(CatalogueError::Conflict { .. }) if tries < CONFLICT_TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Resets a platform to the defaults. Returns whether it was configured.
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

    pub async fn watch(&self, shutdown: CancellationToken) {
        let reload = || async {
            let changing = self.changing.lock().await;
            self.reload(&changing).await
        };
        follow_catalogue(&*self.catalogue, "platforms", reload, &shutdown).await;
    }

    async fn reload(&self, _changing: &MutexGuard<'_, ()>) -> Result<(), PlatformError> {
        let entries = self.catalogue.list(PLATFORM_PREFIX).await?;
        let before = self.map.load_full();
        let mut map = HashMap::with_capacity(entries.len());
        for (key, found) in entries {
            let name = key.strip_prefix(PLATFORM_PREFIX).unwrap_or_default();
            let Ok(platform) = Platform::new(name) else {
                tracing::error!(key, "skipped an entry of the catalogue with an invalid platform name");
                continue;
            };
            let known = before.get(&platform);
            if let Some(known) = known.filter(|known| known.version == found.version) {
                map.insert(platform, known.clone());
                continue;
            }
            match serde_json::from_slice(&found.value) {
                Ok(settings) => {
                    map.insert(platform, ConfiguredPlatform { settings: Arc::new(settings), version: found.version });
                }
                Err(error) => {
                    tracing::error!(%error, "cannot decode the entry of platform {platform:?}; its previous settings stay in force");
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

    fn show(&self, platform: &Platform, configured: Option<ConfiguredPlatform>, _changing: &MutexGuard<'_, ()>) {
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
