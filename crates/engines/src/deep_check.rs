//! Every checksum of a data folder, file by file, offline or beside a running server: `whimbrel check --deep`.
//!
//! It changes no file and takes no lock; it makes a copy of each store while it reads it. The log is checked by the storage crate, the catalogue by its own module, and each store beside the log
//! as [`STORES`] lists them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::verify::Verifier;

pub use whimbrel_storage::verify::{Finding, NotChecked, Report};

use crate::embedded::catalogue;
use crate::embedded::lsm::verify::{StoreCheck, verify};

/// How far a check has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It will read about this many bytes.
    Planned(u64),
    /// It has read this many more.
    Read(u64),
}

/// Checks the data folder. Fails where its contents cannot be listed; everything else is in the report.
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
    /// What the server does about a damage.
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
/// Attempts and statistics, which the server reads chunk by chunk and skips where they are damaged.
const NOTEBOOK: &str = "notebook";

/// Adds what is wrong with a store, or why it was not checked.
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
