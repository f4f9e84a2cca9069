//! The crash test: SIGKILL stops the real binary at random moments while many connections publish, and it restarts on the same folder.
//! Each acknowledged message must be at its partition and offset with its payload, in its publisher's order, once.
//!
//! A second test does the same while the disk fails for moments: a rejected request then counts as unanswered.
//!
//! One seed, which is printed, determines the random choices; `WHIMBREL_CRASH_SEED` replays them (not the scheduler's), and
//! `WHIMBREL_CRASH_KILLS` sets the number of kills.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use whimbrel_client::{Accepted, Client, ClientError, Message, NewMessage, TopicSettings};

use super::faulty_disk::{FaultyDisk, passing_fault};
use super::hold_crash::number;
use super::random::Random;
use super::server::{Server, read_all, set};

const KILLS_DEFAULT: u64 = 30;
/// With faults, a round takes longer.
const KILLS_WITH_FAULTS_DEFAULT: u64 = 8;
/// How long the disk works, and how long it fails, before a kill.
const WORKING_MS_MAX: u64 = 200;
const FAILING_MS_MAX: u64 = 500;
/// Paths with faults.
const FAULTY_PLACES: [&str; 4] =
    ["/whimbrel-data/log", "/whimbrel-data/log/journal/", "/whimbrel-data/log/topics/", "/whimbrel-data/receipts/"];
const CONNECTIONS: u64 = 16;
const TOPICS: [(&str, u32); 3] = [("crash-one", 1), ("crash-few", 4), ("crash-many", 16)];
const BATCH_MAX: u64 = 40;
const FILLER_BYTES_MAX: u64 = 2000;
/// Longest time of publishing before a kill.
const PUBLISHING_MS_MAX: u64 = 400;
/// Delay of a publisher after a rejection.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);
/// One of this many starts is killed before it is ready.
const KILL_DURING_START_ONE_IN: u64 = 5;
const START_MS_MAX: u64 = 40;

#[test]
fn acknowledged_messages_survive_kills_in_place_and_once() {
    let kills = number("WHIMBREL_CRASH_KILLS", KILLS_DEFAULT);
    let seed = number("WHIMBREL_CRASH_SEED", u64::from(std::process::id()));
    println!("seed {seed}, {kills} kills");
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);
    let mut ledger = Ledger::default();
    let mut repeats = Vec::new();

    let server = Server::start(folder.path(), &set(&settings(&mut random)));
    runtime.block_on(make_topics(&server.client()));
    server.kill();
    for round in 0..kills {
        let settings = settings(&mut random);
        if random.below(KILL_DURING_START_ONE_IN) == 0 {
            let starting = Server::spawn(folder.path(), &set(&settings));
            std::thread::sleep(Duration::from_millis(random.below(START_MS_MAX)));
            starting.kill();
        }
        let server = Server::start(folder.path(), &set(&settings));
        runtime.block_on(ledger.check_new(&server.client(), round));
        let publishing = Publishing::begin(&runtime, &server.url, round, std::mem::take(&mut repeats), &mut random);
        std::thread::sleep(Duration::from_millis(random.below(PUBLISHING_MS_MAX)));
        server.kill();
        repeats = publishing.end(&runtime, &mut ledger);
    }
    let server = Server::start(folder.path(), &set(&settings(&mut random)));
    runtime.block_on(ledger.check_new(&server.client(), kills));
    runtime.block_on(ledger.check_all(&server.client()));
    println!("{}", ledger.summary());
    assert!(ledger.acknowledged.len() as u64 > kills, "too little was published to have tested anything");
    assert_folder_is_small(folder.path());
}

/// Settings that vary from start to start: checkpoints and new segments within a round, or so rarely that a start replays the journal
/// alone.
fn settings(random: &mut Random) -> Vec<String> {
    vec![
        format!("log.checkpoint_interval={}ms", 100 << random.below(6)),
        format!("log.checkpoint_bytes={}", 1 << (20 + random.below(7))),
        format!("log.segment_bytes={}", 64 << (10 + random.below(4))),
    ]
}

#[test]
fn acknowledged_messages_survive_kills_and_disk_faults_in_place_and_once() {
    let kills = number("WHIMBREL_CRASH_KILLS", KILLS_WITH_FAULTS_DEFAULT);
    let seed = number("WHIMBREL_CRASH_SEED", u64::from(std::process::id()));
    println!("seed {seed}, {kills} kills with faults");
    let disk = FaultyDisk::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);
    let mut ledger = Ledger::default();
    let start = |random: &mut Random| {
        let settings = settings(random);
        disk.start(&settings.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let server = start(&mut random);
    runtime.block_on(make_topics(&server.client()));
    server.kill();
    let mut repeats = Vec::new();
    for round in 0..kills {
        let server = start(&mut random);
        runtime.block_on(ledger.check_new(&server.client(), round));
        let publishing = Publishing::begin(&runtime, &server.url, round, std::mem::take(&mut repeats), &mut random);
        std::thread::sleep(Duration::from_millis(random.below(WORKING_MS_MAX)));
        let fault = passing_fault(&mut random, &FAULTY_PLACES);
        disk.inject(std::slice::from_ref(&fault));
        std::thread::sleep(Duration::from_millis(random.below(FAILING_MS_MAX)));
        if random.one_in(2) {
            disk.heal();
            std::thread::sleep(Duration::from_millis(random.below(FAILING_MS_MAX)));
        }
        server.kill();
        disk.heal();
        repeats = publishing.end(&runtime, &mut ledger);
        println!("round {round}: {fault}, {} acknowledged so far", ledger.acknowledged.len());
    }
    let server = start(&mut random);
    runtime.block_on(ledger.check_new(&server.client(), kills));
    runtime.block_on(ledger.check_all(&server.client()));
    println!("{}", ledger.summary());
    assert!(ledger.acknowledged.len() as u64 > kills, "too little was published to have tested anything");
}

async fn make_topics(client: &Client) {
    for (topic, partitions) in TOPICS {
        let settings = TopicSettings { partitions: Some(partitions), ..TopicSettings::default() };
        client.put_topic(topic, &settings).await.unwrap();
    }
}

/// Guards against a test that fills the disk; the size must not depend on retention.
fn assert_folder_is_small(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.metadata().unwrap() {
                metadata if metadata.is_dir() => folders.push(entry.path()),
                metadata => bytes += metadata.len(),
            }
        }
    }
    assert!(bytes < 20 << 30, "{bytes} bytes");
}

/// One message, by publisher and number. Its payload is derived from both, so that every byte can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    publisher: u64,
    number: u64,
}

impl Name {
    fn payload(self) -> String {
        let mut random = Random(self.publisher << 32 ^ self.number);
        let filler: String =
            (0..random.below(FILLER_BYTES_MAX)).map(|_| (b'a' + random.below(26) as u8) as char).collect();
        format!("{} {} {filler}", self.publisher, self.number)
    }

    fn read(payload: &str) -> Self {
        let mut words = payload.split(' ').map(|word| word.parse().unwrap());
        Self { publisher: words.next().unwrap(), number: words.next().unwrap() }
    }

    fn id(self) -> String {
        format!("crash-{}-{}", self.publisher, self.number)
    }

    /// A publisher's messages of one topic share a key, so that they are in one partition and in order.
    fn message(self, with_id: bool) -> NewMessage {
        let message = NewMessage::text(self.payload()).key(format!("publisher-{}", self.publisher));
        if with_id { message.id(self.id()) } else { message }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    topic: String,
    partition: u32,
    offset: u64,
}

/// A request without an answer. It is repeated after the restart: with ids without duplicates, without ids possibly with some.
struct Repeat {
    topic: &'static str,
    names: Vec<Name>,
    with_ids: bool,
}

/// The results of one publisher.
#[derive(Default)]
struct PublisherResult {
    acknowledged: Vec<(Name, Place)>,
    repeated: Vec<Name>,
    unanswered: Option<Repeat>,
}

struct Publishing {
    publishers: Vec<tokio::task::JoinHandle<PublisherResult>>,
    ended: Arc<AtomicBool>,
}

impl Publishing {
    fn begin(
        runtime: &tokio::runtime::Runtime,
        url: &str,
        round: u64,
        repeats: Vec<Repeat>,
        random: &mut Random,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let mut repeats = repeats.into_iter();
        let publishers = (0..CONNECTIONS).map(|connection| {
            let client = Client::new(url).unwrap();
            let (random, ended) = (Random(random.next()), Arc::clone(&ended));
            let publisher = round * CONNECTIONS + connection;
            runtime.spawn(publish_until_killed(client, publisher, repeats.next(), random, ended))
        });
        Self { publishers: publishers.collect(), ended }
    }

    /// Collects the results of the publishers. They end by themselves when their server is gone.
    fn end(self, runtime: &tokio::runtime::Runtime, ledger: &mut Ledger) -> Vec<Repeat> {
        self.ended.store(true, Ordering::Relaxed);
        let mut repeats = Vec::new();
        for publisher in self.publishers {
            let told = runtime.block_on(publisher).unwrap();
            ledger.may_double.extend(told.repeated.iter().map(|name| (*name, ())));
            for (name, place) in told.acknowledged {
                let earlier = ledger.acknowledged.insert(name, place.clone());
                assert!(earlier.is_none(), "{name:?} was acknowledged at {earlier:?} and at {place:?}");
            }
            repeats.extend(told.unanswered);
        }
        repeats
    }
}

async fn publish_until_killed(
    client: Client,
    publisher: u64,
    repeat: Option<Repeat>,
    mut random: Random,
    ended: Arc<AtomicBool>,
) -> PublisherResult {
    let mut told = PublisherResult::default();
    if let Some(repeat) = repeat {
        if !repeat.with_ids {
            told.repeated.extend(&repeat.names);
        }
        if !send(&client, repeat, &mut told).await {
            return told;
        }
    }
    let mut number = 0;
    while !ended.load(Ordering::Relaxed) {
        let (topic, _) = TOPICS[random.below(TOPICS.len() as u64) as usize];
        let count = if random.below(2) == 0 { 1 } else { 1 + random.below(BATCH_MAX) };
        let names = (number..number + count).map(|number| Name { publisher, number }).collect();
        number += count;
        if !send(&client, Repeat { topic, names, with_ids: random.below(3) == 0 }, &mut told).await {
            break;
        }
    }
    told
}

/// Sends one request. Returns `false` if the server is gone and the outcome is unknown. A request that was rejected, or whose outcome the
/// server does not know, is not repeated: its messages may be in the log, once.
async fn send(client: &Client, request: Repeat, told: &mut PublisherResult) -> bool {
    let messages: Vec<NewMessage> = request.names.iter().map(|name| name.message(request.with_ids)).collect();
    let outcome = match messages.as_slice() {
        [one] => client.publish(request.topic, one).await.map(|accepted| vec![accepted]),
        many => client.publish_batch(request.topic, many).await,
    };
    match outcome {
        Ok(accepted) => {
            assert_eq!(accepted.len(), request.names.len());
            for (name, accepted) in request.names.into_iter().zip(accepted) {
                let Accepted::Published(place) = accepted else { panic!("{accepted:?}") };
                let place = Place { topic: place.topic, partition: place.partition, offset: place.offset };
                told.acknowledged.push((name, place));
            }
            true
        }
        Err(ClientError::Problem(problem)) if problem.status >= 500 => {
            tokio::time::sleep(REFUSED_PAUSE).await;
            true
        }
        Err(ClientError::Problem(problem)) => panic!("refused: {problem:?}"),
        Err(_) => {
            told.unanswered = Some(request);
            false
        }
    }
}

/// The acknowledged messages and those in the log.
#[derive(Default)]
struct Ledger {
    acknowledged: HashMap<Name, Place>,
    /// Messages repeated without an id, for lack of an answer: these may be duplicates.
    may_double: HashMap<Name, ()>,
    /// The end of each partition at an earlier restart.
    read_to: HashMap<(&'static str, u32), u64>,
    found: HashMap<Name, Vec<Place>>,
    doubled: u64,
    unacknowledged_found: u64,
}

impl Ledger {
    /// Reads from the end at the last restart, and checks that all acknowledged messages are in the log.
    async fn check_new(&mut self, client: &Client, round: u64) {
        for (topic, partitions) in TOPICS {
            for partition in 0..partitions {
                let from = self.read_to.get(&(topic, partition)).copied().unwrap_or_default();
                let (messages, next) = read_all(client, topic, partition, from).await;
                self.read_to.insert((topic, partition), next);
                for message in messages {
                    let place = Place { topic: topic.to_owned(), partition, offset: message.offset };
                    self.found.entry(name_of(&message)).or_default().push(place);
                }
            }
        }
        for (name, place) in &self.acknowledged {
            let found = self.found.get(name).map_or(&[][..], Vec::as_slice);
            assert!(found.contains(place), "round {round}: {name:?} was acknowledged at {place:?} and is at {found:?}");
        }
    }

    /// Reads everything from the beginning: all messages must still be there, in order, and once.
    async fn check_all(&mut self, client: &Client) {
        let mut found: HashMap<Name, Vec<Place>> = HashMap::new();
        for (topic, partitions) in TOPICS {
            for partition in 0..partitions {
                let mut last_of: HashMap<u64, u64> = HashMap::new();
                for message in read_all(client, topic, partition, 0).await.0 {
                    let name = name_of(&message);
                    let last = last_of.insert(name.publisher, name.number);
                    let is_repeat = self.may_double.contains_key(&name);
                    assert!(
                        is_repeat || last.is_none_or(|last| last < name.number),
                        "{name:?} follows {last:?} at offset {} of {topic}/{partition}, id {}",
                        message.offset,
                        message.id
                    );
                    let place = Place { topic: topic.to_owned(), partition, offset: message.offset };
                    found.entry(name).or_default().push(place);
                }
            }
        }
        assert!(found == self.found, "a later restart shows other messages than an earlier one");
        for (name, places) in &found {
            let may_double = self.may_double.contains_key(name);
            assert!(places.len() == 1 || may_double, "{name:?} is at {places:?}");
            self.doubled += u64::from(places.len() > 1);
            self.unacknowledged_found += u64::from(!self.acknowledged.contains_key(name));
        }
    }

    fn summary(&self) -> String {
        format!(
            "{} messages acknowledged and found; {} found but not acknowledged; {} of {} repeated without an id are duplicates",
            self.acknowledged.len(),
            self.unacknowledged_found,
            self.doubled,
            self.may_double.len()
        )
    }
}

fn name_of(message: &Message) -> Name {
    let payload = message.payload.as_deref().unwrap();
    let name = Name::read(payload);
    assert!(payload == name.payload(), "the payload of {name:?} differs from the published one");
    name
}
