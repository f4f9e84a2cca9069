//! An independent reader of a topic: kcat with `isolation.level=read_committed`. It shares no code with the server.

use std::process::Command;

use serde::Deserialize;

/// Timeout for reading one topic, in seconds.
const READ_SECONDS_MAX: &str = "60";
const ID_HEADER: &str = "whimbrel-id";
/// The header of the record that ends a hanging transaction. That record is not a message.
const TRANSACTION_END_HEADER: &str = "whimbrel-transaction-end";

/// A message as Kafka stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedRecord {
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    /// The record's timestamp; of a fired hold, the time at which it fired.
    pub time_ms: i64,
    pub id: String,
    pub key: Option<String>,
    pub payload: String,
}

#[derive(Deserialize)]
struct Line {
    topic: String,
    partition: u32,
    offset: u64,
    ts: i64,
    #[serde(default)]
    headers: Vec<String>,
    key: Option<String>,
    payload: Option<String>,
}

impl Line {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str())
    }
}

/// Every committed message of a topic, in the order of its partitions and offsets.
pub fn read_committed(bootstrap: &str, topic: &str) -> Vec<CommittedRecord> {
    let kcat = ["-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J"];
    let mut command = Command::new("timeout");
    command.args([READ_SECONDS_MAX, "kcat"]).args(kcat).args(["-X", "isolation.level=read_committed"]);
    let output = command.output().expect("kcat runs: scripts/services installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kcat cannot read {topic} to its end: {} {errors}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let messages = lines.filter(|line: &Line| line.header(TRANSACTION_END_HEADER).is_none());
    let mut records: Vec<CommittedRecord> = messages.map(record_of).collect();
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

fn record_of(line: Line) -> CommittedRecord {
    let id = line.header(ID_HEADER).expect("every message has an id").to_owned();
    CommittedRecord {
        topic: line.topic,
        partition: line.partition,
        offset: line.offset,
        time_ms: line.ts,
        id,
        key: line.key,
        payload: line.payload.unwrap_or_default(),
    }
}
