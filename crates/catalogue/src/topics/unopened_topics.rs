//! The order in which topics are retried that the log could not open. Pure: no topic is opened here.
//!
//! An attempt ends at the first topic that cannot be opened, so the order decides which topics are ever attempted.

use std::collections::{HashMap, HashSet};

/// Keys of topics that the log could not open, in the order of their last attempts.
#[derive(Debug, Default, Clone)]
pub(super) struct UnopenedTopics {
    attempts: u64,
    last_attempt: HashMap<String, u64>,
}

impl UnopenedTopics {
    /// The rank of a topic in the next attempt: topics that have not failed come first.
    pub fn turn_of(&self, key: &str) -> u64 {
        self.last_attempt.get(key).copied().unwrap_or_default()
    }

    /// Records that the log could not open the topic. Returns whether this is the first time.
    pub fn failed(&mut self, key: &str) -> bool {
        self.attempts += 1;
        self.last_attempt.insert(key.to_owned(), self.attempts).is_none()
    }

    pub fn opened(&mut self, key: &str) {
        self.last_attempt.remove(key);
    }

    /// Removes all other topics: they need not be opened any more.
    pub fn keep_only<'a>(&mut self, keys: impl Iterator<Item = &'a String>) {
        let keys: HashSet<&String> = keys.collect();
        self.last_attempt.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_topics_take_turns_after_those_that_have_not_failed() {
        let (mut unopened, mut keys) = (UnopenedTopics::default(), ["a", "b", "c", "z"]);
        let mut tried = Vec::new();
        for _ in 0..5 {
            keys.sort_by_key(|key| unopened.turn_of(key));
            let failing = keys.into_iter().find(|key| *key != "z").unwrap();
            tried.push(failing);
            unopened.failed(failing);
        }
        assert_eq!(tried, ["a", "b", "c", "a", "b"]);
        assert!(!unopened.failed("c"));
        unopened.opened("c");
        assert!(unopened.failed("c"), "it was opened in between");
        unopened.keep_only(["a".to_owned()].iter());
        assert!(unopened.failed("b"), "it was deleted in between");
    }
}
