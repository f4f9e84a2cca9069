//! Every checksum of a data folder, file by file, offline or beside a running server: `whimbrel check --deep`.
//!
//! It only reads, and takes no lock. The log is checked by the storage crate, the catalogue by its own module, and each store beside the log
//! by its entry in [`STORES`].

use std::io;
use std::path::Path;
use std::sync::Arc;

use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::verify::Verifier;

pub use whimbrel_storage::verify::{Finding, NotChecked, Report};

use crate::embedded::catalogue;

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
        (store.check)(&data.join(store.folder), &mut report);
    }
    Ok(report)
}

/// A store beside the log.
struct StoreCheck {
    /// Its folder in the data folder.
    folder: &'static str,
    /// Adds what is wrong with the store, or why it was not checked. It must change nothing, also beside a running server.
    check: fn(&Path, &mut Report),
}

/// The stores beside the log, in the order of the report.
const STORES: &[StoreCheck] = &[
    StoreCheck { folder: "receipts", check: not_checked },
    StoreCheck { folder: "holds", check: not_checked },
    StoreCheck { folder: "inboxes", check: not_checked },
    StoreCheck { folder: "progress", check: not_checked },
    StoreCheck { folder: "devices", check: not_checked },
    StoreCheck { folder: "notebook", check: not_checked },
];

fn not_checked(folder: &Path, report: &mut Report) {
    let why = "the server checks this store when it reads it; opening it from here could change it";
    report.not_checked.push(NotChecked { path: folder.to_owned(), why: why.to_owned() });
}
