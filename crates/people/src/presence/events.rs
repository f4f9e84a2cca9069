//! Events about users that came online or went offline, in the system topic `_presence`: one JSON record per event, keyed by user id.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Entry, Log, PortFuture};
use whimbrel_model::push::PRESENCE_TOPIC;
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{Clock, Headers, IdMint, Record, Timestamp};

use whimbrel_catalogue::topics::{Placement, Registry};

/// A user came online or went offline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceEvent {
    pub uid: Uid,
    pub online: bool,
    /// Greater than in every earlier event about the user.
    pub version: u64,
    /// When the state changed.
    pub at: Timestamp,
    /// The user's current number of sessions.
    pub sessions: usize,
}

impl PresenceEvent {
    fn to_json(&self) -> String {
        serde_json::json!({
            "uid": self.uid.as_str(), "online": self.online, "version": self.version, "at": self.at.to_string(),
            "sessions": self.sessions,
        })
        .to_string()
    }
}

pub trait PresenceEvents: Send + Sync {
    /// Publishes all events, in order for each user. After an error some may be written; the caller repeats all.
    fn publish(&self, events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>>;
}

pub struct PresenceTopic {
    pub log: Arc<dyn Log>,
    pub topics: Arc<Registry>,
    pub mint: Arc<IdMint>,
    pub clock: Arc<dyn Clock>,
}

impl PresenceEvents for PresenceTopic {
    fn publish(&self, events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let topic = self.topics.enter(PRESENCE_TOPIC, Placement::Free).await.map_err(|error| error.to_string())?;
            let now = self.clock.now();
            let entries = events.iter().map(|event| {
                let key = Bytes::copy_from_slice(event.uid.as_str().as_bytes());
                let partition = topic.place(Some(&key));
                let mut headers = Headers::builder();
                headers.push(HEADER_ID, &self.mint.mint(now, partition).to_text());
                headers.push(HEADER_CONTENT_TYPE, b"application/json");
                let value = Bytes::from(event.to_json());
                Entry { partition, record: Record { key: Some(key), value, headers: headers.take(), timestamp: now } }
            });
            let outcome = self.log.append(entries.collect()).await;
            outcome.into_iter().try_for_each(|each| each.map(drop)).map_err(|error| error.to_string())
        })
    }
}

pub struct NoEvents;

impl PresenceEvents for NoEvents {
    fn publish(&self, _events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_encoded_as_documented() {
        let event = PresenceEvent {
            uid: Uid::new("eva").unwrap(),
            online: true,
            version: 7,
            at: Timestamp::from_millis(1_500),
            sessions: 2,
        };
        let expected = r#"{"at":"1970-01-01T00:00:01.500Z","online":true,"sessions":2,"uid":"eva","version":7}"#;
        assert_eq!(event.to_json(), expected);
    }
}
