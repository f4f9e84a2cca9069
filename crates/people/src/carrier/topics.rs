//! The records that a carrier writes to the log: scheduled tasks, notices, dead letters.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::Entry;
use whimbrel_model::push::{HEADER_PUSH, Notice, PUSH_DEAD_TOPIC, PushFailure, PushMessage, PushTask};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY};
use whimbrel_model::{
    HOLDS_TOPIC, Headers, Hold, HoldId, HoldRecord, MessageBody, NOTICES_TOPIC, PUSH_TOPIC, Record, Timestamp,
};

use super::partition::CarrierRecord;
use whimbrel_catalogue::topics::{Registry, Topic};

/// The topics that carriers write to.
pub(super) struct CarrierTopics {
    holds: Arc<Topic>,
    push: Arc<Topic>,
    notices: Arc<Topic>,
    dead: Arc<Topic>,
}

impl CarrierTopics {
    /// `None` if a topic does not exist. The server creates them at its start.
    pub fn of(registry: &Registry) -> Option<Self> {
        Some(Self {
            holds: registry.get(HOLDS_TOPIC)?,
            push: registry.get(PUSH_TOPIC)?,
            notices: registry.get(NOTICES_TOPIC)?,
            dead: registry.get(PUSH_DEAD_TOPIC)?,
        })
    }

    pub fn push(&self) -> &Topic {
        &self.push
    }

    /// Encodes a record. `None` for [`CarrierRecord::Exhausted`], whose message is in the log: see [`CarrierTopics::exhausted`].
    pub fn entry(&self, partition: u32, item: &CarrierRecord, now: Timestamp) -> Option<Entry> {
        Some(match item {
            CarrierRecord::Hold { id, uid, task, due } => {
                let id = HoldId::new(id);
                let shard = self.holds.partition(id.shard(self.holds.partitions()));
                let hold = Hold {
                    id,
                    topic: self.push.number(),
                    topic_name: Arc::clone(&self.push.name),
                    due: *due,
                    published_at: now,
                    version: 0,
                    fresh: false,
                    moves: Vec::new(),
                    message: MessageBody {
                        key: Some(Bytes::copy_from_slice(uid.as_str().as_bytes())),
                        value: Bytes::new(),
                        headers: task.headers().take(),
                    },
                };
                Entry { partition: shard, record: HoldRecord::Held(hold).to_record(now) }
            }
            CarrierRecord::Notice(notice) => self.notice(notice, now),
            CarrierRecord::Dead { offset, record, reason } => self.dead(partition, *offset, record, reason, now),
            CarrierRecord::Exhausted { .. } => return None,
        })
    }

    fn dead(&self, partition: u32, offset: u64, record: &Record, reason: &str, now: Timestamp) -> Entry {
        let dead = PushFailure { reason: reason.to_owned(), died_at_ms: now.as_millis(), partition, offset };
        Entry { partition: self.dead.partition(0), record: dead.to_record(record) }
    }

    /// The dead letter of [`CarrierRecord::Exhausted`], made of the message's record in the log. `None` if the record is not that message.
    pub fn exhausted(&self, partition: u32, item: &CarrierRecord, record: &Record, now: Timestamp) -> Option<Entry> {
        let CarrierRecord::Exhausted { offset, uid, platforms, reason } = item else { return None };
        let push = of_one_user(record, uid, platforms, &format!("dead-{partition}-{offset}"))?;
        Some(self.dead(partition, *offset, &push, reason, now))
    }

    fn notice(&self, notice: &Notice, now: Timestamp) -> Entry {
        let mut headers = Headers::builder();
        headers.push(HEADER_ID, notice.id.as_bytes()).push(HEADER_CONTENT_TYPE, b"application/json");
        let record = Record {
            key: Some(Bytes::copy_from_slice(notice.uid.as_bytes())),
            value: serde_json::to_vec(notice).expect("a notice is plain data").into(),
            headers: headers.take(),
            timestamp: now,
        };
        Entry { partition: self.notices.place(Some(notice.uid.as_bytes())), record }
    }
}

/// Makes a push to one user and some platforms, with its own fingerprint. The inbox does not take the first redrive for a repeat of
/// the original, but a second redrive is a repeat of the first.
fn of_one_user(record: &Record, uid: &Uid, platforms: &[Platform], name: &str) -> Option<Record> {
    let Ok(PushTask::Message(message)) = PushTask::of(&record.headers) else { return None };
    if !message.uids.iter().any(|other| *other == uid.as_str()) {
        return None;
    }
    let (_, rest) = record.headers.split_first(HEADER_PUSH)?;
    let uids = vec![uid.as_str().to_owned()];
    let platforms = Some(platforms.to_vec());
    let message = PushMessage { uids, platforms, except_platforms: Vec::new(), also: None, ..message };
    let mut headers = PushTask::Message(message).headers();
    for (header, value) in rest.iter().filter(|(name, _)| ![HEADER_FINGERPRINT, HEADER_IDEMPOTENCY_KEY].contains(name))
    {
        headers.push(header, value);
    }
    headers.push(HEADER_FINGERPRINT, name.as_bytes());
    let key = Some(Bytes::copy_from_slice(uid.as_str().as_bytes()));
    Some(Record { key, value: record.value.clone(), headers: headers.take(), timestamp: record.timestamp })
}
