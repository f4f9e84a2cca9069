//! Administrative requests in Kafka's own protocol: the replica order of a partition, a preferred leader election, the deletion of a topic, and
//! topic settings.
//!
//! Kafka's command classes are not among the jars of the tests, and a Java process per request would take seconds. Each request opens its
//! own connection and fails the test if the broker returns an error.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const ALTER_PARTITION_REASSIGNMENTS: (i16, i16) = (45, 0);
const ELECT_LEADERS: (i16, i16) = (43, 2);
const DELETE_TOPICS: (i16, i16) = (20, 4);
const DESCRIBE_CONFIGS: (i16, i16) = (32, 4);
/// The resource type of a topic in a request for settings.
const TOPIC_RESOURCE: i8 = 2;
const PREFERRED_ELECTION: i8 = 0;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a reply, in bytes.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// The top-level error of a reply without errors, and of an election whose partitions each carry a result of their own.
const NO_ERROR: i16 = 0;
/// The election was not needed: the preferred replica is the leader already.
const ELECTION_NOT_NEEDED: i16 = 84;

/// The replicas of a partition. The first one is the preferred leader.
#[derive(Debug, Clone)]
pub struct PartitionReplicas {
    pub topic: String,
    pub partition: i32,
    pub replicas: Vec<i32>,
}

/// Sets the replicas of partitions, in this order.
pub fn set_replicas(broker: &str, partitions: &[PartitionReplicas]) {
    let mut body = Body::default();
    body.i32(timeout_ms());
    body.length(partitions.len());
    for each in partitions {
        body.text(&each.topic);
        body.length(1);
        body.i32(each.partition);
        body.length(each.replicas.len());
        each.replicas.iter().for_each(|replica| body.i32(*replica));
        body.no_tags();
        body.no_tags();
    }
    body.no_tags();
    let error = request(broker, ALTER_PARTITION_REASSIGNMENTS, &body.0).i16();
    assert_eq!(error, NO_ERROR, "{broker} rejected the replica assignment");
}

/// Makes the first replica of each partition its leader.
pub fn elect_preferred_leaders(broker: &str, partitions: &[PartitionReplicas]) {
    let mut body = Body::default();
    body.0.push(PREFERRED_ELECTION as u8);
    body.length(partitions.len());
    for each in partitions {
        body.text(&each.topic);
        body.length(1);
        body.i32(each.partition);
        body.no_tags();
    }
    body.i32(timeout_ms());
    body.no_tags();
    let error = request(broker, ELECT_LEADERS, &body.0).i16();
    assert!([NO_ERROR, ELECTION_NOT_NEEDED].contains(&error), "{broker} rejected the election: error {error}");
}

pub fn delete_topic(broker: &str, topic: &str) {
    let mut body = Body::default();
    body.length(1);
    body.text(topic);
    body.i32(timeout_ms());
    body.no_tags();
    let mut reply = request(broker, DELETE_TOPICS, &body.0);
    assert_eq!((reply.length(), reply.text().as_deref()), (Some(1), Some(topic)));
    assert_eq!(reply.i16(), NO_ERROR, "{broker} did not delete {topic}");
}

/// The effective value of one setting for each of these topics, with its topic. An unset setting has no value.
pub fn topic_setting(broker: &str, topics: &[String], setting: &str) -> Vec<(String, Option<String>)> {
    let mut body = Body::default();
    body.length(topics.len());
    for topic in topics {
        body.0.push(TOPIC_RESOURCE as u8);
        body.text(topic);
        body.length(1);
        body.text(setting);
        body.no_tags();
    }
    // Neither synonyms nor documentation.
    body.0.extend([0, 0]);
    body.no_tags();
    let mut reply = request(broker, DESCRIBE_CONFIGS, &body.0);
    let count = reply.length().unwrap_or(0);
    (0..count).map(|_| reply.described_topic()).collect()
}

fn timeout_ms() -> i32 {
    REQUEST_TIMEOUT.as_millis() as i32
}

/// The encoded fields of a request of a flexible version.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn i32(&mut self, value: i32) {
        self.0.extend(value.to_be_bytes());
    }

    /// The length of a compact array or string: one more, as an unsigned varint.
    fn length(&mut self, length: usize) {
        let mut rest = length + 1;
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend(text.as_bytes());
    }

    fn no_tags(&mut self) {
        self.0.push(0);
    }
}

/// Reads the fields of a reply of a flexible version. A reply that is too short fails the test.
struct Reply {
    bytes: Vec<u8>,
    at: usize,
}

impl Reply {
    fn take(&mut self, count: usize) -> &[u8] {
        let from = self.at;
        self.at += count;
        &self.bytes[from..self.at]
    }

    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn varint(&mut self) -> usize {
        let mut value = 0;
        for shift in (0..u32::BITS).step_by(7) {
            let byte = self.u8();
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }

    /// The length of a compact array or string; `None` if it is null.
    fn length(&mut self) -> Option<usize> {
        self.varint().checked_sub(1)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.length()?;
        Some(String::from_utf8_lossy(self.take(length)).into_owned())
    }

    fn tags(&mut self) {
        for _ in 0..self.varint() {
            let (_tag, length) = (self.varint(), self.varint());
            self.take(length);
        }
    }

    /// A topic, and the value of the only requested setting.
    fn described_topic(&mut self) -> (String, Option<String>) {
        let (error, message) = (self.i16(), self.text());
        let _resource_type = self.u8();
        let topic = self.text().unwrap_or_default();
        assert_eq!(error, NO_ERROR, "the settings of {topic} cannot be read: {message:?}");
        let mut found = None;
        for _ in 0..self.length().unwrap_or(0) {
            let _name = self.text();
            found = self.text();
            let (_read_only, _source, _sensitive) = (self.u8(), self.u8(), self.u8());
            assert_eq!(self.length().unwrap_or(0), 0, "synonyms were not requested");
            let (_type, _documentation) = (self.u8(), self.text());
            self.tags();
        }
        self.tags();
        (topic, found)
    }
}

/// Sends a request and returns its reply, from the field after the throttle time. In most replies that is the top-level error.
fn request(broker: &str, (key, version): (i16, i16), body: &[u8]) -> Reply {
    const CLIENT: &str = "outage-battery";
    /// Correlation id, tags, throttle time.
    const FIELDS_AT: usize = 4 + 1 + 4;
    let mut frame = Vec::new();
    frame.extend(key.to_be_bytes());
    frame.extend(version.to_be_bytes());
    frame.extend(1_i32.to_be_bytes());
    frame.extend((CLIENT.len() as i16).to_be_bytes());
    frame.extend(CLIENT.as_bytes());
    frame.push(0);
    frame.extend(body);
    let mut stream = TcpStream::connect(broker).unwrap();
    stream.set_read_timeout(Some(REQUEST_TIMEOUT)).unwrap();
    stream.write_all(&(frame.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&frame).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let length = u32::from_be_bytes(length) as usize;
    assert!((FIELDS_AT + 2..=REPLY_BYTES_MAX).contains(&length), "{broker} sent a reply of {length} bytes");
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    Reply { bytes, at: FIELDS_AT }
}
