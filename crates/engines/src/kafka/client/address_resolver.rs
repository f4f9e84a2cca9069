//! Name lookups. The resolver of the operating system blocks a thread while its name servers do not answer. Each address therefore has at
//! most one lookup in progress, and all dials that wait for the address share its result.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};

type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;
type AddressResult = Result<Arc<[SocketAddr]>, String>;
type SharedLookup = Shared<BoxFuture<'static, AddressResult>>;

/// Finds the socket addresses of `host:port`.
#[derive(Clone)]
pub(super) struct AddressResolver {
    lookup: Arc<Lookup>,
    /// Lookups in progress, by address.
    under_way: Arc<Mutex<HashMap<String, SharedLookup>>>,
}

impl AddressResolver {
    /// Uses the resolver of the operating system.
    pub fn of_the_system() -> Self {
        Self::new(|address| address.to_socket_addrs().map(Iterator::collect))
    }

    /// `lookup` may block.
    pub fn new(lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self { lookup: Arc::new(lookup), under_way: Arc::default() }
    }

    /// Looks an address up on a blocking thread of the current runtime. If the caller is dropped, the lookup continues for later callers.
    pub async fn resolve(&self, address: &str) -> AddressResult {
        if let Ok(literal) = address.parse::<SocketAddr>() {
            return Ok(Arc::new([literal]));
        }
        let lookup = self.lookup_of(address);
        lookup.await
    }

    fn lookup_of(&self, address: &str) -> SharedLookup {
        let mut under_way = self.under_way();
        if let Some(lookup) = under_way.get(address) {
            return lookup.clone();
        }
        let (lookup, address) = (self.lookup.clone(), address.to_owned());
        let looked_up = address.clone();
        let blocking = tokio::task::spawn_blocking(move || lookup(&looked_up));
        let lookup = async move {
            match blocking.await {
                Ok(found) => found.map(Arc::from).map_err(|error| error.to_string()),
                Err(_) => Err("the log is shutting down".to_owned()),
            }
        };
        let lookup = lookup.boxed().shared();
        under_way.insert(address.clone(), lookup.clone());
        let (ended, resolver) = (lookup.clone(), self.clone());
        tokio::spawn(async move {
            let _ = ended.await;
            resolver.under_way().remove(&address);
        });
        lookup
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, SharedLookup>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    const BROKER: &str = "broker-1:9092";

    #[tokio::test]
    async fn dials_of_one_address_share_one_lookup() {
        let (release, hanging) = mpsc::channel::<()>();
        let (hanging, lookups) = (Mutex::new(hanging), Arc::new(AtomicUsize::new(0)));
        let counted = lookups.clone();
        let found = SocketAddr::from(([127, 0, 0, 1], 9092));
        let resolver = AddressResolver::new(move |_| {
            counted.fetch_add(1, Ordering::AcqRel);
            let _ = hanging.lock().unwrap().recv();
            Ok(vec![found])
        });
        for _ in 0..3 {
            let abandoned = tokio::time::timeout(Duration::from_millis(1), resolver.resolve(BROKER)).await;
            assert!(abandoned.is_err(), "the lookup hangs");
        }
        let (resolved, ()) = tokio::join!(resolver.resolve(BROKER), async { drop(release) });
        assert_eq!(resolved, Ok(Arc::from([found])));
        assert_eq!(lookups.load(Ordering::Acquire), 1);
        while !resolver.under_way().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(resolver.resolve(BROKER).await.is_ok());
        assert_eq!(lookups.load(Ordering::Acquire), 2, "a result is not kept");
    }

    #[tokio::test]
    async fn an_ip_address_needs_no_lookup() {
        let resolver = AddressResolver::new(|_| Err(io::ErrorKind::Unsupported.into()));
        assert_eq!(resolver.resolve("127.0.0.1:9092").await, Ok(Arc::from([SocketAddr::from(([127, 0, 0, 1], 9092))])));
    }
}
