//! A burst of commits on one shard of the holds: holds are withdrawn at short intervals, while the broker that coordinates the
//! shard's transactions is killed.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use whimbrel_client::{Client, NewMessage};
use whimbrel_model::hold::shard_of;

use super::committed_reader::CommittedRecord;
use super::hold_answer::{CommandReply, HoldReply, look, millis_of, withdraw};
use super::hold_model::Answer;
use super::server::PATIENCE;

/// The topic of the holds, and its partitions.
pub const BURST_TOPIC: (&str, u32) = ("late-burst", 2);
const HOLDS: usize = 40;
const DELAY: &str = "4s";
/// The time between two withdrawals: so short that a commit is in progress at nearly every moment.
const STAGGER: Duration = Duration::from_millis(4);
/// The time in which the withdrawals are sent.
pub const BURST_MS: u64 = HOLDS as u64 * STAGGER.as_millis() as u64;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub struct Burst {
    holds: Vec<BurstHold>,
}

struct BurstHold {
    id: String,
    due_ms: i64,
    withdrawal: Option<CommandReply>,
}

impl Burst {
    /// Creates holds on one shard. Each request is repeated until it is acknowledged.
    pub async fn hold(client: &Client, round: usize, shard: u32, shards: u32) -> Self {
        let ids = (0..).map(|number| format!("burst-{round}-{number}"));
        let ids = ids.filter(|id| shard_of(id, shards) == shard).take(HOLDS);
        let holds = ids.map(|id| async move {
            let began = Instant::now();
            let message = NewMessage::text(id.clone()).id(&id).delay(DELAY);
            loop {
                match client.hold(BURST_TOPIC.0, &message).await {
                    Ok(held) => return BurstHold { id, due_ms: millis_of(&held.due), withdrawal: None },
                    Err(error) => assert!(began.elapsed() < PATIENCE, "{id} cannot be held: {error}"),
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Self { holds: join_all(holds).await }
    }

    /// Withdraws the holds at short intervals, and waits for all answers.
    pub async fn withdraw(mut self, client: Client) -> Self {
        let withdrawals = self.holds.iter_mut().enumerate().map(|(at, hold)| {
            let client = &client;
            async move {
                tokio::time::sleep(STAGGER * at as u32).await;
                hold.withdrawal = Some(withdraw(client, &hold.id).await);
            }
        });
        join_all(withdrawals).await;
        self
    }

    /// The holds with their due times in milliseconds since 1970.
    pub fn dues(&self) -> impl Iterator<Item = (&str, i64)> {
        self.holds.iter().map(|hold| (hold.id.as_str(), hold.due_ms))
    }

    /// Checks that each hold ended as the answer to its withdrawal states, that a fired one is in its topic once, and that a withdrawn one
    /// is not there.
    pub async fn check(&self, client: &Client, records: &[CommittedRecord]) {
        for BurstHold { id, due_ms, withdrawal } in &self.holds {
            let found: Vec<&CommittedRecord> = records.iter().filter(|record| record.id == *id).collect();
            let began = Instant::now();
            let end = loop {
                match look(client, id).await {
                    HoldReply::Answer((answer, _)) => break answer,
                    other => assert!(began.elapsed() < PATIENCE, "{id}: {other:?}"),
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            };
            let context = format!("{id}, due at {due_ms}, withdrawal {withdrawal:?}, end {end:?}: {found:?}");
            match end {
                Answer::AlreadyFired { .. } => {
                    assert_eq!(found.len(), 1, "fired and not stored exactly once: {context}");
                    assert!(found[0].time_ms >= *due_ms, "fired early: {context}");
                }
                Answer::AlreadyWithdrawn => assert!(found.is_empty(), "withdrawn and stored: {context}"),
                _ => panic!("not ended: {context}"),
            }
            if let Some(HoldReply::Answer((answer, _))) = withdrawal {
                let is_consistent = match answer {
                    Answer::Withdrawn | Answer::AlreadyWithdrawn => found.is_empty(),
                    Answer::AlreadyFired { .. } => found.len() == 1,
                    _ => false,
                };
                assert!(is_consistent, "the answer to the withdrawal is false: {context}");
            }
        }
    }
}
