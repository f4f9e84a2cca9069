//! The numbers of topics: each number is assigned once in the whole cluster.

use whimbrel_model::TopicNumber;
use whimbrel_model::limits::TOPIC_NUMBER_MAX;

use super::conflicts::Conflicts;
use super::registry::{Registry, TopicError};
use super::stored::LAST_NUMBER_KEY;

impl Registry {
    /// A number that the log does not use either: a catalogue restored from a backup may be older than its log.
    pub(super) async fn unused_number(&self) -> Result<TopicNumber, TopicError> {
        loop {
            let number = self.next_number().await?;
            match self.ports.log_topics.describe(number).await {
                // If the log is unavailable, creating the topic returns the error.
                Err(_) => return Ok(number),
                Ok(_) => tracing::warn!(
                    number = number.0,
                    "skipped a topic number that is missing in the catalogue and used in the log"
                ),
            }
        }
    }

    async fn next_number(&self) -> Result<TopicNumber, TopicError> {
        let malformed = |why: &str| TopicError::Malformed { key: LAST_NUMBER_KEY.to_owned(), why: why.to_owned() };
        let mut conflicts = Conflicts::default();
        loop {
            let found = self.ports.catalogue.get(LAST_NUMBER_KEY).await?;
            let last = match &found {
                None => 0,
                Some(found) => std::str::from_utf8(&found.value)
                    .ok()
                    .and_then(|text| text.parse::<u32>().ok())
                    .ok_or_else(|| malformed("it is not a number"))?,
            };
            let next = last.saturating_add(1);
            if next > TOPIC_NUMBER_MAX {
                return Err(TopicError::NoNumber(last));
            }
            let value = next.to_string().into_bytes();
            match self.ports.catalogue.put(LAST_NUMBER_KEY, value, found.map(|found| found.version)).await {
                Ok(_) => return Ok(TopicNumber(next)),
                Err(error) => conflicts.try_again(error.into()).await?,
            }
        }
    }
}
