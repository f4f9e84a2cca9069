//! Detects that Redis lost its data: after a `FLUSHALL`, a restart without persistence, or the promotion of an empty replica.
//!
//! [`MARKERS`] keys, spread over the slots of a Cluster, contain the id of this installation. The catalogue contains the id too, so that
//! the next start detects a loss that happened while no process ran. The process that finds a marker missing writes it again and reports
//! the loss. Both happen in one script, so that a loss is reported once.
//!
//! This module only reports a loss. The owners of holds and inboxes detect it by themselves and rebuild their stores from the log.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use whimbrel_model::ports::{Catalogue, CatalogueError};
use whimbrel_model::{Event, EventSink};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::reply::bytes_of;

/// Keys that are checked. Their number is the default number of shards of holds, so that most nodes of a Cluster have one.
const MARKERS: u32 = 16;
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The prefix of the catalogue's key for the id of the installation. The prefix of the keys in Redis follows.
const CATALOGUE_PREFIX: &str = "redis_markers/";

pub struct LossWatch {
    connection: RedisConnection,
    catalogue: Arc<dyn Catalogue>,
    stores: Vec<&'static str>,
    events: EventSink,
    marker: Script,
    /// The id of the installation, after it was read.
    id: Option<String>,
}

impl LossWatch {
    pub fn new(
        connection: RedisConnection,
        catalogue: Arc<dyn Catalogue>,
        stores: Vec<&'static str>,
        events: EventSink,
    ) -> Self {
        let marker = Script::new(include_str!("lua/marker.lua"));
        Self { connection, catalogue, stores, events, marker, id: None }
    }

    /// Checks until it is dropped. An unreachable Redis or catalogue is checked again after the interval.
    pub async fn run(mut self) {
        let mut ticks = interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.check().await {
                tracing::debug!(%error, "cannot check whether Redis lost data");
            }
        }
    }

    /// Compares the markers with the id once, writes missing markers, and reports a loss.
    async fn check(&mut self) -> Result<(), CheckError> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => self.installation().await?,
        };
        let mut missing = 0;
        for number in 0..MARKERS {
            missing += u32::from(self.write(number, &id, "").await?.as_deref() != Some(&id));
        }
        self.id = Some(id);
        if missing > 0 {
            (self.events)(self.loss(missing));
        }
        Ok(())
    }

    /// Reads the id from the catalogue. The first start of an installation creates it and writes the markers, which is not a loss.
    async fn installation(&self) -> Result<String, CheckError> {
        let key = format!("{CATALOGUE_PREFIX}{}", self.connection.prefix());
        if let Some(known) = self.catalogue.get(&key).await? {
            return Ok(String::from_utf8_lossy(&known.value).into_owned());
        }
        let made = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        // Processes that start together agree on the id of the first marker.
        let id = self.write(0, &made, "claim").await?.unwrap_or(made);
        for number in 1..MARKERS {
            self.write(number, &id, "").await?;
        }
        match self.catalogue.put(&key, id.clone().into_bytes(), None).await {
            Ok(_) | Err(CatalogueError::Conflict { .. }) => Ok(id),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a marker if it differs. Returns the id that it had.
    async fn write(&self, number: u32, id: &str, how: &str) -> Result<Option<String>, CheckError> {
        let key = [format!("{}:{{m{number}}}:marker", self.connection.prefix())];
        let mut call = self.marker.on(key.iter());
        call.arg(id).arg(how);
        let found = bytes_of(self.connection.run(&self.marker, call).await?)?;
        Ok(found.map(|found| String::from_utf8_lossy(&found).into_owned()))
    }

    fn loss(&self, missing: u32) -> Event {
        let rebuilt = |store: &&str| matches!(*store, "holds" | "inboxes" | "sessions");
        let (again, lost): (Vec<&str>, Vec<&str>) = self.stores.iter().copied().partition(rebuilt);
        let named = |stores: &[&str]| if stores.is_empty() { "none".to_owned() } else { stores.join(", ") };
        let prefix = self.connection.prefix();
        let detail = format!(
            "{} lost its data under the prefix `{prefix}` ({missing} of {MARKERS} markers are missing). Lost: {}. \
             Rebuilt: {}. Devices must register again",
            self.connection.description(),
            named(&lost),
            named(&again)
        );
        let event = Event::failure("redis_data_lost", detail).with("prefix", prefix).with("markers", missing);
        event.with("lost", named(&lost))
    }
}

/// Why the markers could not be checked.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum CheckError {
    Call(#[from] RedisCallError),
    Catalogue(#[from] CatalogueError),
}
