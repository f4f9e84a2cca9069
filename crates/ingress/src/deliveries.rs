//! What subscriptions did with one message: each subscription's owner is asked, and not waited for long.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{AfterFailure, AttemptNote, AttemptOutcome, DispatchAsk, DispatchTold, Standing};

use super::door::Door;
use super::keys::Caller;
use super::subscription_calls::is_seen;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_catalogue::topics::Topic;

/// How long an owner is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Owners that are asked at one time.
const ASKED_AT_ONCE: usize = 64;

/// What one subscription did with a message.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryDocument {
    pub name: String,
    /// `delivered`, `waiting`, `in_flight`, `retrying`, `dead`, `dropped`, `not_for_it` (before its beginning, or left out by its filter),
    /// or `unknown` where its owner does not answer
    pub state: String,
    /// In the order of their times, as far as they are remembered.
    pub attempts: Vec<AttemptDocument>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptDocument {
    /// The first is 1.
    pub attempt: u32,
    pub at: String,
    pub took_ms: u32,
    /// The subscription's run: a seek, a replay and a redrive begin a new one.
    pub run: u32,
    /// `delivered` or `failed`
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The start of the answer of a failed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// What came after a failure: `retry`, `dead_letter` or `drop`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
}

/// What each subscription of a topic that the caller may see did with the message at that place.
pub(super) async fn deliveries_of(
    door: &Arc<Door>,
    caller: &Caller,
    topic: &Topic,
    partition: PartitionId,
    offset: u64,
) -> Vec<DeliveryDocument> {
    let mut readers = door.subscriptions.reading(&topic.name);
    readers.retain(|reader| is_seen(caller, reader));
    let asked = readers.into_iter().map(|reader| {
        let door = Arc::clone(door);
        async move { delivery_of(&door, &reader, partition, offset).await }
    });
    futures_util::stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await
}

async fn delivery_of(door: &Door, reader: &Subscription, partition: PartitionId, offset: u64) -> DeliveryDocument {
    let asked = door.ports.dispatch.ask(reader.number(), DispatchAsk::Message { partition, offset });
    let (state, attempts) = match tokio::time::timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(DispatchTold::Message(standing))) => (word(standing.is), standing.attempts),
        _ => ("unknown", Vec::new()),
    };
    let attempts = attempts.into_iter().map(attempt_document).collect();
    DeliveryDocument { name: reader.name.to_string(), state: state.to_owned(), attempts }
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::NotForIt => "not_for_it",
        Standing::Waiting => "waiting",
        Standing::InFlight => "in_flight",
        Standing::Retrying => "retrying",
        Standing::Delivered => "delivered",
        Standing::Dead => "dead",
        Standing::Dropped => "dropped",
    }
}

fn attempt_document(note: AttemptNote) -> AttemptDocument {
    let mut document = AttemptDocument {
        attempt: note.attempt,
        at: note.at.to_string(),
        took_ms: note.took_ms,
        run: note.run,
        outcome: "delivered".to_owned(),
        status: None,
        reason: None,
        answer: None,
        next: None,
        retry_at: None,
    };
    match note.outcome {
        AttemptOutcome::Delivered { status } => document.status = Some(status),
        AttemptOutcome::Failed { status, reason, answer, next } => {
            document.outcome = "failed".to_owned();
            document.status = status;
            document.reason = Some(reason.to_string());
            document.answer = (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned());
            let (next, retry_at) = match next {
                AfterFailure::RetryAt(at) => ("retry", Some(at.to_string())),
                AfterFailure::DeadLetter => ("dead_letter", None),
                AfterFailure::Dropped => ("drop", None),
            };
            document.next = Some(next.to_owned());
            document.retry_at = retry_at;
        }
    }
    document
}
