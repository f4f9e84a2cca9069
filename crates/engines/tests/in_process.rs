//! The conformance suite of the coordination within one process.

use std::sync::Arc;

use tempfile::TempDir;
use whimbrel_engines::conformance::coordination::{CoordinationFactory, OpenCoordination};
use whimbrel_engines::embedded::{FileCatalogue, InProcessCoordination, open_folder};
use whimbrel_model::ports::PortFuture;

whimbrel_engines::conformance_suite!(coordination, InProcess);

struct InProcess;

async fn open(store: Arc<TempDir>) -> OpenCoordination {
    let catalogue = FileCatalogue::open(open_folder(store.path()).unwrap()).unwrap();
    let coordination = InProcessCoordination::new(Arc::new(catalogue));
    OpenCoordination { coordination: Arc::new(coordination), store }
}

impl CoordinationFactory for InProcess {
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
