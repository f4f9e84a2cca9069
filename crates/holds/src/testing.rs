//! Holds for the tests of this crate.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::{Headers, Hold, HoldEnd, HoldEndKind, HoldId, MessageBody, Timestamp, TopicNumber};

pub fn hold(id: &str, due: i64) -> Arc<Hold> {
    let message = MessageBody { key: None, value: Bytes::from_static(b"body"), headers: Headers::EMPTY };
    Arc::new(Hold {
        id: HoldId::new(id),
        topic: TopicNumber(1),
        topic_name: "orders".into(),
        due: Timestamp::from_millis(due),
        published_at: Timestamp::from_millis(0),
        version: 1,
        fresh: false,
        moves: Vec::new(),
        message,
    })
}

pub fn end(hold: &Hold) -> HoldEnd {
    hold.ended(HoldEndKind::Withdrawn, Timestamp::from_millis(3))
}
