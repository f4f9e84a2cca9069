//! Other Kafka clients, as independent peers: `kcat`, Java's console producer and consumer, and Python's confluent-kafka.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_model::{Record, StoredRecord};

const PATIENCE: Duration = Duration::from_secs(60);

/// A record that a program has read, or must write.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub key: Option<Vec<u8>>,
    /// `None` is Kafka's null.
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub timestamp_ms: i64,
}

impl Seen {
    pub fn text(value: &str) -> Self {
        Self { key: None, value: Some(value.into()), headers: Vec::new(), timestamp_ms: 1_700_000_000_000 }
    }

    /// For comparisons with records whose writer does not choose the time.
    pub fn without_time(&self) -> Self {
        Self { timestamp_ms: 0, ..self.clone() }
    }

    fn to_json(&self, partition: Option<u32>) -> Value {
        json!({
            "partition": partition,
            "timestamp": self.timestamp_ms,
            "key": self.key.as_deref().map(latin1),
            "value": self.value.as_deref().map(latin1),
            "headers": self.headers.iter().map(|(name, value)| json!([name, latin1(value)])).collect::<Vec<_>>(),
        })
    }

    fn from_json(record: &Value) -> Self {
        let header = |pair: &Value| (pair[0].as_str().unwrap().to_owned(), bytes_of(&pair[1]).unwrap_or_default());
        Self {
            key: bytes_of(&record["key"]),
            value: bytes_of(&record["value"]),
            headers: record["headers"].as_array().unwrap().iter().map(header).collect(),
            timestamp_ms: record["timestamp"].as_i64().unwrap(),
        }
    }
}

impl From<&Record> for Seen {
    fn from(record: &Record) -> Self {
        Self {
            key: record.key.as_ref().map(|key| key.to_vec()),
            value: Some(record.value.to_vec()),
            headers: record.headers.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect(),
            timestamp_ms: record.timestamp.as_millis(),
        }
    }
}

impl From<&StoredRecord> for Seen {
    fn from(stored: &StoredRecord) -> Self {
        Self::from(&stored.record)
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// Bytes of a key or value that are printed; the rest is counted.
        const PRINTED_MAX: usize = 60;
        let short = |bytes: &Option<Vec<u8>>| match bytes {
            None => "null".to_owned(),
            Some(bytes) if bytes.len() <= PRINTED_MAX => format!("\"{}\"", bytes.escape_ascii()),
            Some(bytes) => format!("\"{}\"… of {} B", bytes[..PRINTED_MAX].escape_ascii(), bytes.len()),
        };
        let headers: Vec<_> =
            self.headers.iter().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
        write!(f, "[{} = {} {headers:?} at {}]", short(&self.key), short(&self.value), self.timestamp_ms)
    }
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn bytes_of(text: &Value) -> Option<Vec<u8>> {
    let byte = |letter: char| u8::try_from(u32::from(letter)).expect("a byte");
    text.as_str().map(|text| text.chars().map(byte).collect())
}

/// Checks that kcat, Java's console consumer and confluent-kafka read exactly these records from the first partition of a topic. Also
/// checks that a program with `read_committed` sees no records after the last of them, except for Java's, which cannot detect the end.
pub fn assert_others_read(peer: &mut Peer, topic: &str, expected: &[Seen]) {
    let bootstrap = peer.bootstrap.clone();
    let count = expected.len();
    assert_same("kcat", &kcat_reads(&bootstrap, topic, count), expected);
    assert_same("confluent-kafka", &peer.reads(topic, count), expected);
    assert_same("Java's console consumer", &java_reads(&bootstrap, topic, count), expected);
}

pub fn assert_same(reader: &str, read: &[Seen], expected: &[Seen]) {
    for (at, (read, expected)) in read.iter().zip(expected).enumerate() {
        assert!(read == expected, "{reader} reads at {at}:\n{read:?}\nwhere this was written:\n{expected:?}");
    }
    assert_eq!(read.len(), expected.len(), "records that {reader} reads");
}

/// Everything that kcat reads of a topic's first partition, once there are `at_least` so many records.
pub fn kcat_reads(bootstrap: &str, topic: &str, at_least: usize) -> Vec<Seen> {
    let began = Instant::now();
    loop {
        let output = Command::new("kcat")
            .args(["-b", bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q"])
            // Lengths before keys and values, which may hold any byte; -1 is null.
            .args(["-f", "%T|%K|%S|%h|%k%s\n", "-X", "isolation.level=read_committed"])
            .output()
            .expect("kcat runs: scripts/services installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read = parse_kcat(&output.stdout);
        // Kafka writes the transaction marker moments after it has answered the commit.
        if read.len() >= at_least {
            return read;
        }
        assert!(began.elapsed() < PATIENCE, "kcat reads {} of {at_least} records", read.len());
    }
}

fn parse_kcat(mut output: &[u8]) -> Vec<Seen> {
    let mut records = Vec::new();
    while !output.is_empty() {
        let mut field = || {
            let end = output.iter().position(|byte| *byte == b'|').expect("a field ends");
            let field = String::from_utf8(output[..end].to_vec()).expect("a field is text");
            output = &output[end + 1..];
            field
        };
        let number = |text: String| text.parse::<i64>().expect("a number");
        let (timestamp_ms, key_length, value_length) = (number(field()), number(field()), number(field()));
        let headers = field();
        let headers = headers.split(',').filter_map(|pair| pair.split_once('='));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.into())).collect();
        let mut bytes = |length: i64| {
            let length = usize::try_from(length).ok()?;
            let (bytes, rest) = output.split_at(length);
            output = rest;
            Some(bytes.to_vec())
        };
        let (key, value) = (bytes(key_length), bytes(value_length));
        assert_eq!(output.first(), Some(&b'\n'), "a record ends with a line");
        output = &output[1..];
        records.push(Seen { key, value, headers, timestamp_ms });
    }
    records
}

/// Writes one record with kcat, which reads the value as it is.
pub fn kcat_writes(bootstrap: &str, topic: &str, arguments: &[&str], value: &str) {
    let mut command = Command::new("kcat");
    command.args(["-b", bootstrap, "-P", "-t", topic]).args(arguments);
    feed(&mut command, value);
}

/// The first `count` records of a topic's first partition that Java's console consumer reads.
pub fn java_reads(bootstrap: &str, topic: &str, count: usize) -> Vec<Seen> {
    const FIELD: &str = "<field>";
    const LINE: &str = "<line>";
    const HEADER: &str = "<header>";
    const NULL: &str = "<null>";
    let mut command = java("org.apache.kafka.tools.consumer.ConsoleConsumer");
    command
        .args(["--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"])
        .args(["--isolation-level", "read_committed", "--max-messages", &count.to_string()])
        .args(["--timeout-ms", &PATIENCE.as_millis().to_string()]);
    for (name, value) in [
        ("print.timestamp", "true"),
        ("print.headers", "true"),
        ("print.key", "true"),
        ("key.separator", FIELD),
        ("line.separator", LINE),
        ("headers.separator", HEADER),
        ("null.literal", NULL),
    ] {
        command.args(["--formatter-property", &format!("{name}={value}")]);
    }
    let output = command.output().expect("java runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let not_null = |bytes: &[u8]| (bytes != NULL.as_bytes()).then(|| bytes.to_vec());
    let mut lines = split(&output.stdout, LINE);
    assert!(lines.pop().is_some_and(<[u8]>::is_empty), "every record ends with a separator: {errors}");
    let record = |line: &[u8]| {
        let fields = split(line, FIELD);
        let [timestamp, headers, key, value] = fields[..] else { panic!("{} fields", fields.len()) };
        let timestamp = std::str::from_utf8(timestamp).ok().and_then(|text| text.strip_prefix("CreateTime:"));
        let headers = std::str::from_utf8(headers).expect("headers are text").split(HEADER);
        // A record without headers has the text NO_HEADERS in their place.
        let headers = headers.filter_map(|pair| pair.split_once(':'));
        Seen {
            key: not_null(key),
            value: not_null(value),
            headers: headers.map(|(name, value)| (name.to_owned(), value.into())).collect(),
            timestamp_ms: timestamp.and_then(|text| text.parse().ok()).expect("the time of the record"),
        }
    };
    lines.into_iter().map(record).collect()
}

/// Writes records with Java's console producer, one per line: headers, key and value with tabs between them, `<null>` for none.
pub fn java_writes(bootstrap: &str, topic: &str, compression: &str, lines: &str) {
    let mut command = java("org.apache.kafka.tools.ConsoleProducer");
    command
        .args(["--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", compression])
        .args(["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"])
        .args(["--reader-property", "null.marker=<null>", "--command-property", "max.request.size=2000000"]);
    feed(&mut command, lines);
}

/// A program of Kafka's own, from the jars of the tests' broker.
pub fn java(class: &str) -> Command {
    let jars = std::env::var("WHIMBREL_TEST_KAFKA_LIBS").expect("scripts/services sets WHIMBREL_TEST_KAFKA_LIBS");
    let mut command = Command::new("java");
    // A program that runs for seconds is started faster by a simpler compiler and collector.
    command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &format!("{jars}/*"), class]);
    command
}

fn split<'a>(mut bytes: &'a [u8], separator: &str) -> Vec<&'a [u8]> {
    let separator = separator.as_bytes();
    let mut parts = Vec::new();
    while let Some(at) = bytes.windows(separator.len()).position(|window| window == separator) {
        parts.push(&bytes[..at]);
        bytes = &bytes[at + separator.len()..];
    }
    parts.push(bytes);
    parts
}

/// Runs a program with that input to its end.
fn feed(command: &mut Command, input: &str) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut program = command.spawn().expect("the program runs: scripts/services installs it");
    let mut stdin = program.stdin.take().expect("the program has an input");
    stdin.write_all(input.as_bytes()).expect("the program reads its input");
    drop(stdin);
    let output = program.wait_with_output().expect("the program ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    // Java's console producer ends with success also where records were refused.
    assert!(output.status.success() && !errors.contains("ERROR"), "{errors}");
}

/// Python's confluent-kafka: a process of `peer.py` that runs commands until it is dropped.
pub struct Peer {
    pub bootstrap: String,
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(bootstrap: &str) -> Self {
        let python = std::env::var_os("WHIMBREL_TEST_KAFKA_PYTHON")
            .expect("scripts/services sets WHIMBREL_TEST_KAFKA_PYTHON, a Python with confluent-kafka");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kafka/peer.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(bootstrap)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let commands = process.stdin.take().expect("the process has an input");
        let answers = BufReader::new(process.stdout.take().expect("the process has an output"));
        Self { bootstrap: bootstrap.to_owned(), process, commands, answers }
    }

    /// Writes records and returns the partitions they are in; without `partition`, their keys choose.
    pub fn writes(&mut self, topic: &str, partition: Option<u32>, compression: &str, records: &[Seen]) -> Vec<u32> {
        let records: Vec<_> = records.iter().map(|record| record.to_json(partition)).collect();
        let placed = self.ask(json!({"do": "produce", "topic": topic, "compression": compression, "records": records}));
        placed.as_array().unwrap().iter().map(|partition| partition.as_u64().unwrap() as u32).collect()
    }

    /// Everything in a topic that is committed, once there are `at_least` so many records.
    pub fn reads(&mut self, topic: &str, at_least: usize) -> Vec<Seen> {
        let read = self.ask(json!({"do": "consume", "topic": topic, "at_least": at_least}));
        read.as_array().unwrap().iter().map(Seen::from_json).collect()
    }

    /// Everything in a topic, that of aborted transactions included.
    pub fn reads_uncommitted(&mut self, topic: &str) -> Vec<Seen> {
        let read = self.ask(json!({"do": "consume", "topic": topic, "at_least": 0, "isolation": "read_uncommitted"}));
        read.as_array().unwrap().iter().map(Seen::from_json).collect()
    }

    /// Opens a transaction, after it has ended the one that this id had open.
    pub fn begin(&mut self, id: &str) {
        self.ask(json!({"do": "begin", "id": id}));
    }

    /// Writes to the first partition of a topic in the open transaction. The record's time is now: after an old record Kafka starts a new
    /// segment, and a fetch never returns the batches of two segments.
    pub fn write(&mut self, topic: &str, text: &str) {
        self.ask(json!({"do": "write", "topic": topic, "records": [{"partition": 0, "value": text}]}));
    }

    pub fn commit(&mut self) {
        self.ask(json!({"do": "commit"}));
    }

    pub fn abort(&mut self) {
        self.ask(json!({"do": "abort"}));
    }

    /// Waits until the coordinator has recorded the transaction as complete, which it does after the markers are written. A coordinator
    /// that had only decided would write the markers again after a restart.
    pub fn wait_until_complete(&mut self, id: &str) {
        self.ask(json!({"do": "wait_until_complete", "id": id}));
    }

    /// The options that are set on the topic itself.
    pub fn configs(&mut self, topic: &str) -> Value {
        self.ask(json!({"do": "configs", "topic": topic}))
    }

    /// Sets one option of a topic beside those it has, as an operator would.
    pub fn set_config(&mut self, topic: &str, name: &str, value: &str) {
        self.ask(json!({"do": "set_config", "topic": topic, "name": name, "value": value}));
    }

    /// Gives a user rights to a resource, as an operator would.
    pub fn allow(&mut self, user: &str, (resource, name, is_prefix): (&str, &str, bool), operations: &[String]) {
        self.ask(json!({
            "do": "allow", "user": user, "resource": resource, "name": name, "is_prefix": is_prefix, "operations": operations
        }));
    }

    fn ask(&mut self, command: Value) -> Value {
        tokio::task::block_in_place(|| {
            writeln!(self.commands, "{command}").expect("confluent-kafka's process runs");
            let mut answer = String::new();
            self.answers.read_line(&mut answer).expect("an answer can be read");
            let answer: Value = serde_json::from_str(&answer).expect("the process answers each command");
            match answer.get("ok") {
                Some(result) => result.clone(),
                None => panic!("confluent-kafka: {}", answer["error"]),
            }
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its id is ours until it is waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
