//! The registry: look-ups, the watch of the catalogue, and writes of single entries.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Catalogue, CatalogueError, Log, Versioned};
use whimbrel_model::subscription::{LAST_SUBSCRIPTION_KEY, SUBSCRIPTION_PREFIX, StoredSubscription, subscription_key};
use whimbrel_model::{Clock, Event, EventSink, SubscriptionNumber};

use super::error::SubscriptionError;
use crate::follow::follow_catalogue;
use crate::topics::Registry;

pub const SUBSCRIPTIONS_MAX: usize = 3_000;
/// The most attempts at a write that conflicts with other writers.
pub(super) const CONFLICT_TRIES: usize = 16;

pub struct SubscriptionPorts {
    pub catalogue: Arc<dyn Catalogue>,
    pub log: Arc<dyn Log>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
}

/// A subscription: an immutable copy of the catalogue's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    pub name: Arc<str>,
    pub stored: StoredSubscription,
    pub version: u64,
}

impl Subscription {
    pub fn number(&self) -> SubscriptionNumber {
        self.stored.number
    }
}

pub struct SubscriptionRegistry {
    pub(super) ports: SubscriptionPorts,
    map: ArcSwap<SubscriptionMap>,
    /// Held by the task that changes subscriptions in this process, over catalogue and map.
    changing: Mutex<()>,
    changes: watch::Sender<u64>,
}

#[derive(Default, Clone)]
struct SubscriptionMap {
    by_name: HashMap<Arc<str>, Arc<Subscription>>,
    by_number: HashMap<SubscriptionNumber, Arc<Subscription>>,
}

/// The guard of a task that changes subscriptions.
pub(super) type ChangeGuard<'a> = MutexGuard<'a, ()>;

impl SubscriptionRegistry {
    /// Reads the catalogue. An entry that cannot be decoded is skipped and reported.
    ///
    /// The caller must also run [`SubscriptionRegistry::watch`].
    pub async fn open(ports: SubscriptionPorts) -> Result<Self, SubscriptionError> {
        let subscriptions =
            Self { ports, map: ArcSwap::default(), changing: Mutex::new(()), changes: watch::Sender::new(0) };
        let changing = subscriptions.changing.lock().await;
        subscriptions.reload(&changing).await?;
        drop(changing);
        Ok(subscriptions)
    }

    pub fn get(&self, name: &str) -> Option<Arc<Subscription>> {
        self.map.load().by_name.get(name).cloned()
    }

    pub fn by_number(&self, number: SubscriptionNumber) -> Option<Arc<Subscription>> {
        self.map.load().by_number.get(&number).cloned()
    }

    /// All subscriptions, by name, including those that are being deleted.
    pub fn all(&self) -> Vec<Arc<Subscription>> {
        let mut all: Vec<_> = self.map.load().by_name.values().cloned().collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub fn reading(&self, topic: &str) -> Vec<Arc<Subscription>> {
        let mut all = self.all();
        all.retain(|each| !each.stored.deleting && each.stored.spec.topics.iter().any(|each| each == topic));
        all
    }

    /// A number that grows when any subscription is created, changed or removed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub async fn watch(&self, shutdown: CancellationToken) {
        let reload = || async {
            let changing = self.changing().await;
            self.reload(&changing).await
        };
        follow_catalogue(&*self.ports.catalogue, "subscriptions", reload, &shutdown).await;
    }

    pub(super) async fn changing(&self) -> ChangeGuard<'_> {
        self.changing.lock().await
    }

    async fn reload(&self, _changing: &ChangeGuard<'_>) -> Result<(), SubscriptionError> {
        let entries = self.ports.catalogue.list(SUBSCRIPTION_PREFIX).await?;
        let before = self.map.load_full();
        let mut map = SubscriptionMap::default();
        for (key, found) in &entries {
            let name = key.strip_prefix(SUBSCRIPTION_PREFIX).unwrap_or(key);
            if let Some(known) = before.by_name.get(name).filter(|known| known.version == found.version) {
                map.put(Arc::clone(known));
                continue;
            }
            match decode(key, found) {
                Ok(stored) => map.put(Arc::new(Subscription { name: name.into(), stored, version: found.version })),
                Err(error) => {
                    tracing::error!(%error, "cannot decode the entry of subscription `{name}`; its previous settings stay in force");
                    before.by_name.get(name).into_iter().for_each(|known| map.put(Arc::clone(known)));
                }
            }
        }
        if map.by_name != before.by_name {
            self.map.store(Arc::new(map));
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// A subscription with the present entry of the catalogue, for an owner that starts to run it.
    pub async fn refresh(&self, number: SubscriptionNumber) -> Result<Option<Arc<Subscription>>, SubscriptionError> {
        let Some(known) = self.by_number(number) else { return Ok(None) };
        match self.entry(&known.name).await {
            Ok(Some((_, version))) if version == known.version => return Ok(Some(known)),
            // The previous settings stay in force while the entry cannot be decoded.
            Err(SubscriptionError::Malformed { .. }) => return Ok(Some(known)),
            found => found?,
        };
        let changing = self.changing().await;
        self.reload(&changing).await?;
        Ok(self.by_number(number))
    }

    /// The present entry in the catalogue.
    pub(super) async fn entry(&self, name: &str) -> Result<Option<(StoredSubscription, u64)>, SubscriptionError> {
        let key = subscription_key(name);
        let Some(found) = self.ports.catalogue.get(&key).await? else { return Ok(None) };
        Ok(Some((decode(&key, &found)?, found.version)))
    }

    /// Writes the entry if it has the expected version (`None`: no entry), and updates the map. `None` if another writer was faster.
    pub(super) async fn write(
        &self,
        name: &str,
        stored: StoredSubscription,
        expected: Option<u64>,
        _changing: &ChangeGuard<'_>,
    ) -> Result<Option<Arc<Subscription>>, SubscriptionError> {
        let value = serde_json::to_vec(&stored).expect("a subscription's entry is plain data");
        let version = match self.ports.catalogue.put(&subscription_key(name), value, expected).await {
            Ok(version) => version,
            Err(CatalogueError::Conflict { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let subscription = Arc::new(Subscription { name: name.into(), stored, version });
        let mut map = SubscriptionMap::clone(&self.map.load());
        map.put(Arc::clone(&subscription));
        self.map.store(Arc::new(map));
        self.changes.send_modify(|count| *count += 1);
        Ok(Some(subscription))
    }

    /// Removes the entry of a subscription whose deletion is complete.
    pub(super) async fn erase(
        &self,
        name: &str,
        version: u64,
        _changing: &ChangeGuard<'_>,
    ) -> Result<(), SubscriptionError> {
        self.ports.catalogue.remove(&subscription_key(name), version).await?;
        let mut map = SubscriptionMap::clone(&self.map.load());
        map.remove(name);
        self.map.store(Arc::new(map));
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    pub(super) async fn next_number(&self) -> Result<SubscriptionNumber, SubscriptionError> {
        let malformed =
            || SubscriptionError::Malformed { key: LAST_SUBSCRIPTION_KEY.to_owned(), why: "no number".to_owned() };
        let mut tries = 0;
        loop {
            let found = self.ports.catalogue.get(LAST_SUBSCRIPTION_KEY).await?;
            let last = match &found {
                None => 0,
                Some(found) => std::str::from_utf8(&found.value)
                    .ok()
                    .and_then(|text| text.parse::<u32>().ok())
                    .ok_or_else(malformed)?,
            };
            let next = last.checked_add(1).ok_or(SubscriptionError::TooMany)?;
            let value = next.to_string().into_bytes();
            match self.ports.catalogue.put(LAST_SUBSCRIPTION_KEY, value, found.map(|found| found.version)).await {
                Ok(_) => return Ok(SubscriptionNumber(next)),
                Err(CatalogueError::Conflict { .. }) if tries < CONFLICT_TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn name_of(&self, number: SubscriptionNumber) -> Result<Arc<str>, SubscriptionError> {
        let known = self.by_number(number).map(|known| Arc::clone(&known.name));
        known.ok_or_else(|| SubscriptionError::Unknown(format!("number {}", number.0)))
    }

    pub(super) fn count(&self) -> usize {
        self.map.load().by_name.len()
    }

    pub(super) fn report(&self, event: Event, name: &str) {
        (self.ports.events)(event.with("subscription", name));
    }
}

impl SubscriptionMap {
    fn put(&mut self, subscription: Arc<Subscription>) {
        self.remove(&Arc::clone(&subscription.name));
        self.by_number.insert(subscription.number(), Arc::clone(&subscription));
        self.by_name.insert(Arc::clone(&subscription.name), subscription);
    }

    fn remove(&mut self, name: &str) {
        if let Some(earlier) = self.by_name.remove(name) {
            self.by_number.remove(&earlier.number());
        }
    }
}

fn decode(key: &str, found: &Versioned) -> Result<StoredSubscription, SubscriptionError> {
    let malformed =
        |error: serde_json::Error| SubscriptionError::Malformed { key: key.to_owned(), why: error.to_string() };
    serde_json::from_slice(&found.value).map_err(malformed)
}
