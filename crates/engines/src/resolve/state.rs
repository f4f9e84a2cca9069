//! The stores beside the log: receipts, timers, progress, inboxes, sessions and devices. Each is in the data folder or in Redis, as its
//! setting says.

use std::sync::Arc;

use tokio::task::JoinHandle;
use whimbrel_model::ports::{Catalogue, Devices, Inbox, Log, Progress, Receipts, Sessions, Timers};
use whimbrel_model::{Clock, EventSink};

use super::{EngineError, EngineSettings, StateEngine};
use crate::embedded::receipts::ListPartitions;
use crate::embedded::{LsmDevices, LsmInbox, LsmProgress, LsmReceipts, LsmTimers, StoreReports};
use crate::memory::MemorySessions;
#[cfg(feature = "redis")]
use crate::redis::{
    LossWatch, RedisConnection, RedisDevices, RedisInbox, RedisProgress, RedisReceipts, RedisSessions, RedisSettings,
    RedisTimers,
};

/// The location of each store. All connections are open.
pub(super) struct StateStores {
    settings: EngineSettings,
    clock: Arc<dyn Clock>,
    reports: StoreReports,
    receipts: StoreLocation,
    timers: StoreLocation,
    progress: StoreLocation,
    inbox: StoreLocation,
    sessions: StoreLocation,
    devices: StoreLocation,
}

enum StoreLocation {
    Folder,
    #[cfg(feature = "redis")]
    Redis(RedisConnection),
}

impl StateStores {
    pub async fn connect(
        settings: &EngineSettings,
        clock: Arc<dyn Clock>,
        reports: StoreReports,
    ) -> Result<Self, EngineError> {
        let mut connections = OpenConnections::default();
        Ok(Self {
            timers: connections.connect(&settings.timers_engine).await?,
            receipts: connections.connect(&settings.receipts_engine).await?,
            progress: connections.connect(&settings.progress_engine).await?,
            inbox: connections.connect(&settings.inbox_engine).await?,
            sessions: connections.connect(&settings.sessions_engine).await?,
            devices: connections.connect(&settings.devices_engine).await?,
            settings: settings.clone(),
            clock,
            reports,
        })
    }

    pub fn timers(&self) -> Result<Arc<dyn Timers>, EngineError> {
        let settings = self.settings.timers.clone();
        Ok(match &self.timers {
            StoreLocation::Folder => Arc::new(LsmTimers::open(
                &self.settings.data.join(super::HOLDS_FOLDER),
                settings,
                self.reports.clone(),
            )?),
            #[cfg(feature = "redis")]
            StoreLocation::Redis(connection) => Arc::new(RedisTimers::new(connection.clone(), settings)),
        })
    }

    pub fn progress(&self) -> Result<Arc<dyn Progress>, EngineError> {
        Ok(match &self.progress {
            StoreLocation::Folder => {
                Arc::new(LsmProgress::open(&self.settings.data.join("progress"), self.reports.clone())?)
            }
            #[cfg(feature = "redis")]
            StoreLocation::Redis(connection) => Arc::new(RedisProgress::new(connection.clone())),
        })
    }

    pub fn inbox(&self) -> Result<Arc<dyn Inbox>, EngineError> {
        Ok(match &self.inbox {
            StoreLocation::Folder => {
                Arc::new(LsmInbox::open(&self.settings.data.join("inboxes"), self.reports.clone())?)
            }
            #[cfg(feature = "redis")]
            StoreLocation::Redis(connection) => Arc::new(RedisInbox::new(connection.clone())),
        })
    }

    pub fn sessions(&self) -> Arc<dyn Sessions> {
        match &self.sessions {
            StoreLocation::Folder => Arc::new(MemorySessions::new(Arc::clone(&self.clock))),
            #[cfg(feature = "redis")]
            StoreLocation::Redis(connection) => Arc::new(RedisSessions::new(connection.clone())),
        }
    }

    pub fn devices(&self) -> Result<Arc<dyn Devices>, EngineError> {
        Ok(match &self.devices {
            StoreLocation::Folder => {
                Arc::new(LsmDevices::open(&self.settings.data.join("devices"), self.reports.clone())?)
            }
            #[cfg(feature = "redis")]
            StoreLocation::Redis(connection) => Arc::new(RedisDevices::new(connection.clone())),
        })
    }

    /// Opens the receipts. Those in the folder follow the log. Those in Redis are shared and follow no log.
    pub fn receipts(&self, log: Arc<dyn Log>, partitions: ListPartitions) -> Result<Arc<dyn Receipts>, EngineError> {
        let (settings, clock) = (self.settings.receipts.clone(), Arc::clone(&self.clock));
        Ok(match &self.receipts {
            StoreLocation::Folder => {
                let (path, reports) = (self.settings.data.join("receipts"), self.reports.clone());
                Arc::new(LsmReceipts::open(&path, settings, log, partitions, clock, reports)?)
            }
            #[cfg(feature = "redis")]
            StoreLocation::Redis(connection) => Arc::new(RedisReceipts::new(connection.clone(), settings)),
        })
    }

    fn stores(&self) -> [(&'static str, &StoreLocation); 6] {
        [
            ("holds", &self.timers),
            ("receipts", &self.receipts),
            ("progress", &self.progress),
            ("inboxes", &self.inbox),
            ("sessions", &self.sessions),
            ("devices", &self.devices),
        ]
    }

    /// Starts a watch for each Redis in use, which reports a data loss.
    #[cfg(feature = "redis")]
    pub fn watch_losses(&self, catalogue: &Arc<dyn Catalogue>, events: &EventSink) -> Vec<JoinHandle<()>> {
        let mut watched: Vec<(&RedisConnection, Vec<&'static str>)> = Vec::new();
        for (name, place) in self.stores() {
            let StoreLocation::Redis(connection) = place else { continue };
            let is_same = |other: &RedisConnection| {
                (other.description(), other.prefix()) == (connection.description(), connection.prefix())
            };
            match watched.iter_mut().find(|(other, _)| is_same(other)) {
                Some((_, names)) => names.push(name),
                None => watched.push((connection, vec![name])),
            }
        }
        let watch = |(connection, names): (&RedisConnection, _)| {
            let (catalogue, events) = (Arc::clone(catalogue), Arc::clone(events));
            tokio::spawn(LossWatch::new(connection.clone(), catalogue, names, events).run())
        };
        watched.into_iter().map(watch).collect()
    }

    #[cfg(not(feature = "redis"))]
    pub fn watch_losses(&self, _catalogue: &Arc<dyn Catalogue>, _events: &EventSink) -> Vec<JoinHandle<()>> {
        Vec::new()
    }

    /// The description of the log, with the stores that are not in the data folder, for the banner.
    pub fn described(&self, log: String) -> String {
        let stores = self.stores();
        let mut elsewhere: Vec<(Vec<&str>, &str)> = Vec::new();
        for (name, place) in stores {
            let Some(place) = place.elsewhere() else { continue };
            match elsewhere.iter_mut().find(|(_, other)| *other == place) {
                Some((names, _)) => names.push(name),
                None => elsewhere.push((vec![name], place)),
            }
        }
        let mut described = log;
        for (names, place) in elsewhere {
            described.push_str(&format!("; {}: {place}", names.join(", ")));
        }
        described
    }
}

impl StoreLocation {
    /// The kind and address of the service, unless the store is in the data folder.
    fn elsewhere(&self) -> Option<&str> {
        match self {
            Self::Folder => None,
            #[cfg(feature = "redis")]
            Self::Redis(connection) => Some(connection.description()),
        }
    }
}

/// The services that were connected already: one connection serves all stores with the same settings.
#[derive(Default)]
struct OpenConnections {
    #[cfg(feature = "redis")]
    redis: Vec<(RedisSettings, RedisConnection)>,
}

impl OpenConnections {
    async fn connect(&mut self, engine: &StateEngine) -> Result<StoreLocation, EngineError> {
        match engine {
            StateEngine::Embedded => Ok(StoreLocation::Folder),
            #[cfg(feature = "redis")]
            StateEngine::Redis(wanted) => {
                if let Some((_, connection)) = self.redis.iter().find(|(settings, _)| settings == wanted) {
                    return Ok(StoreLocation::Redis(connection.clone()));
                }
                let connection = RedisConnection::connect(wanted.clone()).await?;
                self.redis.push((wanted.clone(), connection.clone()));
                Ok(StoreLocation::Redis(connection))
            }
        }
    }
}
