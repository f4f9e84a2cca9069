//! The topics that a subscription reads, as it follows them: its own topics, and its retry topic. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use whimbrel_catalogue::topics::Topic;
use whimbrel_model::TopicNumber;

pub struct SourceTopic {
    pub topic: Arc<str>,
    pub is_retry: bool,
    /// The followed version of the topic; `None`: its partitions must be opened again.
    version: Option<u64>,
}

#[derive(Default)]
pub struct SourceTopics {
    followed: HashMap<TopicNumber, SourceTopic>,
}

impl SourceTopics {
    pub fn get(&self, number: TopicNumber) -> Option<&SourceTopic> {
        self.followed.get(&number)
    }

    pub fn is_retry(&self, number: TopicNumber) -> bool {
        self.get(number).is_some_and(|source| source.is_retry)
    }

    /// The retry topic of the subscription.
    pub fn retry(&self) -> Option<(TopicNumber, &Arc<str>)> {
        self.followed.iter().find(|(_, source)| source.is_retry).map(|(number, source)| (*number, &source.topic))
    }

    /// Follows a topic. Returns true if its partitions must be opened.
    pub fn follow(&mut self, topic: &Topic, is_retry: bool) -> bool {
        let source = self.followed.entry(topic.number());
        let name = || Arc::clone(&topic.name);
        let source = source.or_insert_with(|| SourceTopic { topic: name(), is_retry, version: None });
        source.version.replace(topic.version) != Some(topic.version)
    }

    pub fn is_followed(&self, topic: &Topic) -> bool {
        self.get(topic.number()).is_some_and(|source| source.version == Some(topic.version))
    }

    /// Removes and returns the topics that are not among these.
    pub fn leave_all_but(&mut self, topics: &[Arc<Topic>]) -> Vec<TopicNumber> {
        let is_left = |number: &TopicNumber| !topics.iter().any(|topic| topic.number() == *number);
        let left: Vec<TopicNumber> = self.followed.keys().copied().filter(is_left).collect();
        left.iter().for_each(|number| drop(self.followed.remove(number)));
        left
    }

    /// Makes all topics be opened again: there is a new line.
    pub fn open_again(&mut self) {
        self.followed.values_mut().for_each(|source| source.version = None);
    }

    /// Whether a topic must still be opened.
    pub fn are_unopened(&self) -> bool {
        self.followed.values().any(|source| source.version.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_opened_once_for_each_version_and_again_for_a_new_line() {
        let topic = Topic::for_tests("orders", 2);
        let mut sources = SourceTopics::default();
        assert!(sources.follow(&topic, false) && !sources.follow(&topic, false));
        sources.open_again();
        assert!(sources.are_unopened() && !sources.is_followed(&topic));
        assert!(sources.follow(&topic, false) && sources.is_followed(&topic));
        assert_eq!(sources.leave_all_but(&[]), [topic.number()]);
        assert!(sources.get(topic.number()).is_none());
    }
}
