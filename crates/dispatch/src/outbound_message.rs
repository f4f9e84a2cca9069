//! Messages that are being delivered, and the records that they become when they fail: a hold for the retry topic, or a dead letter.
//! Pure.
//!
//! A record of a retry topic or dead-letter topic is the message's own record, preceded by the header [`HEADER_ORIGIN`].

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::hold::{HEADER_DUE, HEADER_PUBLISHED_AT};
use whimbrel_model::id::id_from_place;
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::subscription::{DeliveryRule, HEADER_DELIVERY, HEADER_ORIGIN, MessageOrigin, RetryPolicy};
use whimbrel_model::{
    Headers, HeadersBuilder, Hold, HoldId, MessageBody, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber,
};

use super::call_verdict::DeliveryFailure;

/// The prefix of the ids of holds that wait for a retry.
pub const RETRY_PURPOSE: &str = "retry";
/// The most bytes of an answer in a dead letter.
const LETTER_ANSWER_BYTES: usize = 2 << 10;

#[derive(Debug, Clone)]
pub struct OutboundMessage {
    /// The message's position in its topic; for a retry, the original one.
    pub topic: Arc<str>,
    pub place: PartitionId,
    pub offset: u64,
    pub run: u32,
    /// Attempts that were made before this record was written.
    pub attempts_before: u32,
    pub id: Box<str>,
    pub published_at: Timestamp,
    /// When the message could first be delivered: its due time if it was held.
    pub since: Timestamp,
    /// The message's record, without headers that Whimbrel added.
    pub record: Record,
    pub rule: Option<Arc<DeliveryRule>>,
}

impl OutboundMessage {
    /// A message from a record of its topic.
    pub fn of(topic: &Arc<str>, place: PartitionId, offset: u64, run: u32, record: Record) -> Self {
        let headers = &record.headers;
        let time = |name| {
            let ms = headers.get_str(name).and_then(|text| text.parse().ok());
            ms.map(Timestamp::from_millis)
        };
        let (published_at, due) = (time(HEADER_PUBLISHED_AT), time(HEADER_DUE));
        let rule = rule_in(headers);
        Self {
            topic: Arc::clone(topic),
            place,
            offset,
            run,
            attempts_before: 0,
            id: headers.get_str(HEADER_ID).map_or_else(|| id_from_place(place, offset).into(), Into::into),
            published_at: published_at.unwrap_or(record.timestamp),
            since: due.unwrap_or(record.timestamp),
            rule: rule.map(Arc::new),
            record,
        }
    }

    /// A message from a record of a retry topic or dead-letter topic. `None` if the record has no valid origin.
    pub fn from_origin_record(record: &Record) -> Option<(Self, MessageOrigin)> {
        let (json, rest) = record.headers.split_first(HEADER_ORIGIN)?;
        let origin: MessageOrigin = serde_json::from_slice(&json).ok()?;
        let mut own = HeadersBuilder::with_capacity(rest.encoded().len());
        rest.iter().take(origin.headers).for_each(|(name, value)| {
            own.push(name, value);
        });
        let record = Record { headers: own.take(), ..record.clone() };
        let place = PartitionId::new(origin.topic_number, origin.partition);
        let topic: Arc<str> = origin.topic.as_str().into();
        let message = Self {
            attempts_before: origin.attempts,
            published_at: origin.published_at(),
            ..Self::of(&topic, place, origin.offset, origin.run, record)
        };
        Some((message, origin))
    }

    pub fn own_retry(&self) -> Option<&RetryPolicy> {
        self.rule.as_ref().and_then(|rule| rule.retry.as_ref())
    }

    /// A placeholder for a message that the log no longer has.
    pub fn lost(topic: &Arc<str>, place: PartitionId, offset: u64, run: u32, now: Timestamp) -> Self {
        let record = Record { key: None, value: Bytes::new(), headers: Headers::EMPTY, timestamp: now };
        Self::of(topic, place, offset, run, record)
    }

    /// The origin of the message after `attempts` attempts.
    pub fn origin(&self, subscription: &str, attempts: u32) -> MessageOrigin {
        MessageOrigin {
            subscription: subscription.to_owned(),
            run: self.run,
            topic: self.topic.to_string(),
            topic_number: self.place.topic,
            partition: self.place.index,
            offset: self.offset,
            attempts,
            published_at_ms: self.published_at.as_millis(),
            headers: self.record.headers.iter().count(),
            reason: None,
            last_status: None,
            last_answer: None,
            died_at_ms: None,
        }
    }

    /// A hold that appends the message to the retry topic when it is due.
    pub fn hold(&self, number: SubscriptionNumber, origin: &MessageOrigin, to: RetryTopic<'_>, due: Timestamp) -> Hold {
        let record = self.origin_record(origin, self.published_at);
        Hold {
            id: HoldId::new(&origin.made_id(RETRY_PURPOSE, number)),
            topic: to.number,
            topic_name: Arc::clone(to.name),
            due,
            published_at: self.published_at,
            version: 0,
            fresh: false,
            moves: Vec::new(),
            message: MessageBody { key: record.key, value: record.value, headers: record.headers },
        }
    }

    /// The message's record, preceded by its origin.
    pub fn origin_record(&self, origin: &MessageOrigin, timestamp: Timestamp) -> Record {
        let json = serde_json::to_vec(origin).expect("an origin is plain data");
        let own = &self.record.headers;
        let mut headers = HeadersBuilder::with_capacity(own.encoded().len() + json.len() + HEADER_ORIGIN.len() + 8);
        headers.push(HEADER_ORIGIN, &json);
        headers.push_all(own);
        Record { key: self.record.key.clone(), value: self.record.value.clone(), headers: headers.take(), timestamp }
    }
}

fn rule_in(headers: &Headers) -> Option<DeliveryRule> {
    headers.get(HEADER_DELIVERY).and_then(|json| serde_json::from_slice(json).ok())
}

/// The retry data in a message's record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetryData {
    /// Attempts that were made before this record was written.
    pub attempts_before: u32,
    pub own: Option<RetryPolicy>,
}

impl RetryData {
    pub fn of(record: &Record) -> Self {
        Self { attempts_before: 0, own: rule_in(&record.headers).and_then(|rule| rule.retry) }
    }

    /// Reads the retry data of a record in a retry topic.
    pub fn from_origin_record(record: &Record) -> Self {
        let Some((message, origin)) = OutboundMessage::from_origin_record(record) else { return Self::default() };
        Self { attempts_before: origin.attempts, own: message.own_retry().cloned() }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct RetryTopic<'a> {
    pub number: TopicNumber,
    pub name: &'a Arc<str>,
}

/// Completes the origin of a message that becomes a dead letter.
pub fn dead_letter_origin(
    mut origin: MessageOrigin,
    reason: &str,
    failure: Option<&DeliveryFailure>,
    now: Timestamp,
) -> MessageOrigin {
    origin.reason = Some(reason.to_owned());
    origin.died_at_ms = Some(now.as_millis());
    if let Some(failure) = failure {
        origin.last_status = failure.status;
        let shown = &failure.answer[..failure.answer.len().min(LETTER_ANSWER_BYTES)];
        origin.last_answer = (!shown.is_empty()).then(|| String::from_utf8_lossy(shown).into_owned());
    }
    origin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> OutboundMessage {
        let mut headers = Headers::builder();
        headers.push(HEADER_ID, b"m1").push("type", b"order.paid");
        let record = Record {
            key: Some("k".into()),
            value: "body".into(),
            headers: headers.take(),
            timestamp: Timestamp::from_millis(1_000),
        };
        OutboundMessage::of(&"orders".into(), PartitionId::new(TopicNumber(3), 1), 17, 2, record)
    }

    #[test]
    fn a_fired_retry_is_the_original_message() {
        let message = message();
        let origin = message.origin("billing", 1);
        let name: Arc<str> = "_retry.billing".into();
        let to = RetryTopic { number: TopicNumber(9), name: &name };
        let hold = message.hold(SubscriptionNumber(4), &origin, to, Timestamp::from_millis(9_000));
        let fired = hold.fire(Timestamp::from_millis(9_001));
        let (again, found) = OutboundMessage::from_origin_record(&fired).unwrap();
        assert_eq!(found, origin);
        assert_eq!((&*again.id, &*again.topic, again.place, again.offset), ("m1", "orders", message.place, 17));
        assert_eq!((again.attempts_before, again.published_at), (1, Timestamp::from_millis(1_000)));
        assert_eq!(again.record.headers, message.record.headers, "headers of the hold are removed");
        assert_eq!(again.record.value, message.record.value);
        let next = again.origin("billing", 2);
        assert_ne!(
            again.hold(SubscriptionNumber(4), &next, to, Timestamp::from_millis(1)).id,
            hold.id,
            "each attempt has its own hold"
        );
    }

    #[test]
    fn a_dead_letter_has_its_reason() {
        let message = message();
        let failure = DeliveryFailure {
            status: Some(500),
            reason: "answered 500".to_owned(),
            answer: "no".into(),
            retry_after: None,
            strain: false,
            endpoint: true,
            throttled: false,
            is_final: false,
        };
        let origin =
            dead_letter_origin(message.origin("billing", 6), "answered 500", Some(&failure), Timestamp::from_millis(5));
        let (_, found) =
            OutboundMessage::from_origin_record(&message.origin_record(&origin, Timestamp::from_millis(5))).unwrap();
        assert_eq!((found.last_status, found.last_answer.as_deref(), found.attempts), (Some(500), Some("no"), 6));
        assert!(OutboundMessage::from_origin_record(&message.record).is_none());
    }
}
