//! The embedded engine: a folder on the local disk.
//!
//! ```text
//! whimbrel-data/
//!   FORMAT, LOCK      the format of the folder, and the lock of the process that uses it
//!   log/              the journal and the segments (of the storage crate)
//!   catalogue.json    topics with their numbers
//!   receipts/         answers to idempotency keys and publishers' ids (an LSM)
//!   holds/            pending holds and the outcomes of others, beside the log (an LSM)
//!   progress/         the progress of subscriptions (an LSM); progress.mirror/ is its second copy
//!   inboxes/          users' unacknowledged messages, beside the log (an LSM)
//!   devices/          users' devices for notifications (an LSM); devices.mirror/ is its second copy
//!   notebook/         delivery attempts, and statistics by the minute (slices of time)
//! ```

pub(crate) mod catalogue;
mod coordination;
mod devices;
pub(crate) mod inbox;
mod log;
pub(crate) mod lsm;
mod memtable_sealer;
pub(crate) mod notebook;
pub(crate) mod progress;
pub(crate) mod receipts;
mod records;
mod scrub;
mod slices;
mod thread_priority;
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
pub use receipts::LsmReceipts;
pub use timers::LsmTimers;

use std::path::Path;
use std::sync::Arc;

use whimbrel_model::Event;
use whimbrel_storage::DataFolder;
use whimbrel_storage::disk::RealDisk;

/// The settings and opening errors of the data folder's log, for the wiring of the server.
pub use whimbrel_storage::{LogSettings, OpenError};

/// Opens a data folder on the machine's own disk and locks it.
pub fn open_folder(path: &Path) -> Result<Arc<DataFolder>, OpenError> {
    DataFolder::open(Arc::new(RealDisk::new()), path).map(Arc::new)
}

/// Checks whether a data folder can be opened now. Returns a problem with its `FORMAT` that does not prevent that. Changes nothing.
pub fn probe_folder(path: &Path) -> Result<Option<String>, OpenError> {
    let replaced = DataFolder::probe(&RealDisk::new(), path)?;
    Ok(replaced.map(|replaced| log::file_replaced(&replaced).detail))
}

/// The problem with the `FORMAT` of a folder that was opened nevertheless, as an event.
pub fn folder_finding(folder: &DataFolder) -> Option<Event> {
    folder.finding.as_ref().map(log::file_replaced)
}
