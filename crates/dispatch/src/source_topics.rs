//! The topics that a subscription uses: as the catalogue has them, and as the subscription follows those that it reads. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_catalogue::topics::Topic;
use whimbrel_model::subscription::{dead_topic, retry_topic};
use whimbrel_model::{HOLDS_TOPIC, HoldId, PartitionId, TopicNumber};

/// The topics that a subscription uses, as far as they exist.
#[derive(Debug, Clone, Default)]
pub struct SubscriptionTopics {
    /// Its own topics.
    pub sources: Vec<Arc<Topic>>,
    pub retry: Option<Arc<Topic>>,
    pub dead: Option<Arc<Topic>>,
    pub holds: Option<Arc<Topic>>,
}

impl SubscriptionTopics {
    /// Finds the topics of a subscription by their names.
    pub fn of(subscription: &Subscription, find: impl Fn(&str) -> Option<Arc<Topic>>) -> Self {
        Self {
            sources: subscription.stored.spec.topics.iter().filter_map(|name| find(name)).collect(),
            retry: find(&retry_topic(&subscription.name)),
            dead: find(&dead_topic(&subscription.name)),
            holds: find(HOLDS_TOPIC),
        }
    }

    fn all(&self) -> impl Iterator<Item = Option<&Arc<Topic>>> {
        self.sources.iter().map(Some).chain([self.retry.as_ref(), self.dead.as_ref(), self.holds.as_ref()])
    }

    /// Whether both have the same versions of the same topics.
    pub fn is_same(&self, other: &Self) -> bool {
        let version = |topic: Option<&Arc<Topic>>| topic.map(|topic| (topic.number(), topic.version));
        self.all().map(version).eq(other.all().map(version))
    }

    /// Whether the subscription reads this version of a topic.
    pub fn reads(&self, topic: &Topic) -> bool {
        self.read().any(|(each, _)| each.number() == topic.number() && each.version == topic.version)
    }

    /// The topics that the subscription reads.
    fn read(&self) -> impl Iterator<Item = (&Arc<Topic>, bool)> {
        self.sources.iter().map(|topic| (topic, false)).chain(self.retry.iter().map(|topic| (topic, true)))
    }
}

pub struct SourceTopic {
    pub topic: Arc<str>,
    pub is_retry: bool,
    /// The followed version of the topic; `None`: its partitions must be opened again.
    version: Option<u64>,
}

#[derive(Default)]
pub struct SourceTopics {
    view: SubscriptionTopics,
    followed: HashMap<TopicNumber, SourceTopic>,
}

impl SourceTopics {
    pub fn new(view: SubscriptionTopics) -> Self {
        Self { view, followed: HashMap::new() }
    }

    pub fn set_view(&mut self, view: SubscriptionTopics) {
        self.view = view;
    }

    /// The partition of the dead letters.
    pub fn dead(&self) -> Option<PartitionId> {
        self.view.dead.as_ref().map(|topic| topic.partition(0))
    }

    /// The partition of a hold.
    pub fn holds_partition(&self, id: &HoldId) -> Option<PartitionId> {
        self.view.holds.as_ref().map(|topic| topic.partition(id.shard(topic.partitions())))
    }

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

    /// Follows the topics of the view. Returns those whose partitions must be opened, each with whether it is the retry topic.
    pub fn follow(&mut self) -> Vec<(Arc<Topic>, bool)> {
        let mut unopened = Vec::new();
        for (topic, is_retry) in self.view.read() {
            let source = self.followed.entry(topic.number());
            let name = || Arc::clone(&topic.name);
            let source = source.or_insert_with(|| SourceTopic { topic: name(), is_retry, version: None });
            if source.version.replace(topic.version) != Some(topic.version) {
                unopened.push((Arc::clone(topic), is_retry));
            }
        }
        unopened
    }

    /// Removes and returns the topics that are not in the view.
    pub fn leave(&mut self) -> Vec<TopicNumber> {
        let is_left = |number: &TopicNumber| !self.view.read().any(|(topic, _)| topic.number() == *number);
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
        let view = SubscriptionTopics { sources: vec![Arc::clone(&topic)], ..SubscriptionTopics::default() };
        let mut sources = SourceTopics::new(view.clone());
        assert!(sources.follow().len() == 1 && sources.follow().is_empty());
        sources.open_again();
        assert!(sources.are_unopened());
        assert_eq!(sources.follow().len(), 1);
        assert!(sources.leave().is_empty());
        assert!(view.is_same(&view.clone()) && !view.is_same(&SubscriptionTopics::default()));
        sources.set_view(SubscriptionTopics::default());
        assert_eq!(sources.leave(), [topic.number()]);
        assert!(sources.get(topic.number()).is_none());
    }
}
