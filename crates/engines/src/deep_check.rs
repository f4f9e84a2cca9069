//! Every checksum of a data folder, file by file, offline or beside a running server: `whimbrel check --deep`.
//!
//! It changes no file and takes no lock; it makes a temporary copy of each store and reads that. The storage crate checks the log, the
//! module of the catalogue checks the catalogue, and this module checks the stores beside the log that [`STORES`] lists.

use std::io;
use std::path::Path;
use std::sync::Arc;

use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::verify::Verifier;

pub use whimbrel_storage::verify::{Finding, NotChecked, Report};

use crate::embedded::catalogue;
use crate::embedded::lsm::verify::{StoreCheck, verify};

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The check will read about this many bytes.
    Planned(u64),
    /// The check has read this many further bytes.
    Read(u64),
}

/// Checks the data folder. Fails if its contents cannot be listed; the report contains every other error.
pub fn deep_check(data: &Path, on_progress: Arc<dyn Fn(Progress) + Send + Sync>) -> io::Result<Report> {
    let told = Arc::clone(&on_progress);
    let meter = Arc::new(move |bytes| {
        told(Progress::Read(bytes));
        Ok(())
    });
    let mut verifier = Verifier::new(Arc::new(RealDisk::new()), data, meter);
    let (targets, bytes) = verifier.plan()?;
    on_progress(Progress::Planned(bytes));
    for target in &targets {
        verifier.check(target)?;
    }
    let mut report = verifier.finish();
    report.files +=
        ["catalogue.json", "catalogue.json.previous"].iter().filter(|name| data.join(name).exists()).count();
    report.add(catalogue::check_files(data));
    for store in STORES.iter().filter(|store| data.join(store.folder).exists()) {
        check_store(&data.join(store.folder), store, &mut report);
    }
    if data.join(NOTEBOOK).exists() {
        let why = "the server skips damaged chunks of it when it reads them".to_owned();
        report.not_checked.push(NotChecked { path: data.join(NOTEBOOK), why });
    }
    Ok(report)
}

/// A store beside the log.
struct Store {
    /// Its folder in the data folder.
    folder: &'static str,
    /// How the server repairs damage.
    remedy: &'static str,
}

const FROM_THE_LOG: &str =
    "the server rebuilds the store from the log when it meets the damage, at its next start at the latest";
const FROM_THE_COPY: &str =
    "the server rebuilds this copy from the other one when it meets the damage, at its next start at the latest";

/// The stores beside the log, in the order of the report.
const STORES: &[Store] = &[
    Store { folder: "receipts", remedy: FROM_THE_LOG },
    Store { folder: "holds", remedy: FROM_THE_LOG },
    Store { folder: "inboxes", remedy: FROM_THE_LOG },
    Store { folder: "progress", remedy: FROM_THE_COPY },
    Store { folder: "progress.mirror", remedy: FROM_THE_COPY },
    Store { folder: "devices", remedy: FROM_THE_COPY },
    Store { folder: "devices.mirror", remedy: FROM_THE_COPY },
];
/// Attempts and statistics. The server reads them chunk by chunk and skips damaged chunks.
const NOTEBOOK: &str = "notebook";

/// Adds the damage of a store to the report, or the reason why it was not checked.
fn check_store(folder: &Path, store: &Store, report: &mut Report) {
    match verify(folder) {
        StoreCheck::Sound { files } => report.files += files,
        StoreCheck::Damaged { file, position, reason } => {
            let advice = "check the disk; start the server, or restart it, to have the store rebuilt".to_owned();
            let meaning = store.remedy.to_owned();
            report.add(vec![Finding { file, position, what: reason, meaning, advice, is_harmless: false }]);
        }
        StoreCheck::NotChecked { reason } => {
            report.not_checked.push(NotChecked { path: folder.to_owned(), why: reason });
        }
    }
}
