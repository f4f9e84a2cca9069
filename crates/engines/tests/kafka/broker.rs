//! A broker of a test's own, which can be killed and started again.
//!
//! Files of a broker are read and changed only through the methods here.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::programs::java;
use crate::services::{Process, free_address, silent, wait_until};

/// The id of every such cluster: 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "AAAAAAAAQACAAAAAAAAAAQ";
const PROTOCOLS: &str = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT";

/// A Kafka in folders of its own, with one node unless more are added. All are killed when it is dropped.
pub struct OwnBroker {
    /// The listener without TLS and SASL.
    pub address: String,
    controller: String,
    nodes: Vec<Node>,
    folder: TempDir,
}

/// Listeners beside the plain one, and the options they need.
#[derive(Default)]
pub struct Extras {
    pub listeners: Vec<Listener>,
    pub properties: Vec<String>,
    /// Arguments of `StorageTool format`.
    pub format_arguments: Vec<String>,
}

pub struct Listener {
    pub name: &'static str,
    /// Kafka's name of the protocol, such as `SASL_SSL`.
    pub protocol: &'static str,
    pub address: String,
}

struct Node {
    address: String,
    properties: PathBuf,
    process: Option<Process>,
}

impl OwnBroker {
    /// Formats a folder and starts a broker in it, which is the cluster's controller too.
    pub fn start() -> Self {
        Self::start_with(Extras::default())
    }

    pub fn start_with(extras: Extras) -> Self {
        let (address, controller) = (free_address(), free_address());
        let folder = tempfile::tempdir().expect("a folder for the broker");
        let mut broker = Self { address: address.clone(), controller, folder, nodes: Vec::new() };
        let mut listeners = format!("listeners=PLAINTEXT://{address},CONTROLLER://{}", broker.controller);
        let mut protocols = PROTOCOLS.to_owned();
        for Listener { name, protocol, address } in &extras.listeners {
            listeners.push_str(&format!(",{name}://{address}"));
            protocols.push_str(&format!(",{name}:{protocol}"));
        }
        let mut properties = vec!["process.roles=broker,controller".to_owned(), listeners, protocols];
        properties.extend(extras.properties);
        let format_arguments: Vec<&str> = extras.format_arguments.iter().map(String::as_str).collect();
        broker.prepare(address, &properties, &[&["--standalone"], &format_arguments[..]].concat());
        broker.start_again();
        broker
    }

    /// Adds a second broker to the cluster and waits until it serves.
    pub fn add_node(&mut self) {
        let address = free_address();
        let listeners = format!("listeners=PLAINTEXT://{address}");
        let properties = ["process.roles=broker".to_owned(), listeners, PROTOCOLS.to_owned()];
        self.prepare(address, &properties, &["--no-initial-controllers"]);
        self.start_again();
        let count = self.nodes.len();
        wait_until("all nodes are in the cluster", || {
            let listed = kcat_lists(&self.address).unwrap_or_default();
            listed.contains(&format!(" {count} brokers:"))
        });
    }

    /// Starts every node that does not run, on the files of its last run, and waits until it serves.
    pub fn start_again(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].process.is_none() {
                let properties = self.nodes[at].properties.clone();
                let process = silent(java("kafka.Kafka").arg(properties)).spawn().expect("java runs");
                self.nodes[at].process = Some(Process::of(process));
                wait_until("the broker serves", || kcat_lists(&self.nodes[at].address).is_some());
            }
        }
    }

    /// Ends every node as a crash would.
    pub fn kill(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.process = None);
    }

    /// Removes the marker of a transaction, which must be the last batch of a partition. A coordinator that has completed the transaction
    /// never writes the marker again. Only while no node runs.
    pub fn remove_last_transaction_marker(&self, topic: &str, index: u32) {
        const IS_CONTROL: u16 = 1 << 5;
        assert!(self.nodes.iter().all(|node| node.process.is_none()), "a broker must not run");
        let last = self.batches(topic, index).pop().expect("the partition has a batch");
        assert!(last.attributes & IS_CONTROL != 0, "the last batch, at {}, is not a transaction marker", last.at);
        let segment = std::fs::OpenOptions::new().write(true).open(last.segment);
        segment.and_then(|segment| segment.set_len(last.at as u64)).expect("the segment can be cut");
    }

    /// Flips bits of the last byte of a partition's batch, counted from zero. The broker may run: it sends its files as they are.
    pub fn damage_batch(&self, topic: &str, index: u32, number: usize) {
        let batches = self.batches(topic, index);
        let batch = batches.get(number).expect("the partition has the batch");
        let mut bytes = std::fs::read(&batch.segment).expect("the segment can be read");
        let next = batches.get(number + 1).filter(|next| next.segment == batch.segment);
        let last = next.expect("a batch follows in the same segment").at - 1;
        bytes[last] ^= 0xff;
        let segment = std::fs::OpenOptions::new().write(true).open(&batch.segment).expect("the segment can be opened");
        segment.write_all_at(&bytes[last..=last], last as u64).expect("the segment can be written");
    }

    /// The compression of each batch in a partition, by its number in Kafka's protocol.
    pub fn codecs(&self, topic: &str, index: u32) -> Vec<u16> {
        const CODEC: u16 = 0b111;
        self.batches(topic, index).iter().map(|batch| batch.attributes & CODEC).collect()
    }

    /// The batches of a partition, in the order of their offsets.
    fn batches(&self, topic: &str, index: u32) -> Vec<StoredBatch> {
        let folder = self.folder.path().join(format!("node-1/{topic}-{index}"));
        let files = std::fs::read_dir(folder).expect("the partition has a folder");
        let files = files.map(|file| file.expect("the folder can be listed").path());
        let mut segments: Vec<PathBuf> =
            files.filter(|file| file.extension().is_some_and(|end| end == "log")).collect();
        // A segment is named after its first offset, with leading zeros.
        segments.sort();
        segments.into_iter().flat_map(batches_in).collect()
    }

    fn prepare(&mut self, address: String, own_properties: &[String], format_arguments: &[&str]) {
        let number = self.nodes.len() + 1;
        let data = self.folder.path().join(format!("node-{number}"));
        let properties = self.folder.path().join(format!("node-{number}.properties"));
        let (number, data) = (format!("node.id={number}"), format!("log.dirs={}", data.display()));
        let controller = format!("controller.quorum.bootstrap.servers={}", self.controller);
        let text = [&number, &data, &controller]
            .into_iter()
            .chain(own_properties)
            .map(String::as_str)
            .chain([
                "controller.listener.names=CONTROLLER",
                "auto.create.topics.enable=false",
                // A killed broker can register again when its session is over.
                "broker.session.timeout.ms=2000",
                "broker.heartbeat.interval.ms=500",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "transaction.state.log.num.partitions=1",
            ])
            .collect::<Vec<_>>()
            .join("\n");
        std::fs::write(&properties, text).expect("the folder can be written");
        let mut format = java("kafka.tools.StorageTool");
        format.arg("format").args(format_arguments).args(["-t", CLUSTER_ID, "-c"]).arg(&properties);
        assert!(silent(&mut format).status().expect("java runs").success(), "the folder can be formatted");
        self.nodes.push(Node { address, properties, process: None });
    }
}

struct StoredBatch {
    segment: PathBuf,
    at: usize,
    attributes: u16,
}

fn batches_in(segment: PathBuf) -> Vec<StoredBatch> {
    const OFFSET_AND_LENGTH: usize = 12;
    const ATTRIBUTES_AT: usize = 21;
    let bytes = std::fs::read(&segment).expect("the segment can be read");
    let (mut batches, mut at) = (Vec::new(), 0);
    while let Some(length) = bytes.get(at + 8..at + OFFSET_AND_LENGTH) {
        let length = u32::from_be_bytes(length.try_into().unwrap());
        let Some(attributes) = bytes.get(at + ATTRIBUTES_AT..at + ATTRIBUTES_AT + 2).filter(|_| length > 0) else {
            break;
        };
        let attributes = u16::from_be_bytes(attributes.try_into().unwrap());
        batches.push(StoredBatch { segment: segment.clone(), at, attributes });
        at += OFFSET_AND_LENGTH + length as usize;
    }
    batches
}

/// The cluster as kcat describes it; `None` if no broker answers.
fn kcat_lists(address: &str) -> Option<String> {
    let kcat = Command::new("kcat").args(["-b", address, "-L", "-m", "2"]).output();
    let output = kcat.expect("kcat runs: scripts/services installs it");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
