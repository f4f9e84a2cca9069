//! The conformance suites of the engines in this process's memory, and of the coordination within one process.

use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;
use whimbrel_engines::conformance::coordination::CoordinationFactory;
use whimbrel_engines::conformance::{Engine, Opens, Place};
use whimbrel_engines::embedded::{FileCatalogue, InProcessCoordination, open_folder};
use whimbrel_engines::memory::{MemoryDevices, MemorySessions};
use whimbrel_model::SystemClock;
use whimbrel_model::ports::{Coordination, Devices, PortFuture, Sessions};

whimbrel_engines::conformance_suite!([coordination, sessions, devices], InProcess);

struct InProcess;

/// A process with its folder.
struct Process {
    folder: TempDir,
    coordination: Mutex<Weak<InProcessCoordination>>,
    devices: Arc<MemoryDevices>,
}

fn process(place: &Place) -> &Process {
    place.downcast_ref().unwrap()
}

impl Engine for InProcess {
    fn new_place(&self) -> Place {
        let folder = tempfile::tempdir().unwrap();
        Arc::new(Process { folder, coordination: Mutex::default(), devices: Arc::default() })
    }
}

impl Opens<dyn Coordination> for InProcess {
    /// A process has one coordination, which all its parts share.
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Coordination>> {
        Box::pin(async move {
            let mut shared = process(&place).coordination.lock().unwrap();
            let coordination = shared.upgrade().unwrap_or_else(|| {
                let catalogue = FileCatalogue::open(open_folder(process(&place).folder.path()).unwrap()).unwrap();
                Arc::new(InProcessCoordination::new(Arc::new(catalogue)))
            });
            *shared = Arc::downgrade(&coordination);
            coordination as Arc<dyn Coordination>
        })
    }
}

impl CoordinationFactory for InProcess {}

impl Opens<dyn Sessions> for InProcess {
    fn open_at(&self, _: Place) -> PortFuture<'_, Arc<dyn Sessions>> {
        Box::pin(async { Arc::new(MemorySessions::new(Arc::new(SystemClock))) as Arc<dyn Sessions> })
    }
}

impl Opens<dyn Devices> for InProcess {
    /// The devices last as long as the process.
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Devices>> {
        Box::pin(async move { process(&place).devices.clone() as Arc<dyn Devices> })
    }
}
