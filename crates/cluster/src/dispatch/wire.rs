//! Conversions of requests about subscriptions, and of their answers, between the model and the node-to-node protocol.
//!
//! Messages of other nodes are validated as any input from a network: a message that cannot be decoded is rejected, never guessed.

use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, DeadLetter, DeliveryState, DispatchError, DispatchReply,
    DispatchRequest, DurationHistogram, LeasedMessage, MessageDelivery, MinuteRow,
};
use whimbrel_model::{Headers, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber};

use super::super::LocalDispatchError;
use super::super::wire::{Malformed, protocol};
use protocol::attempt::Outcome as WireOutcome;
use protocol::dispatch_refusal::Kind;
use protocol::dispatch_request::Ask as WireAsk;
use protocol::dispatch_response::Told as WireTold;
use protocol::failed_attempt::Next as WireNext;
use protocol::{DispatchNothing, DispatchRefusal, DispatchResponse, MessagePlace, MinutesRequest, MinutesResponse};

/// Minutes in order, with their statistics.
pub type Minutes = Vec<(Timestamp, MinuteRow)>;

pub fn to_request(subscription: SubscriptionNumber, ask: &DispatchRequest) -> protocol::DispatchRequest {
    let ask = match ask {
        DispatchRequest::Status => WireAsk::Status(DispatchNothing {}),
        DispatchRequest::CaughtUp { version } => WireAsk::CaughtUp(*version),
        DispatchRequest::Pull { max, wait_ms } => {
            WireAsk::Pull(protocol::PullAsk { max: *max as u64, wait_ms: *wait_ms })
        }
        DispatchRequest::Ack { ack_ids } => WireAsk::Ack(protocol::AckIds { ack_ids: ack_ids.clone() }),
        DispatchRequest::Nack { ack_ids, delay_ms } => {
            WireAsk::Nack(protocol::NackAsk { ack_ids: ack_ids.clone(), delay_ms: *delay_ms })
        }
        DispatchRequest::Extend { ack_ids, lease_ms } => {
            WireAsk::Extend(protocol::ExtendLeases { ack_ids: ack_ids.clone(), lease_ms: *lease_ms })
        }
        DispatchRequest::Message { partition, offset } => WireAsk::Message(to_place(*partition, *offset)),
        DispatchRequest::DeadLetters { from, limit } => {
            WireAsk::DeadLetters(protocol::DeadLettersAsk { from: *from, limit: *limit as u64 })
        }
        DispatchRequest::Redrive { ids } => {
            WireAsk::Redrive(protocol::RedriveAsk { all: ids.is_none(), ids: ids.clone().unwrap_or_default() })
        }
    };
    protocol::DispatchRequest { subscription: subscription.0, ask: Some(ask) }
}

pub fn from_request(request: protocol::DispatchRequest) -> Result<(SubscriptionNumber, DispatchRequest), Malformed> {
    let ask = match request.ask.ok_or(Malformed("a request without contents"))? {
        WireAsk::Status(_) => DispatchRequest::Status,
        WireAsk::CaughtUp(version) => DispatchRequest::CaughtUp { version },
        WireAsk::Pull(pull) => DispatchRequest::Pull { max: from_count(pull.max)?, wait_ms: pull.wait_ms },
        WireAsk::Ack(ack) => DispatchRequest::Ack { ack_ids: ack.ack_ids },
        WireAsk::Nack(nack) => DispatchRequest::Nack { ack_ids: nack.ack_ids, delay_ms: nack.delay_ms },
        WireAsk::Extend(extend) => DispatchRequest::Extend { ack_ids: extend.ack_ids, lease_ms: extend.lease_ms },
        WireAsk::Message(place) => {
            let (partition, offset) = from_place(&place);
            DispatchRequest::Message { partition, offset }
        }
        WireAsk::DeadLetters(asked) => {
            DispatchRequest::DeadLetters { from: asked.from, limit: from_count(asked.limit)? }
        }
        WireAsk::Redrive(redrive) => DispatchRequest::Redrive { ids: (!redrive.all).then_some(redrive.ids) },
    };
    Ok((SubscriptionNumber(request.subscription), ask))
}

pub fn to_response(answer: Result<DispatchReply, LocalDispatchError>) -> DispatchResponse {
    let told = match answer {
        Ok(told) => to_told(told)
            .unwrap_or_else(|error| refusal(Kind::OutcomeUnknown, format!("cannot encode the answer: {error}"))),
        Err(LocalDispatchError::NotHere) => WireTold::NotHere(DispatchNothing {}),
        Err(LocalDispatchError::Dispatch(error)) => match error {
            DispatchError::NoOwner => refusal(Kind::NoOwner, String::new()),
            DispatchError::Unknown => refusal(Kind::Unknown, String::new()),
            DispatchError::WrongMode(reason) => refusal(Kind::WrongMode, reason),
            DispatchError::Unavailable(reason) => refusal(Kind::Unavailable, reason),
            DispatchError::OutcomeUnknown(reason) => refusal(Kind::OutcomeUnknown, reason),
        },
    };
    DispatchResponse { told: Some(told) }
}

fn refusal(kind: Kind, reason: String) -> WireTold {
    WireTold::Refusal(DispatchRefusal { kind: kind.into(), reason })
}

fn to_told(told: DispatchReply) -> Result<WireTold, serde_json::Error> {
    Ok(match told {
        DispatchReply::Status(status) => WireTold::Status(serde_json::to_vec(&status)?.into()),
        DispatchReply::CaughtUp => WireTold::CaughtUp(DispatchNothing {}),
        DispatchReply::Pulled(pulled) => {
            WireTold::Pulled(protocol::PulledMessages { messages: pulled.into_iter().map(to_pulled).collect() })
        }
        DispatchReply::Settled { known, unknown } => {
            WireTold::Settled(protocol::Settled { known: known as u64, unknown })
        }
        DispatchReply::Message(standing) => WireTold::Message(protocol::MessageStanding {
            standing: word_of(standing.is).to_owned(),
            attempts: standing.attempts.into_iter().map(to_attempt).collect(),
        }),
        DispatchReply::DeadLetters { letters, next } => {
            let letters = letters.into_iter().map(|letter| {
                let (key, origin) = (letter.key.map(Into::into), serde_json::to_vec(&letter.origin)?.into());
                Ok(protocol::DeadLetter { id: letter.id, at: letter.at, key, origin })
            });
            WireTold::DeadLetters(protocol::DeadLetters { letters: letters.collect::<Result<_, _>>()?, next })
        }
        DispatchReply::Redriven { count, unknown } => WireTold::Redriven(protocol::Redriven { count, unknown }),
    })
}

pub fn from_response(response: DispatchResponse) -> Result<Result<DispatchReply, LocalDispatchError>, Malformed> {
    Ok(Ok(match response.told.ok_or(Malformed("an answer without contents"))? {
        WireTold::NotHere(_) => return Ok(Err(LocalDispatchError::NotHere)),
        WireTold::Refusal(refusal) => {
            let error = match refusal.kind() {
                Kind::NoOwner => DispatchError::NoOwner,
                Kind::Unknown => DispatchError::Unknown,
                Kind::WrongMode => DispatchError::WrongMode(refusal.reason),
                Kind::Unavailable => DispatchError::Unavailable(refusal.reason),
                Kind::OutcomeUnknown => DispatchError::OutcomeUnknown(refusal.reason),
                Kind::Unspecified => return Err(Malformed("an error of unknown kind")),
            };
            return Ok(Err(error.into()));
        }
        WireTold::Status(json) => {
            DispatchReply::Status(serde_json::from_slice(&json).map_err(|_| Malformed("an invalid status"))?)
        }
        WireTold::CaughtUp(_) => DispatchReply::CaughtUp,
        WireTold::Pulled(pulled) => {
            DispatchReply::Pulled(pulled.messages.into_iter().map(from_pulled).collect::<Result<_, _>>()?)
        }
        WireTold::Settled(settled) => {
            DispatchReply::Settled { known: from_count(settled.known)?, unknown: settled.unknown }
        }
        WireTold::Message(message) => DispatchReply::Message(MessageDelivery {
            is: from_word(&message.standing)?,
            attempts: message.attempts.into_iter().map(from_attempt).collect::<Result<_, _>>()?,
        }),
        WireTold::DeadLetters(dead) => {
            let letters = dead.letters.into_iter().map(|letter| {
                let origin = serde_json::from_slice(&letter.origin).map_err(|_| Malformed("an invalid origin"))?;
                Ok(DeadLetter { id: letter.id, at: letter.at, key: letter.key.map(Into::into), origin })
            });
            DispatchReply::DeadLetters { letters: letters.collect::<Result<_, Malformed>>()?, next: dead.next }
        }
        WireTold::Redriven(redriven) => DispatchReply::Redriven { count: redriven.count, unknown: redriven.unknown },
    }))
}

pub fn to_minutes_request(topic: TopicNumber, from: Timestamp, to: Timestamp) -> MinutesRequest {
    MinutesRequest { topic: topic.0, from_ms: from.as_millis(), to_ms: to.as_millis() }
}

pub fn from_minutes_request(request: &MinutesRequest) -> (TopicNumber, Timestamp, Timestamp) {
    let time = Timestamp::from_millis;
    (TopicNumber(request.topic), time(request.from_ms), time(request.to_ms))
}

pub fn to_minutes(minutes: Minutes) -> MinutesResponse {
    let minutes = minutes.into_iter().map(|(start, row)| protocol::Minute {
        start_ms: start.as_millis(),
        published: row.published,
        fired: row.fired,
        delivered: row.delivered,
        failed: row.failed,
        publish_to_delivery: Some(to_spread(&row.publish_to_delivery)),
        callback: Some(to_spread(&row.callback)),
        lateness: Some(to_spread(&row.lateness)),
    });
    MinutesResponse { minutes: minutes.collect() }
}

pub fn from_minutes(response: MinutesResponse) -> Result<Minutes, Malformed> {
    let minutes = response.minutes.into_iter().map(|minute| {
        let row = MinuteRow {
            published: minute.published,
            fired: minute.fired,
            delivered: minute.delivered,
            failed: minute.failed,
            publish_to_delivery: from_spread(minute.publish_to_delivery)?,
            callback: from_spread(minute.callback)?,
            lateness: from_spread(minute.lateness)?,
        };
        Ok((Timestamp::from_millis(minute.start_ms), row))
    });
    minutes.collect()
}

fn to_spread(spread: &DurationHistogram) -> protocol::Spread {
    protocol::Spread {
        sum_us: spread.sum_us,
        buckets: spread.buckets.iter().map(|(bucket, _)| u32::from(*bucket)).collect(),
        counts: spread.buckets.iter().map(|(_, count)| *count).collect(),
    }
}

fn from_spread(spread: Option<protocol::Spread>) -> Result<DurationHistogram, Malformed> {
    let Some(spread) = spread else { return Ok(DurationHistogram::default()) };
    if spread.buckets.len() != spread.counts.len() || !spread.buckets.is_sorted_by(|one, next| one < next) {
        return Err(Malformed("a histogram with unordered buckets"));
    }
    let buckets = spread.buckets.into_iter().zip(spread.counts).map(|(bucket, count)| {
        // Greater bucket values have no duration of 64 bits.
        let bucket = u16::try_from(bucket).ok().filter(|bucket| *bucket <= DurationHistogram::bucket_of(u64::MAX));
        Ok((bucket.ok_or(Malformed("an unknown histogram bucket"))?, count))
    });
    Ok(DurationHistogram { sum_us: spread.sum_us, buckets: buckets.collect::<Result<_, Malformed>>()? })
}

fn from_count(count: u64) -> Result<usize, Malformed> {
    usize::try_from(count).map_err(|_| Malformed("a number that is too large"))
}

fn to_place(partition: PartitionId, offset: u64) -> MessagePlace {
    MessagePlace { topic: partition.topic.0, partition: partition.index, offset }
}

fn from_place(place: &MessagePlace) -> (PartitionId, u64) {
    (PartitionId::new(TopicNumber(place.topic), place.partition), place.offset)
}

fn to_pulled(pulled: LeasedMessage) -> protocol::PulledMessage {
    let record = protocol::DispatchRecord {
        key: pulled.record.key,
        value: pulled.record.value,
        headers: pulled.record.headers.encoded().clone(),
        timestamp_ms: pulled.record.timestamp.as_millis(),
    };
    protocol::PulledMessage {
        ack_id: pulled.ack_id,
        lease_until_ms: pulled.lease_until.as_millis(),
        attempt: pulled.attempt,
        topic: pulled.topic,
        partition: pulled.partition,
        offset: pulled.offset,
        id: pulled.id,
        published_at_ms: pulled.published_at.as_millis(),
        record: Some(record),
    }
}

fn from_pulled(pulled: protocol::PulledMessage) -> Result<LeasedMessage, Malformed> {
    let record = pulled.record.ok_or(Malformed("a message without a record"))?;
    let record = Record {
        key: record.key,
        value: record.value,
        headers: Headers::from_encoded(record.headers).map_err(|_| Malformed("invalid headers"))?,
        timestamp: Timestamp::from_millis(record.timestamp_ms),
    };
    Ok(LeasedMessage {
        ack_id: pulled.ack_id,
        lease_until: Timestamp::from_millis(pulled.lease_until_ms),
        attempt: pulled.attempt,
        topic: pulled.topic,
        partition: pulled.partition,
        offset: pulled.offset,
        id: pulled.id,
        published_at: Timestamp::from_millis(pulled.published_at_ms),
        record,
    })
}

fn to_attempt(note: AttemptRecord) -> protocol::Attempt {
    let outcome = match note.outcome {
        AttemptOutcome::Delivered { status } => WireOutcome::Delivered(status.into()),
        AttemptOutcome::Failed { status, reason, answer, next } => {
            let next = match next {
                AfterFailure::RetryAt(time) => WireNext::RetryAtMs(time.as_millis()),
                AfterFailure::DeadLetter => WireNext::DeadLetter(DispatchNothing {}),
                AfterFailure::Dropped => WireNext::Dropped(DispatchNothing {}),
            };
            let (status, reason) = (status.map(u32::from), reason.into());
            WireOutcome::Failed(protocol::FailedAttempt { status, reason, answer, next: Some(next) })
        }
    };
    protocol::Attempt {
        subscription: note.subscription.0,
        run: note.run,
        place: Some(to_place(note.partition, note.offset)),
        attempt: note.attempt,
        at_ms: note.at.as_millis(),
        took_ms: note.took_ms,
        outcome: Some(outcome),
    }
}

fn from_attempt(attempt: protocol::Attempt) -> Result<AttemptRecord, Malformed> {
    let (partition, offset) = from_place(&attempt.place.ok_or(Malformed("an attempt without a message"))?);
    let outcome = match attempt.outcome.ok_or(Malformed("an attempt without an outcome"))? {
        WireOutcome::Delivered(status) => AttemptOutcome::Delivered { status: from_status(status)? },
        WireOutcome::Failed(failed) => AttemptOutcome::Failed {
            status: failed.status.map(from_status).transpose()?,
            reason: failed.reason.into(),
            answer: failed.answer,
            next: match failed.next.ok_or(Malformed("a failed attempt without a next step"))? {
                WireNext::RetryAtMs(ms) => AfterFailure::RetryAt(Timestamp::from_millis(ms)),
                WireNext::DeadLetter(_) => AfterFailure::DeadLetter,
                WireNext::Dropped(_) => AfterFailure::Dropped,
            },
        },
    };
    Ok(AttemptRecord {
        subscription: SubscriptionNumber(attempt.subscription),
        run: attempt.run,
        partition,
        offset,
        attempt: attempt.attempt,
        at: Timestamp::from_millis(attempt.at_ms),
        took_ms: attempt.took_ms,
        outcome,
    })
}

fn from_status(status: u32) -> Result<u16, Malformed> {
    u16::try_from(status).map_err(|_| Malformed("an invalid HTTP status"))
}

/// The name of each delivery state.
const STANDINGS: [(DeliveryState, &str); 7] = [
    (DeliveryState::NotForIt, "not_for_it"),
    (DeliveryState::Waiting, "waiting"),
    (DeliveryState::InFlight, "in_flight"),
    (DeliveryState::Retrying, "retrying"),
    (DeliveryState::Delivered, "delivered"),
    (DeliveryState::Dead, "dead"),
    (DeliveryState::Dropped, "dropped"),
];

fn word_of(standing: DeliveryState) -> &'static str {
    STANDINGS.iter().find(|(each, _)| *each == standing).map_or("", |(_, word)| word)
}

fn from_word(word: &str) -> Result<DeliveryState, Malformed> {
    let known = STANDINGS.iter().find(|(_, each)| *each == word);
    known.map(|(standing, _)| *standing).ok_or(Malformed("an unknown delivery state"))
}
