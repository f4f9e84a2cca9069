//! Messages on their way, and what they become when they fail: a hold on the retry topic, or a dead letter. Pure.
//!
//! A record of a retry topic or a dead topic is the message's own record with [`HEADER_ORIGIN`] in front of its headers.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::hold::{HEADER_DUE, HEADER_PUBLISHED_AT};
use whimbrel_model::id::id_from_place;
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::subscription::{DeliveryRule, HEADER_DELIVERY, HEADER_ORIGIN, Origin, RetryPolicy};
use whimbrel_model::{
    Headers, HeadersBuilder, HeldMessage, Hold, HoldId, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber,
};

use super::judge::Failure;

/// The prefix of the ids of holds that wait for a retry.
pub const RETRY_PURPOSE: &str = "retry";
/// Bytes of an answer that a dead letter shows.
const LETTER_ANSWER_BYTES: usize = 2 << 10;

/// A message on its way to a subscriber.
#[derive(Debug, Clone)]
pub struct Parcel {
    /// Where the message is; of a retry, where it was first.
    pub topic: Arc<str>,
    pub place: PartitionId,
    pub offset: u64,
    pub run: u32,
    /// Attempts that an earlier record of it says were made.
    pub attempts_before: u32,
    pub id: Box<str>,
    pub published_at: Timestamp,
    /// Since when it could have been delivered: its due time where it was held.
    pub since: Timestamp,
    /// With its own headers only.
    pub record: Record,
    pub rule: Option<Arc<DeliveryRule>>,
}

impl Parcel {
    /// A message as it stands in its topic.
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

    /// A message as a record of a retry topic or a dead topic has it. `None`: the record says nothing of where it comes from.
    pub fn of_letter(record: &Record) -> Option<(Self, Origin)> {
        let (json, rest) = record.headers.split_first(HEADER_ORIGIN)?;
        let origin: Origin = serde_json::from_slice(&json).ok()?;
        let mut own = HeadersBuilder::with_capacity(rest.encoded().len());
        rest.iter().take(origin.headers).for_each(|(name, value)| {
            own.push(name, value);
        });
        let record = Record { headers: own.take(), ..record.clone() };
        let place = PartitionId::new(origin.topic_number, origin.partition);
        let topic: Arc<str> = origin.topic.as_str().into();
        let parcel = Self {
            attempts_before: origin.attempts,
            published_at: origin.published_at(),
            ..Self::of(&topic, place, origin.offset, origin.run, record)
        };
        Some((parcel, origin))
    }

    /// The message's own policy for its retries.
    pub fn own_retry(&self) -> Option<&RetryPolicy> {
        self.rule.as_ref().and_then(|rule| rule.retry.as_ref())
    }

    /// What is left of a message that the log has no more.
    pub fn lost(topic: &Arc<str>, place: PartitionId, offset: u64, run: u32, now: Timestamp) -> Self {
        let record = Record { key: None, value: Bytes::new(), headers: Headers::EMPTY, timestamp: now };
        Self::of(topic, place, offset, run, record)
    }

    /// Where it comes from, after so many attempts.
    pub fn origin(&self, subscription: &str, attempts: u32) -> Origin {
        Origin {
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

    /// A hold that brings the message to the retry topic when it is due.
    pub fn hold(&self, number: SubscriptionNumber, origin: &Origin, to: RetryTopic<'_>, due: Timestamp) -> Hold {
        let record = self.letter(origin, self.published_at);
        Hold {
            id: HoldId::new(&origin.made_id(RETRY_PURPOSE, number)),
            topic: to.number,
            topic_name: Arc::clone(to.name),
            due,
            published_at: self.published_at,
            version: 0,
            fresh: false,
            moves: Vec::new(),
            message: HeldMessage { key: record.key, value: record.value, headers: record.headers },
        }
    }

    /// The message's record with where it comes from in front.
    pub fn letter(&self, origin: &Origin, timestamp: Timestamp) -> Record {
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
pub struct BroughtRetry {
    /// Attempts that were made before this record was written.
    pub attempts_before: u32,
    /// The message's own policy.
    pub own: Option<RetryPolicy>,
}

impl BroughtRetry {
    pub fn of(record: &Record) -> Self {
        Self { attempts_before: 0, own: rule_in(&record.headers).and_then(|rule| rule.retry) }
    }

    /// Reads the retry data of a record in a retry topic.
    pub fn of_letter(record: &Record) -> Self {
        let Some((parcel, origin)) = Parcel::of_letter(record) else { return Self::default() };
        Self { attempts_before: origin.attempts, own: parcel.own_retry().cloned() }
    }
}

/// The topic that a subscription's retries go to.
#[derive(Debug, Clone, Copy)]
pub struct RetryTopic<'a> {
    pub number: TopicNumber,
    pub name: &'a Arc<str>,
}

/// The origin of a dead letter.
pub fn buried(mut origin: Origin, reason: &str, failure: Option<&Failure>, now: Timestamp) -> Origin {
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

    fn message() -> Parcel {
        let mut headers = Headers::builder();
        headers.push(HEADER_ID, b"m1").push("type", b"order.paid");
        let record = Record {
            key: Some("k".into()),
            value: "body".into(),
            headers: headers.take(),
            timestamp: Timestamp::from_millis(1_000),
        };
        Parcel::of(&"orders".into(), PartitionId::new(TopicNumber(3), 1), 17, 2, record)
    }

    #[test]
    fn a_retry_that_fires_is_the_message_it_was_made_of() {
        let parcel = message();
        let origin = parcel.origin("billing", 1);
        let name: Arc<str> = "_retry.billing".into();
        let to = RetryTopic { number: TopicNumber(9), name: &name };
        let hold = parcel.hold(SubscriptionNumber(4), &origin, to, Timestamp::from_millis(9_000));
        let fired = hold.fire(Timestamp::from_millis(9_001));
        let (again, found) = Parcel::of_letter(&fired).unwrap();
        assert_eq!(found, origin);
        assert_eq!((&*again.id, &*again.topic, again.place, again.offset), ("m1", "orders", parcel.place, 17));
        assert_eq!((again.attempts_before, again.published_at), (1, Timestamp::from_millis(1_000)));
        assert_eq!(again.record.headers, parcel.record.headers, "what the hold added is gone");
        assert_eq!(again.record.value, parcel.record.value);
        let next = again.origin("billing", 2);
        assert_ne!(
            again.hold(SubscriptionNumber(4), &next, to, Timestamp::from_millis(1)).id,
            hold.id,
            "each attempt is a hold of its own"
        );
    }

    #[test]
    fn a_dead_letter_says_why() {
        let parcel = message();
        let failure = Failure {
            status: Some(500),
            reason: "answered 500".to_owned(),
            answer: "no".into(),
            retry_after: None,
            strain: false,
            endpoint: true,
            throttled: false,
            is_final: false,
        };
        let origin = buried(parcel.origin("billing", 6), "answered 500", Some(&failure), Timestamp::from_millis(5));
        let (_, found) = Parcel::of_letter(&parcel.letter(&origin, Timestamp::from_millis(5))).unwrap();
        assert_eq!((found.last_status, found.last_answer.as_deref(), found.attempts), (Some(500), Some("no"), 6));
        assert!(Parcel::of_letter(&parcel.record).is_none());
    }
}
