//! The embedded engine: a folder on disk and nothing else.
//!
//! ```text
//! whimbrel-data/
//!   FORMAT, LOCK      what it is, and who has it open
//!   log/              the journal and the segments (the storage crate's)
//!   catalogue.json    topics with their numbers
//!   receipts/         answers to idempotency keys and brought ids (an LSM)
//!   holds/            what is pending and what became of it, beside the log (an LSM)
//!   progress/         how far subscriptions have come (an LSM); progress.mirror/ is its second copy
//!   inboxes/          what users have not acknowledged, beside the log (an LSM)
//!   devices/          where notices for users go (an LSM); devices.mirror/ is its second copy
//!   notebook/         what was tried, and figures by the minute (slices of time)
//! ```

mod background;
pub(crate) mod catalogue;
mod coordination;
mod devices;
pub(crate) mod inbox;
mod log;
pub(crate) mod lsm;
pub(crate) mod notebook;
pub(crate) mod progress;
pub(crate) mod receipts;
mod records;
mod scrub;
mod sealing;
pub(crate) mod sessions;
mod slices;
mod timers;
mod topics;

pub use catalogue::FileCatalogue;
pub use coordination::InProcessCoordination;
pub use devices::LsmDevices;
pub use inbox::LsmInbox;
pub use log::{EmbeddedLog, record_bytes_max};
pub use lsm::report::StoreReports;
pub use notebook::{FileNotebook, NotebookSettings};
pub use progress::LsmProgress;
pub use receipts::{LsmReceipts, ReceiptSettings};
pub use sessions::MemorySessions;
pub use timers::{LsmTimers, TimerSettings};

use std::path::Path;
use std::sync::Arc;

use whimbrel_model::Event;
use whimbrel_storage::DataFolder;
use whimbrel_storage::disk::RealDisk;

/// What the log of the data folder takes and says, for those who wire it.
pub use whimbrel_storage::{OpenError, Settings as LogSettings};

/// Opens a data folder on the machine's own disk and locks it.
pub fn open_folder(path: &Path) -> Result<Arc<DataFolder>, OpenError> {
    DataFolder::open(Arc::new(RealDisk::new()), path).map(Arc::new)
}

/// Says whether a data folder can be opened now, and what is wrong with its `FORMAT` all the same. Nothing is changed.
pub fn probe_folder(path: &Path) -> Result<Option<String>, OpenError> {
    let replaced = DataFolder::probe(&RealDisk::new(), path)?;
    Ok(replaced.map(|replaced| log::file_replaced(&replaced).detail))
}

/// What was wrong with the `FORMAT` of a folder that was opened all the same, for whoever writes events.
pub fn folder_finding(folder: &DataFolder) -> Option<Event> {
    folder.finding.as_ref().map(log::file_replaced)
}
