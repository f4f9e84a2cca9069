//! Every part of a record is read as it was appended.

use bytes::Bytes;
use whimbrel_model::ports::Entry;
use whimbrel_model::{Headers, PartitionId, Record, Timestamp};

use super::LogFactory;
use super::scene::{LogScene, record};
use crate::conformance::now;

pub async fn a_record_is_read_exactly_as_appended(factory: &dyn LogFactory) {
    let mut headers = Headers::builder();
    headers.push("content-type", b"application/json").push("trace", b"\x00\x01\xff");
    let every_byte: Vec<u8> = (0..=255).collect();
    assert_is_read_back(
        factory,
        vec![Record {
            key: Some(Bytes::from(every_byte.clone())),
            value: Bytes::from(every_byte.repeat(40)),
            headers: headers.take(),
            timestamp: Timestamp::from_millis(now().as_millis() - 86_400_123),
        }],
    )
    .await;
}

pub async fn no_key_is_not_an_empty_key(factory: &dyn LogFactory) {
    let without = record("without a key");
    let empty = Record { key: Some(Bytes::new()), ..record("with an empty key") };
    assert_is_read_back(factory, vec![without, empty]).await;
}

pub async fn an_empty_value_stays_empty(factory: &dyn LogFactory) {
    assert_is_read_back(factory, vec![record(Bytes::new()), Record { key: Some("k".into()), ..record(Bytes::new()) }])
        .await;
}

pub async fn headers_keep_order_repeats_and_binary_values(factory: &dyn LogFactory) {
    let mut headers = Headers::builder();
    headers.push("b", b"1").push("a", b"\xfe\x00\xff").push("b", b"2").push("empty", b"").push("ümlaut", b"x");
    assert_is_read_back(factory, vec![Record { headers: headers.take(), ..record("v") }]).await;
}

async fn assert_is_read_back(factory: &dyn LogFactory, records: Vec<Record>) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let offsets =
        scene.append(records.iter().map(|record| Entry { partition, record: record.clone() }).collect()).await;
    let read = scene.read_to_end(partition, 0).await;
    assert_eq!(read.iter().map(|stored| stored.offset).collect::<Vec<_>>(), offsets);
    assert_eq!(read.into_iter().map(|stored| stored.record).collect::<Vec<_>>(), records);
}
