//! Every compression, in both directions: Whimbrel writes and other clients read, other clients write and Whimbrel reads.

use whimbrel_engines::conformance::log::new_spec;
use whimbrel_engines::kafka::KafkaSettings;
use whimbrel_engines::kafka::settings::Compression;
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{CommitOutcome, Entry, Log as _, LogTopics as _};
use whimbrel_model::{Headers, PartitionId, Record, Timestamp};

use crate::broker::OwnBroker;
use crate::interoperability::{new_topic, read_all};
use crate::programs::{Peer, Seen, assert_others_read, assert_same, java_writes, kcat_writes};
use crate::{ADDRESS, connect};

/// Each compression with its name and its number in Kafka's protocol.
const COMPRESSIONS: [(Compression, &str, u16); 5] = [
    (Compression::None, "none", 0),
    (Compression::Gzip, "gzip", 1),
    (Compression::Snappy, "snappy", 2),
    (Compression::Lz4, "lz4", 3),
    (Compression::Zstd, "zstd", 4),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clients_read_every_compression_of_appends_and_commits() {
    needs_servers!(ADDRESS);
    let broker = OwnBroker::start();
    let spec = new_spec(1);
    let partition = PartitionId::new(spec.number, 0);
    let mut written = Vec::new();
    for (compression, name, codec) in COMPRESSIONS {
        let log = connect(KafkaSettings { compression, ..KafkaSettings::new(&broker.address) }).await;
        log.create(&spec).await.expect("the topic can be created");
        let records = records(name);
        let entries = |records: &[Record]| -> Vec<Entry> {
            records.iter().map(|record| Entry { partition, record: record.clone() }).collect()
        };
        let outcome = log.append(entries(&records)).await;
        assert!(outcome.iter().all(Result::is_ok), "{name}: {outcome:?}");
        let fence = log.fence(&spec.name, 1).await.expect("the fence can be opened");
        let outcome = log.commit(&fence, entries(&records)).await;
        assert!(matches!(outcome, CommitOutcome::Done(_)), "{name}: {outcome:?}");
        // The batch of the append and that of the commit. Transaction markers, which are not compressed, may lie between and behind them.
        let used = broker.codecs(&spec.name, 0).iter().filter(|each| **each == codec).count();
        assert!(used >= 2, "{name}: {:?}", broker.codecs(&spec.name, 0));
        written.extend(records.iter().chain(&records).map(Seen::from));
    }
    let mut peer = Peer::start(&broker.address);
    assert_others_read(&mut peer, &spec.name, &written);
    let log = connect(KafkaSettings::new(&broker.address)).await;
    log.create(&spec).await.expect("the topic is there");
    let read: Vec<Seen> = read_all(&log, &spec, 0, written.len()).await.iter().map(Seen::from).collect();
    assert_same("Whimbrel", &read, &written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whimbrel_reads_every_compression_of_other_clients() {
    needs_servers!(ADDRESS);
    let broker = OwnBroker::start();
    let log = connect(KafkaSettings::new(&broker.address)).await;
    let spec = new_topic(&log, 1).await;
    let mut peer = Peer::start(&broker.address);
    let (mut written, mut codecs) = (Vec::new(), Vec::new());
    for (_, name, codec) in COMPRESSIONS {
        let texts = texts(name);
        let records: Vec<Seen> = texts.iter().map(|text| Seen::text(text)).collect();
        let lines: String = texts.iter().map(|text| format!("<null>\t<null>\t{text}\n")).collect();
        peer.writes(&spec.name, Some(0), name, &records);
        tokio::task::block_in_place(|| {
            kcat_writes(&broker.address, &spec.name, &["-z", name, "-p", "0"], &texts.join("\n"));
            java_writes(&broker.address, &spec.name, name, &lines);
        });
        written.extend([&records[..], &records, &records].concat());
        codecs.push(codec);
    }
    let read = read_all(&log, &spec, 0, written.len()).await;
    let without_time = |records: Vec<Seen>| records.iter().map(Seen::without_time).collect::<Vec<_>>();
    let read = without_time(read.iter().map(Seen::from).collect());
    assert_same("Whimbrel", &read, &without_time(written));
    let used = broker.codecs(&spec.name, 0);
    for codec in codecs {
        // At least a batch of each writer.
        assert!(used.iter().filter(|each| **each == codec).count() >= 3, "{codec} in {used:?}");
    }
}

/// Keys, headers and values of many sizes: some that shrink, some that do not, one larger than the block of every codec.
fn records(seed: &str) -> Vec<Record> {
    let record = |(number, text): (usize, String)| {
        let mut headers = Headers::builder();
        headers.push("seed", seed.as_bytes()).push("number", number.to_string().as_bytes());
        Record {
            key: (number % 2 == 0).then(|| format!("key-{number}").into()),
            value: text.into(),
            headers: headers.take(),
            timestamp: Timestamp::from_millis(1_700_000_000_000 + number as i64),
        }
    };
    texts(seed).into_iter().enumerate().map(record).collect()
}

/// Texts without tabs and line ends, of 1 B to 300 kB.
fn texts(seed: &str) -> Vec<String> {
    let mut state = seed.bytes().fold(17_u64, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + (state >> 58) as u8)
    };
    let mut scattered = |length: usize| (0..length).map(|_| letter()).collect::<String>();
    let mut texts: Vec<String> = (1..40).map(|number| seed.repeat(number)).collect();
    texts.extend([1, 100, 5_000, 100_000].map(&mut scattered));
    texts.push(format!("{seed} ").repeat(300_000 / (seed.len() + 1)));
    texts
}
