//! Opens the engines that the settings name. Only this module decides which engine serves which port.

mod state;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinHandle;
use whimbrel_model::ports::{
    AttemptStore, Catalogue, CatalogueError, Coordination, Devices, DevicesError, Inbox, InboxError, Log, LogTopics,
    Progress, ProgressError, Receipts, ReceiptsError, Sessions, Timers, TimersError,
};
use whimbrel_model::{Clock, EventSink, StoreHealth};
use whimbrel_storage::{DataFolder, OpenError};

use crate::embedded::receipts::ListPartitions;
use crate::embedded::{
    self, EmbeddedLog, FileCatalogue, FileNotebook, InProcessCoordination, NotebookSettings, StoreReports,
};
use crate::stores::{ReceiptSettings, TimerSettings};
use state::StateStores;

/// The folder of the embedded store of holds, in the data folder.
pub(crate) const HOLDS_FOLDER: &str = "holds";
pub(crate) const NOTEBOOK_FOLDER: &str = "notebook";

#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// The data folder. Every engine of the log needs it: it contains the catalogue and the receipts.
    pub data: PathBuf,
    pub log: LogEngine,
    pub coordination: CoordinationEngine,
    pub receipts: ReceiptSettings,
    pub receipts_engine: StateEngine,
    pub timers: TimerSettings,
    pub timers_engine: StateEngine,
    pub progress_engine: StateEngine,
    pub inbox_engine: StateEngine,
    /// Embedded: in this process's memory.
    pub sessions_engine: StateEngine,
    pub devices_engine: StateEngine,
    /// Every node has a notebook of its own, in its data folder.
    pub notebook: NotebookSettings,
}

#[derive(Debug, Clone)]
pub enum LogEngine {
    Embedded(whimbrel_storage::LogSettings),
    #[cfg(feature = "kafka")]
    Kafka(crate::kafka::KafkaSettings),
}

/// The engine of members, owners and the catalogue.
#[derive(Debug, Clone, Default)]
pub enum CoordinationEngine {
    /// One node, without a coordination service.
    #[default]
    InProcess,
    #[cfg(feature = "etcd")]
    Etcd(crate::etcd::EtcdSettings),
}

/// The engine of a store beside the log: receipts, timers, progress, inboxes, sessions, or devices.
#[derive(Debug, Clone, Default)]
pub enum StateEngine {
    /// In the data folder, for this process only.
    #[default]
    Embedded,
    #[cfg(feature = "redis")]
    Redis(crate::redis::RedisSettings),
}

/// The reason why the engines could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Folder(#[from] OpenError),
    #[error(transparent)]
    Receipts(#[from] ReceiptsError),
    #[error(transparent)]
    Timers(#[from] TimersError),
    #[error(transparent)]
    Progress(#[from] ProgressError),
    #[error(transparent)]
    Inbox(#[from] InboxError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error("cannot start the notebook thread: {0}")]
    NotebookThread(std::io::Error),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    #[error("the embedded log serves one node only: a cluster of several nodes needs a shared log, such as Kafka")]
    LogIsNotShared,
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::etcd::EtcdStartError),
    #[cfg(feature = "kafka")]
    #[error(transparent)]
    Kafka(#[from] crate::kafka::KafkaStartError),
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] crate::redis::RedisStartError),
}

/// The ports, each with the configured engine.
pub struct Engines {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub catalogue: Arc<dyn Catalogue>,
    pub coordination: Arc<dyn Coordination>,
    pub receipts: Arc<dyn Receipts>,
    pub timers: Arc<dyn Timers>,
    pub progress: Arc<dyn Progress>,
    pub inbox: Arc<dyn Inbox>,
    pub sessions: Arc<dyn Sessions>,
    pub devices: Arc<dyn Devices>,
    pub notebook: Arc<dyn AttemptStore>,
    /// The stores of the data folder that are unavailable now.
    pub store_health: Arc<StoreHealth>,
    /// A description of the engines and of the recovery at the start, for the banner.
    pub description: String,
    opened: OpenedLog,
    /// Locks the data folder until the engines are dropped, also for engines that store nothing in it.
    _folder: Arc<DataFolder>,
    /// Tasks that report data losses of Redis until the engines are closed.
    loss_watches: Vec<JoinHandle<()>>,
}

enum OpenedLog {
    Embedded(EmbeddedLog),
    #[cfg(feature = "kafka")]
    Kafka(Arc<crate::kafka::KafkaLog>),
}

impl Engines {
    /// Closes the engines. All accepted data is durable already; closing makes the next start quick.
    pub async fn close(&self) {
        self.loss_watches.iter().for_each(JoinHandle::abort);
        self.timers.close().await;
        self.progress.close().await;
        self.inbox.close().await;
        self.devices.close().await;
        self.notebook.close().await;
        match &self.opened {
            OpenedLog::Embedded(log) => log.close().await,
            #[cfg(feature = "kafka")]
            OpenedLog::Kafka(log) => log.close().await,
        }
    }
}

/// Opens the engines that the settings name.
pub async fn resolve(
    settings: EngineSettings,
    clock: Arc<dyn Clock>,
    events: EventSink,
) -> Result<Engines, EngineError> {
    let folder = embedded::open_folder(&settings.data)?;
    embedded::folder_finding(&folder).into_iter().for_each(|event| events(event));
    let store_health = Arc::<StoreHealth>::default();
    let reports = StoreReports { events: Arc::clone(&events), health: Arc::clone(&store_health) };
    let state = StateStores::connect(&settings, Arc::clone(&clock), reports.clone()).await?;
    let timers = state.timers()?;
    let progress = state.progress()?;
    let (inbox, sessions, devices) = (state.inbox()?, state.sessions(), state.devices()?);
    let notebook = open_notebook(&settings, Arc::clone(&clock), reports)?;
    let opened = match settings.log {
        LogEngine::Embedded(log) => open_embedded(log, &settings.coordination, &folder, &clock, &events)?,
        #[cfg(feature = "kafka")]
        LogEngine::Kafka(log) => open_kafka(log, settings.coordination, &folder, &events).await?,
    };
    Ok(Engines {
        receipts: state.receipts(Arc::clone(&opened.log), opened.list_partitions)?,
        log: opened.log,
        log_topics: opened.topics,
        loss_watches: state.watch_losses(&opened.catalogue, &events),
        catalogue: opened.catalogue,
        coordination: opened.coordination,
        timers,
        progress,
        inbox,
        sessions,
        devices,
        notebook,
        store_health,
        description: state.described(opened.description),
        opened: opened.engine,
        _folder: folder,
    })
}

/// The log with the catalogue of its topics.
struct LogAndCatalogue {
    engine: OpenedLog,
    log: Arc<dyn Log>,
    topics: Arc<dyn LogTopics>,
    list_partitions: ListPartitions,
    catalogue: Arc<dyn Catalogue>,
    coordination: Arc<dyn Coordination>,
    description: String,
}

fn open_embedded(
    settings: whimbrel_storage::LogSettings,
    coordination: &CoordinationEngine,
    folder: &Arc<DataFolder>,
    clock: &Arc<dyn Clock>,
    events: &EventSink,
) -> Result<LogAndCatalogue, EngineError> {
    if !matches!(coordination, CoordinationEngine::InProcess) {
        return Err(EngineError::LogIsNotShared);
    }
    let catalogue = open_catalogue(folder, events)?;
    let (log, recovered) = EmbeddedLog::open(Arc::clone(folder), settings, Arc::clone(clock), Arc::clone(events))?;
    // Must precede the opening of the receipts, which removes expired ones.
    if let Some(latest) = log.latest_time() {
        clock.compare_with_log(latest);
    }
    if catalogue.is_new() && !log.partitions().is_empty() {
        return Err(OpenError::CatalogueMissing(catalogue.path().to_owned()).into());
    }
    let coordination = Arc::new(InProcessCoordination::of_folder(&catalogue));
    Ok(LogAndCatalogue {
        engine: OpenedLog::Embedded(log.clone()),
        log: Arc::new(log.clone()),
        topics: Arc::new(log.clone()),
        list_partitions: Box::new(move || log.partitions()),
        catalogue,
        coordination,
        description: describe(&recovered),
    })
}

#[cfg(feature = "kafka")]
async fn open_kafka(
    settings: crate::kafka::KafkaSettings,
    coordination: CoordinationEngine,
    folder: &Arc<DataFolder>,
    events: &EventSink,
) -> Result<LogAndCatalogue, EngineError> {
    let description = format!("kafka at {}", settings.bootstrap);
    let (catalogue, coordination) = open_coordination(coordination, folder, events).await?;
    let log = crate::kafka::KafkaLog::connect(settings, Arc::clone(events)).await?;
    Ok(LogAndCatalogue {
        engine: OpenedLog::Kafka(log.clone()),
        log: log.clone(),
        topics: log.clone(),
        list_partitions: Box::new(move || log.partitions()),
        catalogue,
        coordination,
        description,
    })
}

fn open_catalogue(folder: &Arc<DataFolder>, events: &EventSink) -> Result<Arc<FileCatalogue>, EngineError> {
    let catalogue = FileCatalogue::open(Arc::clone(folder))?.reporting_to(Arc::clone(events));
    if let Some(event) = catalogue.finding() {
        events(event.clone());
    }
    Ok(Arc::new(catalogue))
}

fn open_notebook(
    settings: &EngineSettings,
    clock: Arc<dyn Clock>,
    reports: StoreReports,
) -> Result<Arc<dyn AttemptStore>, EngineError> {
    let path = settings.data.join(NOTEBOOK_FOLDER);
    let notebook = FileNotebook::open(&path, settings.notebook.clone(), clock, reports);
    Ok(Arc::new(notebook.map_err(EngineError::NotebookThread)?))
}

#[cfg(feature = "kafka")]
async fn open_coordination(
    engine: CoordinationEngine,
    folder: &Arc<DataFolder>,
    events: &EventSink,
) -> Result<(Arc<dyn Catalogue>, Arc<dyn Coordination>), EngineError> {
    match engine {
        CoordinationEngine::InProcess => {
            let catalogue = open_catalogue(folder, events)?;
            let coordination = InProcessCoordination::of_folder(&catalogue);
            Ok((catalogue, Arc::new(coordination)))
        }
        #[cfg(feature = "etcd")]
        CoordinationEngine::Etcd(settings) => {
            let connection = crate::etcd::EtcdConnection::connect(settings).await?;
            let catalogue = crate::etcd::EtcdCatalogue::reporting_to(connection.clone(), Arc::clone(events));
            Ok((Arc::new(catalogue), Arc::new(crate::etcd::EtcdCoordination::new(connection))))
        }
    }
}

/// The name of the engine, and the findings of its start for the operator.
fn describe(recovered: &whimbrel_storage::LogRecovery) -> String {
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
