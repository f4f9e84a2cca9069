//! The embedded engine, held to the contracts of the ports.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use whimbrel_engines::conformance;
use whimbrel_engines::conformance::catalogue::OpenCatalogue;
use whimbrel_engines::conformance::log::{LogTraits, OpenLog};
use whimbrel_engines::conformance::receipts::OpenReceipts;
use whimbrel_engines::embedded::{EmbeddedLog, FileCatalogue, LsmReceipts, ReceiptSettings, open_folder};
use whimbrel_model::EventSink;
use whimbrel_model::ports::PortFuture;
use whimbrel_storage::Settings;

whimbrel_engines::conformance_suite!(log, Embedded);
whimbrel_engines::conformance_suite!(catalogue, Embedded);
whimbrel_engines::conformance_suite!(receipts, Embedded);

struct Embedded;

const SEGMENT_BYTES: u64 = 16 << 10;

fn settings() -> Settings {
    Settings {
        frame_bytes_max: 1 << 20,
        frame_bytes_target: 256 << 10,
        journal_file_bytes: 2 << 20,
        journal_bytes_max: 32 << 20,
        checkpoint_bytes: 8 << 20,
        segment_bytes: SEGMENT_BYTES,
        disk_reserve_bytes: 0,
        ..Settings::default()
    }
}

fn silent() -> EventSink {
    Arc::new(|_| {})
}

fn open_log(path: &Path, store: Arc<TempDir>) -> OpenLog {
    let (log, _) = EmbeddedLog::open(open_folder(path).unwrap(), settings(), silent()).unwrap();
    let log = Arc::new(log);
    OpenLog { log: log.clone(), topics: log, store }
}

fn folder_of(store: Arc<dyn Any + Send + Sync>) -> Arc<TempDir> {
    store.downcast::<TempDir>().unwrap()
}

impl conformance::log::Factory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenLog> {
        Box::pin(async {
            let store = Arc::new(tempfile::tempdir().unwrap());
            open_log(store.clone().path(), store)
        })
    }

    fn open_beside<'a>(&'a self, _: &'a OpenLog) -> PortFuture<'a, Option<OpenLog>> {
        Box::pin(async { None })
    }

    fn reopen(&self, log: OpenLog) -> PortFuture<'_, OpenLog> {
        Box::pin(async {
            let store = folder_of(log.store);
            drop((log.log, log.topics));
            open_log(store.clone().path(), store)
        })
    }

    fn traits(&self) -> LogTraits {
        LogTraits { record_bytes_max: settings().frame_bytes_max / 2 - 256, trim_piece_bytes: 0 }
    }
}

impl conformance::catalogue::Factory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenCatalogue> {
        Box::pin(async {
            let store = Arc::new(tempfile::tempdir().unwrap());
            let catalogue = Arc::new(FileCatalogue::open(open_folder(store.path()).unwrap()).unwrap());
            OpenCatalogue { catalogue, store }
        })
    }

    fn reopen(&self, open: OpenCatalogue) -> PortFuture<'_, OpenCatalogue> {
        Box::pin(async {
            let store = folder_of(open.store);
            drop(open.catalogue);
            let catalogue = Arc::new(FileCatalogue::open(open_folder(store.path()).unwrap()).unwrap());
            OpenCatalogue { catalogue, store }
        })
    }
}

impl conformance::receipts::Factory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenReceipts> {
        Box::pin(async {
            let store = Arc::new(tempfile::tempdir().unwrap());
            let opened = open_log(store.clone().path(), store.clone());
            let window = Duration::from_secs(60);
            let settings = ReceiptSettings { window, ..ReceiptSettings::default() };
            let path = store.path().join("receipts");
            let receipts = LsmReceipts::open(&path, settings, opened.log, Box::new(Vec::new)).unwrap();
            OpenReceipts { receipts: Arc::new(receipts), window, store }
        })
    }
}
