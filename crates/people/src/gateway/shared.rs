//! What all threads of a gateway share: its settings, whom it speaks to, how many are let in.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_model::people::{CloseCode, GatewayId, Platform, Uid, check_device};
use whimbrel_model::ports::presence::Reporter;
use whimbrel_model::ports::{Carriers, Resume, Tenure};
use whimbrel_model::{Clock, Timestamp};

use super::figures::GatewayFigures;
use super::frames::{Connect, EPOCH_MAX_BYTES};
use super::refusal::Refusal;
use super::settings::GatewaySettings;
use super::state::Who;
use super::tokens::{TokenError, Tokens};
use super::wheel::{TICK, Tick};

/// Texts that many sessions have alike and that are kept once: names of platforms, epochs of inboxes.
const ALIKE_MAX: usize = 4096;
/// Ids that a gateway knows to have had. Sessions that are still there after it has joined anew so often are not acknowledged by name.
const IDS_MAX: usize = 256;

pub(super) struct Shared {
    pub(super) settings: GatewaySettings,
    pub(super) carriers: Arc<dyn Carriers>,
    pub(super) tenures: watch::Receiver<Arc<Vec<Option<Tenure>>>>,
    pub(super) reporter: Arc<dyn Reporter>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tokens: Tokens,
    pub(super) figures: GatewayFigures,
    /// Every id that it has joined under, the last one now.
    ids: Mutex<Vec<GatewayId>>,
    began: Instant,
    connections: AtomicUsize,
    is_ending: AtomicBool,
    rate: Mutex<Rate>,
    /// For delays that are spread. Nothing depends on them being hard to guess.
    random: AtomicU64,
    platforms: Mutex<HashSet<Platform>>,
    epochs: Mutex<HashSet<Arc<str>>>,
}

/// Connections that may be accepted now, and as of when.
struct Rate {
    left: f64,
    at: Instant,
}

/// A connection's place among `connections_max`.
pub(super) struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.figures.connections.decrement(1.0);
    }
}

/// Who may come in, and until when.
#[derive(Debug)]
pub(super) struct Identified {
    pub(super) who: Who,
    pub(super) ends_at: Option<Timestamp>,
}

/// Why a device is not let in.
pub(super) type Turned = (CloseCode, String);

impl Shared {
    pub(super) fn new(
        settings: GatewaySettings,
        tokens: Tokens,
        carriers: Arc<dyn Carriers>,
        reporter: Arc<dyn Reporter>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let now = Instant::now();
        let rate = Rate { left: f64::from(settings.accepts_per_second), at: now };
        Self {
            random: AtomicU64::new(clock.now().as_millis() as u64 | 1),
            tenures: carriers.tenures(),
            settings,
            carriers,
            reporter,
            clock,
            tokens,
            figures: GatewayFigures::new(),
            ids: Mutex::default(),
            began: now,
            connections: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            rate: Mutex::new(rate),
            platforms: Mutex::default(),
            epochs: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> Option<GatewayId> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).last().copied()
    }

    pub(super) fn set_id(&self, id: GatewayId) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.retain(|had| *had != id);
        if ids.len() == IDS_MAX {
            ids.remove(0);
        }
        ids.push(id);
    }

    /// Whether that is this process, now or before it had to join again: sessions keep the name that they were given.
    pub(super) fn was(&self, id: GatewayId) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    pub(super) fn now(&self) -> Tick {
        Tick(u32::try_from(self.began.elapsed().as_millis() / TICK.as_millis()).unwrap_or(u32::MAX))
    }

    /// The tick at which a time of the wall clock will have come.
    pub(super) fn tick_of(&self, at: Timestamp) -> Tick {
        let left_ms = at.as_millis().saturating_sub(self.clock.now().as_millis()).max(0) as u64;
        self.now().after(std::time::Duration::from_millis(left_ms))
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// From here on nobody is let in.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Takes a place for a new connection.
    pub(super) fn accept(self: &Arc<Self>) -> Result<Place, Refusal> {
        if self.is_ending.load(Ordering::Relaxed) {
            return Err(Refusal::of_close(CloseCode::GoingAway, "this gateway is going down"));
        }
        if !self.is_within_rate(Instant::now()) {
            self.figures.refused_rate.increment(1);
            return Err(Refusal::of_close(CloseCode::Overloaded, "too many devices connect at the same time"));
        }
        let most = self.settings.connections_max;
        let add = |count| (count < most).then_some(count + 1);
        if self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            self.figures.refused_many.increment(1);
            return Err(Refusal::of_close(CloseCode::Overloaded, format!("all {most} places are taken")));
        }
        self.figures.connections.increment(1.0);
        Ok(Place(Arc::clone(self)))
    }

    fn is_within_rate(&self, now: Instant) -> bool {
        let most = f64::from(self.settings.accepts_per_second);
        if most == 0.0 {
            return true;
        }
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(rate.at).as_secs_f64();
        (rate.left, rate.at) = ((rate.left + passed * most).min(most), now);
        let is_within = rate.left >= 1.0;
        rate.left -= f64::from(u8::from(is_within));
        is_within
    }

    /// A number below `bound`, another each time.
    pub(super) fn spread(&self, bound: u64) -> u64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// Whether the device is who it says.
    pub(super) fn identify(&self, connect: Connect, is_local: bool) -> Result<Identified, Turned> {
        let (uid, bound, ends_at) = match (connect.token, connect.uid) {
            (Some(_), _) if !self.tokens.has_keys() => {
                return Err((CloseCode::BadToken, "this server has no client keys to check a token with".to_owned()));
            }
            (Some(token), said) => {
                let token = self.check_token(&token)?;
                if said.is_some_and(|said| said != token.uid.as_str()) {
                    return Err((CloseCode::BadToken, "`uid` is another than the token's `sub`".to_owned()));
                }
                (token.uid, token.platform, Some(token.ends_at))
            }
            (None, _) if self.tokens.has_keys() => {
                return Err((CloseCode::BadToken, "`connect` needs a token".to_owned()));
            }
            (None, Some(_)) if !is_local => {
                let why = "a `uid` without a token is taken from this machine only: configure client keys";
                return Err((CloseCode::BadToken, why.to_owned()));
            }
            (None, Some(uid)) => (Uid::new(&uid).map_err(|error| bad_frame(error.to_string()))?, None, None),
            (None, None) => return Err(bad_frame("`connect` has neither `token` nor `uid`".to_owned())),
        };
        let platform = match (connect.platform, bound) {
            (Some(platform), None) => Platform::new(&platform).map_err(|error| bad_frame(error.to_string()))?,
            (Some(platform), Some(bound)) if platform != bound.as_str() => {
                return Err((CloseCode::BadToken, format!("the token is for the platform {bound} only")));
            }
            (_, Some(bound)) => bound,
            (None, None) => return Err(bad_frame("`connect` has no `platform`".to_owned())),
        };
        check_device(&connect.device).map_err(|error| bad_frame(error.to_string()))?;
        if connect.resume.as_ref().is_some_and(|asked| asked.epoch.len() > EPOCH_MAX_BYTES) {
            return Err((CloseCode::BadFrame, "the epoch of `resume` is none that was ever given".to_owned()));
        }
        let resume = connect.resume.map(|asked| Resume { epoch: asked.epoch.into(), cursor: asked.cursor });
        let who = Who {
            partition: uid.partition(self.carriers.partitions()),
            uid,
            platform: self.alike_platform(platform),
            device: connect.device.into(),
            at: self.clock.now(),
            told: None,
            resume: resume.map(Box::new),
            epoch: None,
        };
        Ok(Identified { who, ends_at })
    }

    pub(super) fn check_token(&self, token: &str) -> Result<super::tokens::Token, Turned> {
        self.tokens.check(token, self.clock.now()).map_err(|error| {
            let code = match error {
                TokenError::Expired(_) => CloseCode::TokenExpired,
                _ => CloseCode::BadToken,
            };
            (code, error.to_string())
        })
    }

    fn alike_platform(&self, platform: Platform) -> Platform {
        let mut known = self.platforms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&platform) {
            return known.clone();
        }
        if known.len() < ALIKE_MAX {
            known.insert(platform.clone());
        }
        platform
    }

    pub(super) fn alike_epoch(&self, epoch: Arc<str>) -> Arc<str> {
        let mut known = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&epoch) {
            return Arc::clone(known);
        }
        if known.len() < ALIKE_MAX {
            known.insert(Arc::clone(&epoch));
        }
        epoch
    }
}

fn bad_frame(why: String) -> Turned {
    (CloseCode::BadFrame, why)
}
