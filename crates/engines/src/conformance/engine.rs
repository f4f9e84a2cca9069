//! Engines under test: where their data is, and how a port opens there.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use whimbrel_model::ports::PortFuture;

/// The place of an instance's data: a folder, an address with a prefix. Instances that are opened at one place have the same data.
pub type Place = Arc<dyn Any + Send + Sync>;

/// An engine under test.
pub trait Engine: Send + Sync {
    /// An empty place. On a shared server it has a prefix of its own, unless the suite of the port says that tests may share a place.
    fn new_place(&self) -> Place;

    /// The reason why the suites are skipped here, if they may be skipped.
    fn skip(&self) -> Option<String> {
        None
    }
}

/// An engine of the port `P`.
pub trait Opens<P: ?Sized + Send + Sync + 'static>: Engine {
    /// Opens an instance, independent of others at this place, like another process.
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<P>>;

    /// An instance at a new place.
    fn open(&self) -> PortFuture<'_, Opened<P>> {
        self.opened_at(self.new_place())
    }

    /// A second instance at the place of the first one.
    fn open_beside(&self, first: &Opened<P>) -> PortFuture<'_, Opened<P>> {
        self.opened_at(first.place.clone())
    }

    /// Closes the instance and opens its place again. The suite has dropped every other handle of the instance.
    fn reopen(&self, opened: Opened<P>) -> PortFuture<'_, Opened<P>> {
        drop(opened.port);
        self.opened_at(opened.place)
    }

    fn opened_at(&self, place: Place) -> PortFuture<'_, Opened<P>> {
        Box::pin(async { Opened { port: self.open_at(place.clone()).await, place } })
    }
}

/// One open instance of a port.
pub struct Opened<P: ?Sized> {
    pub port: Arc<P>,
    /// Dropped after the instance.
    pub place: Place,
}

impl<P: ?Sized> Deref for Opened<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.port
    }
}
