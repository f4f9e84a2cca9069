//! The `Progress` port on Redis: one hash for each subscription, each call one script on it.
//!
//! The key is `<prefix>:{s<number>}:progress`. Its field `epoch` is the owner's, a decimal of one width; the others are rows, a place
//! with its value, as the embedded store has them. A Redis that fails over may have lost the last saves: that costs repeats.

use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{PortFuture, Progress, ProgressError, ProgressRow};

use super::connection::{CallError, RedisConnection, Script};
use super::reply::{OddReply, Parts};
use super::write::decimal;
use crate::embedded::progress::keys::{decode_place, decode_placed_row, encode_line, encode_place, encode_row};

/// How far subscriptions have come, in Redis.
pub struct RedisProgress {
    connection: RedisConnection,
    open: Script,
    save: Script,
    end_line: Script,
    forget: Script,
}

impl RedisProgress {
    pub fn new(connection: RedisConnection) -> Self {
        Self {
            connection,
            open: Script::new(include_str!("lua/progress_open.lua")),
            save: Script::new(include_str!("lua/progress_save.lua")),
            end_line: Script::new(include_str!("lua/progress_end_line.lua")),
            forget: Script::new(include_str!("lua/forget.lua")),
        }
    }

    fn key(&self, subscription: SubscriptionNumber) -> [String; 1] {
        [format!("{}:{{s{}}}:progress", self.connection.prefix(), subscription.0)]
    }

    async fn open(&self, subscription: SubscriptionNumber, epoch: u64) -> Result<Vec<ProgressRow>, Failure> {
        let mut call = self.open.on(self.key(subscription).iter());
        call.arg(decimal(epoch));
        let mut answer = Parts::of(self.connection.run(&self.open, call).await?)?;
        if &*answer.bytes()? != b"rows" {
            return Err(fenced(subscription, &mut answer)?);
        }
        let mut rows = Vec::new();
        while !answer.is_over() {
            let (place, value) = (answer.bytes()?, answer.bytes()?);
            match decode_placed_row(&place, value) {
                Some(row) => rows.push(row),
                None => tracing::warn!(
                    subscription = subscription.0,
                    "a row of progress cannot be read: its partition begins again where the subscription began"
                ),
            }
        }
        Ok(rows)
    }

    async fn save(&self, subscription: SubscriptionNumber, epoch: u64, rows: Vec<ProgressRow>) -> Result<(), Failure> {
        let mut call = self.save.on(self.key(subscription).iter());
        call.arg(decimal(epoch));
        for row in &rows {
            call.arg(&encode_place(row.place)[..]).arg(row.run).arg(encode_row(row));
        }
        // What is sent is a copy.
        drop(rows);
        let mut answer = Parts::of(self.connection.run(&self.save, call).await?)?;
        match &*answer.bytes()? {
            b"done" => Ok(()),
            b"newer_run" => {
                let place = decode_place(&answer.bytes()?).ok_or(OddReply)?;
                Err(ProgressError::NewerRun { place, run: answer.number()? }.into())
            }
            _ => Err(fenced(subscription, &mut answer)?),
        }
    }

    async fn end_line(&self, subscription: SubscriptionNumber, epoch: u64, line: u32) -> Result<(), Failure> {
        let mut call = self.end_line.on(self.key(subscription).iter());
        call.arg(decimal(epoch)).arg(&encode_line(line)[..]);
        let mut answer = Parts::of(self.connection.run(&self.end_line, call).await?)?;
        match &*answer.bytes()? {
            b"done" => Ok(()),
            _ => Err(fenced(subscription, &mut answer)?),
        }
    }

    async fn forget(&self, subscription: SubscriptionNumber) -> Result<(), Failure> {
        let call = self.forget.on(self.key(subscription).iter());
        self.connection.run(&self.forget, call).await?;
        Ok(())
    }
}

/// The refusal, after its first word was read.
fn fenced(subscription: SubscriptionNumber, answer: &mut Parts) -> Result<Failure, OddReply> {
    Ok(ProgressError::Fenced { subscription: subscription.0, epoch: answer.number()? }.into())
}

/// What can go wrong, before it is said in the port's words.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Refused(#[from] ProgressError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Odd(#[from] OddReply),
}

impl From<Failure> for ProgressError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => error,
            Failure::Call(_) | Failure::Odd(_) => Self::Unavailable(failure.to_string()),
        }
    }
}

impl Progress for RedisProgress {
    fn open(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
    ) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>> {
        Box::pin(async move { Ok(self.open(subscription, epoch).await?) })
    }

    fn save(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: Vec<ProgressRow>,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async move { Ok(self.save(subscription, epoch, rows).await?) })
    }

    fn end_line(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        line: u32,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async move { Ok(self.end_line(subscription, epoch, line).await?) })
    }

    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async move { Ok(self.forget(subscription).await?) })
    }
}
