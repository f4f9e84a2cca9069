//! The stores beside the log, receipts, timers, progress, inboxes, sessions and devices: in the data folder or on Redis, each as its
//! settings say.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinHandle;
use whimbrel_model::ports::{Catalogue, Devices, Inbox, Log, Progress, Receipts, Sessions, Timers};
use whimbrel_model::{Clock, EventSink};

use super::{EngineError, EngineSettings, StateEngine};
use crate::embedded::receipts::ListPartitions;
use crate::embedded::{
    LsmDevices, LsmInbox, LsmProgress, LsmReceipts, LsmTimers, MemorySessions, ReceiptSettings, StoreReports,
    TimerSettings,
};
#[cfg(feature = "redis")]
use crate::redis::{
    LossWatch, RedisConnection, RedisDevices, RedisInbox, RedisProgress, RedisReceipts, RedisSessions, RedisSettings,
    RedisTimers,
};

/// Where the stores are. Whatever can be out of reach has been reached.
pub(super) struct State {
    data: PathBuf,
    clock: Arc<dyn Clock>,
    reports: StoreReports,
    receipt_settings: ReceiptSettings,
    receipts: Place,
    timer_settings: TimerSettings,
    timers: Place,
    progress: Place,
    inbox: Place,
    sessions: Place,
    devices: Place,
}

enum Place {
    Folder,
    #[cfg(feature = "redis")]
    Redis(RedisConnection),
}

impl State {
    pub async fn reach(
        settings: &EngineSettings,
        clock: Arc<dyn Clock>,
        reports: StoreReports,
    ) -> Result<Self, EngineError> {
        let mut reached = Reached::default();
        Ok(Self {
            timers: reached.reach(&settings.timers_engine).await?,
            receipts: reached.reach(&settings.receipts_engine).await?,
            progress: reached.reach(&settings.progress_engine).await?,
            inbox: reached.reach(&settings.inbox_engine).await?,
            sessions: reached.reach(&settings.sessions_engine).await?,
            devices: reached.reach(&settings.devices_engine).await?,
            data: settings.data.clone(),
            clock,
            reports,
            receipt_settings: settings.receipts.clone(),
            timer_settings: settings.timers.clone(),
        })
    }

    pub fn timers(&self) -> Result<Arc<dyn Timers>, EngineError> {
        let settings = self.timer_settings.clone();
        Ok(match &self.timers {
            Place::Folder => {
                Arc::new(LsmTimers::open(&self.data.join(super::HOLDS_FOLDER), settings, self.reports.clone())?)
            }
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisTimers::new(connection.clone(), settings)),
        })
    }

    pub fn progress(&self) -> Result<Arc<dyn Progress>, EngineError> {
        Ok(match &self.progress {
            Place::Folder => Arc::new(LsmProgress::open(&self.data.join("progress"), self.reports.clone())?),
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisProgress::new(connection.clone())),
        })
    }

    pub fn inbox(&self) -> Result<Arc<dyn Inbox>, EngineError> {
        Ok(match &self.inbox {
            Place::Folder => Arc::new(LsmInbox::open(&self.data.join("inboxes"), self.reports.clone())?),
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisInbox::new(connection.clone())),
        })
    }

    pub fn sessions(&self) -> Arc<dyn Sessions> {
        match &self.sessions {
            Place::Folder => Arc::new(MemorySessions::new(Arc::clone(&self.clock))),
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisSessions::new(connection.clone())),
        }
    }

    pub fn devices(&self) -> Result<Arc<dyn Devices>, EngineError> {
        Ok(match &self.devices {
            Place::Folder => Arc::new(LsmDevices::open(&self.data.join("devices"), self.reports.clone())?),
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisDevices::new(connection.clone())),
        })
    }

    /// Receipts in the folder follow the log; those on Redis are shared and have nothing to follow.
    pub fn receipts(&self, log: Arc<dyn Log>, partitions: ListPartitions) -> Result<Arc<dyn Receipts>, EngineError> {
        let (settings, clock) = (self.receipt_settings.clone(), Arc::clone(&self.clock));
        Ok(match &self.receipts {
            Place::Folder => {
                let (path, reports) = (self.data.join("receipts"), self.reports.clone());
                Arc::new(LsmReceipts::open(&path, settings, log, partitions, clock, reports)?)
            }
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisReceipts::new(connection.clone(), settings)),
        })
    }

    fn stores(&self) -> [(&'static str, &Place); 6] {
        [
            ("holds", &self.timers),
            ("receipts", &self.receipts),
            ("progress", &self.progress),
            ("inboxes", &self.inbox),
            ("sessions", &self.sessions),
            ("devices", &self.devices),
        ]
    }

    /// Starts a watch over every Redis that is used, which reports when one has lost what it kept.
    #[cfg(feature = "redis")]
    pub fn watch_losses(&self, catalogue: &Arc<dyn Catalogue>, events: &EventSink) -> Vec<JoinHandle<()>> {
        let mut watched: Vec<(&RedisConnection, Vec<&'static str>)> = Vec::new();
        for (name, place) in self.stores() {
            let Place::Redis(connection) = place else { continue };
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

    /// What the banner says of the log, and what it says of stores that are elsewhere.
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

impl Place {
    /// What and where it is, unless it is the data folder.
    fn elsewhere(&self) -> Option<&str> {
        match self {
            Self::Folder => None,
            #[cfg(feature = "redis")]
            Self::Redis(connection) => Some(connection.description()),
        }
    }
}

/// What was reached already: one connection serves all stores that are in one place.
#[derive(Default)]
struct Reached {
    #[cfg(feature = "redis")]
    redis: Vec<(RedisSettings, RedisConnection)>,
}

impl Reached {
    async fn reach(&mut self, engine: &StateEngine) -> Result<Place, EngineError> {
        match engine {
            StateEngine::Embedded => Ok(Place::Folder),
            #[cfg(feature = "redis")]
            StateEngine::Redis(wanted) => {
                if let Some((_, connection)) = self.redis.iter().find(|(settings, _)| settings == wanted) {
                    return Ok(Place::Redis(connection.clone()));
                }
                let connection = RedisConnection::connect(wanted.clone()).await?;
                self.redis.push((wanted.clone(), connection.clone()));
                Ok(Place::Redis(connection))
            }
        }
    }
}
