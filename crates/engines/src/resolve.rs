//! From settings to engines: which engine serves which port is decided here and nowhere else.

use std::path::PathBuf;
use std::sync::Arc;

use whimbrel_model::EventSink;
use whimbrel_model::ports::{Catalogue, Log, LogTopics, Receipts, ReceiptsError, Timers, TimersError};
use whimbrel_storage::OpenError;

use crate::embedded::{self, EmbeddedLog, FileCatalogue, LsmReceipts, LsmTimers, ReceiptSettings, TimerSettings};

/// What the configuration says about engines.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// The data folder. Every engine of the log has one: the catalogue and the receipts are in it.
    pub data: PathBuf,
    pub log: LogEngine,
    pub receipts: ReceiptSettings,
    pub timers: TimerSettings,
}

#[derive(Debug, Clone)]
pub enum LogEngine {
    Embedded(whimbrel_storage::Settings),
    #[cfg(feature = "kafka")]
    Kafka(crate::kafka::KafkaSettings),
}

/// Why the engines could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Folder(#[from] OpenError),
    #[error(transparent)]
    Receipts(#[from] ReceiptsError),
    #[error(transparent)]
    Timers(#[from] TimersError),
    #[cfg(feature = "kafka")]
    #[error(transparent)]
    Kafka(#[from] crate::kafka::KafkaStartError),
}

/// The ports, each with the engine that was chosen for it.
pub struct Engines {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub catalogue: Arc<dyn Catalogue>,
    pub receipts: Arc<dyn Receipts>,
    pub timers: Arc<dyn Timers>,
    /// What was found at the start, in a sentence for the banner.
    pub description: String,
    opened: Opened,
}

enum Opened {
    Embedded(EmbeddedLog),
    #[cfg(feature = "kafka")]
    Kafka(Arc<crate::kafka::KafkaLog>),
}

impl Engines {
    /// Ends the engines: what was accepted is durable already, this makes the next start quick.
    pub async fn close(&self) {
        match &self.opened {
            Opened::Embedded(log) => log.close().await,
            #[cfg(feature = "kafka")]
            Opened::Kafka(log) => log.close().await,
        }
    }
}

/// Opens the engines that the settings name.
pub async fn resolve(settings: EngineSettings, events: EventSink) -> Result<Engines, EngineError> {
    let folder = embedded::open_folder(&settings.data)?;
    let catalogue = Arc::new(FileCatalogue::open(folder.clone())?);
    let receipts_path = settings.data.join("receipts");
    let timers = Arc::new(LsmTimers::open(&settings.data.join("holds"), settings.timers)?);
    match settings.log {
        LogEngine::Embedded(log_settings) => {
            let (log, recovered) = EmbeddedLog::open(folder, log_settings, events)?;
            if catalogue.is_new() && !log.partitions().is_empty() {
                return Err(OpenError::CatalogueMissing(catalogue.path().to_owned()).into());
            }
            let listed = log.clone();
            let shared: Arc<dyn Log> = Arc::new(log.clone());
            let list = Box::new(move || listed.partitions());
            let receipts = LsmReceipts::open(&receipts_path, settings.receipts, shared.clone(), list)?;
            Ok(Engines {
                log: shared,
                log_topics: Arc::new(log.clone()),
                catalogue,
                receipts: Arc::new(receipts),
                timers,
                description: describe(&recovered),
                opened: Opened::Embedded(log),
            })
        }
        #[cfg(feature = "kafka")]
        LogEngine::Kafka(kafka_settings) => {
            let description = format!("kafka at {}", kafka_settings.bootstrap);
            let log = crate::kafka::KafkaLog::connect(kafka_settings, events).await?;
            let listed = log.clone();
            let list = Box::new(move || listed.partitions());
            let receipts = LsmReceipts::open(&receipts_path, settings.receipts, log.clone(), list)?;
            Ok(Engines {
                log: log.clone(),
                log_topics: log.clone(),
                catalogue,
                receipts: Arc::new(receipts),
                timers,
                description,
                opened: Opened::Kafka(log),
            })
        }
    }
}

/// Which engine it is, and what its start found that an operator should know.
fn describe(recovered: &whimbrel_storage::Recovered) -> String {
    let mut found = Vec::new();
    if recovered.frames_replayed > 0 {
        found.push(format!("frames replayed: {}", recovered.frames_replayed));
    }
    if recovered.torn_tail_cut {
        found.push("a torn tail cut".to_owned());
    }
    if !recovered.damage.is_empty() {
        found.push(format!("DAMAGED PLACES: {}", recovered.damage.len()));
    }
    if found.is_empty() { "embedded".to_owned() } else { format!("embedded ({})", found.join(", ")) }
}
