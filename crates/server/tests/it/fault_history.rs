//! A mixed load while the disk fails at random and the process is killed. The test checks through the API that no acknowledged message is
//! lost, no hold fires early, no message is in its topic twice, and every registration of a device is there.
//!
//! `WHIMBREL_FAULT_SECONDS` sets the duration (default 15 s), `WHIMBREL_FAULT_SEED` the faults.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use whimbrel_client::{Client, ClientError, Extension, Message, NewDevice, NewMessage, NewPush, SubscriptionSettings};
use whimbrel_model::Timestamp;

use super::faulty_disk::FaultyDisk;
use super::hold_crash::number;
use super::random::Random;
use super::receiver::Receiver;
use super::server::{Server, converse, eventually, read_all};
use super::server_life::get;

const SECONDS_DEFAULT: u64 = 15;
const SEED_DEFAULT: u64 = 1;
const SETTINGS: [&str; 5] = [
    "topics.partitions=1",
    "holds.shards=4",
    "push.partitions=4",
    "receipts.lease=2s",
    "subscriptions.save_interval=100ms",
];
/// Parts of paths with faults.
const PLACES: [&str; 7] =
    ["/holds/", "/receipts/", "/progress/", "/progress.mirror/", "/inboxes/", "/devices", "/whimbrel-data/"];
const USERS: u64 = 200;
/// Delay between two registrations, so that a user stays within the limit of devices.
const REGISTER_PAUSE: Duration = Duration::from_millis(100);
/// Time within which the server must deliver everything after the last fault.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// The answers to the load.
#[derive(Default)]
struct Answers {
    /// Payloads of publishes without a key that were acknowledged.
    plain: HashSet<String>,
    /// Ids of publishes with an id of their own.
    keyed: HashSet<String>,
    /// Holds with the earliest time at which they may fire.
    held: HashMap<String, Timestamp>,
    withdrawn: HashSet<String>,
    /// Holds whose withdrawal was requested and got no definite answer.
    uncertain: HashSet<String>,
    pushed: HashMap<String, u64>,
    /// Users with the numbers of their devices.
    registered: HashMap<u64, Vec<u64>>,
}

struct Scene {
    url: Mutex<String>,
    is_over: AtomicBool,
    next: AtomicU64,
    answers: Mutex<Answers>,
}

impl Scene {
    fn client(&self) -> Client {
        Client::new(&self.url.lock().unwrap()).unwrap().with_answer_wait(Duration::from_secs(8))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn until_over(&self, mut step: impl FnMut(&Client)) {
        while !self.is_over.load(Ordering::Relaxed) {
            step(&self.client());
        }
    }

    /// Repeats the request until there is a definite answer, or the test ends.
    fn insist<T>(&self, mut ask: impl FnMut(&Client) -> Result<T, ClientError>) -> Option<T> {
        loop {
            match ask(&self.client()) {
                Ok(answer) => return Some(answer),
                Err(_) if self.is_over.load(Ordering::Relaxed) => return None,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn publish_plain(&self) {
        self.until_over(|client| {
            let payload = format!("p-{}", self.number());
            match converse(client.publish("orders", &NewMessage::text(payload.clone()))) {
                Ok(_) => drop(self.answers.lock().unwrap().plain.insert(payload)),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        });
    }

    fn publish_keyed(&self) {
        self.until_over(|_| {
            let id = format!("k-{}", self.number());
            let message = NewMessage::text("keyed").id(id.clone());
            if self.insist(|client| converse(client.publish("orders", &message))).is_some() {
                self.answers.lock().unwrap().keyed.insert(id);
            }
        });
    }

    fn hold(&self, seed: u64) {
        let mut random = Random(seed);
        self.until_over(|_| {
            let id = format!("h-{}", self.number());
            let delay = random.between(300, 4_000);
            let message = NewMessage::text("held").id(id.clone()).delay(format!("{delay}ms"));
            let Some(held) = self.insist(|client| converse(client.hold("later", &message))) else { return };
            let due = Timestamp::parse(&held.due).unwrap();
            self.answers.lock().unwrap().held.insert(id.clone(), due);
            match random.below(4) {
                0 => self.extend(&id),
                1 => self.withdraw(&id),
                _ => {}
            }
        });
    }

    /// With a key, so that a repeat moves the hold once.
    fn extend(&self, id: &str) {
        let extension = Extension::by("1s").idempotency_key(format!("x-{id}"));
        let moved = self.insist(|client| match converse(client.extend(id, &extension)) {
            Err(error) if !is_passing(&error) => Ok(None),
            moved => moved.map(Some),
        });
        if let Some(Some(moved)) = moved
            && let Some(due) = moved.due
        {
            let due = Timestamp::parse(&due).unwrap();
            self.answers.lock().unwrap().held.insert(id.to_owned(), due);
        }
    }

    fn withdraw(&self, id: &str) {
        self.answers.lock().unwrap().uncertain.insert(id.to_owned());
        let withdrawn = self.insist(|client| match converse(client.withdraw(id)) {
            // A repeat of a withdrawal that took effect, or a hold that fired before.
            Err(error) if !is_passing(&error) => Ok(None),
            outcome => outcome.map(Some),
        });
        if let Some(Some(outcome)) = withdrawn
            && outcome.outcome == "withdrawn"
        {
            self.answers.lock().unwrap().withdrawn.insert(id.to_owned());
        }
    }

    fn register(&self) {
        self.until_over(|_| {
            let number = self.number();
            let (user, device) = (number % USERS, number);
            let info = NewDevice {
                platform: "ios".to_owned(),
                provider: "fcm".to_owned(),
                token: format!("token-{number}"),
                ..NewDevice::default()
            };
            let (uid, name) = (format!("owner-{user}"), format!("device-{device}"));
            if self.insist(|client| converse(client.put_device(&uid, &name, &info))).is_some() {
                self.answers.lock().unwrap().registered.entry(user).or_default().push(device);
            }
            std::thread::sleep(REGISTER_PAUSE);
        });
    }

    fn push(&self, seed: u64) {
        let mut random = Random(seed);
        self.until_over(|_| {
            let (id, user) = (format!("u-{}", self.number()), random.below(USERS));
            let push = NewPush::text("hello").id(id.clone());
            if self.insist(|client| converse(client.push(&format!("user-{user}"), &push))).is_some() {
                self.answers.lock().unwrap().pushed.insert(id, user);
            }
            std::thread::sleep(Duration::from_millis(300));
        });
    }
}

/// Whether a repeat may get an answer.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Problem(problem) => {
            problem.status >= 500 || problem.status == 429 || problem.code == "in_progress"
        }
        _ => true,
    }
}

/// Injects faults and kills the server until the time is over; returns the last one, healthy.
fn break_things(disk: &FaultyDisk, scene: &Scene, mut server: Server, random: &mut Random, time: Duration) -> Server {
    let began = Instant::now();
    let (mut faults, mut kills, mut lost_writes) = (0, 0, 0);
    while began.elapsed() < time {
        let place = PLACES[random.below(PLACES.len() as u64) as usize];
        let (call, effect) = match random.below(6) {
            0 => ("write", "ENOSPC"),
            1 => ("write", "short"),
            2 => ("sync", "EIO"),
            3 => ("sync", "delay=700"),
            4 => ("write", "once:EIO"),
            _ => ("sync", "once:EIO"),
        };
        disk.inject(&[format!("{call} {place} {effect}")]);
        faults += 1;
        std::thread::sleep(Duration::from_millis(random.between(100, 1_500) as u64));
        let is_killed = random.one_in(3);
        // The log stays closed after a failed write or sync, as documented: an operator restarts the server.
        if is_killed || get(&server, "/readyz").contains("log is closed") {
            server.kill_and_wait();
            disk.heal();
            if random.one_in(2) {
                lost_writes += disk.cut_power(random);
            }
            kills += 1;
            server = disk.start_noting(&SETTINGS);
            scene.url.lock().unwrap().clone_from(&server.url);
        }
        disk.heal();
        std::thread::sleep(Duration::from_millis(random.between(200, 1_500) as u64));
    }
    println!("{faults} faults, {kills} kills, {lost_writes} unsynced writes reverted");
    eventually("the server is ready", || {
        let answer = get(&server, "/readyz");
        if answer.contains("log is closed") {
            server.kill_and_wait();
            server = disk.start_noting(&SETTINGS);
            scene.url.lock().unwrap().clone_from(&server.url);
        }
        answer.starts_with("HTTP/1.1 200")
    });
    server
}

fn by_id(messages: &[Message]) -> HashMap<&str, Vec<&Message>> {
    let mut found: HashMap<&str, Vec<&Message>> = HashMap::new();
    messages.iter().for_each(|message| found.entry(&message.id).or_default().push(message));
    found
}

fn check_topics(client: &Client, answers: &Answers) {
    let (orders, _) = converse(read_all(client, "orders", 0, 0));
    let mut payloads: HashMap<String, usize> = HashMap::new();
    for message in &orders {
        *payloads.entry(String::from_utf8(message.bytes().unwrap()).unwrap()).or_default() += 1;
    }
    for payload in &answers.plain {
        assert_eq!(payloads.get(payload), Some(&1), "the acknowledged message {payload}");
    }
    let orders = by_id(&orders);
    for id in &answers.keyed {
        assert_eq!(orders.get(id.as_str()).map_or(0, Vec::len), 1, "the publish with the id {id}");
    }
    let (later, _) = converse(read_all(client, "later", 0, 0));
    let fired = by_id(&later);
    for (id, messages) in &fired {
        assert_eq!(messages.len(), 1, "the hold {id} fired more than once");
        assert!(!answers.withdrawn.contains(*id), "the hold {id} was withdrawn and fired");
        if let Some(due) = answers.held.get(*id) {
            let at = messages[0].fired_at.as_deref().expect("a fired message has a time");
            assert!(Timestamp::parse(at).unwrap() >= *due, "the hold {id} fired early");
        }
    }
    for id in answers.held.keys().filter(|id| !answers.uncertain.contains(*id)) {
        assert!(fired.contains_key(id.as_str()), "the hold {id} was lost");
    }
}

#[test]
fn acknowledged_work_survives_disk_faults_and_kills_once_and_on_time() {
    let time = Duration::from_secs(number("WHIMBREL_FAULT_SECONDS", SECONDS_DEFAULT));
    let seed = number("WHIMBREL_FAULT_SEED", SEED_DEFAULT);
    println!("seed {seed}, {time:?}");
    let mut random = Random(seed);
    let disk = FaultyDisk::new();
    let server = disk.start_noting(&SETTINGS);
    let receivers = [Receiver::willing(), Receiver::willing()];
    for topic in ["orders", "later"] {
        converse(server.client().publish(topic, &NewMessage::text("first"))).unwrap();
    }
    for (index, receiver) in receivers.iter().enumerate() {
        let settings = SubscriptionSettings::push(["orders"], receiver.url("/"));
        converse(server.client().put_subscription(&format!("s-{index}"), &settings)).unwrap();
    }
    let scene = Scene {
        url: Mutex::new(server.url.clone()),
        is_over: AtomicBool::new(false),
        next: AtomicU64::new(0),
        answers: Mutex::default(),
    };
    let server = std::thread::scope(|scope| {
        for load in 0..2 {
            scope.spawn(|| scene.publish_plain());
            scope.spawn(|| scene.publish_keyed());
            scope.spawn(|| scene.register());
            let (scene, seeds) = (&scene, [seed + 10 + load, seed + 20 + load]);
            scope.spawn(move || scene.hold(seeds[0]));
            scope.spawn(move || scene.push(seeds[1]));
        }
        let server = break_things(&disk, &scene, server, &mut random, time);
        scene.is_over.store(true, Ordering::Relaxed);
        server
    });
    let answers = scene.answers.into_inner().unwrap();
    let client = server.client();
    let (plain, keyed, held) = (answers.plain.len(), answers.keyed.len(), answers.held.len());
    println!("{plain} publishes, {keyed} with an id, {held} holds, {} pushes", answers.pushed.len());
    println!("{} users with devices", answers.registered.len());
    assert!(plain > 0 && keyed > 0 && held > 0 && !answers.pushed.is_empty(), "the load got through");
    assert!(!answers.registered.is_empty(), "devices were registered");
    let began = Instant::now();
    let is_settled = || {
        let (later, _) = converse(read_all(&client, "later", 0, 0));
        let fired: HashSet<&str> = later.iter().map(|message| message.id.as_str()).collect();
        let wanted = answers.held.keys().filter(|id| !answers.uncertain.contains(*id));
        wanted.into_iter().all(|id| fired.contains(id.as_str()))
    };
    while !is_settled() {
        assert!(began.elapsed() < SETTLED_WITHIN, "holds do not fire");
        std::thread::sleep(Duration::from_millis(100));
    }
    check_topics(&client, &answers);
    for receiver in &receivers {
        let missing = || {
            let got: HashSet<String> = receiver.all().iter().map(|one| one.text().to_owned()).collect();
            answers.plain.iter().filter(|payload| !got.contains(*payload)).count()
        };
        eventually("every acknowledged message is delivered", || missing() == 0);
    }
    for user in 0..USERS {
        let wanted: HashSet<&String> = answers.pushed.iter().filter(|(_, of)| **of == user).map(|(id, _)| id).collect();
        let mut stored = Vec::new();
        eventually("every acknowledged push is in its inbox", || {
            let inbox = converse(client.inbox(&format!("user-{user}"), None)).unwrap();
            stored = inbox.messages.into_iter().map(|message| message.id).collect::<Vec<_>>();
            wanted.iter().all(|id| stored.contains(id))
        });
        let distinct: HashSet<&String> = stored.iter().collect();
        assert_eq!(distinct.len(), stored.len(), "a push is in the inbox of user-{user} twice");
    }
    for (user, devices) in &answers.registered {
        let found = converse(client.devices(&format!("owner-{user}"))).unwrap();
        let names: HashSet<&str> = found.iter().map(|one| one.device.as_str()).collect();
        let lost: Vec<&u64> = devices.iter().filter(|device| !names.contains(&*format!("device-{device}"))).collect();
        assert!(
            lost.is_empty(),
            "the registrations {lost:?} of owner-{user} were acknowledged and are lost: {names:?}"
        );
    }
}
