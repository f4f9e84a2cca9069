//! The stores beside the log while the disk is full, fails, is slow, or returns other bytes than were written: every store recovers
//! without a restart, and nothing that was acknowledged is lost.

use std::collections::HashSet;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use whimbrel_client::{Client, NewDevice, NewMessage, NewPush, SubscriptionSettings};

use super::faulty_disk::FaultyDisk;
use super::receiver::Receiver;
use super::server::{Server, converse, eventually, read_all};
use super::server_life::get;

const QUICK: [&str; 4] =
    ["topics.partitions=1", "holds.shards=4", "push.partitions=4", "subscriptions.save_interval=50ms"];
/// The stores beside the log, by their folders.
const STORES: [&str; 6] = ["/holds/", "/receipts/", "/progress", "/inboxes/", "/devices", "/notebook/"];
const STORE_NAMES: [&str; 6] = ["holds", "receipts", "progress", "inboxes", "devices", "notebook"];
const MANY: usize = 200;

/// The answer of `/readyz`, and whether the server is ready.
fn readyz(server: &Server) -> (bool, String) {
    let answer = get(server, "/readyz");
    (answer.starts_with("HTTP/1.1 200"), answer)
}

/// The events so far, oldest first: their kinds and whole texts.
fn events(client: &Client) -> Vec<(String, String)> {
    let (messages, _) = converse(read_all(client, "_events", 0, 0));
    let text = |message: &whimbrel_client::Message| String::from_utf8(message.bytes().unwrap()).unwrap();
    let kind =
        |text: &str| text.split("\"kind\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
    messages.iter().map(text).map(|text| (kind(&text), text)).collect()
}

fn has_event(client: &Client, kind: &str, store: &str) -> bool {
    let store = format!("\"store\":\"{store}\"");
    events(client).iter().any(|(found, text)| found == kind && text.contains(&store))
}

/// Holds for a topic, due after a delay; retried until they are accepted.
fn hold_many(client: &Client, topic: &str, delay: &str, ids: impl Iterator<Item = String>) -> HashSet<String> {
    let mut accepted = HashSet::new();
    for id in ids {
        let message = NewMessage::text("held").id(id.clone()).delay(delay);
        eventually("a hold is accepted", || converse(client.hold(topic, &message)).is_ok());
        accepted.insert(id);
    }
    accepted
}

/// Waits until every id is in the topic, and returns all of its ids in their order.
fn wait_for_all(client: &Client, topic: &str, wanted: &HashSet<String>) -> Vec<String> {
    let mut ids = Vec::new();
    eventually(&format!("all {} messages are in `{topic}`", wanted.len()), || {
        ids = converse(read_all(client, topic, 0, 0)).0.into_iter().map(|message| message.id).collect();
        wanted.iter().all(|id| ids.contains(id))
    });
    ids
}

fn assert_each_once(ids: &[String]) {
    let distinct: HashSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "a message is in its topic twice");
}

#[test]
fn every_store_works_again_after_the_disk_was_full_without_a_restart() {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    let client = server.client();
    let receiver = Receiver::willing();
    converse(client.publish("orders", &NewMessage::text("first"))).unwrap();
    converse(client.put_subscription("s", &SubscriptionSettings::push(["orders"], receiver.url("/")))).unwrap();
    let mut held = hold_many(&client, "later", "3s", (0..MANY).map(|number| format!("before-{number}")));
    converse(client.put_device("alice", "phone", &device("t-1"))).unwrap();

    disk.inject(&STORES.map(|store| format!("write {store} ENOSPC")));
    // The log itself has space: publishes continue, and publishes with keys are rejected.
    let (mut refused, mut number) = (0, 0);
    let mut keyed = HashSet::new();
    eventually("`/readyz` names every store that is used", || {
        number += 1;
        let plain = NewMessage::text(format!("plain-{number}"));
        converse(client.publish("orders", &plain)).unwrap();
        let key = NewMessage::text("keyed").id(format!("keyed-{number}"));
        match converse(client.publish("orders", &key)) {
            Ok(_) => drop(keyed.insert(format!("keyed-{number}"))),
            Err(_) => refused += 1,
        }
        let _ = converse(client.put_device("alice", "tablet", &device("t-2")));
        let _ = converse(client.push("alice", &NewPush::text("hello")));
        let (is_ready, answer) = readyz(&server);
        !is_ready && STORE_NAMES.iter().all(|store| answer.contains(&format!("`{store}`")))
    });
    assert!(refused > 0, "publishes with keys are rejected while their receipts cannot be stored");

    disk.heal();
    eventually("the server is ready", || readyz(&server).0);
    for id in (0..20).map(|number| format!("after-{number}")) {
        eventually("a publish with an id is accepted", || {
            converse(client.publish("orders", &NewMessage::text("keyed").id(id.clone()))).is_ok()
        });
        keyed.insert(id);
    }
    held.extend(hold_many(&client, "later", "1s", (0..MANY).map(|number| format!("after-{number}"))));
    assert_each_once(&wait_for_all(&client, "later", &held));
    let ids = wait_for_all(&client, "orders", &keyed);
    assert_each_once(&ids);
    eventually("the subscription has everything", || receiver.count() >= ids.len() - 1);
    eventually("a device registers", || converse(client.put_device("alice", "tablet", &device("t-2"))).is_ok());
    assert_eq!(converse(client.devices("alice")).unwrap().len(), 2);
    for store in STORE_NAMES {
        assert!(has_event(&client, "store_failed", store), "{store}: {:?}", events(&client));
        eventually("the recovery is reported", || has_event(&client, "store_recovered", store));
    }
}

#[test]
fn an_unwritable_notebook_delays_no_delivery_and_no_start() {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    let client = server.client();
    let receiver = Receiver::willing();
    converse(client.publish("orders", &NewMessage::text("first"))).unwrap();
    converse(client.put_subscription("s", &SubscriptionSettings::push(["orders"], receiver.url("/")))).unwrap();
    disk.inject(&["write /notebook/ ENOSPC".to_owned()]);
    let mut count = 0;
    eventually("the failure is reported", || {
        converse(client.publish("orders", &NewMessage::text("more"))).unwrap();
        count += 1;
        receiver.wait_for(count);
        has_event(&client, "store_failed", "notebook")
    });
    let (is_ready, answer) = readyz(&server);
    assert!(is_ready && answer.contains("\"warnings\":[\"the store `notebook` is not available"), "{answer}");
    assert!(get(&server, "/metrics").contains("whimbrel_store_up{store=\"notebook\"} 0"));
    // Longer than several attempts to write.
    std::thread::sleep(Duration::from_secs(3));
    server.kill();
    let slices = std::fs::read_dir(disk.data().join("notebook")).unwrap().count();
    assert!(slices <= 2, "{slices} files: each failed write left one behind");
    receiver.forget();
    let server = disk.start(&QUICK);
    let client = server.client();
    converse(client.publish("orders", &NewMessage::text("after the start"))).unwrap();
    eventually("the message is delivered", || receiver.all().iter().any(|one| one.text() == "after the start"));
    let is_failure = |event: &(String, String)| event.0 == "store_failed" && event.1.contains("\"notebook\"");
    eventually("the second process reports it", || {
        events(&client).iter().filter(|event| is_failure(event)).count() == 2
    });
    disk.heal();
    eventually("the recovery is reported", || has_event(&client, "store_recovered", "notebook"));
    eventually("`/readyz` has no warning", || !readyz(&server).1.contains("notebook"));
}

fn device(token: &str) -> NewDevice {
    NewDevice {
        platform: "ios".to_owned(),
        provider: "fcm".to_owned(),
        token: token.to_owned(),
        ..NewDevice::default()
    }
}

#[test]
fn a_failed_sync_of_the_progress_costs_no_redelivery_after_a_clean_restart() {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    let client = server.client();
    let receiver = Receiver::willing();
    converse(client.publish("orders", &NewMessage::text("first"))).unwrap();
    converse(client.put_subscription("s", &SubscriptionSettings::push(["orders"], receiver.url("/")))).unwrap();
    disk.inject(&["sync /progress EIO".to_owned()]);
    for number in 0..MANY {
        converse(client.publish("orders", &NewMessage::text(number.to_string()))).unwrap();
    }
    receiver.wait_for(MANY);
    eventually("the failure is reported", || has_event(&client, "store_failed", "progress"));
    disk.heal();
    eventually("the store works again", || has_event(&client, "store_recovered", "progress"));
    // One more message saves the progress again.
    converse(client.publish("orders", &NewMessage::text("last"))).unwrap();
    receiver.wait_for(MANY + 1);
    assert!(server.end().success());
    receiver.forget();
    let server = disk.start(&QUICK);
    converse(server.client().publish("orders", &NewMessage::text("after"))).unwrap();
    let got = receiver.wait_for(1);
    assert_eq!(got.iter().map(|one| one.text()).collect::<Vec<_>>(), ["after"], "nothing is delivered again");
}

fn tables(store: &Path) -> Vec<PathBuf> {
    let keyspaces = std::fs::read_dir(store.join("keyspaces")).unwrap();
    let folders = keyspaces.map(|keyspace| keyspace.unwrap().path().join("tables"));
    folders
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten())
        .map(|table| table.unwrap().path())
        .collect()
}

fn flip(file: &Path, at: u64) {
    let opened = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    opened.read_exact_at(&mut byte, at).unwrap();
    opened.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn holds_fire_although_every_table_of_their_store_has_a_flipped_bit() {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    let held = hold_many(&server.client(), "later", "4s", (0..MANY).map(|number| format!("h-{number}")));
    // A clean shutdown flushes everything into tables.
    assert!(server.end().success());
    let tables = tables(&disk.data().join("holds"));
    assert!(!tables.is_empty());
    tables.iter().for_each(|table| flip(table, 40));
    let server = disk.start(&QUICK);
    let client = server.client();
    assert_each_once(&wait_for_all(&client, "later", &held));
    eventually("the rebuild is reported", || has_event(&client, "store_rebuilt", "holds"));
    eventually("the server is ready", || readyz(&server).0);
}

/// A server whose disk cannot read the journal of the holds store, a bad sector for example, with the ids of its pending holds. The file of
/// that name in a rebuilt store is another one, which the server does not read.
fn start_with_an_unreadable_holds_journal(disk: &FaultyDisk) -> (Server, HashSet<String>) {
    let server = disk.start(&QUICK);
    let held = hold_many(&server.client(), "later", "4s", (0..MANY).map(|number| format!("h-{number}")));
    server.kill();
    disk.inject(&["read /holds/0.jnl EIO".to_owned()]);
    (disk.start(&QUICK), held)
}

#[test]
fn holds_fire_although_the_disk_cannot_read_their_store_at_the_start() {
    let disk = FaultyDisk::new();
    let (server, held) = start_with_an_unreadable_holds_journal(&disk);
    let client = server.client();
    assert_each_once(&wait_for_all(&client, "later", &held));
    eventually("the rebuild is reported", || has_event(&client, "store_rebuilt", "holds"));
    eventually("the server is ready", || readyz(&server).0);
}

/// Waits until the store has failed that many times.
fn wait_for_failures(client: &Client, store: &str, count: usize) {
    let store_field = format!("\"store\":\"{store}\"");
    eventually(&format!("`{store}` has failed {count} times"), || {
        let failed = |(kind, text): &(String, String)| kind == "store_failed" && text.contains(&store_field);
        events(client).iter().filter(|event| failed(event)).count() >= count
    });
}

#[test]
fn holds_are_found_although_the_disk_cannot_read_the_tables_of_their_store() {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    let held = hold_many(&server.client(), "later", "1h", (0..MANY).map(|number| format!("h-{number}")));
    // A clean shutdown flushes everything into tables.
    assert!(server.end().success());
    let server = disk.start(&QUICK);
    let client = server.client();
    let name_in_store = |table: PathBuf| table.strip_prefix(disk.data()).unwrap().display().to_string();
    let tables = tables(&disk.data().join("holds")).into_iter().map(name_in_store);
    disk.inject(&tables.map(|table| format!("read /{table} EIO")).collect::<Vec<_>>());
    let fire = |id: &String| converse(client.fire(id)).is_ok();
    eventually("the store is rebuilt", || {
        let _ = held.iter().take(3).all(fire);
        has_event(&client, "store_rebuilt", "holds")
    });
    disk.heal();
    eventually("every hold fires", || {
        let fired: HashSet<String> = converse(read_all(&client, "later", 0, 0)).0.into_iter().map(|it| it.id).collect();
        let _ = held.difference(&fired).all(fire);
        fired.len() == held.len()
    });
    assert_each_once(&wait_for_all(&client, "later", &held));
}

#[test]
fn a_disk_that_fails_again_soon_costs_no_rebuild() {
    let disk = FaultyDisk::new();
    let (server, held) = start_with_an_unreadable_holds_journal(&disk);
    let client = server.client();
    // Enough for several attempts to open the store.
    std::thread::sleep(Duration::from_secs(2));
    disk.heal();
    eventually("the server is ready", || readyz(&server).0);
    disk.inject(&["write /holds/ once:EIO".to_owned()]);
    let more = hold_many(&client, "later", "1s", (0..MANY).map(|number| format!("more-{number}")));
    wait_for_failures(&client, "holds", 2);
    eventually("the server is ready", || readyz(&server).0);
    assert_each_once(&wait_for_all(&client, "later", &held.union(&more).cloned().collect()));
    assert!(!has_event(&client, "store_rebuilt", "holds"), "{:?}", events(&client));
}

#[test]
fn a_disk_missing_for_more_than_ten_seconds_costs_no_rebuild() {
    let disk = FaultyDisk::new();
    let (server, held) = start_with_an_unreadable_holds_journal(&disk);
    let client = server.client();
    disk.inject(&["read /holds/0.jnl EIO".to_owned(), "rename /holds EIO".to_owned()]);
    std::thread::sleep(Duration::from_secs(13));
    disk.heal();
    assert_each_once(&wait_for_all(&client, "later", &held));
    eventually("the server is ready", || readyz(&server).0);
    assert!(!has_event(&client, "store_rebuilt", "holds"), "{:?}", events(&client));
}

#[test]
fn a_disk_that_cannot_read_for_three_seconds_costs_no_rebuild() {
    let disk = FaultyDisk::new();
    let (server, held) = start_with_an_unreadable_holds_journal(&disk);
    let client = server.client();
    std::thread::sleep(Duration::from_secs(3));
    let (is_ready, answer) = readyz(&server);
    assert!(!is_ready && answer.contains("`holds`"), "{answer}");
    disk.heal();
    assert_each_once(&wait_for_all(&client, "later", &held));
    eventually("the server is ready", || readyz(&server).0);
    assert!(!has_event(&client, "store_rebuilt", "holds"), "{:?}", events(&client));
}

#[test]
fn the_server_starts_without_stores_if_no_folder_can_be_created() {
    let disk = FaultyDisk::new();
    disk.inject(&STORES.map(|store| format!("make {} ENOSPC", store.trim_end_matches('/'))));
    let server = disk.start(&QUICK);
    let client = server.client();
    converse(client.publish("orders", &NewMessage::text("plain"))).unwrap();
    let (is_ready, answer) = readyz(&server);
    assert!(!is_ready && STORE_NAMES.iter().all(|store| answer.contains(&format!("`{store}`"))), "{answer}");
    disk.heal();
    eventually("the server is ready", || readyz(&server).0);
    let held = hold_many(&client, "later", "1s", (0..20).map(|number| format!("h-{number}")));
    assert_each_once(&wait_for_all(&client, "later", &held));
    converse(client.put_device("alice", "phone", &device("t-1"))).unwrap();
}

#[test]
fn the_server_starts_with_damaged_journals_and_reports_file_and_position() {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    let client = server.client();
    let held = hold_many(&client, "later", "4s", (0..MANY).map(|number| format!("h-{number}")));
    for number in 0..100 {
        converse(client.put_device(&format!("user-{number}"), "phone", &device("t"))).unwrap();
    }
    let id = || NewMessage::text("once").id("once");
    let first = converse(client.publish("orders", &id())).unwrap();
    converse(client.push("alice", &NewPush::text("hello"))).unwrap();
    eventually("the push is stored", || {
        converse(client.inbox("alice", None)).is_ok_and(|inbox| inbox.messages.len() == 1)
    });
    server.kill();
    for store in ["holds", "devices", "receipts", "inboxes"] {
        let journal = std::fs::File::options().write(true).open(disk.data().join(store).join("0.jnl")).unwrap();
        // A page that was never written, in the middle of what was.
        journal.write_all_at(&[0; 64], 100).unwrap();
    }
    let server = disk.start(&QUICK);
    let client = server.client();
    for number in 0..100 {
        assert_eq!(converse(client.devices(&format!("user-{number}"))).unwrap().len(), 1, "user-{number}");
    }
    let again = converse(client.publish("orders", &id())).unwrap();
    assert_eq!(first, again, "the repeat gets the first answer");
    assert_eq!(converse(read_all(&client, "orders", 0, 0)).0.len(), 1);
    assert_each_once(&wait_for_all(&client, "later", &held));
    assert_eq!(converse(client.inbox("alice", None)).unwrap().messages.len(), 1);
    for (store, kind) in [
        ("holds", "store_rebuilt"),
        ("receipts", "store_rebuilt"),
        ("inboxes", "store_rebuilt"),
        ("devices", "store_copy_rebuilt"),
    ] {
        eventually("the damage is reported", || has_event(&client, kind, store));
        let store = format!("\"store\":\"{store}\"");
        let (_, text) = events(&client).into_iter().find(|(_, text)| text.contains(&store)).unwrap();
        assert!(text.contains("0.jnl") && text.contains("\"position\":"), "{text}");
    }
}

#[test]
fn a_slow_disk_under_the_receipts_delays_only_publishes_with_keys() {
    delays_only_publishes_with_keys("write /receipts/ delay=3000", &NewMessage::text("first").id("first"));
}

#[test]
fn a_slow_sync_under_the_receipts_delays_only_publishes_with_keys() {
    // The first publish with a key creates files of the store, which it syncs one after the other.
    delays_only_publishes_with_keys("sync /receipts/ delay=3000", &NewMessage::text("first"));
}

fn delays_only_publishes_with_keys(rule: &str, first: &NewMessage) {
    let disk = FaultyDisk::new();
    let server = disk.start(&QUICK);
    converse(server.client().publish("orders", first)).unwrap();
    disk.inject(&[rule.to_owned()]);
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let keyed = scope.spawn(|| {
            converse(server.client().publish("orders", &NewMessage::text("keyed").id("keyed"))).unwrap();
            is_answered.store(true, Ordering::Release);
        });
        // Long enough for the keyed publish to wait for the disk.
        std::thread::sleep(Duration::from_millis(300));
        // Each on a connection of its own: some of them are on the thread that serves the keyed one.
        for number in 0..8 {
            converse(server.client().publish("orders", &NewMessage::text(number.to_string()))).unwrap();
            assert!(readyz(&server).0);
        }
        assert!(!is_answered.load(Ordering::Acquire), "the publish with a key has not waited for the disk");
        disk.heal();
        keyed.join().unwrap();
    });
}
