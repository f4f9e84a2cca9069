//! The probe after a fault: how long it takes, from the moment at which the brokers are ready, until everything serves again.
//!
//! It publishes to every partition and reads the message back, holds and withdraws on every shard, and pushes to every partition of the
//! pushes. Each request is short and is repeated, as a client would; the recovery time is that of the slowest.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt as _, LocalBoxFuture, join_all};
use whimbrel_client::{Accepted, Client, NewMessage, NewPush, Position, ReadFrom};
use whimbrel_model::hold::shard_of;
use whimbrel_model::partitioner::partition_of;

use super::committed_reader::CommittedRecord;
use super::hold_heard::{Heard, withdraw};
use super::hold_model::Answer;

/// A request that is not answered within this is sent again.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
const REPEAT_PAUSE: Duration = Duration::from_millis(30);
/// A part that does not serve after this is stuck.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Probes that are held come due, where they are not withdrawn.
const HOLD_DELAY: &str = "3s";
const PROBE_PREFIX: &str = "probe";

/// Whether a payload is a probe's, and not the workload's.
pub fn is_probe(payload: &str) -> bool {
    payload.starts_with(PROBE_PREFIX)
}

/// The parts of the server that are probed.
pub struct Probe {
    pub client: Client,
    /// Topics with their partitions.
    pub topics: Vec<(String, u32)>,
    /// The topic of the holds that are withdrawn.
    pub hold_topic: String,
    pub hold_shards: u32,
    pub push_partitions: u32,
    /// Holds of the probe that were answered as withdrawn.
    pub withdrawn: RefCell<Vec<String>>,
}

pub struct Recovery {
    pub time: Duration,
    /// The part that took longest.
    pub slowest: String,
}

/// A part's name, and its recovery time or the last error.
type Part = (String, Result<Duration, String>);

impl Probe {
    /// Probes everything at once. `round` is different for every call.
    pub async fn measure(&self, round: usize, ready: Instant) -> Recovery {
        let client = self.client.clone().with_answer_wait(ANSWER_WAIT);
        let mut parts: Vec<LocalBoxFuture<'_, Part>> = Vec::new();
        for (topic, partitions) in &self.topics {
            for partition in 0..*partitions {
                parts.push(publish_and_read(client.clone(), topic, partition, *partitions, ready).boxed_local());
            }
        }
        for shard in 0..self.hold_shards {
            parts.push(self.hold_and_withdraw(client.clone(), round, shard, ready).boxed_local());
        }
        for partition in 0..self.push_partitions {
            parts.push(push(client.clone(), partition, self.push_partitions, ready).boxed_local());
        }
        let mut recovery = Recovery { time: Duration::ZERO, slowest: String::new() };
        let mut stuck = Vec::new();
        for (name, result) in join_all(parts).await {
            match result {
                Ok(time) if time >= recovery.time => recovery = Recovery { time, slowest: name },
                Ok(_) => {}
                Err(error) => stuck.push(format!("{name}: {error}")),
            }
        }
        assert!(stuck.is_empty(), "stuck for {RECOVERY_MAX:?} after the brokers were ready:\n  {}", stuck.join("\n  "));
        recovery
    }

    /// Checks that no hold is stored that was answered as withdrawn.
    pub fn check(&self, records: &[CommittedRecord]) {
        for id in &*self.withdrawn.borrow() {
            let found: Vec<_> = records.iter().filter(|record| record.id == *id).collect();
            assert!(found.is_empty(), "{id} was withdrawn and is stored: {found:?}");
        }
    }

    async fn hold_and_withdraw(&self, client: Client, round: usize, shard: u32, ready: Instant) -> Part {
        let ids = (0..).map(move |number| format!("{PROBE_PREFIX}-{round}-{number}"));
        let mut ids = ids.filter(|id| shard_of(id, self.hold_shards) == shard);
        let held = repeat(ready, async || {
            // A new id for each attempt: an earlier attempt may still be under way.
            let id = ids.next().unwrap_or_default();
            let message = NewMessage::text(PROBE_PREFIX).id(&id).delay(HOLD_DELAY);
            client.hold(&self.hold_topic, &message).await.map(|_| id).map_err(|error| error.to_string())
        });
        let result = match held.await {
            Ok((id, _)) => self.withdraw(client, &id, ready).await,
            Err(error) => Err(format!("hold: {error}")),
        };
        (format!("holds/{shard}"), result)
    }

    async fn withdraw(&self, client: Client, id: &str, ready: Instant) -> Result<Duration, String> {
        let ended = repeat(ready, async || match withdraw(&client, id).await {
            Heard::Answer((Answer::Withdrawn | Answer::AlreadyWithdrawn, _)) => {
                self.withdrawn.borrow_mut().push(id.to_owned());
                Ok(())
            }
            // A hold that came due was ended by a commit of its shard too.
            Heard::Answer((Answer::AlreadyFired { .. }, _)) => Ok(()),
            other => Err(format!("withdraw: {other:?}")),
        });
        ended.await.map(|((), time)| time)
    }
}

async fn publish_and_read(client: Client, topic: &str, partition: u32, partitions: u32, ready: Instant) -> Part {
    let key = name_in(partition, partitions);
    let published =
        repeat(ready, async || match client.publish(topic, &NewMessage::text(PROBE_PREFIX).key(&key)).await {
            Ok(Accepted::Published(place)) => Ok(place),
            Ok(Accepted::Held(held)) => Err(format!("{held:?}")),
            Err(error) => Err(error.to_string()),
        });
    let result = match published.await {
        Ok((place, _)) => {
            assert_eq!(place.partition, partition, "{key} in {topic}");
            let position = Position::Offset(place.offset);
            let from = ReadFrom { partition, position, limit: Some(1), wait: None };
            repeat(ready, async || match client.read(topic, &from).await {
                Ok(page) if page.messages.iter().any(|message| message.id == place.id) => Ok(()),
                Ok(page) => Err(format!("read: {} is not visible, next offset {}", place.offset, page.next_offset)),
                Err(error) => Err(format!("read: {error}")),
            })
            .await
            .map(|((), time)| time)
        }
        Err(error) => Err(format!("publish: {error}")),
    };
    (format!("{topic}/{partition}"), result)
}

async fn push(client: Client, partition: u32, partitions: u32, ready: Instant) -> Part {
    let uid = name_in(partition, partitions);
    let pushed = repeat(ready, async || {
        let push = NewPush::text(PROBE_PREFIX).ephemeral();
        client.push(&uid, &push).await.map(|_| ()).map_err(|error| error.to_string())
    });
    (format!("push/{partition}"), pushed.await.map(|((), time)| time))
}

/// A key or user of that partition.
fn name_in(partition: u32, partitions: u32) -> String {
    let names = (0..).map(|number| format!("{PROBE_PREFIX}-{number}"));
    let mut names = names.filter(|name| partition_of(name.as_bytes(), partitions) == partition);
    names.next().unwrap_or_default()
}

/// Repeats a request until it succeeds: its result, and the time since `ready`.
async fn repeat<T>(
    ready: Instant,
    mut request: impl AsyncFnMut() -> Result<T, String>,
) -> Result<(T, Duration), String> {
    loop {
        match request().await {
            Ok(result) => return Ok((result, ready.elapsed())),
            Err(error) if ready.elapsed() > RECOVERY_MAX => return Err(error),
            Err(_) => tokio::time::sleep(REPEAT_PAUSE).await,
        }
    }
}
