//! Every checksum of a data folder, file by file, offline or beside a running server: `whimbrel check --deep`.
//!
//! It changes no file and takes no lock; it makes a temporary copy of each store and reads that. The storage crate checks the log. The
//! modules `catalogue` and `notebook` check their own files. This module checks the stores beside the log that [`STORES`] lists.

use std::io;
use std::path::Path;
use std::sync::Arc;

use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::verify::Verifier;

pub use whimbrel_storage::verify::{CheckReport, DamageFinding, NotChecked};

use crate::embedded::lsm::verify::{OnRead, StoreCheck, bytes_in, verify};
use crate::embedded::{catalogue, notebook};
use crate::resolve::NOTEBOOK_FOLDER;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckProgress {
    /// The check will read about this many bytes.
    Planned(u64),
    /// The check has read this many further bytes.
    Read(u64),
}

/// Checks the data folder. Fails if its contents cannot be listed; the report contains every other error.
pub fn deep_check(data: &Path, on_progress: Arc<dyn Fn(CheckProgress) + Send + Sync>) -> io::Result<CheckReport> {
    let told = Arc::clone(&on_progress);
    let meter = Arc::new(move |bytes| {
        told(CheckProgress::Read(bytes));
        Ok(())
    });
    let mut verifier = Verifier::new(Arc::new(RealDisk::new()), data, meter);
    let (targets, bytes) = verifier.plan()?;
    let stores: Vec<&CheckedStore> = STORES.iter().filter(|store| data.join(store.folder).exists()).collect();
    let folders = stores.iter().map(|store| store.folder).chain([NOTEBOOK_FOLDER]);
    let bytes_beside: u64 = folders.map(|folder| bytes_in(&data.join(folder))).sum();
    on_progress(CheckProgress::Planned(bytes + bytes_beside));
    for target in &targets {
        verifier.check(target)?;
    }
    let mut report = verifier.finish();
    report.files +=
        ["catalogue.json", "catalogue.json.previous"].iter().filter(|name| data.join(name).exists()).count();
    report.add(catalogue::check_files(data));
    let on_read = |bytes| on_progress(CheckProgress::Read(bytes));
    for store in stores {
        check_store(&data.join(store.folder), store, &on_read, &mut report);
    }
    check_notebook(&data.join(NOTEBOOK_FOLDER), &on_read, &mut report);
    Ok(report)
}

/// A store beside the log.
struct CheckedStore {
    folder: &'static str,
    /// How the server repairs damage.
    remedy: &'static str,
}

const FROM_THE_LOG: &str =
    "the server rebuilds the store from the log when it meets the damage, at its next start at the latest";
const FROM_THE_COPY: &str =
    "the server rebuilds this copy from the other one when it meets the damage, at its next start at the latest";

/// The stores beside the log, in the order of the report.
const STORES: &[CheckedStore] = &[
    CheckedStore { folder: "receipts", remedy: FROM_THE_LOG },
    CheckedStore { folder: "holds", remedy: FROM_THE_LOG },
    CheckedStore { folder: "inboxes", remedy: FROM_THE_LOG },
    CheckedStore { folder: "progress", remedy: FROM_THE_COPY },
    CheckedStore { folder: "progress.mirror", remedy: FROM_THE_COPY },
    CheckedStore { folder: "devices", remedy: FROM_THE_COPY },
    CheckedStore { folder: "devices.mirror", remedy: FROM_THE_COPY },
];
/// Adds the damage of a store to the report, or the reason why it was not checked.
fn check_store(folder: &Path, store: &CheckedStore, on_read: OnRead<'_>, report: &mut CheckReport) {
    match verify(folder, on_read) {
        StoreCheck::Sound { files } => report.files += files,
        StoreCheck::Damaged { file, position, reason } => {
            let advice = "check the disk; start the server, or restart it, to have the store rebuilt".to_owned();
            let meaning = store.remedy.to_owned();
            report.add(vec![DamageFinding { file, position, what: reason, meaning, advice, is_harmless: false }]);
        }
        StoreCheck::NotChecked { reason } => {
            report.not_checked.push(NotChecked { path: folder.to_owned(), why: reason });
        }
    }
}

/// Adds the damaged chunks of the notebook to the report.
fn check_notebook(folder: &Path, on_read: OnRead<'_>, report: &mut CheckReport) {
    let found = match notebook::check(folder, on_read) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            report.not_checked.push(NotChecked { path: folder.to_owned(), why: error.to_string() });
            return;
        }
    };
    report.files += found.files;
    let other = "it is not a notebook file, or has another format".to_owned();
    report.not_checked.extend(found.not_checked.into_iter().map(|path| NotChecked { path, why: other.clone() }));
    report.add(found.damages.into_iter().map(|(file, position, what)| DamageFinding {
        file,
        position,
        what,
        meaning: "the attempts or statistics of this chunk are lost; no message is affected".to_owned(),
        advice: "check the disk (`dmesg`, SMART); the server skips the chunk".to_owned(),
        is_harmless: false,
    }));
}
