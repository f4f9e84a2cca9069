//! The stores beside the log, receipts and timers: in the data folder or on Redis, each as its settings say.

use std::path::PathBuf;
use std::sync::Arc;

use whimbrel_model::ports::{Log, Receipts, Timers};

use super::{EngineError, EngineSettings, StateEngine};
use crate::embedded::receipts::ListPartitions;
use crate::embedded::{LsmReceipts, LsmTimers, ReceiptSettings, TimerSettings};
#[cfg(feature = "redis")]
use crate::redis::{RedisConnection, RedisReceipts, RedisTimers};

/// Where the stores are. Whatever can be out of reach has been reached.
pub(super) struct State {
    data: PathBuf,
    receipt_settings: ReceiptSettings,
    receipts: Place,
    timer_settings: TimerSettings,
    timers: Place,
}

enum Place {
    Folder,
    #[cfg(feature = "redis")]
    Redis(RedisConnection),
}

impl State {
    pub async fn reach(settings: &EngineSettings) -> Result<Self, EngineError> {
        let timers = Place::reach(&settings.timers_engine).await?;
        let receipts = match (&settings.receipts_engine, &settings.timers_engine, &timers) {
            // One connection serves both where they are in one place.
            #[cfg(feature = "redis")]
            (StateEngine::Redis(wanted), StateEngine::Redis(reached), Place::Redis(connection))
                if wanted == reached =>
            {
                Place::Redis(connection.clone())
            }
            (engine, ..) => Place::reach(engine).await?,
        };
        Ok(Self {
            data: settings.data.clone(),
            receipt_settings: settings.receipts.clone(),
            receipts,
            timer_settings: settings.timers.clone(),
            timers,
        })
    }

    pub fn timers(&self) -> Result<Arc<dyn Timers>, EngineError> {
        let settings = self.timer_settings.clone();
        Ok(match &self.timers {
            Place::Folder => Arc::new(LsmTimers::open(&self.data.join(super::HOLDS_FOLDER), settings)?),
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisTimers::new(connection.clone(), settings)),
        })
    }

    /// Receipts in the folder follow the log; those on Redis are shared and have nothing to follow.
    pub fn receipts(&self, log: Arc<dyn Log>, partitions: ListPartitions) -> Result<Arc<dyn Receipts>, EngineError> {
        let settings = self.receipt_settings.clone();
        Ok(match &self.receipts {
            Place::Folder => Arc::new(LsmReceipts::open(&self.data.join("receipts"), settings, log, partitions)?),
            #[cfg(feature = "redis")]
            Place::Redis(connection) => Arc::new(RedisReceipts::new(connection.clone(), settings)),
        })
    }

    /// What the banner says of the log, and what it says of stores that are elsewhere.
    pub fn described(&self, log: String) -> String {
        #[cfg(feature = "redis")]
        match (&self.timers, &self.receipts) {
            (Place::Redis(connection), Place::Redis(_)) => {
                return format!("{log}; holds and receipts: {}", connection.description());
            }
            (Place::Redis(connection), Place::Folder) => return format!("{log}; holds: {}", connection.description()),
            (Place::Folder, Place::Redis(connection)) => {
                return format!("{log}; receipts: {}", connection.description());
            }
            (Place::Folder, Place::Folder) => {}
        }
        log
    }
}

impl Place {
    async fn reach(engine: &StateEngine) -> Result<Self, EngineError> {
        match engine {
            StateEngine::Embedded => Ok(Self::Folder),
            #[cfg(feature = "redis")]
            StateEngine::Redis(settings) => Ok(Self::Redis(RedisConnection::connect(settings.clone()).await?)),
        }
    }
}
