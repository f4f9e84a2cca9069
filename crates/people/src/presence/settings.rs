//! The settings and the shard layout of presence, with their validation.

use std::time::Duration;

use super::gateway_tracker::TrackerTimes;
use super::packet_log::PacketLogLimits;

/// Shards of a data centre that has none configured.
pub const SHARDS_DEFAULT: u32 = 16;
/// Shards of one data centre, and data centres, at most.
pub const SHARDS_MAX: usize = 1_024;
pub const CENTRES_MAX: usize = 16;

/// The settings of presence. The writers are fixed here and independent of the live nodes, so that a user's shard never moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceSettings {
    /// The number of shards, if `writers` is empty: all of them in this process.
    pub shards: u32,
    /// For each data centre, the internal address of each shard's writer. An empty address is this process. Empty: one data centre, here.
    pub writers: Vec<Vec<String>>,
    /// The index of this process's data centre.
    pub here: usize,
    /// How long changes are gathered into one packet.
    pub gather: Duration,
    /// The longest time between two packets of a gateway.
    pub heartbeat: Duration,
    /// How long, and how many bytes of, packets a gateway retains.
    pub keep: Duration,
    pub keep_bytes: usize,
    /// How much newer the state must be before a writer updates its store's freshness, and the age beyond which a reader rejects queries.
    pub keep_alive: Duration,
    pub stale_after: Duration,
    /// A user that comes and goes within this time causes one event, with the final state.
    pub debounce: Duration,
    /// Whether presence events are published to `_presence`.
    pub events: bool,
    /// Users of a void gateway that one shard removes per second, with the events about them.
    pub sweep_per_second: u32,
    /// How long the first snapshot of a gateway may take before the log reports the shard as stale.
    pub snapshot_timeout: Duration,
    /// Timeout of calls to other nodes.
    pub answer_within: Duration,
    pub tracker: TrackerTimes,
}

impl Default for PresenceSettings {
    fn default() -> Self {
        Self {
            shards: SHARDS_DEFAULT,
            writers: Vec::new(),
            here: 0,
            gather: Duration::from_millis(50),
            heartbeat: Duration::from_secs(1),
            keep: Duration::from_secs(60),
            keep_bytes: 16 << 20,
            keep_alive: Duration::from_millis(500),
            stale_after: Duration::from_secs(3),
            debounce: Duration::from_secs(1),
            events: true,
            sweep_per_second: 2_000,
            snapshot_timeout: Duration::from_secs(10),
            answer_within: Duration::from_secs(1),
            tracker: TrackerTimes::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresenceSettingsError {
    #[error("a data centre must have 1 to {SHARDS_MAX} shards")]
    Shards,
    #[error("presence supports at most {CENTRES_MAX} data centres")]
    Centres,
    #[error("`here` is data centre {0}, which `writers` does not contain")]
    Here(usize),
    #[error("`writers` must list the address of every writer of data centre {0}, because it is remote")]
    Elsewhere(usize),
    #[error("`stale_after` must be longer than `heartbeat` plus `keep_alive`")]
    NeverFresh,
    #[error("`{0}` must be greater than zero")]
    Zero(&'static str),
}

impl PresenceSettings {
    /// Sets `stale_after`, and derives the other times from it, so that a lost heartbeat does not make a shard stale.
    pub fn with_stale_after(self, stale_after: Duration) -> Self {
        let usual = Self::default();
        let heartbeat = usual.heartbeat.min(stale_after / 3);
        let keep_alive = usual.keep_alive.min(stale_after / 6);
        let silent_after_ms = 2 * heartbeat.as_millis() as u64;
        let tracker = TrackerTimes { silent_after_ms, ..self.tracker };
        Self { heartbeat, keep_alive, stale_after, tracker, ..self }
    }

    pub fn check(&self) -> Result<(), PresenceSettingsError> {
        let centres = self.writers.len();
        if centres > CENTRES_MAX {
            return Err(PresenceSettingsError::Centres);
        }
        if self.here >= centres.max(1) {
            return Err(PresenceSettingsError::Here(self.here));
        }
        let is_listed = |writers: &[String]| !writers.is_empty() && writers.iter().all(|address| !address.is_empty());
        let mut others = self.writers.iter().enumerate().filter(|(centre, _)| *centre != self.here);
        if let Some((centre, _)) = others.find(|(_, writers)| !is_listed(writers)) {
            return Err(PresenceSettingsError::Elsewhere(centre));
        }
        let are_few = self.writers.iter().all(|writers| writers.len() <= SHARDS_MAX);
        if !are_few || self.shards == 0 || self.shards as usize > SHARDS_MAX {
            return Err(PresenceSettingsError::Shards);
        }
        if self.stale_after <= self.heartbeat + self.keep_alive {
            return Err(PresenceSettingsError::NeverFresh);
        }
        let times = [
            ("gather", self.gather),
            ("heartbeat", self.heartbeat),
            ("keep_alive", self.keep_alive),
            ("answer_within", self.answer_within),
        ];
        let zero = times.into_iter().find(|(_, time)| time.as_millis() == 0);
        zero.map_or(Ok(()), |(name, _)| Err(PresenceSettingsError::Zero(name)))
    }

    pub(super) fn packet_log_limits(&self) -> PacketLogLimits {
        PacketLogLimits {
            keep_ms: self.keep.as_millis() as u64,
            keep_bytes: self.keep_bytes,
            heartbeat_ms: self.heartbeat.as_millis() as u64,
        }
    }
}

/// The location of a shard's writer, or of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeLocation {
    ThisProcess,
    At(String),
}

/// The writers of all data centres. Each location is listed once, however many shards it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    places: Vec<NodeLocation>,
    /// For each data centre and shard, the index of its location.
    centres: Vec<Vec<usize>>,
    here: usize,
}

impl Layout {
    /// `me` is this process's own internal address.
    pub fn of(settings: &PresenceSettings, me: &str) -> Self {
        let all_here = vec![String::new(); settings.shards as usize];
        let mut layout = Self { places: Vec::new(), centres: Vec::new(), here: settings.here };
        let none = [Vec::new()];
        let writers = if settings.writers.is_empty() { &none[..] } else { &settings.writers };
        for writers in writers {
            let writers = if writers.is_empty() { &all_here } else { writers };
            let shards = writers.iter().map(|address| {
                let is_me = address.is_empty() || address == me;
                layout.index_of(if is_me { NodeLocation::ThisProcess } else { NodeLocation::At(address.clone()) })
            });
            let shards = shards.collect();
            layout.centres.push(shards);
        }
        layout
    }

    fn index_of(&mut self, place: NodeLocation) -> usize {
        self.places.iter().position(|each| *each == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        })
    }

    pub fn places(&self) -> &[NodeLocation] {
        &self.places
    }

    pub fn centres(&self) -> &[Vec<usize>] {
        &self.centres
    }

    pub fn here(&self) -> usize {
        self.here
    }

    pub fn shards(&self, centre: usize) -> u32 {
        self.centres[centre].len() as u32
    }

    pub fn place_of(&self, centre: usize, shard: u32) -> &NodeLocation {
        &self.places[self.centres[centre][shard as usize]]
    }

    /// The shards of this data centre that this process writes.
    pub fn own_shards(&self) -> Vec<u32> {
        let shards = 0..self.shards(self.here);
        shards.filter(|shard| *self.place_of(self.here, *shard) == NodeLocation::ThisProcess).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_heartbeat_makes_nothing_stale_whatever_stale_after_is() {
        let usual = PresenceSettings::default();
        assert_eq!(usual.clone().with_stale_after(usual.stale_after), usual);
        for stale_after in [1, 3, 60].map(Duration::from_secs) {
            let settings = usual.clone().with_stale_after(stale_after);
            assert_eq!(settings.check(), Ok(()));
            assert!(2 * settings.heartbeat + settings.keep_alive < stale_after, "{settings:?}");
            assert!(Duration::from_millis(settings.tracker.silent_after_ms) < stale_after, "{settings:?}");
        }
        let settings = PresenceSettings { heartbeat: usual.stale_after, ..usual };
        assert_eq!(settings.check(), Err(PresenceSettingsError::NeverFresh));
    }
}
