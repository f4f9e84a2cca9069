//! The real binary on a disk that cannot read a segment of `_holds`: the server keeps working, and reports the place.

use whimbrel_client::{Client, NewMessage};
use whimbrel_model::HOLDS_TOPIC;

use super::faulty_disk::FaultyDisk;
use super::server::{converse, eventually, read_all};

const SETTINGS: [&str; 4] =
    ["topics.partitions=1", "holds.shards=1", "log.segment_bytes=65536", "holds.checkpoint_interval=100ms"];
/// Number of 1 KiB holds: several segments of them.
const MANY: usize = 200;
const FEW: usize = 10;

fn hold(client: &Client, name: &str, count: usize, delay: &str) {
    let hold = |number| async move {
        let message = NewMessage::text("x".repeat(1000)).id(format!("{name}-{number}")).delay(delay);
        client.hold("later", &message).await.unwrap();
    };
    converse(async { futures_util::future::join_all((0..count).map(hold)).await });
}

/// A folder whose `_holds` has several segments, the first of which is unreadable from now on.
fn disk_with_an_unreadable_segment() -> FaultyDisk {
    let disk = FaultyDisk::new();
    let mut settings = SETTINGS.to_vec();
    settings.push("holds.trim_interval=1h");
    let server = disk.start(&settings);
    let client = server.client();
    for round in 0..MANY / FEW {
        hold(&client, &format!("far-{round}"), FEW, "1h");
    }
    hold(&client, "near", FEW, "5s");
    assert!(server.end().success());
    let topics = disk.data().join("log/topics");
    let first = format!("{:020}.segment", 0);
    let is_of_holds =
        |folder: &std::path::Path| std::fs::metadata(folder.join(&first)).is_ok_and(|file| file.len() > 32 << 10);
    let folders = std::fs::read_dir(topics).unwrap().map(|entry| entry.unwrap().path().join("0"));
    let of_holds = folders.into_iter().find(|folder| is_of_holds(folder)).expect("a topic with a full segment");
    let segment = of_holds.join(first);
    let within = segment.strip_prefix(disk.data()).unwrap().display().to_string();
    disk.inject(&[format!("read {within} EIO")]);
    disk
}

fn has_event(client: &Client, kind: &str, text: &str) -> bool {
    let kind = format!("\"kind\":\"{kind}\"");
    let (messages, _) = converse(read_all(client, "_events", 0, 0));
    let texts = messages.iter().map(|message| String::from_utf8(message.bytes().unwrap()).unwrap());
    texts.into_iter().any(|found| found.contains(&kind) && found.contains(text))
}

#[test]
fn a_shard_of_holds_continues_after_an_unreadable_segment() {
    let disk = disk_with_an_unreadable_segment();
    // Without the store, the server folds the whole log again.
    std::fs::remove_dir_all(disk.data().join("holds")).unwrap();
    let server = disk.start(&SETTINGS);
    let client = server.client();
    eventually("the holds after the place fire", || converse(read_all(&client, "later", 0, 0)).0.len() == FEW);
    eventually("the place is reported", || has_event(&client, "damage_found", "00000.segment"));
    assert!(has_event(&client, "hold_record_skipped", "\"shard\":\"0\""));
}

#[test]
fn the_log_of_holds_is_trimmed_past_an_unreadable_segment() {
    let disk = disk_with_an_unreadable_segment();
    let mut settings = SETTINGS.to_vec();
    settings.extend(["holds.keep_log=1s", "holds.trim_interval=1s"]);
    let server = disk.start(&settings);
    let client = server.client();
    let first = || converse(client.topic(HOLDS_TOPIC)).unwrap().partition_list.unwrap()[0].first_offset;
    eventually("the log is trimmed", || first() > 0);
    eventually("the place is reported", || has_event(&client, "damage_found", "00000.segment"));
    eventually("the holds fire", || converse(read_all(&client, "later", 0, 0)).0.len() == FEW);
}
