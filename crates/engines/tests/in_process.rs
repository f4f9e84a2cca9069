//! The conformance suites of the engines in this process's memory, and of the coordination within one process.

use std::sync::Arc;

use tempfile::TempDir;
use whimbrel_engines::conformance;
use whimbrel_engines::conformance::coordination::OpenCoordination;
use whimbrel_engines::conformance::devices::OpenDevices;
use whimbrel_engines::conformance::sessions::OpenSessions;
use whimbrel_engines::embedded::{FileCatalogue, InProcessCoordination, open_folder};
use whimbrel_engines::memory::{MemoryDevices, MemorySessions};
use whimbrel_model::SystemClock;
use whimbrel_model::ports::PortFuture;

whimbrel_engines::conformance_suite!(coordination, InProcess);
whimbrel_engines::conformance_suite!(sessions, InProcess);
whimbrel_engines::conformance_suite!(devices, InProcess);

struct InProcess;

async fn open(store: Arc<TempDir>) -> OpenCoordination {
    let catalogue = FileCatalogue::open(open_folder(store.path()).unwrap()).unwrap();
    let coordination = InProcessCoordination::new(Arc::new(catalogue));
    OpenCoordination { coordination: Arc::new(coordination), store }
}

impl conformance::coordination::CoordinationFactory for InProcess {
    fn open(&self) -> PortFuture<'_, OpenCoordination> {
        Box::pin(open(Arc::new(tempfile::tempdir().unwrap())))
    }

    fn open_beside<'a>(&'a self, first: &'a OpenCoordination) -> PortFuture<'a, OpenCoordination> {
        let (coordination, store) = (first.coordination.clone(), first.store.clone());
        Box::pin(async { OpenCoordination { coordination, store } })
    }

    fn reopen(&self, coordination: OpenCoordination) -> PortFuture<'_, OpenCoordination> {
        Box::pin(async {
            let store = coordination.store.downcast::<TempDir>().unwrap();
            drop(coordination.coordination);
            open(store).await
        })
    }
}

impl conformance::sessions::SessionsFactory for InProcess {
    fn open(&self) -> PortFuture<'_, OpenSessions> {
        Box::pin(async {
            OpenSessions { sessions: Arc::new(MemorySessions::new(Arc::new(SystemClock))), store: Arc::new(()) }
        })
    }
}

impl conformance::devices::DevicesFactory for InProcess {
    fn open(&self) -> PortFuture<'_, OpenDevices> {
        Box::pin(async { OpenDevices { devices: Arc::<MemoryDevices>::default(), store: Arc::new(()) } })
    }

    /// The devices last as long as the process.
    fn reopen(&self, open: OpenDevices) -> PortFuture<'_, OpenDevices> {
        Box::pin(async { open })
    }
}
