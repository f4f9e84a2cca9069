//! The state that all threads of a gateway share: settings, ports, limits of connections.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_model::people::{CloseCode, GatewayId, Platform, Uid, check_device};
use whimbrel_model::ports::presence::Reporter;
use whimbrel_model::ports::{Carriers, OwnerLink, Resume};
use whimbrel_model::{Clock, Timestamp};

use super::frames::{Connect, EPOCH_MAX_BYTES};
use super::metrics::GatewayMetrics;
use super::refusal::ConnectRefusal;
use super::settings::GatewaySettings;
use super::state::DeviceIdentity;
use super::tokens::{TokenError, TokenVerifier};
use super::wheel::{TICK, Tick};

/// Interned texts, at most: names of platforms, epochs of inboxes.
const ALIKE_MAX: usize = 4096;
/// Earlier ids of this gateway that are remembered, at most. Sessions from before are no longer found by their id.
const IDS_MAX: usize = 256;

pub(super) struct GatewayContext {
    pub(super) settings: GatewaySettings,
    pub(super) carriers: Arc<dyn Carriers>,
    pub(super) owner_links: watch::Receiver<Arc<Vec<Option<OwnerLink>>>>,
    pub(super) reporter: Arc<dyn Reporter>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tokens: TokenVerifier,
    pub(super) metrics: GatewayMetrics,
    /// Every id that it has joined under, the current one last.
    ids: Mutex<Vec<GatewayId>>,
    began: Instant,
    connections: AtomicUsize,
    is_ending: AtomicBool,
    rate: Mutex<AcceptRate>,
    /// For spreading delays. It need not be unpredictable.
    random: AtomicU64,
    platforms: Mutex<HashSet<Platform>>,
    epochs: Mutex<HashSet<Arc<str>>>,
}

/// The token bucket of accepted connections, and its last update.
struct AcceptRate {
    left: f64,
    at: Instant,
}

/// A connection's slot among `connections_max`.
pub(super) struct ConnectionSlot(Arc<GatewayContext>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.connections.decrement(1.0);
    }
}

/// An identified device, and the end of its token.
#[derive(Debug)]
pub(super) struct IdentifiedDevice {
    pub(super) identity: DeviceIdentity,
    pub(super) ends_at: Option<Timestamp>,
}

pub(super) type Rejection = (CloseCode, String);

impl GatewayContext {
    pub(super) fn new(
        settings: GatewaySettings,
        tokens: TokenVerifier,
        carriers: Arc<dyn Carriers>,
        reporter: Arc<dyn Reporter>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let now = Instant::now();
        let rate = AcceptRate { left: f64::from(settings.accepts_per_second), at: now };
        Self {
            random: AtomicU64::new(clock.now().as_millis() as u64 | 1),
            owner_links: carriers.owner_links(),
            settings,
            carriers,
            reporter,
            clock,
            tokens,
            metrics: GatewayMetrics::new(),
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

    /// Whether the id is, or was, one of this process. Sessions keep their first id.
    pub(super) fn was(&self, id: GatewayId) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    pub(super) fn now(&self) -> Tick {
        Tick(u32::try_from(self.began.elapsed().as_millis() / TICK.as_millis()).unwrap_or(u32::MAX))
    }

    /// The tick of a time of the wall clock.
    pub(super) fn tick_of(&self, at: Timestamp) -> Tick {
        let left_ms = at.as_millis().saturating_sub(self.clock.now().as_millis()).max(0) as u64;
        self.now().after(std::time::Duration::from_millis(left_ms))
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Rejects new connections from now on.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub(super) fn accept(self: &Arc<Self>) -> Result<ConnectionSlot, ConnectRefusal> {
        if self.is_ending.load(Ordering::Relaxed) {
            return Err(ConnectRefusal::of_close(CloseCode::GoingAway, "this gateway is shutting down"));
        }
        if !self.is_within_rate(Instant::now()) {
            self.metrics.refused_rate.increment(1);
            return Err(ConnectRefusal::of_close(CloseCode::Overloaded, "too many new connections per second"));
        }
        let most = self.settings.connections_max;
        let add = |count| (count < most).then_some(count + 1);
        if self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            self.metrics.refused_many.increment(1);
            return Err(ConnectRefusal::of_close(CloseCode::Overloaded, format!("all {most} connections are in use")));
        }
        self.metrics.connections.increment(1.0);
        Ok(ConnectionSlot(Arc::clone(self)))
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

    /// A pseudo-random number below `bound`.
    pub(super) fn spread(&self, bound: u64) -> u64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    pub(super) fn identify(&self, connect: Connect, is_local: bool) -> Result<IdentifiedDevice, Rejection> {
        let (uid, bound, ends_at) = match (connect.token, connect.uid) {
            (Some(_), _) if !self.tokens.has_keys() => {
                return Err((CloseCode::BadToken, "this server has no client keys to verify a token".to_owned()));
            }
            (Some(token), said) => {
                let token = self.check_token(&token)?;
                if said.is_some_and(|said| said != token.uid.as_str()) {
                    return Err((CloseCode::BadToken, "`uid` differs from the token's `sub`".to_owned()));
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
            return Err((CloseCode::BadFrame, "the epoch of `resume` is too long".to_owned()));
        }
        let resume = connect.resume.map(|asked| Resume { epoch: asked.epoch.into(), cursor: asked.cursor });
        let identity = DeviceIdentity {
            partition: uid.partition(self.carriers.partitions()),
            uid,
            platform: alike(&self.platforms, platform),
            device: connect.device.into(),
            at: self.clock.now(),
            announced_in: None,
            resume: resume.map(Box::new),
            epoch: None,
        };
        Ok(IdentifiedDevice { identity, ends_at })
    }

    pub(super) fn check_token(&self, token: &str) -> Result<super::tokens::VerifiedToken, Rejection> {
        self.tokens.check(token, self.clock.now()).map_err(|error| {
            let code = match error {
                TokenError::Expired(_) => CloseCode::TokenExpired,
                _ => CloseCode::BadToken,
            };
            (code, error.to_string())
        })
    }

    pub(super) fn alike_epoch(&self, epoch: Arc<str>) -> Arc<str> {
        alike(&self.epochs, epoch)
    }
}

/// The known value that equals this one, so that equal values share their memory.
fn alike<T: Clone + Eq + Hash>(known: &Mutex<HashSet<T>>, one: T) -> T {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(&one) {
        return known.clone();
    }
    if known.len() < ALIKE_MAX {
        known.insert(one.clone());
    }
    one
}

fn bad_frame(why: String) -> Rejection {
    (CloseCode::BadFrame, why)
}
