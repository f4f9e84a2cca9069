//! The `Progress` port on Redis: one hash for each subscription, one script for each call.
//!
//! The key is `<prefix>:{s<number>}:progress`. The field `epoch` is the owner's epoch, a decimal of fixed width. The other fields are rows:
//! a place with its value, in the format of [`progress_row`](crate::stores::progress_row). A Redis that fails over may have lost the last saves; the subscription then
//! repeats deliveries.

use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{PortFuture, Progress, ProgressError, ProgressRow};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::reply::ReplyParts;
use super::write::decimal;
use crate::stores::progress_row::{decode_place, decode_placed_row, encode_line, encode_place, encode_row};

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
}

/// The rejection of an older epoch. Its first word has been read.
fn fenced(subscription: SubscriptionNumber, answer: &mut ReplyParts) -> Result<ProgressError, RedisCallError> {
    Ok(ProgressError::Fenced { subscription: subscription.0, epoch: answer.number()? })
}

impl From<RedisCallError> for ProgressError {
    fn from(error: RedisCallError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl Progress for RedisProgress {
    fn open(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
    ) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>> {
        Box::pin(async move {
            let mut call = self.open.on(self.key(subscription).iter());
            call.arg(decimal(epoch));
            let mut answer = ReplyParts::of(self.connection.run(&self.open, call).await?)?;
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
                        "cannot read a row of progress: its partition starts again at the start of the subscription"
                    ),
                }
            }
            Ok(rows)
        })
    }

    fn save(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: Vec<ProgressRow>,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async move {
            let mut call = self.save.on(self.key(subscription).iter());
            call.arg(decimal(epoch));
            for row in &rows {
                call.arg(&encode_place(row.place)[..]).arg(row.run).arg(encode_row(row));
            }
            // The call has a copy of the rows.
            drop(rows);
            let mut answer = ReplyParts::of(self.connection.run(&self.save, call).await?)?;
            match &*answer.bytes()? {
                b"done" => Ok(()),
                b"newer_run" => {
                    let place = decode_place(&answer.bytes()?).ok_or(RedisCallError::UnexpectedReply)?;
                    Err(ProgressError::NewerRun { place, run: answer.number()? })
                }
                _ => Err(fenced(subscription, &mut answer)?),
            }
        })
    }

    fn end_line(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        line: u32,
    ) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async move {
            let mut call = self.end_line.on(self.key(subscription).iter());
            call.arg(decimal(epoch)).arg(&encode_line(line)[..]);
            let mut answer = ReplyParts::of(self.connection.run(&self.end_line, call).await?)?;
            match &*answer.bytes()? {
                b"done" => Ok(()),
                _ => Err(fenced(subscription, &mut answer)?),
            }
        })
    }

    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async move {
            let call = self.forget.on(self.key(subscription).iter());
            self.connection.run(&self.forget, call).await?;
            Ok(())
        })
    }
}
