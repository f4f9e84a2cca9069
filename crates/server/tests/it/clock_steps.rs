//! The real binary while its wall clock is set: holds never fire early, nothing expires early, and the server follows a lasting step. A
//! preloaded library, `tests/faults/clock.c`, moves the clock of one process.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use whimbrel_client::{Accepted, Client, NewMessage, SubscriptionSettings};

use super::deliver::retrying;
use super::receiver::{Receiver, reply};
use super::server::{Server, converse, eventually, read_all};

const DAY_MS: i64 = 86_400_000;
/// More holds than shards, so that each shard has some.
const MANY: usize = 64;
/// Duration of an excursion in tests of expiry: long enough for stores to remove expired entries.
const EXCURSION: Duration = Duration::from_secs(6);

/// A machine with a wall clock that a test sets.
struct Machine {
    folder: TempDir,
    offset: File,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = Self::library(folder.path());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(compiler.status().unwrap().success(), "the C compiler failed");
        let offset = File::create(Self::offset_path(folder.path())).unwrap();
        let machine = Self { folder, offset };
        machine.set_clock(0);
        machine
    }

    fn library(folder: &Path) -> PathBuf {
        folder.join("clock.so")
    }

    fn offset_path(folder: &Path) -> PathBuf {
        folder.join("clock-offset")
    }

    /// Sets the wall clock to this offset from the true time.
    fn set_clock(&self, offset_ms: i64) {
        self.offset.write_all_at(&offset_ms.to_ne_bytes(), 0).unwrap();
    }

    fn start(&self, settings: &[&str]) -> Server {
        let settings = ["topics.partitions=1", "subscriptions.save_interval=50ms"].iter().chain(settings);
        let arguments: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
        let environment: [(&str, OsString); 2] = [
            ("LD_PRELOAD", Self::library(self.folder.path()).into()),
            ("FAULT_CLOCK_FILE", Self::offset_path(self.folder.path()).into()),
        ];
        Server::start_with(self.folder.path(), &arguments, &environment)
    }
}

fn hold_many(client: &Client, name: &str, delay: &str) -> Vec<String> {
    let hold = |number| async move {
        let message = NewMessage::text("x").id(format!("{name}-{number}")).delay(delay);
        client.hold("orders", &message).await.unwrap().id
    };
    converse(async { futures_util::future::join_all((0..MANY).map(hold)).await })
}

fn count_pending(client: &Client, ids: &[String]) -> usize {
    let states = ids.iter().map(|id| async move { client.look(id).await.unwrap().state == "held" });
    converse(async { futures_util::future::join_all(states).await }).into_iter().filter(|held| *held).count()
}

fn wait_until_fired(client: &Client, ids: &[String]) {
    eventually("the holds fired", || count_pending(client, ids) == 0);
}

/// The kinds of all clock events so far.
fn clock_events(client: &Client) -> Vec<String> {
    let (events, _) = converse(read_all(client, "_events", 0, 0));
    let kinds = events.iter().map(|event| {
        let payload: serde_json::Value = serde_json::from_slice(&event.bytes().unwrap()).unwrap();
        payload["kind"].as_str().unwrap().to_owned()
    });
    kinds.filter(|kind| kind.starts_with("clock_")).collect()
}

fn wait_for_event(client: &Client, kind: &str) {
    eventually(&format!("the event {kind}"), || clock_events(client).iter().any(|event| event == kind));
}

/// Waits until the server has followed two steps: one ahead, and its correction.
fn wait_until_followed_back(client: &Client) {
    eventually("the server followed the correction", || {
        clock_events(client).iter().filter(|kind| *kind == "clock_step_followed").count() == 2
    });
}

fn orders(client: &Client) -> usize {
    converse(read_all(client, "orders", 0, 0)).0.len()
}

#[test]
fn holds_accepted_after_a_clock_excursion_fire_on_time() {
    let machine = Machine::new();
    let server = machine.start(&[]);
    let client = server.client();
    machine.set_clock(DAY_MS);
    // During the excursion every shard decides about a hold, by its own clock.
    wait_until_fired(&client, &hold_many(&client, "meanwhile", "100ms"));
    // The server checks the clock every 200 ms: it does not report a shorter excursion.
    wait_for_event(&client, "clock_stepped");
    let during = hold_many(&client, "during", "2h");
    machine.set_clock(0);
    let (hour, half_a_day) = (hold_many(&client, "hour", "1h"), hold_many(&client, "half-a-day", "12h"));
    wait_until_fired(&client, &hold_many(&client, "afterwards", "1s"));
    for waiting in [&during, &hour, &half_a_day] {
        assert_eq!(count_pending(&client, waiting), MANY, "holds fired before their time");
    }
    wait_for_event(&client, "clock_step_returned");
    assert!(!clock_events(&client).iter().any(|kind| kind == "clock_step_followed"));
}

#[test]
fn a_hold_accepted_during_an_excursion_fires_at_the_true_time() {
    let machine = Machine::new();
    let server = machine.start(&[]);
    let client = server.client();
    for (name, offset_ms) in [("ahead", DAY_MS), ("back", -DAY_MS)] {
        machine.set_clock(offset_ms);
        let began = Instant::now();
        // Waits for at most 1 min: a hold that follows the wall clock is a day late, or fires at once.
        wait_until_fired(&client, &hold_many(&client, name, "1500ms"));
        assert!(began.elapsed() >= Duration::from_millis(1500), "{name}: holds fired before their time");
    }
}

#[test]
fn receipts_and_hold_ids_outlive_an_excursion_beyond_their_windows() {
    let machine = Machine::new();
    let server = machine.start(&["holds.checkpoint_interval=100ms"]);
    let client = server.client();
    let keyed = NewMessage::text("keyed").idempotency_key("a-key");
    let first = converse(client.publish("orders", &keyed)).unwrap();
    let held = NewMessage::text("held").id("a-hold").delay("1s");
    converse(client.hold("orders", &held)).unwrap();
    wait_until_fired(&client, &["a-hold".to_owned()]);
    assert_eq!(orders(&client), 2);

    machine.set_clock(8 * DAY_MS);
    let began = Instant::now();
    for round in 0.. {
        // Stores expire entries at checkpoints, which follow commands.
        let others = hold_many(&client, &format!("round-{round}"), "100ms");
        wait_until_fired(&client, &others);
        if began.elapsed() >= EXCURSION {
            break;
        }
    }
    machine.set_clock(0);

    let before = orders(&client);
    let again = converse(client.publish("orders", &keyed)).unwrap();
    let (Accepted::Published(first), Accepted::Published(again)) = (first, again) else { panic!("it was not held") };
    assert_eq!((first.id, first.offset), (again.id, again.offset), "a repeat gets the first answer");
    let repeated = converse(client.hold("orders", &held));
    println!("the repeated hold: {repeated:?}");
    // If the repeat were accepted, it would fire before this one.
    wait_until_fired(&client, &hold_many(&client, "afterwards", "1500ms"));
    assert_eq!(orders(&client), before + MANY, "the topic has only the {MANY} new holds");
}

#[test]
fn a_retry_parked_during_an_excursion_keeps_its_schedule() {
    let machine = Machine::new();
    let server = machine.start(&[]);
    let receiver = Receiver::answering(|_| reply(500));
    let settings = SubscriptionSettings::push(["orders"], receiver.url("/"));
    converse(server.client().put_subscription("billing", &retrying(settings, 50, "1s"))).unwrap();
    machine.set_clock(DAY_MS);
    converse(server.client().publish("orders", &NewMessage::text("x").key("k"))).unwrap();
    receiver.wait_for(2);
    assert!(server.end().success());
    machine.set_clock(0);
    let server = machine.start(&[]);
    let seen = receiver.count();
    receiver.wait_for(seen + 2);
    drop(server);
}

#[test]
fn a_retry_stored_as_a_hold_fires_after_the_clock_was_corrected() {
    let machine = Machine::new();
    let server = machine.start(&["coordination.clock_stepout=1s"]);
    let client = server.client();
    let receiver = Receiver::answering(|_| reply(500));
    let settings = SubscriptionSettings::push(["orders"], receiver.url("/"));
    let settings = SubscriptionSettings { ordering: Some("none".to_owned()), ..retrying(settings, 50, "1s") };
    converse(client.put_subscription("billing", &settings)).unwrap();
    machine.set_clock(DAY_MS);
    wait_for_event(&client, "clock_step_followed");
    converse(client.publish("orders", &NewMessage::text("x").key("k"))).unwrap();
    receiver.wait_for(2);
    machine.set_clock(0);
    wait_until_followed_back(&client);
    let seen = receiver.count();
    receiver.wait_for(seen + 3);
}

#[test]
fn a_lasting_step_is_followed_in_both_directions() {
    let machine = Machine::new();
    let server = machine.start(&["coordination.clock_stepout=2s"]);
    let client = server.client();
    let early = hold_many(&client, "before", "1h");
    machine.set_clock(DAY_MS);
    wait_until_fired(&client, &early);
    wait_for_event(&client, "clock_step_followed");
    machine.set_clock(0);
    wait_until_followed_back(&client);
    // A shard reads its clock once per second; this hold is decided after all shards have.
    wait_until_fired(&client, &hold_many(&client, "settled", "1500ms"));
    let hour = hold_many(&client, "hour", "1h");
    wait_until_fired(&client, &hold_many(&client, "afterwards", "1s"));
    assert_eq!(count_pending(&client, &hour), MANY, "holds fired before their time");
}

#[test]
fn a_start_during_an_excursion_uses_the_noted_offset() {
    let machine = Machine::new();
    let server = machine.start(&[]);
    let hour = hold_many(&server.client(), "hour", "1h");
    eventually("the clock's offset is written", || machine.folder.path().join("whimbrel-data/clock").exists());
    server.kill();
    machine.set_clock(DAY_MS);
    let server = machine.start(&[]);
    let client = server.client();
    wait_for_event(&client, "clock_stepped");
    wait_until_fired(&client, &hold_many(&client, "afterwards", "1s"));
    assert_eq!(count_pending(&client, &hour), MANY, "holds fired before their time");
}

#[test]
fn a_start_behind_the_log_is_reported_and_serves() {
    let machine = Machine::new();
    let server = machine.start(&[]);
    converse(server.client().publish("orders", &NewMessage::text("x"))).unwrap();
    assert!(server.end().success());
    // Another boot: only the log has information about the clock.
    std::fs::remove_file(machine.folder.path().join("whimbrel-data/clock")).unwrap();
    machine.set_clock(-DAY_MS);
    let server = machine.start(&[]);
    let client = server.client();
    wait_for_event(&client, "clock_behind_log");
    wait_until_fired(&client, &hold_many(&client, "x", "100ms"));
}

/// Another boot: only the log has information about the clock.
#[test]
fn a_start_ahead_of_the_log_expires_nothing_until_the_clock_was_steady() {
    let machine = Machine::new();
    let server = machine.start(&[]);
    let keyed = NewMessage::text("keyed").idempotency_key("a-key");
    let first = converse(server.client().publish("orders", &keyed)).unwrap();
    let hour = hold_many(&server.client(), "hour", "1h");
    assert!(server.end().success());
    let note = machine.folder.path().join("whimbrel-data/clock");
    std::fs::remove_file(&note).unwrap();
    machine.set_clock(30 * DAY_MS);
    let server = machine.start(&["holds.checkpoint_interval=100ms"]);
    let client = server.client();
    wait_for_event(&client, "clock_ahead_of_log");
    // By the wall clock they are due.
    wait_until_fired(&client, &hour);
    let again = converse(client.publish("orders", &keyed)).unwrap();
    let (Accepted::Published(first), Accepted::Published(again)) = (first, again) else { panic!("it was not held") };
    assert_eq!((first.id, first.offset), (again.id, again.offset), "a repeat gets the first answer");
    // By now the log has records of the wrong time, which the next start must not trust either.
    eventually("the doubt is written", || note.exists());
    server.kill();
    let server = machine.start(&["coordination.clock_stepout=2s"]);
    let client = server.client();
    eventually("the second start is in doubt", || {
        clock_events(&client).iter().filter(|kind| *kind == "clock_ahead_of_log").count() == 2
    });
    let doubtful = std::fs::read(&note).unwrap();
    wait_for_event(&client, "clock_accepted");
    eventually("the clock's offset is written", || std::fs::read(&note).unwrap() != doubtful);
}

#[test]
fn a_damaged_note_of_the_clock_is_reported_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Server::start(folder.path(), &[]).end().success());
    std::fs::write(folder.path().join("whimbrel-data/clock"), "whimbrel-clock 1 nonsense").unwrap();
    let server = Server::start(folder.path(), &[]);
    eventually("the damage is reported", || {
        let (events, _) = converse(read_all(&server.client(), "_events", 0, 0));
        let texts = events.iter().map(|event| String::from_utf8(event.bytes().unwrap()).unwrap());
        texts.filter(|text| text.contains("\"file_damaged\"") && text.contains("whimbrel-data/clock")).count() == 1
    });
}
