//! A hold: a message with a due time, and its records in the topic `_holds`.
//!
//! Each change of a hold is a record of its shard, a partition of `_holds`: `held`, `moved`, `ended` (fired, withdrawn or dead), and
//! `carried`, which copies the state of a hold before the log is trimmed. Each record has the header [`HEADER_HOLD`] before all others. In
//! `held` and `carried`, the rest is the message as its topic will contain it. Rows of the stores beside the log have the same encoding.
//! Both encodings contain a version.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use crate::partitioner::partition_of;
use crate::shared_text::shared_text;
use crate::{Headers, HeadersBuilder, Record, Timestamp, TopicNumber};

/// The topic of holds. Its partitions are the shards.
pub const HOLDS_TOPIC: &str = "_holds";
/// The header of a record of `_holds` with the description of the change. It precedes the message's own headers.
pub const HEADER_HOLD: &str = "whimbrel-hold";
/// The due time of a fired message, in milliseconds as decimal text. The record's own time is the time at which it fired.
pub const HEADER_DUE: &str = "whimbrel-due";
/// The publish time of a fired message, in milliseconds as decimal text.
pub const HEADER_PUBLISHED_AT: &str = "whimbrel-published-at";

/// The number of moves with idempotency keys that a hold remembers; older ones are dropped.
pub const MOVES_REMEMBERED: usize = 8;
/// Bytes of a hold's id. Higher than the limit of publisher-chosen ids, because ids of retries and notifications have several parts.
pub const HOLD_ID_MAX_BYTES: usize = 255;
/// Bytes of the stored reason of a dead hold.
pub const REASON_MAX_BYTES: usize = 1000;

/// The approximate size of the two headers of a fired message: names, lengths and two times.
const FIRED_HEADERS_BYTES: usize = 2 * 6 + HEADER_DUE.len() + HEADER_PUBLISHED_AT.len() + 2 * 14;
/// The size of a hold's header without its value.
const HOLD_HEADER_BYTES: usize = 6 + HEADER_HOLD.len();

const FORMAT: u8 = 1;
const KIND_HELD: u8 = 1;
const KIND_CARRIED: u8 = 2;
const KIND_MOVED: u8 = 3;
const KIND_ENDED: u8 = 4;
const KIND_CARRIED_END: u8 = 5;
const FLAG_FRESH: u8 = 1;

/// A hold's id. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(Arc<str>);

shared_text!(HoldId);

impl HoldId {
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub fn shard(&self, shards: u32) -> u32 {
        shard_of(&self.0, shards)
    }
}

pub fn shard_of(id: &str, shards: u32) -> u32 {
    partition_of(id.as_bytes(), shards)
}

/// A pending hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub id: HoldId,
    pub topic: TopicNumber,
    /// Stored beside the number: if the number now means another topic, the name prevents a misdirected message.
    pub topic_name: Arc<str>,
    pub due: Timestamp,
    pub published_at: Timestamp,
    /// The offset of the record that made the hold's last change; zero before there is one. `carried` does not change it.
    pub version: u64,
    /// The id was minted for this hold and is unused, so the fold need not look for an earlier hold.
    pub fresh: bool,
    /// The latest moves with an idempotency key, oldest first.
    pub moves: Vec<Move>,
    pub message: MessageBody,
}

/// The message as its topic will contain it, without the headers that firing adds. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageBody {
    pub key: Option<Bytes>,
    pub value: Bytes,
    pub headers: Headers,
}

/// A move with an idempotency key, stored to recognize a repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub key: Box<str>,
    pub due: Timestamp,
    pub version: u64,
}

/// The end of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldEnd {
    pub how: HoldEndKind,
    pub at: Timestamp,
    pub due: Timestamp,
    pub published_at: Timestamp,
    pub topic: TopicNumber,
    /// The fingerprint of the publisher's body, if the publish had an id or a key, to recognize a repeat.
    pub fingerprint: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldEndKind {
    Fired {
        partition: u32,
    },
    Withdrawn,
    /// The message can never be appended to its topic.
    Dead {
        reason: Box<str>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldRecord {
    /// The hold was accepted. The fold ignores it if the id is already known.
    Held(Hold),
    /// The due time was changed. The fold ignores it if the hold is not pending.
    Moved { id: HoldId, due: Timestamp, key: Option<Box<str>> },
    /// The hold is over. It also applies to an unknown id.
    Ended { id: HoldId, end: HoldEnd },
    /// A copy of a pending hold, made before older records were trimmed. It replaces the known state of the id.
    Carried(Hold),
    /// A copy of a hold's end, made before older records were trimmed. It replaces the known state of the id.
    CarriedEnd { id: HoldId, end: HoldEnd },
}

/// A record of `_holds` that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedHold {
    #[error("the record has no header `{HEADER_HOLD}`")]
    NoHold,
    #[error("the record has format {0}, which this version cannot read")]
    OtherFormat(u8),
    #[error("the record is truncated or damaged")]
    Garbled,
}

impl Hold {
    /// The size in bytes that counts against memory limits.
    pub fn size(&self) -> usize {
        let message = &self.message;
        let moves: usize = self.moves.iter().map(|each| each.key.len() + size_of::<Move>()).sum();
        size_of::<Self>()
            + self.id.0.len()
            + moves
            + message.key.as_ref().map_or(0, Bytes::len)
            + message.value.len()
            + message.headers.encoded().len()
    }

    /// Copies the hold's message into its own buffer. Otherwise it keeps the whole buffer in memory from which it was read.
    pub fn compact(mut self) -> Self {
        let MessageBody { key, value, headers } = self.message;
        let record = Record { key, value, headers, timestamp: self.due }.compact();
        self.message = MessageBody { key: record.key, value: record.value, headers: record.headers };
        self
    }

    /// The hold with another due time, set by the record at offset `version`.
    pub fn moved(&self, due: Timestamp, key: Option<&str>, version: u64) -> Self {
        let mut moved = Self { due, version, ..self.clone() };
        if let Some(key) = key {
            if moved.moves.len() == MOVES_REMEMBERED {
                moved.moves.remove(0);
            }
            moved.moves.push(Move { key: key.into(), due, version });
        }
        moved
    }

    /// The fingerprint of the publisher's body, if the publish had an id or a key.
    pub fn fingerprint(&self) -> Option<u64> {
        let text = self.message.headers.get_str(crate::record::HEADER_FINGERPRINT)?;
        u64::from_str_radix(text, 16).ok()
    }

    /// The stored end of this hold.
    pub fn ended(&self, how: HoldEndKind, at: Timestamp) -> HoldEnd {
        HoldEnd {
            how,
            at,
            due: self.due,
            published_at: self.published_at,
            topic: self.topic,
            fingerprint: self.fingerprint(),
        }
    }

    /// The record of the message in its topic, fired at `fired_at`.
    pub fn fire(&self, fired_at: Timestamp) -> Record {
        let mut headers = HeadersBuilder::with_capacity(self.message.headers.encoded().len() + FIRED_HEADERS_BYTES);
        headers.push_all(&self.message.headers);
        headers.push(HEADER_DUE, self.due.as_millis().to_string().as_bytes());
        headers.push(HEADER_PUBLISHED_AT, self.published_at.as_millis().to_string().as_bytes());
        Record {
            key: self.message.key.clone(),
            value: self.message.value.clone(),
            headers: headers.take(),
            timestamp: fired_at,
        }
    }

    /// Encodes a row of a store beside the log.
    pub fn encode(&self) -> Vec<u8> {
        let mut row = self.description(KIND_CARRIED);
        let message = &self.message;
        put_len(&mut row, message.key.as_ref().map_or(u32::MAX as usize, Bytes::len));
        row.put_slice(message.key.as_deref().unwrap_or_default());
        put_len(&mut row, message.headers.encoded().len());
        row.put_slice(message.headers.encoded());
        row.put_slice(&message.value);
        row
    }

    /// Decodes a row of [`Hold::encode`]. The hold shares the row's bytes.
    pub fn decode(mut row: Bytes) -> Result<Self, MalformedHold> {
        let (kind, mut hold) = read_description(&mut row)?;
        if kind != KIND_CARRIED {
            return Err(MalformedHold::Garbled);
        }
        let key_len = take(&mut row, 4)?.get_u32_le();
        let key = if key_len == u32::MAX { None } else { Some(take(&mut row, key_len as usize)?) };
        let headers_len = take(&mut row, 4)?.get_u32_le();
        let headers = take(&mut row, headers_len as usize)?;
        let headers = Headers::from_encoded(headers).map_err(|_| MalformedHold::Garbled)?;
        hold.message = MessageBody { key, value: row, headers };
        Ok(hold)
    }

    /// Encodes everything except the message.
    fn description(&self, kind: u8) -> Vec<u8> {
        let mut bytes = begin(kind, &self.id);
        bytes.put_u8(if self.fresh { FLAG_FRESH } else { 0 });
        bytes.put_u32_le(self.topic.0);
        put_short(&mut bytes, &self.topic_name);
        bytes.put_i64_le(self.due.as_millis());
        bytes.put_i64_le(self.published_at.as_millis());
        bytes.put_u64_le(self.version);
        bytes.put_u8(u8::try_from(self.moves.len()).expect("a hold remembers at most MOVES_REMEMBERED moves"));
        for each in &self.moves {
            put_long(&mut bytes, &each.key);
            bytes.put_i64_le(each.due.as_millis());
            bytes.put_u64_le(each.version);
        }
        bytes
    }
}

impl HoldEnd {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        self.write(&mut bytes);
        bytes
    }

    pub fn decode(mut bytes: Bytes) -> Result<Self, MalformedHold> {
        match take(&mut bytes, 1)?.get_u8() {
            FORMAT => Self::read(&mut bytes),
            other => Err(MalformedHold::OtherFormat(other)),
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let (how, partition, reason) = match &self.how {
            HoldEndKind::Fired { partition } => (1, *partition, ""),
            HoldEndKind::Withdrawn => (2, 0, ""),
            HoldEndKind::Dead { reason } => (3, 0, &**reason),
        };
        bytes.put_u8(how);
        bytes.put_u32_le(partition);
        put_long(bytes, reason);
        bytes.put_i64_le(self.at.as_millis());
        bytes.put_i64_le(self.due.as_millis());
        bytes.put_i64_le(self.published_at.as_millis());
        bytes.put_u32_le(self.topic.0);
        bytes.put_u8(u8::from(self.fingerprint.is_some()));
        bytes.put_u64_le(self.fingerprint.unwrap_or(0));
    }

    fn read(bytes: &mut Bytes) -> Result<Self, MalformedHold> {
        let mut start = take(bytes, 5)?;
        let (how, partition) = (start.get_u8(), start.get_u32_le());
        let reason = take_long(bytes)?;
        let mut rest = take(bytes, 8 * 3 + 4 + 1 + 8)?;
        let time = |rest: &mut Bytes| Timestamp::from_millis(rest.get_i64_le());
        let (at, due, published_at) = (time(&mut rest), time(&mut rest), time(&mut rest));
        let topic = TopicNumber(rest.get_u32_le());
        let has_fingerprint = rest.get_u8() == 1;
        let fingerprint = has_fingerprint.then_some(rest.get_u64_le());
        let how = match how {
            1 => HoldEndKind::Fired { partition },
            2 => HoldEndKind::Withdrawn,
            3 => HoldEndKind::Dead { reason },
            _ => return Err(MalformedHold::Garbled),
        };
        Ok(Self { how, at, due, published_at, topic, fingerprint })
    }
}

impl HoldRecord {
    pub fn to_record(&self, now: Timestamp) -> Record {
        let (description, message) = match self {
            Self::Held(hold) => (hold.description(KIND_HELD), Some(&hold.message)),
            Self::Carried(hold) => (hold.description(KIND_CARRIED), Some(&hold.message)),
            Self::Moved { id, due, key } => {
                let mut bytes = begin(KIND_MOVED, id);
                bytes.put_i64_le(due.as_millis());
                bytes.put_u8(u8::from(key.is_some()));
                put_long(&mut bytes, key.as_deref().unwrap_or_default());
                (bytes, None)
            }
            Self::Ended { id, end } => (describe_end(KIND_ENDED, id, end), None),
            Self::CarriedEnd { id, end } => (describe_end(KIND_CARRIED_END, id, end), None),
        };
        let own = message.map(|message| &message.headers);
        let own_bytes = own.map_or(0, |headers| headers.encoded().len());
        let mut headers = HeadersBuilder::with_capacity(HOLD_HEADER_BYTES + description.len() + own_bytes);
        headers.push(HEADER_HOLD, &description);
        if let Some(own) = own {
            headers.push_all(own);
        }
        Record {
            key: message.and_then(|message| message.key.clone()),
            value: message.map(|message| message.value.clone()).unwrap_or_default(),
            headers: headers.take(),
            timestamp: now,
        }
    }

    /// Decodes the record of `_holds` at `offset`. A pending hold shares the record's bytes.
    pub fn of(record: &Record, offset: u64) -> Result<Self, MalformedHold> {
        let (description, headers) = record.headers.split_first(HEADER_HOLD).ok_or(MalformedHold::NoHold)?;
        let mut bytes = description;
        match bytes.get(1).copied() {
            Some(KIND_HELD | KIND_CARRIED) => {
                let (kind, mut hold) = read_description(&mut bytes)?;
                hold.message = MessageBody { key: record.key.clone(), value: record.value.clone(), headers };
                if kind == KIND_HELD {
                    hold.version = offset;
                    return Ok(Self::Held(hold));
                }
                Ok(Self::Carried(hold))
            }
            _ => {
                let (kind, id) = read_beginning(&mut bytes)?;
                match kind {
                    KIND_MOVED => {
                        let mut fixed = take(&mut bytes, 9)?;
                        let (due, has_key) = (Timestamp::from_millis(fixed.get_i64_le()), fixed.get_u8() == 1);
                        let key = take_long(&mut bytes)?;
                        Ok(Self::Moved { id, due, key: has_key.then_some(key) })
                    }
                    KIND_ENDED => Ok(Self::Ended { id, end: HoldEnd::read(&mut bytes)? }),
                    KIND_CARRIED_END => Ok(Self::CarriedEnd { id, end: HoldEnd::read(&mut bytes)? }),
                    _ => Err(MalformedHold::Garbled),
                }
            }
        }
    }

    pub fn id(&self) -> &HoldId {
        match self {
            Self::Held(hold) | Self::Carried(hold) => &hold.id,
            Self::Moved { id, .. } | Self::Ended { id, .. } | Self::CarriedEnd { id, .. } => id,
        }
    }
}

fn describe_end(kind: u8, id: &HoldId, end: &HoldEnd) -> Vec<u8> {
    let mut bytes = begin(kind, id);
    end.write(&mut bytes);
    bytes
}

fn begin(kind: u8, id: &HoldId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.put_u8(FORMAT);
    bytes.put_u8(kind);
    put_short(&mut bytes, &id.0);
    bytes
}

fn read_beginning(bytes: &mut Bytes) -> Result<(u8, HoldId), MalformedHold> {
    let mut start = take(bytes, 2)?;
    match (start.get_u8(), start.get_u8()) {
        (FORMAT, kind) => Ok((kind, HoldId(take_short(bytes)?))),
        (other, _) => Err(MalformedHold::OtherFormat(other)),
    }
}

/// Decodes a [`Hold::description`]. The message is left empty.
fn read_description(bytes: &mut Bytes) -> Result<(u8, Hold), MalformedHold> {
    let (kind, id) = read_beginning(bytes)?;
    let mut start = take(bytes, 5)?;
    let (flags, topic) = (start.get_u8(), TopicNumber(start.get_u32_le()));
    let topic_name = take_short(bytes)?;
    let mut fixed = take(bytes, 8 * 3 + 1)?;
    let due = Timestamp::from_millis(fixed.get_i64_le());
    let published_at = Timestamp::from_millis(fixed.get_i64_le());
    let version = fixed.get_u64_le();
    let mut moves = Vec::new();
    for _ in 0..fixed.get_u8() {
        let key = take_long(bytes)?;
        let mut fixed = take(bytes, 16)?;
        moves.push(Move { key, due: Timestamp::from_millis(fixed.get_i64_le()), version: fixed.get_u64_le() });
    }
    let message = MessageBody { key: None, value: Bytes::new(), headers: Headers::EMPTY };
    let fresh = flags & FLAG_FRESH != 0;
    Ok((kind, Hold { id, topic, topic_name, due, published_at, version, fresh, moves, message }))
}

fn put_len(bytes: &mut Vec<u8>, len: usize) {
    bytes.put_u32_le(u32::try_from(len).expect("the API limits the size of a hold"));
}

/// Text of at most 255 bytes.
fn put_short(bytes: &mut Vec<u8>, text: &str) {
    bytes.put_u8(u8::try_from(text.len()).expect("the API limits the length of ids and names"));
    bytes.put_slice(text.as_bytes());
}

/// Text of at most 65 535 bytes.
fn put_long(bytes: &mut Vec<u8>, text: &str) {
    bytes.put_u16_le(u16::try_from(text.len()).expect("the API limits the length of keys and reasons"));
    bytes.put_slice(text.as_bytes());
}

fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes, MalformedHold> {
    if bytes.len() < count { Err(MalformedHold::Garbled) } else { Ok(bytes.split_to(count)) }
}

fn take_short(bytes: &mut Bytes) -> Result<Arc<str>, MalformedHold> {
    let len = take(bytes, 1)?.get_u8();
    text(&take(bytes, len.into())?).map(Arc::from)
}

fn take_long(bytes: &mut Bytes) -> Result<Box<str>, MalformedHold> {
    let len = take(bytes, 2)?.get_u16_le();
    text(&take(bytes, len.into())?).map(Box::from)
}

fn text(bytes: &[u8]) -> Result<&str, MalformedHold> {
    std::str::from_utf8(bytes).map_err(|_| MalformedHold::Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{HEADER_FINGERPRINT, HEADER_ID};
    use proptest::prelude::*;

    fn hold(id: &str, key: Option<&str>, value: &[u8]) -> Hold {
        let mut headers = Headers::builder();
        headers.push(HEADER_ID, id.as_bytes()).push(HEADER_FINGERPRINT, b"00000000000000ff");
        Hold {
            id: HoldId::new(id),
            topic: TopicNumber(7),
            topic_name: "orders".into(),
            due: Timestamp::from_millis(2_000),
            published_at: Timestamp::from_millis(1_000),
            version: 41,
            fresh: true,
            moves: Vec::new(),
            message: MessageBody {
                key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
                value: Bytes::copy_from_slice(value),
                headers: headers.take(),
            },
        }
    }

    fn through_the_log(record: &HoldRecord) -> HoldRecord {
        HoldRecord::of(&record.to_record(Timestamp::from_millis(5)), 99).unwrap()
    }

    #[test]
    fn every_record_is_decoded_as_it_was_encoded() {
        let held = hold("a", Some("k"), b"body").moved(Timestamp::from_millis(9), Some("again"), 50);
        let end = |how| held.ended(how, Timestamp::from_millis(3));
        let id = HoldId::new("a");
        for record in [
            HoldRecord::Carried(held.clone()),
            HoldRecord::Moved { id: id.clone(), due: Timestamp::from_millis(4), key: None },
            HoldRecord::Moved { id: id.clone(), due: Timestamp::from_millis(4), key: Some("".into()) },
            HoldRecord::Ended { id: id.clone(), end: end(HoldEndKind::Fired { partition: 3 }) },
            HoldRecord::Ended { id: id.clone(), end: end(HoldEndKind::Withdrawn) },
            HoldRecord::CarriedEnd { id, end: end(HoldEndKind::Dead { reason: "too large".into() }) },
        ] {
            assert_eq!(through_the_log(&record), record);
        }
        let HoldRecord::Held(read) = through_the_log(&HoldRecord::Held(held.clone())) else { panic!("not held") };
        assert_eq!(read, Hold { version: 99, ..held }, "a held record's version is its own offset");
    }

    #[test]
    fn a_fired_message_has_headers_with_its_due_and_publish_time() {
        let record = hold("a", Some("k"), b"body").fire(Timestamp::from_millis(2_003));
        assert_eq!(record.headers.get_str(HEADER_ID), Some("a"));
        assert_eq!(record.headers.get_str(HEADER_DUE), Some("2000"));
        assert_eq!(record.headers.get_str(HEADER_PUBLISHED_AT), Some("1000"));
        assert_eq!((record.key.as_deref(), &record.value[..]), (Some(&b"k"[..]), &b"body"[..]));
        assert_eq!(record.timestamp, Timestamp::from_millis(2_003));
    }

    #[test]
    fn a_hold_remembers_only_its_latest_moves() {
        let mut held = hold("a", None, b"");
        for round in 0..=MOVES_REMEMBERED as u64 {
            held = held.moved(Timestamp::from_millis(1), Some(&round.to_string()), round);
        }
        assert_eq!(held.moves.len(), MOVES_REMEMBERED);
        assert_eq!(&*held.moves[0].key, "1");
    }

    proptest! {
        #[test]
        fn a_row_is_decoded_as_it_was_encoded(key in proptest::option::of("[a-z]{0,9}"), value: Vec<u8>, fresh: bool) {
            let row = Hold { fresh, ..hold("0-a", key.as_deref(), &value) }.moved(Timestamp::from_millis(-1), Some("m"), 7);
            prop_assert_eq!(&Hold::decode(row.encode().into()).unwrap(), &row);
            prop_assert_eq!(row.clone().compact(), row);
        }

        #[test]
        fn invalid_bytes_are_rejected_without_a_panic(bytes: Vec<u8>) {
            let _ = Hold::decode(bytes.clone().into());
            let _ = HoldEnd::decode(bytes.clone().into());
            let mut headers = Headers::builder();
            headers.push(HEADER_HOLD, &bytes);
            let record = Record { key: None, value: Bytes::new(), headers: headers.take(), timestamp: Timestamp::from_millis(0) };
            let _ = HoldRecord::of(&record, 0);
        }
    }
}
