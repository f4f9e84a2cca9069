//! The `Receipts` port on Redis, shared by all nodes: a claim is a key of its own that is set where it is absent.
//!
//! Whoever claims holds the claim for a lease, which must be longer than any append takes, and renews it as long as the append
//! takes longer nevertheless. A node that dies renews nothing: its claims lapse, and a repeat looks through the log. Answers
//! expire after their window by Redis's own clock, and are judged by the caller's before that.
//!
//! A call that Redis does not answer in time may be executed later. This process knows how such a claim ended: that nothing was written,
//! or the answer. It tells Redis in the background, and itself takes a claim over that it knows to be dead (see [`super::unconfirmed`]).
//!
//! A Redis that fails over may have lost the last claims and answers: a repeat of those few is published again. What is lost
//! with Redis is the recognition of repeats, never a message.

use std::collections::HashMap;
use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::{StreamExt as _, stream};
use redis::Value;
use whimbrel_model::ports::{Answer, Begun, Claim, ClaimKind, PortFuture, Receipts, ReceiptsError};
use whimbrel_model::{Clock as _, PartitionId, SystemClock, Timestamp, TopicNumber};

use super::connection::{CallError, RedisConnection, Script};
use super::reply::{OddReply, Parts, bytes_of};
use super::unconfirmed::{End, Known, UnconfirmedEnds};
use crate::embedded::ReceiptSettings;
use crate::embedded::receipts::keys::{decode_answer, encode_answer};

/// Of each lease, the part after which a claim that is still under way is renewed.
const RENEW_AFTER: u32 = 3;
/// Claims that are renewed at the same time.
const RENEWED_AT_ONCE: usize = 64;
/// How often Redis is told the ends of claims that it has not confirmed.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
/// Ends that Redis is told at the same time.
const CONFIRMED_AT_ONCE: usize = 64;
/// The timeout of one confirmation. A shard of Redis Cluster that does not answer must not delay the outcomes for other shards.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// The maximum time in which one round starts confirmations. The next round begins with claims whose last confirmation did not fail.
const CONFIRM_ROUND: Duration = Duration::from_secs(1);
/// Bytes of a place: topic, partition, offset.
const PLACE_BYTES: usize = 16;

/// Receipts in Redis. Cloning shares them.
#[derive(Clone)]
pub struct RedisReceipts(Arc<Inner>);

struct Inner {
    connection: RedisConnection,
    settings: ReceiptSettings,
    begin: Script,
    finish: Script,
    abandon: Script,
    renew: Script,
    /// What this process is at, by the claim's key. These never lapse, however long they take.
    under_way: Mutex<HashMap<String, Held>>,
    unconfirmed: Mutex<UnconfirmedEnds>,
    /// Makes holders of this process unlike those of all others.
    process: u64,
    holders: AtomicU64,
}

struct Held {
    fingerprint: u64,
    holder: String,
    /// When the last renewal was sent.
    renewed_at: Instant,
    /// When the last call was sent after which Redis had the claim under this holder.
    held_at: Instant,
}

impl RedisReceipts {
    /// Must be called within a runtime: claims under way are renewed by a task of their own, until the receipts are dropped.
    pub fn new(connection: RedisConnection, settings: ReceiptSettings) -> Self {
        let renew_interval = settings.lease / RENEW_AFTER;
        let unconfirmed = Mutex::new(UnconfirmedEnds::new(settings.lease));
        let inner = Arc::new(Inner {
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

/// A number that no other process has: by when it began, and by which of those that began in that moment it is.
fn process_number() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one((SystemClock.now(), std::process::id()))
}

impl Inner {
    fn under_way(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unconfirmed(&self) -> MutexGuard<'_, UnconfirmedEnds> {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(&self, claim: &Claim, end: u64, now: Timestamp) -> Result<Begun, Failure> {
        let key = self.key(claim);
        if let Some(held) = self.under_way().get(&key) {
            return Ok(if held.fingerprint == claim.fingerprint { Begun::UnderWay } else { Begun::Different });
        }
        let dead = match self.unconfirmed().known(&key, Instant::now()) {
            Known::Answered { fingerprint, answer } if fingerprint == claim.fingerprint => {
                return Ok(Begun::Earlier(answer));
            }
            Known::Answered { .. } => return Ok(Begun::Different),
            Known::NotWritten { holders } => holders,
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
        let begun = match self.connection.run(&self.begin, call).await {
            Ok(reply) => read_begun(reply).map_err(Failure::from),
            Err(error) => Err(error.into()),
        };
        match &begun {
            Ok(Begun::New | Begun::Lapsed { .. }) => {
                let (fingerprint, renewed_at) = (claim.fingerprint, Instant::now());
                self.under_way().insert(key, Held { fingerprint, holder, renewed_at, held_at: asked_at });
            }
            Ok(_) => {}
            // Redis may have it, or get it yet. Whoever asked writes nothing without an answer.
            Err(_) => self.unconfirmed().not_written(key, holder, Instant::now()),
        }
        begun
    }

    async fn finish(&self, claim: &Claim, answer: Answer) -> Result<(), Failure> {
        let key = self.key(claim);
        let kept = self.keep(&key, claim, &answer).await;
        match &kept {
            Ok(()) => self.unconfirmed().confirmed_answer(&key),
            // The message is in the log all the same. This process knows the answer until Redis has it.
            Err(_) => self.unconfirmed().answered(key.clone(), claim.clone(), answer, Instant::now()),
        }
        self.under_way().remove(&key);
        kept
    }

    /// Writes the answer to a claim.
    async fn keep(&self, key: &str, claim: &Claim, answer: &Answer) -> Result<(), Failure> {
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
    async fn end_unwritten(&self, claim: &Claim, tries: &str) -> Result<(), Failure> {
        let key = self.key(claim);
        let Some(held) = self.under_way().remove(&key) else { return Ok(()) };
        let released = self.release(&key, &held.holder, tries).await;
        if released.is_err() {
            self.unconfirmed().not_written(key, held.holder, Instant::now());
        }
        released.map(drop)
    }

    /// Takes back the claim of a holder that wrote nothing. Answers whether it was that holder's.
    async fn release(&self, key: &str, holder: &str, tries: &str) -> Result<bool, Failure> {
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
            tracing::debug!(%error, "Redis could not be told how claims ended; it is tried again");
        }
    }

    async fn confirm_in_time(&self, end: End) -> Result<(), Failure> {
        let key = end.key().to_owned();
        let confirmed = tokio::time::timeout(CONFIRM_WITHIN, self.confirm(end)).await;
        let confirmed = confirmed.unwrap_or_else(|_| Err(CallError::late(CONFIRM_WITHIN).into()));
        self.unconfirmed().tried(&key, confirmed.is_ok());
        confirmed
    }

    async fn confirm(&self, end: End) -> Result<(), Failure> {
        match end {
            End::Answered { key, claim, answer } => {
                self.keep(&key, &claim, &answer).await?;
                self.unconfirmed().confirmed_answer(&key);
            }
            End::NotWritten { key, holder } => {
                let was_held = self.release(&key, &holder, "own").await?;
                self.unconfirmed().confirmed_release(&key, &holder, was_held, Instant::now());
            }
        }
        Ok(())
    }

    async fn find(&self, id: &str) -> Result<Vec<Answer>, Failure> {
        let mut command = redis::cmd("ZRANGE");
        command.arg(self.found_key(id)).arg(0).arg(-1);
        let mut answer = Parts::of(self.connection.ask(&command).await?)?;
        let mut found = Vec::new();
        while !answer.is_over() {
            let (_, earlier) = decode_answer(&answer.bytes()?).ok_or(OddReply)?;
            found.push(earlier);
        }
        Ok(found)
    }

    /// Renews what has been under way for a part of its lease. What fails is tried again the next time.
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
            tracing::warn!(%error, "claims under way could not be renewed; it is tried again");
        }
    }

    /// Renews a claim. Answers whether it is still this holder's.
    async fn renew(&self, key: &str, holder: &str) -> Result<bool, Failure> {
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

    /// Whether the claim is still this process's. Redis is asked when half of the lease has passed since it last confirmed that.
    async fn still_holds(&self, claim: &Claim) -> Result<bool, Failure> {
        let key = self.key(claim);
        let holder = match self.under_way().get(&key) {
            None => return Ok(false),
            Some(held) if held.held_at.elapsed() < self.settings.lease / 2 => return Ok(true),
            Some(held) => held.holder.clone(),
        };
        self.renew(&key, &holder).await
    }

    /// What makes a claim the same: its kind, topic, owner and text; not its partition. An id's keys have a tag in common.
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

/// Renews from time to time until the receipts are dropped.
async fn keep_renewing(inner: Weak<Inner>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.renew_old(interval).await;
    }
}

/// Runs confirmations in their order, at most [`CONFIRMED_AT_ONCE`] at a time, and starts none after [`CONFIRM_ROUND`]. Returns the errors.
async fn in_one_round<E>(confirmations: Vec<impl Future<Output = Result<(), E>>>) -> Vec<E> {
    let begun = stream::iter(confirmations).take_until(tokio::time::sleep(CONFIRM_ROUND));
    begun.buffer_unordered(CONFIRMED_AT_ONCE).filter_map(|done| ready(done.err())).collect().await
}

/// Tells Redis the ends of claims from time to time until the receipts are dropped.
async fn keep_confirming(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(CONFIRM_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.confirm_ends().await;
    }
}

fn read_begun(reply: Value) -> Result<Begun, OddReply> {
    let mut parts = Parts::of(reply)?;
    match &*parts.bytes()? {
        b"new" => Ok(Begun::New),
        b"lapsed" => Ok(Begun::Lapsed { places: decode_places(parts.bytes()?) }),
        b"different" => Ok(Begun::Different),
        b"under_way" => Ok(Begun::UnderWay),
        b"earlier" => {
            let (_, answer) = decode_answer(&parts.bytes()?).ok_or(OddReply)?;
            Ok(Begun::Earlier(answer))
        }
        _ => Err(OddReply),
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

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Odd(#[from] OddReply),
}

impl From<Failure> for ReceiptsError {
    fn from(failure: Failure) -> Self {
        Self::Unavailable(failure.to_string())
    }
}

impl Receipts for RedisReceipts {
    fn begin<'a>(&'a self, claim: &'a Claim, end: u64, now: Timestamp) -> PortFuture<'a, Result<Begun, ReceiptsError>> {
        Box::pin(async move { Ok(self.0.begin(claim, end, now).await?) })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, answer: Answer) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move { Ok(self.0.finish(claim, answer).await?) })
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        // The publisher has looked for what earlier tries may have written.
        Box::pin(async move { Ok(self.0.end_unwritten(claim, "all").await?) })
    }

    fn give_back<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move { Ok(self.0.end_unwritten(claim, "own").await?) })
    }

    fn still_holds<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<bool, ReceiptsError>> {
        Box::pin(async move { Ok(self.0.still_holds(claim).await?) })
    }

    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        // Nobody renews it any more, so it lapses.
        self.0.under_way().remove(&self.0.key(claim));
        Box::pin(async { Ok(()) })
    }

    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<Answer>, ReceiptsError>> {
        Box::pin(async move { Ok(self.0.find(id).await?) })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ends_that_redis_does_not_confirm_delay_a_round_by_a_bounded_time() {
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
