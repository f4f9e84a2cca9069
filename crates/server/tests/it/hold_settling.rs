//! The end of a run with holds: all holds come due, the test reads the topics, and compares each hold with its history.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use whimbrel_client::{Client, HoldFilter, Message, TopicSettings};

use super::hold_answer::{HoldReply, look, millis_of};
use super::hold_model::{Command, Found};
use super::hold_work::{SHARED_TOPIC, Tally, Tracked, Worker, now_ms, own_topic, payload};
use super::outage_probe::is_probe;
use super::server::{PATIENCE, read_all};

/// Time limit for the end after outages, also while several brokers restart on two busy cores.
const END_PATIENCE: Duration = Duration::from_secs(240);
/// The message of a fired hold is visible to readers within this time, also where its transaction marker was lost.
const VISIBLE_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LOOKS_AT_ONCE: usize = 8;

/// The publisher of a message, and its number.
type Name = (u64, u64);

/// The messages found in the topics so far.
#[derive(Default)]
pub struct Settling {
    read_to: HashMap<(String, u32), u64>,
    found: HashMap<Name, Vec<Message>>,
    /// The time at which a message was first seen, by the reader's clock.
    first_seen_ms: HashMap<Name, i64>,
}

/// The topics of the workers, with their partitions.
pub fn topics(workers: u64) -> impl Iterator<Item = (String, u32)> {
    (0..workers).map(own_topic).chain([(SHARED_TOPIC.0.to_owned(), SHARED_TOPIC.1)])
}

pub async fn make_topics(client: &Client, workers: u64) {
    for (topic, partitions) in topics(workers) {
        let settings = TopicSettings { partitions: Some(partitions), ..TopicSettings::default() };
        // A broker on a busy machine may take longer than the server waits for it; a repeated call creates the same topic.
        let began = Instant::now();
        while let Err(error) = client.put_topic(&topic, &settings).await {
            assert!(began.elapsed() < PATIENCE, "{topic} cannot be created: {error}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Settling {
    /// Reads on from the last end. A message's due time must have passed, unless a command fired it.
    pub async fn read_on(&mut self, client: &Client, workers: u64) {
        for (topic, partitions) in topics(workers) {
            for partition in 0..partitions {
                let from = self.read_to.get(&(topic.clone(), partition)).copied().unwrap_or_default();
                let (messages, next) = read_all(client, &topic, partition, from).await;
                self.read_to.insert((topic.clone(), partition), next);
                let now = now_ms();
                let is_probe = |message: &Message| message.payload.as_deref().is_some_and(is_probe);
                for message in messages.into_iter().filter(|message| !is_probe(message)) {
                    let name = name_of(&message);
                    self.first_seen_ms.entry(name).or_insert(now);
                    self.found.entry(name).or_default().push(message);
                }
            }
        }
    }

    /// Waits until no hold is pending, then checks every hold against its history and its topic.
    pub async fn settle(&mut self, client: &Client, workers: Vec<Worker>) -> String {
        let count = workers.len() as u64;
        let mut tally = Tally::default();
        workers.iter().for_each(|worker| tally.add(&worker.tally));
        let mut holds: Vec<Tracked> = workers.into_iter().flat_map(|worker| worker.holds).collect();
        wait_until_nothing_is_pending(client).await;
        look_at_all(client, &mut holds).await;
        self.read_until_visible(client, count, &holds).await;
        let now = now_ms();
        let mut names = HashMap::new();
        for hold in &mut holds {
            let name = (hold.worker, hold.number);
            names.insert(name, ());
            let messages = self.found.get(&name).map_or(&[][..], Vec::as_slice);
            self.judge(hold, messages, now);
        }
        for name in self.found.keys() {
            assert!(names.contains_key(name), "{name:?} was never published");
        }
        let dead = HoldFilter { state: Some("dead".to_owned()), ..HoldFilter::default() };
        let dead = client.holds(&dead).await.unwrap().holds;
        assert!(dead.is_empty(), "dead: {dead:?}");
        tally.0.insert("holds in their topics".to_owned(), self.found.len() as u64);
        tally.0.insert("holds".to_owned(), holds.len() as u64);
        tally.lines()
    }

    /// Reads until no message is missing. A fired hold and its message are one transaction, but readers see a message only when the marker
    /// of that transaction is in the message's partition: on Kafka, after an outage, later than in the partition of the hold.
    async fn read_until_visible(&mut self, client: &Client, workers: u64, holds: &[Tracked]) {
        let began = Instant::now();
        loop {
            self.read_on(client, workers).await;
            let now = now_ms();
            let is_missing = |hold: &&Tracked| {
                let name = (hold.worker, hold.number);
                !self.found.contains_key(&name) && !hold.history.may_have(&[], now)
            };
            let missing: Vec<u64> = holds.iter().filter(is_missing).map(|hold| hold.number).collect();
            if missing.is_empty() || began.elapsed() >= VISIBLE_WITHIN {
                return;
            }
            println!("{} messages are missing at first, {:?}: {missing:?}", missing.len(), began.elapsed());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn judge(&self, hold: &mut Tracked, messages: &[Message], now: i64) {
        let name = (hold.worker, hold.number);
        let found: Vec<Found> = messages.iter().map(found_of).collect();
        if let Err(contradiction) = hold.history.settled(&found, now) {
            panic!("{name:?} ({:?}) in {}: {contradiction}\n{messages:?}", hold.id, hold.topic);
        }
        for (message, found) in messages.iter().zip(&found) {
            assert_eq!(message.topic, hold.topic, "{name:?}");
            assert!(hold.id.as_ref().is_none_or(|id| *id == message.id), "{name:?} has the id {}", message.id);
            if let Some(place) = hold.place {
                assert_eq!(
                    (message.partition, message.offset),
                    place,
                    "{name:?} is at another place than its answer had"
                );
            }
            let seen = self.first_seen_ms[&name];
            assert!(found.fired_at <= seen, "{name:?} fired at {} and was seen at {seen}", found.fired_at);
            // If it was read before its due time, a command fired it; then the message itself has an early firing time.
            let was_early = seen < found.due && found.fired_at >= found.due;
            assert!(!was_early, "{name:?} was in the topic at {seen}, before {found:?}");
        }
    }

    /// Every message that was read, in no order.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.found.values().flatten()
    }

    /// Reads everything again and compares it with the messages read before.
    pub async fn read_again(&self, client: &Client, workers: u64) {
        let mut again = Self::default();
        again.read_on(client, workers).await;
        assert!(again.found == self.found, "a later start shows other messages than the earlier ones");
    }
}

async fn wait_until_nothing_is_pending(client: &Client) {
    let began = Instant::now();
    loop {
        let pending = match client.count_holds(&HoldFilter::default()).await {
            Ok(counts) if counts.count == 0 => return,
            Ok(counts) => format!("{} are pending", counts.count),
            Err(error) => HoldReply::<()>::of(error).why().to_owned(),
        };
        assert!(began.elapsed() < END_PATIENCE, "holds do not end: {pending}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Queries the outcome of each hold.
async fn look_at_all(client: &Client, holds: &mut [Tracked]) {
    let looks = holds.iter_mut().filter(|hold| hold.id.is_some()).map(|hold| async move {
        let id = hold.id.clone().unwrap_or_default();
        let began = Instant::now();
        let (answer, from) = loop {
            let from = now_ms();
            match look(client, &id).await {
                HoldReply::Answer((answer, _)) => break (answer, from),
                // A query changes nothing, so it can be repeated.
                other => assert!(began.elapsed() < PATIENCE, "a query at the end: {other:?}"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let looked = [(Command::Look, Some(answer))];
        hold.history.asked(&looked, from, now_ms()).unwrap_or_else(|why| panic!("{id}: {why}"));
    });
    stream::iter(looks).buffer_unordered(LOOKS_AT_ONCE).collect::<Vec<()>>().await;
}

fn name_of(message: &Message) -> Name {
    let text = message.payload.as_deref().unwrap();
    let mut words = text.split(' ').map(|word| word.parse().unwrap());
    let name = (words.next().unwrap(), words.next().unwrap());
    assert!(text == payload(name.0, name.1), "the payload of {name:?} differs from the published one");
    name
}

fn found_of(message: &Message) -> Found {
    let time = |time: &Option<String>| time.as_deref().map(millis_of);
    let (due, fired_at) = (time(&message.due), time(&message.fired_at));
    Found { due: due.expect("it has its due time"), fired_at: fired_at.expect("it says when it fired") }
}
