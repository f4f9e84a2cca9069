//! Deletes topics that several nodes share, on an engine that identifies topics by name: no node deletes a later topic with that name.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_catalogue::topics::{Registry, RegistryPorts, TopicChange, TopicDefaults};
use whimbrel_model::ports::{Catalogue as _, ExactTopic, LogError, LogTopics, PortFuture, TopicStatus};
use whimbrel_model::{ExistingTopic, NamedBounds, PartitionId, TopicNumber, TopicSpec};

use super::support::{World, pending_until, soon, until};

/// The topics of an engine that knows them by name, with their identities.
#[derive(Default)]
struct Engine {
    topics: Mutex<BTreeMap<String, u64>>,
    created: AtomicU64,
}

impl Engine {
    fn identity(&self, name: &str) -> Option<String> {
        self.topics.lock().unwrap().get(name).map(u64::to_string)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Waiting {
    None,
    Deletions,
    All,
}

struct NamedTopics {
    engine: Arc<Engine>,
    waiting: watch::Sender<Waiting>,
    calls_waiting: AtomicUsize,
}

impl NamedTopics {
    fn let_wait(&self, waiting: Waiting) {
        self.waiting.send_replace(waiting);
    }

    async fn until_a_call_waits(&self) {
        until(|| self.calls_waiting.load(Ordering::SeqCst) > 0).await;
    }

    async fn pass(&self, is_deletion: bool) {
        let mut waiting = self.waiting.subscribe();
        self.calls_waiting.fetch_add(1, Ordering::SeqCst);
        let goes_on = |waiting: &Waiting| *waiting == Waiting::None || (*waiting == Waiting::Deletions && !is_deletion);
        waiting.wait_for(goes_on).await.expect("the sender exists");
        self.calls_waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl LogTopics for NamedTopics {
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>> {
        Box::pin(async move {
            self.pass(false).await;
            let identity = self.engine.created.fetch_add(1, Ordering::SeqCst);
            self.engine.topics.lock().unwrap().entry(spec.name.clone()).or_insert(identity);
            Ok(spec.partitions)
        })
    }

    fn alter<'a>(&'a self, _: &'a TopicSpec, _: NamedBounds) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(async { Ok(()) })
    }

    fn identity<'a>(&'a self, _: TopicNumber, name: &'a str) -> PortFuture<'a, Result<Option<String>, LogError>> {
        Box::pin(async move {
            self.pass(false).await;
            Ok(self.engine.identity(name))
        })
    }

    fn delete<'a>(&'a self, topic: ExactTopic<'a>) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            self.pass(true).await;
            let mut topics = self.engine.topics.lock().unwrap();
            topics.retain(|name, identity| name != topic.name || Some(identity.to_string().as_str()) != topic.identity);
            Ok(())
        })
    }

    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>> {
        Box::pin(async move { Err(LogError::UnknownPartition(PartitionId::new(topic, 0))) })
    }

    fn exists<'a>(&'a self, _: &'a str) -> PortFuture<'a, Result<bool, LogError>> {
        Box::pin(async { Ok(false) })
    }

    fn found<'a>(
        &'a self,
        _: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> PortFuture<'a, Result<Vec<ExistingTopic>, LogError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

struct Node {
    registry: Arc<Registry>,
    topics: Arc<NamedTopics>,
}

impl Node {
    async fn open(world: &World, engine: &Arc<Engine>) -> Self {
        let topics = NamedTopics {
            engine: Arc::clone(engine),
            waiting: watch::Sender::new(Waiting::None),
            calls_waiting: AtomicUsize::new(0),
        };
        let topics = Arc::new(topics);
        let ports = RegistryPorts {
            log: world.log.clone(),
            log_topics: topics.clone(),
            catalogue: world.catalogue.clone(),
            coordination: None,
            clock: world.clock.clone(),
            events: Arc::new(|_| {}),
        };
        let registry = Registry::open(ports, TopicDefaults::default()).await.expect("the catalogue can be read");
        Self { registry: Arc::new(registry), topics }
    }

    fn follow(&self) {
        let registry = Arc::clone(&self.registry);
        let alone = watch::Sender::new(None).subscribe();
        tokio::spawn(async move { registry.watch(alone, CancellationToken::new()).await });
    }

    async fn create(&self) -> TopicNumber {
        let made = self.registry.put("orders", TopicChange::default()).await.expect("the topic can be created");
        assert!(made.created);
        made.topic.number()
    }

    async fn delete(&self) {
        let deletion = self.registry.begin_delete("orders").await.expect("the topic is known");
        deletion.finish().await.expect("the topic can be deleted");
    }

    async fn until_known(&self, number: TopicNumber) {
        until(|| self.registry.by_number(number).is_some()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_finishes_a_deletion_late_keeps_a_later_topic_of_that_name() {
    let (world, engine) = (World::new(), Arc::<Engine>::default());
    let first = Node::open(&world, &engine).await;
    first.create().await;
    let second = Node::open(&world, &engine).await;
    first.topics.let_wait(Waiting::Deletions);
    second.topics.let_wait(Waiting::All);
    second.follow();
    let mut deletion = pin!(first.delete());
    pending_until(deletion.as_mut(), second.topics.until_a_call_waits()).await;
    first.topics.let_wait(Waiting::None);
    soon(deletion).await;
    let later = first.create().await;
    let identity = engine.identity("orders");
    second.topics.let_wait(Waiting::None);
    second.until_known(later).await;
    assert_eq!(engine.identity("orders"), identity, "the second node deletes the earlier topic only");
}

#[tokio::test(start_paused = true)]
async fn an_entry_without_an_identity_leads_to_no_later_topic_of_that_name() {
    let (world, engine) = (World::new(), Arc::<Engine>::default());
    Node::open(&world, &engine).await.create().await;
    let late = Node::open(&world, &engine).await;
    late.topics.let_wait(Waiting::All);
    late.follow();
    // An earlier version began the deletion.
    world.catalogue.edit("topics/orders", |entry| entry["deleting"] = json!(true));
    late.topics.until_a_call_waits().await;
    // Another node finishes it, and creates the next topic of that name.
    let other = Node::open(&world, &engine).await;
    assert_eq!(engine.identity("orders"), None);
    assert!(world.catalogue.get("topics/orders").await.unwrap().is_none());
    let later = other.create().await;
    let identity = engine.identity("orders");
    late.topics.let_wait(Waiting::None);
    late.until_known(later).await;
    assert_eq!(engine.identity("orders"), identity);
}
