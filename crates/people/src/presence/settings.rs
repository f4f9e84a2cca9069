//! How presence is laid out and how it behaves, checked once.

use std::time::Duration;

use super::book::BookLimits;
use super::ledger::LedgerTimes;

/// Shards of a data centre that has none configured.
pub const SHARDS_DEFAULT: u32 = 16;
/// Shards of one data centre, and data centres, at most.
pub const SHARDS_MAX: usize = 1_024;
pub const CENTRES_MAX: usize = 16;

/// The settings of presence. Writers are fixed here, never chosen by who is there, so that a user's shard never moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceSettings {
    /// Shards of a data centre whose writers are not listed: all of them in this process.
    pub shards: u32,
    /// For each data centre the internal address of each shard's writer; an empty one is this process. Empty: one data centre, here.
    pub writers: Vec<Vec<String>>,
    /// Which of them this process is in.
    pub here: usize,
    /// How long comings and goings are gathered into one packet.
    pub gather: Duration,
    /// The longest that a gateway says nothing.
    pub heartbeat: Duration,
    /// How long and how much of packets a gateway keeps.
    pub keep: Duration,
    pub keep_bytes: usize,
    /// How much fresher its picture has become before a writer tells its store so, and beyond which age a reader refuses to answer.
    pub keep_alive: Duration,
    pub stale_after: Duration,
    /// A user that comes and goes within this is told of once, as it is then.
    pub debounce: Duration,
    /// Whether comings and goings are published to `_presence`.
    pub events: bool,
    /// Sessions of a lost gateway that one shard clears away in a second, with the events about them.
    pub sweep_per_second: u32,
    /// How long a gateway's first picture may take to come before a log line says that its shards are not fresh for the lack of it.
    pub draw_within: Duration,
    /// How long another node may take to take a packet, or to answer.
    pub answer_within: Duration,
    pub ledger: LedgerTimes,
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
            draw_within: Duration::from_secs(10),
            answer_within: Duration::from_secs(1),
            ledger: LedgerTimes::default(),
        }
    }
}

/// Settings that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresenceSettingsError {
    #[error("presence needs 1 to {SHARDS_MAX} shards in a data centre")]
    Shards,
    #[error("presence is spread over 1 to {CENTRES_MAX} data centres")]
    Centres,
    #[error("`here` is data centre {0}, which `writers` does not have")]
    Here(usize),
    #[error("data centre {0} is another one: the address of each of its writers must be listed")]
    Elsewhere(usize),
    #[error(
        "`stale_after` must be longer than `heartbeat` and `keep_alive` together, or nothing is ever fresh for long"
    )]
    NeverFresh,
    #[error("`{0}` must be longer than nothing")]
    Zero(&'static str),
}

impl PresenceSettings {
    /// The same with another `stale_after`: gateways and writers say often enough that they live, and who is silent is asked in time.
    pub fn with_stale_after(self, stale_after: Duration) -> Self {
        let usual = Self::default();
        let heartbeat = usual.heartbeat.min(stale_after / 3);
        let keep_alive = usual.keep_alive.min(stale_after / 6);
        let silent_after_ms = 2 * heartbeat.as_millis() as u64;
        let ledger = LedgerTimes { silent_after_ms, ..self.ledger };
        Self { heartbeat, keep_alive, stale_after, ledger, ..self }
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

    pub(super) fn book_limits(&self) -> BookLimits {
        BookLimits {
            keep_ms: self.keep.as_millis() as u64,
            keep_bytes: self.keep_bytes,
            heartbeat_ms: self.heartbeat.as_millis() as u64,
        }
    }
}

/// Where each shard's writer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    ThisProcess,
    At(String),
}

/// The writers of all data centres. Each place is there once, however many shards it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    places: Vec<Place>,
    /// For each data centre, for each shard, the index of its place.
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
                layout.index_of(if is_me { Place::ThisProcess } else { Place::At(address.clone()) })
            });
            let shards = shards.collect();
            layout.centres.push(shards);
        }
        layout
    }

    fn index_of(&mut self, place: Place) -> usize {
        self.places.iter().position(|each| *each == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        })
    }

    pub fn places(&self) -> &[Place] {
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

    pub fn place_of(&self, centre: usize, shard: u32) -> &Place {
        &self.places[self.centres[centre][shard as usize]]
    }

    /// The shards of this data centre that this process writes.
    pub fn own_shards(&self) -> Vec<u32> {
        let shards = 0..self.shards(self.here);
        shards.filter(|shard| *self.place_of(self.here, *shard) == Place::ThisProcess).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_called_stale_a_lost_heartbeat_does_not_make_it_so() {
        let usual = PresenceSettings::default();
        assert_eq!(usual.clone().with_stale_after(usual.stale_after), usual);
        for stale_after in [1, 3, 60].map(Duration::from_secs) {
            let settings = usual.clone().with_stale_after(stale_after);
            assert_eq!(settings.check(), Ok(()));
            assert!(2 * settings.heartbeat + settings.keep_alive < stale_after, "{settings:?}");
            assert!(Duration::from_millis(settings.ledger.silent_after_ms) < stale_after, "{settings:?}");
        }
        let settings = PresenceSettings { heartbeat: usual.stale_after, ..usual };
        assert_eq!(settings.check(), Err(PresenceSettingsError::NeverFresh));
    }
}
