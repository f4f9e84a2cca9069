//! What a carrier writes to the log: tasks that come back later, notices, dead letters.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::ports::Entry;
use whimbrel_model::push::{Notice, PUSH_DEAD_TOPIC, PushDead};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{
    HOLDS_TOPIC, Headers, HeldMessage, Hold, HoldId, HoldRecord, NOTICES_TOPIC, PUSH_TOPIC, Record, Timestamp,
};

use super::partition::Letter;
use crate::topics::{Registry, Topic};

/// The topics that carriers write to.
pub(super) struct LetterTopics {
    holds: Arc<Topic>,
    push: Arc<Topic>,
    notices: Arc<Topic>,
    dead: Arc<Topic>,
}

impl LetterTopics {
    /// `None` where one of them is not there, which the start made sure of.
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

    pub fn entry(&self, partition: u32, letter: &Letter, now: Timestamp) -> Entry {
        match letter {
            Letter::Hold { id, uid, task, due } => {
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
                    message: HeldMessage {
                        key: Some(Bytes::copy_from_slice(uid.as_str().as_bytes())),
                        value: Bytes::new(),
                        headers: task.headers().take(),
                    },
                };
                Entry { partition: shard, record: HoldRecord::Held(hold).to_record(now) }
            }
            Letter::Notice(notice) => self.notice(notice, now),
            Letter::Dead { offset, record, reason } => {
                let dead = PushDead { reason: reason.clone(), died_at_ms: now.as_millis(), partition, offset: *offset };
                let record = dead.to_record(record);
                Entry { partition: self.dead.partition(0), record }
            }
        }
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
