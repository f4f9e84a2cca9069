//! The delivery state of one message in each subscription. Each owner is asked, with a short timeout.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use whimbrel_api::messages::{AttemptInfo, DeliveryInfo};
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, DeliveryState, DispatchReply, DispatchRequest,
};

use crate::api_state::ApiState;
use crate::endpoints::subscription_calls::is_visible;
use crate::keys::Caller;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_catalogue::topics::Topic;

/// Timeout for an owner.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The maximum number of owners that are asked concurrently.
const ASKED_AT_ONCE: usize = 64;

/// The deliveries of a message by each subscription of its topic that the caller may see.
pub(crate) async fn deliveries_of(
    api: &Arc<ApiState>,
    caller: &Caller,
    topic: &Topic,
    partition: PartitionId,
    offset: u64,
) -> Vec<DeliveryInfo> {
    let mut readers = api.subscriptions.reading(&topic.name);
    readers.retain(|reader| is_visible(caller, reader));
    let asked = readers.into_iter().map(|reader| {
        let api = Arc::clone(api);
        async move { delivery_of(&api, &reader, partition, offset).await }
    });
    futures_util::stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await
}

async fn delivery_of(api: &ApiState, reader: &Subscription, partition: PartitionId, offset: u64) -> DeliveryInfo {
    let asked = api.ports.dispatch.ask(reader.number(), DispatchRequest::Message { partition, offset });
    let (state, attempts) = match tokio::time::timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(DispatchReply::Message(standing))) => (word(standing.is), standing.attempts),
        _ => ("unknown", Vec::new()),
    };
    let attempts = attempts.into_iter().map(attempt_document).collect();
    DeliveryInfo { name: reader.name.to_string(), state: state.to_owned(), attempts }
}

fn word(standing: DeliveryState) -> &'static str {
    match standing {
        DeliveryState::NotForIt => "not_for_it",
        DeliveryState::Waiting => "waiting",
        DeliveryState::InFlight => "in_flight",
        DeliveryState::Retrying => "retrying",
        DeliveryState::Delivered => "delivered",
        DeliveryState::Dead => "dead",
        DeliveryState::Dropped => "dropped",
    }
}

fn attempt_document(note: AttemptRecord) -> AttemptInfo {
    let mut document = AttemptInfo {
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
