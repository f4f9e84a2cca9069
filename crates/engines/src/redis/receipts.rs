//! The `Receipts` port on Redis, shared by all nodes. A claim is a key that is set if it is absent.
//!
//! A holder has a claim for a lease. The lease must be longer than a normal append; the holder renews it while an append takes longer.
//! After a node dies, its claims lapse, and a repeat searches the log. The clock of Redis expires answers after their window; before that,
//! the caller's clock decides whether an answer is too old.
//!
//! Redis may execute a call later that it did not answer in time. This process knows the outcome of such a claim: nothing was written, or
//! the answer. It sends the outcome to Redis in the background, and takes over a claim itself if it has that outcome (see
//! [`super::unconfirmed_outcomes`]).
//!
//! A Redis that fails over may have lost the last claims and answers, and a repeat of one of those is published again. A loss of Redis
//! loses the recognition of repeats, never a message.

use std::collections::HashMap;
use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::{StreamExt as _, stream};
use redis::Value;
use whimbrel_model::ports::{Claim, ClaimKind, ClaimState, PortFuture, PublishReceipt, Receipts, ReceiptsError};
use whimbrel_model::{Clock as _, PartitionId, SystemClock, Timestamp, TopicNumber};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::reply::{ReplyParts, bytes_of};
use super::unconfirmed_outcomes::{ClaimOutcome, LocalClaimState, UnconfirmedOutcomes};
use crate::stores::ReceiptSettings;
use crate::stores::publish_answer::{decode_answer, encode_answer};

/// A claim is renewed after this part of its lease, while its append is in progress.
const RENEW_AFTER: u32 = 3;
/// The maximum number of concurrent renewals.
const RENEWED_AT_ONCE: usize = 64;
/// The interval at which unconfirmed outcomes are sent to Redis.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
/// The maximum number of concurrent confirmations.
const CONFIRMED_AT_ONCE: usize = 64;
/// The timeout of one confirmation. A shard of Redis Cluster that does not answer must not delay the outcomes for other shards.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// The maximum time in which one round starts confirmations. The next round begins with claims whose last confirmation did not fail.
const CONFIRM_ROUND: Duration = Duration::from_secs(1);
/// Bytes of a place: topic, partition, offset.
const PLACE_BYTES: usize = 16;

/// Receipts in Redis. Clones share them.
#[derive(Clone)]
pub struct RedisReceipts(Arc<ReceiptsShared>);

struct ReceiptsShared {
    connection: RedisConnection,
    settings: ReceiptSettings,
    begin: Script,
    finish: Script,
    abandon: Script,
    renew: Script,
    /// The claims in progress in this process, by key. An entry never lapses here, even if the append takes long.
    under_way: Mutex<HashMap<String, HeldClaim>>,
    unconfirmed: Mutex<UnconfirmedOutcomes>,
    /// Makes the holders of this process distinct from those of all other processes.
    process: u64,
    holders: AtomicU64,
}

struct HeldClaim {
    fingerprint: u64,
    holder: String,
    /// When the last renewal was sent.
    renewed_at: Instant,
    /// The send time of the last call after which Redis had the claim under this holder.
    held_at: Instant,
}

impl RedisReceipts {
    /// Must be called within a runtime: a task renews the claims in progress until the receipts are dropped.
    pub fn new(connection: RedisConnection, settings: ReceiptSettings) -> Self {
        let renew_interval = settings.lease / RENEW_AFTER;
        let unconfirmed = Mutex::new(UnconfirmedOutcomes::new(settings.lease));
        let inner = Arc::new(ReceiptsShared {
            connection,
            settings,
            begin: Script::new(include_str!("lua/begin.lua")),
            finish: Script::new(include_str!("lua/finish.lua")),
            abandon: Script::new(include_str!("lua/abandon.lua")),
            renew: Script::new(include_str!("lua/renew.lua")),
            under_way: Mutex::default(),
            unconfirmed,
            process: process_number(),
            holders: AtomicU64::new(0),
        });
        tokio::spawn(keep_renewing(Arc::downgrade(&inner), renew_interval));
        tokio::spawn(keep_confirming(Arc::downgrade(&inner)));
        Self(inner)
    }
}

/// A number that no other process has. It is a random hash of the start time and the process id.
fn process_number() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one((SystemClock.now(), std::process::id()))
}

impl ReceiptsShared {
    fn under_way(&self) -> MutexGuard<'_, HashMap<String, HeldClaim>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unconfirmed(&self) -> MutexGuard<'_, UnconfirmedOutcomes> {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(&self, claim: &Claim, end: u64, now: Timestamp) -> Result<ClaimState, RedisCallError> {
        let key = self.key(claim);
        if let Some(held) = self.under_way().get(&key) {
            return Ok(if held.fingerprint == claim.fingerprint {
                ClaimState::UnderWay
            } else {
                ClaimState::Different
            });
        }
        let dead = match self.unconfirmed().known(&key, Instant::now()) {
            LocalClaimState::Answered { fingerprint, answer } if fingerprint == claim.fingerprint => {
                return Ok(ClaimState::Earlier(answer));
            }
            LocalClaimState::Answered { .. } => return Ok(ClaimState::Different),
            LocalClaimState::NotWritten { holders } => holders,
        };
        let number = self.holders.fetch_add(1, Ordering::Relaxed);
        let holder = format!("{:016x}-{number:x}", self.process);
        let mut call = self.begin.on([&key].into_iter());
        call.arg(fingerprint_text(claim.fingerprint))
            .arg(&holder)
            .arg(&encode_place(claim.partition, end)[..])
            .arg(now.as_millis())
            .arg(millis(self.settings.lease))
            .arg(millis(self.settings.window))
            .arg(dead);
        let asked_at = Instant::now();
        let begun = self.connection.run(&self.begin, call).await.and_then(read_begun);
        match &begun {
            Ok(ClaimState::New | ClaimState::Lapsed { .. }) => {
                let (fingerprint, renewed_at) = (claim.fingerprint, Instant::now());
                self.under_way().insert(key, HeldClaim { fingerprint, holder, renewed_at, held_at: asked_at });
            }
            Ok(_) => {}
            // Redis may have the claim, or get it later. The caller publishes nothing without an answer.
            Err(_) => self.unconfirmed().not_written(key, holder, Instant::now()),
        }
        begun
    }

    async fn finish(&self, claim: &Claim, answer: PublishReceipt) -> Result<(), RedisCallError> {
        let key = self.key(claim);
        let kept = self.keep(&key, claim, &answer).await;
        match &kept {
            Ok(()) => self.unconfirmed().confirmed_answer(&key),
            // The message is in the log. This process keeps the answer until Redis has it.
            Err(_) => self.unconfirmed().answered(key.clone(), claim.clone(), answer, Instant::now()),
        }
        self.under_way().remove(&key);
        kept
    }

    async fn keep(&self, key: &str, claim: &Claim, answer: &PublishReceipt) -> Result<(), RedisCallError> {
        let found = (claim.kind == ClaimKind::Id).then(|| self.found_key(&claim.text));
        let keys: Vec<&str> = [Some(key), found.as_deref()].into_iter().flatten().collect();
        let mut call = self.finish.on(keys.into_iter());
        call.arg(fingerprint_text(claim.fingerprint))
            .arg(encode_answer(claim.fingerprint, answer))
            .arg(answer.answered_at.as_millis())
            .arg(millis(self.settings.window))
            .arg(millis(self.settings.id_window));
        self.connection.run(&self.finish, call).await?;
        Ok(())
    }

    /// Ends a claim under which this process wrote nothing. `tries`: see `abandon.lua`.
    async fn end_unwritten(&self, claim: &Claim, tries: &str) -> Result<(), RedisCallError> {
        let key = self.key(claim);
        let Some(held) = self.under_way().remove(&key) else { return Ok(()) };
        let released = self.release(&key, &held.holder, tries).await;
        if released.is_err() {
            self.unconfirmed().not_written(key, held.holder, Instant::now());
        }
        released.map(drop)
    }

    /// Releases the claim of a holder that wrote nothing. Returns whether the claim belonged to that holder.
    async fn release(&self, key: &str, holder: &str, tries: &str) -> Result<bool, RedisCallError> {
        let mut call = self.abandon.on([key].into_iter());
        call.arg(holder).arg(PLACE_BYTES).arg(tries);
        let answer = bytes_of(self.connection.run(&self.abandon, call).await?)?;
        Ok(answer.as_deref() == Some(b"done"))
    }

    /// Sends the outcomes of claims that Redis has not confirmed. Sends those that Redis does not confirm again in the next round.
    async fn confirm_ends(&self) {
        let due = self.unconfirmed().due(Instant::now());
        let confirmations = due.into_iter().map(|end| self.confirm_in_time(end)).collect();
        if let Some(error) = in_one_round(confirmations).await.first() {
            tracing::debug!(%error, "cannot confirm outcomes of claims to Redis; retrying");
        }
    }

    async fn confirm_in_time(&self, end: ClaimOutcome) -> Result<(), RedisCallError> {
        let key = end.key().to_owned();
        let confirmed = tokio::time::timeout(CONFIRM_WITHIN, self.confirm(end)).await;
        let confirmed = confirmed.unwrap_or_else(|_| Err(RedisCallError::timed_out(CONFIRM_WITHIN)));
        self.unconfirmed().tried(&key, confirmed.is_ok());
        confirmed
    }

    async fn confirm(&self, end: ClaimOutcome) -> Result<(), RedisCallError> {
        match end {
            ClaimOutcome::Answered { key, claim, answer } => {
                self.keep(&key, &claim, &answer).await?;
                self.unconfirmed().confirmed_answer(&key);
            }
            ClaimOutcome::NotWritten { key, holder } => {
                let was_held = self.release(&key, &holder, "own").await?;
                self.unconfirmed().confirmed_release(&key, &holder, was_held, Instant::now());
            }
        }
        Ok(())
    }

    async fn find(&self, id: &str) -> Result<Vec<PublishReceipt>, RedisCallError> {
        let mut command = redis::cmd("ZRANGE");
        command.arg(self.found_key(id)).arg(0).arg(-1);
        let mut answer = ReplyParts::of(self.connection.ask(&command).await?)?;
        let mut found = Vec::new();
        while !answer.is_over() {
            let (_, earlier) = decode_answer(&answer.bytes()?).ok_or(RedisCallError::UnexpectedReply)?;
            found.push(earlier);
        }
        Ok(found)
    }

    /// Renews claims that have been in progress for a part of their lease. Failed renewals are retried in the next round.
    async fn renew_old(&self, interval: Duration) {
        let now = Instant::now();
        let old: Vec<(String, String)> = {
            let mut under_way = self.under_way();
            let old = under_way.iter_mut().filter(|(_, held)| now.duration_since(held.renewed_at) >= interval / 2);
            old.map(|(key, held)| {
                held.renewed_at = now;
                (key.clone(), held.holder.clone())
            })
            .collect()
        };
        let renewals: Vec<_> = old.iter().map(|(key, holder)| self.renew(key, holder)).collect();
        let renewed = stream::iter(renewals).buffer_unordered(RENEWED_AT_ONCE);
        let failed: Vec<_> = renewed.filter_map(|done| ready(done.err())).collect().await;
        if let Some(error) = failed.first() {
            tracing::warn!(%error, "cannot renew claims in progress; retrying");
        }
    }

    /// Renews a claim. Returns whether it still belongs to this holder.
    async fn renew(&self, key: &str, holder: &str) -> Result<bool, RedisCallError> {
        let mut call = self.renew.on([key].into_iter());
        call.arg(holder).arg(millis(self.settings.window + self.settings.lease));
        let asked_at = Instant::now();
        let answer = bytes_of(self.connection.run(&self.renew, call).await?)?;
        let is_held = answer.as_deref() == Some(b"held");
        if let Some(held) = self.under_way().get_mut(key).filter(|held| is_held && held.holder == holder) {
            held.held_at = held.held_at.max(asked_at);
        }
        Ok(is_held)
    }

    /// Whether this process still has the claim. Asks Redis if its last confirmation is older than half of the lease.
    async fn still_holds(&self, claim: &Claim) -> Result<bool, RedisCallError> {
        let key = self.key(claim);
        let holder = match self.under_way().get(&key) {
            None => return Ok(false),
            Some(held) if held.held_at.elapsed() < self.settings.lease / 2 => return Ok(true),
            Some(held) => held.holder.clone(),
        };
        self.renew(&key, &holder).await
    }

    /// The identity of a claim: its kind, topic, owner and text, but not its partition. The keys of an id share a hash tag.
    fn key(&self, claim: &Claim) -> String {
        let (prefix, topic) = (self.connection.prefix(), claim.topic.0);
        let (owner, text) = (&claim.owner, &claim.text);
        match claim.kind {
            ClaimKind::Key => format!("{prefix}:claim:{topic}:{}:{owner}:{text}", owner.len()),
            ClaimKind::Id => format!("{prefix}:{{i:{text}}}:claim:{topic}:{owner}"),
        }
    }

    fn found_key(&self, id: &str) -> String {
        format!("{}:{{i:{id}}}:found", self.connection.prefix())
    }
}

/// Renews claims at an interval until the receipts are dropped.
async fn keep_renewing(inner: Weak<ReceiptsShared>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.renew_old(interval).await;
    }
}

/// Runs confirmations in order, at most [`CONFIRMED_AT_ONCE`] concurrently, and starts none after [`CONFIRM_ROUND`]. Returns the errors.
async fn in_one_round<E>(confirmations: Vec<impl Future<Output = Result<(), E>>>) -> Vec<E> {
    let begun = stream::iter(confirmations).take_until(tokio::time::sleep(CONFIRM_ROUND));
    begun.buffer_unordered(CONFIRMED_AT_ONCE).filter_map(|done| ready(done.err())).collect().await
}

/// Sends outcomes of claims to Redis at an interval until the receipts are dropped.
async fn keep_confirming(inner: Weak<ReceiptsShared>) {
    loop {
        tokio::time::sleep(CONFIRM_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.confirm_ends().await;
    }
}

fn read_begun(reply: Value) -> Result<ClaimState, RedisCallError> {
    let mut parts = ReplyParts::of(reply)?;
    match &*parts.bytes()? {
        b"new" => Ok(ClaimState::New),
        b"lapsed" => Ok(ClaimState::Lapsed { places: decode_places(parts.bytes()?) }),
        b"different" => Ok(ClaimState::Different),
        b"under_way" => Ok(ClaimState::UnderWay),
        b"earlier" => {
            let (_, answer) = decode_answer(&parts.bytes()?).ok_or(RedisCallError::UnexpectedReply)?;
            Ok(ClaimState::Earlier(answer))
        }
        _ => Err(RedisCallError::UnexpectedReply),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn fingerprint_text(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

fn encode_place(partition: PartitionId, offset: u64) -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    let mut rest = &mut place[..];
    rest.put_u32(partition.topic.0);
    rest.put_u32(partition.index);
    rest.put_u64(offset);
    place
}

fn decode_places(mut bytes: Bytes) -> Vec<(PartitionId, u64)> {
    let mut places = Vec::with_capacity(bytes.len() / PLACE_BYTES);
    while bytes.len() >= PLACE_BYTES {
        let partition = PartitionId::new(TopicNumber(bytes.get_u32()), bytes.get_u32());
        places.push((partition, bytes.get_u64()));
    }
    places
}

impl From<RedisCallError> for ReceiptsError {
    fn from(error: RedisCallError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl Receipts for RedisReceipts {
    fn begin<'a>(
        &'a self,
        claim: &'a Claim,
        end: u64,
        now: Timestamp,
    ) -> PortFuture<'a, Result<ClaimState, ReceiptsError>> {
        Box::pin(async move { Ok(self.0.begin(claim, end, now).await?) })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, answer: PublishReceipt) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move { Ok(self.0.finish(claim, answer).await?) })
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        // The publisher has searched the log for messages of earlier tries.
        Box::pin(async move { Ok(self.0.end_unwritten(claim, "all").await?) })
    }

    fn give_back<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move { Ok(self.0.end_unwritten(claim, "own").await?) })
    }

    fn still_holds<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<bool, ReceiptsError>> {
        Box::pin(async move { Ok(self.0.still_holds(claim).await?) })
    }

    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        // This process stops renewing the claim, so it lapses.
        self.0.under_way().remove(&self.0.key(claim));
        Box::pin(async { Ok(()) })
    }

    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<PublishReceipt>, ReceiptsError>> {
        Box::pin(async move { Ok(self.0.find(id).await?) })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unconfirmed_outcomes_delay_a_round_by_a_bounded_time() {
        let (began, confirmed) = (tokio::time::Instant::now(), Cell::new(0));
        let confirmation = |is_away: bool| {
            let confirmed = &confirmed;
            async move {
                if is_away {
                    tokio::time::sleep(CONFIRM_WITHIN).await;
                    return Err(());
                }
                confirmed.set(confirmed.get() + 1);
                Ok(())
            }
        };
        let ends = (0..10_000).map(|number| confirmation(number >= 1_000)).collect();
        let failed = in_one_round(ends).await;
        assert!(began.elapsed() <= CONFIRM_ROUND + CONFIRM_WITHIN, "{:?}", began.elapsed());
        assert_eq!(confirmed.get(), 1_000);
        assert!(!failed.is_empty() && failed.len() < 1_000, "{}", failed.len());
    }
}
