//! The scrub of a real server: it finds damage on the disk before any reader does, reports it once, and shows it as a metric.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use whimbrel_client::NewMessage;

use super::server::{Server, converse, eventually, read_all, set};
use super::server_life::get;

const SETTINGS: [&str; 5] = [
    "topics.partitions=1",
    "log.segment_bytes=65536",
    "log.checkpoint_interval=100ms",
    "log.scrub_interval=1s",
    "log.scrub_rate=1GiB",
];

fn publish(server: &Server) {
    converse(async {
        let message = NewMessage { payload: vec![7; 20_000].into(), ..NewMessage::default() };
        for _ in 0..20 {
            server.client().publish("orders", &message).await.unwrap();
        }
    });
}

/// The first segments of partitions with several segments: the log no longer writes to them.
fn cold_segments(topics: &Path) -> Vec<PathBuf> {
    let below = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let mut cold = Vec::new();
    for partition in below(topics).iter().flat_map(|topic| below(topic)) {
        let mut segments = below(&partition);
        segments.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
        segments.sort();
        if segments.len() > 2 {
            cold.push(segments.remove(0));
        }
    }
    cold
}

/// Changes the file in place, so that the server never sees another length.
fn change_a_bit(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 500).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 500).unwrap();
}

fn damage_events(server: &Server) -> Vec<Value> {
    let (events, _) = converse(read_all(&server.client(), "_events", 0, 0));
    let events = events.iter().map(|event| serde_json::from_slice::<Value>(&event.bytes().unwrap()).unwrap());
    events.filter(|event| event["kind"] == "damage_found").collect()
}

/// The value of a metric without labels.
fn metric(server: &Server, name: &str) -> f64 {
    let answer = get(server, "/metrics");
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(-1.0, |value| value.parse().unwrap())
}

#[test]
fn undiscovered_damage_is_an_event_and_a_metric() {
    let server = Server::fresh(&set(&SETTINGS));
    publish(&server);
    let topics = server.folder().join("whimbrel-data/log/topics");
    eventually("a cold segment", || !cold_segments(&topics).is_empty());
    let passed = || metric(&server, "whimbrel_scrub_last_pass_timestamp_seconds");
    eventually("a pass without damage", || passed() > 0.0 && metric(&server, "whimbrel_scrub_bytes_total") > 0.0);
    assert_eq!(metric(&server, "whimbrel_scrub_damaged_places"), 0.0);
    let segment = cold_segments(&topics).remove(0);
    change_a_bit(&segment);
    eventually("the event", || !damage_events(&server).is_empty());
    eventually("the metric", || metric(&server, "whimbrel_scrub_damaged_places") == 1.0);
    let before = passed();
    eventually("two more passes", || passed() >= before + 2.0);
    let events = damage_events(&server);
    assert_eq!(events.len(), 1, "{events:?}");
    let file = events[0]["fields"]["file"].as_str().unwrap();
    assert!(segment.ends_with(Path::new(file).strip_prefix(".").unwrap()), "{file}");
    assert_eq!(events[0]["fields"]["position"], "0");
    change_a_bit(&segment);
    eventually("a pass over the restored segment", || metric(&server, "whimbrel_scrub_damaged_places") == 0.0);
    assert!(server.end().success());
}
