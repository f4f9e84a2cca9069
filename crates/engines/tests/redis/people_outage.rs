//! Inboxes, sessions and devices on a Redis that is down, frozen, full or has lost its last writes: calls end in bounded time, a write is
//! whole or absent, and no writer continues on a store that has lost writes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_engines::conformance::{devices, sessions};
use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::{RedisDevices, RedisInbox, RedisSessions};
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{
    ApplyOutcome, Device, Devices, DevicesError, Inbox, InboxChange, InboxError, InboxWrite, RowKey, SessionUpdate,
    Sessions, SessionsError,
};

use crate::services::{Outage as _, OwnRedis};
use crate::{ONE, connect};

/// The sum of both timeouts of the settings, and a margin for a busy machine.
const PATIENCE_MAX: Duration = Duration::from_secs(3);
const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 7 };
const PARTITION: u32 = 3;
const SHARD: u32 = 2;

fn uid() -> Uid {
    Uid::new("u1").unwrap()
}

fn write(expected: u64, applied: u64, changes: Vec<InboxChange>) -> InboxWrite {
    InboxWrite { epoch: 5, expected, reset: false, changes, applied, synced: false }
}

fn box_of(state: &'static [u8]) -> InboxChange {
    InboxChange::PutBox { uid: uid(), state: Some(Bytes::from_static(state)), reclaim_at: None, was: None }
}

fn row(seq: u64) -> InboxChange {
    InboxChange::PutOwn { uid: uid(), seq, row: Bytes::from_static(b"row") }
}

async fn is_stored(inbox: &RedisInbox, seq: u64) -> bool {
    let rows = Inbox::rows(inbox, PARTITION, vec![RowKey::Own { uid: uid(), seq }]).await.unwrap();
    rows.found[0].is_some()
}

fn came(number: u64) -> SessionUpdate {
    sessions::came(uid().as_str(), GATEWAY, number, number)
}

fn device(token: &str) -> Device {
    devices::device("d1", token)
}

struct Stores {
    inbox: RedisInbox,
    sessions: RedisSessions,
    devices: RedisDevices,
}

impl Stores {
    async fn on(redis: &OwnRedis) -> Self {
        let connection = || connect(redis.settings());
        let (inbox, sessions) = (RedisInbox::new(connection().await), RedisSessions::new(connection().await));
        let stores = Self { inbox, sessions, devices: RedisDevices::new(connection().await) };
        assert_eq!(stores.inbox.open(PARTITION, 5).await, Ok(Some(0)));
        stores.write_all().await;
        stores
    }

    async fn write_all(&self) {
        assert_eq!(
            self.inbox.apply(PARTITION, write(0, 10, vec![box_of(b"one"), row(1)])).await,
            Ok(ApplyOutcome::Done)
        );
        self.sessions.put(SHARD, vec![came(1)]).await.unwrap();
        self.sessions.keep_alive(SHARD, 0).await.unwrap();
        self.devices.put(&uid(), device("first")).await.unwrap();
    }

    async fn are_all_unavailable(&self) {
        let written = self.inbox.apply(PARTITION, write(10, 20, vec![row(2)])).await;
        assert!(matches!(written, Err(InboxError::Unavailable(_))), "{written:?}");
        let read = self.inbox.boxes(PARTITION, vec![uid()]).await;
        assert!(matches!(read, Err(InboxError::Unavailable(_))), "{read:?}");
        let put = self.sessions.put(SHARD, vec![came(2)]).await;
        assert!(matches!(put, Err(SessionsError::Unavailable(_))), "{put:?}");
        let told = self.sessions.of(SHARD, vec![uid()]).await;
        assert!(matches!(told, Err(SessionsError::Unavailable(_))), "{told:?}");
        let put = self.devices.put(&uid(), device("second")).await;
        assert!(matches!(put, Err(DevicesError::Unavailable(_))), "{put:?}");
    }

    /// A connection notices a restart by its next call, which fails; the call after that reaches the new server.
    async fn until_they_answer(&self) {
        let began = Instant::now();
        let is_late = || began.elapsed() > 3 * PATIENCE_MAX;
        while self.inbox.boxes(PARTITION, Vec::new()).await.is_err() {
            assert!(!is_late(), "the inboxes do not come back");
        }
        while self.sessions.of(SHARD, vec![uid()]).await.is_err() {
            assert!(!is_late(), "the sessions do not come back");
        }
        while self.devices.of(&uid()).await.is_err() {
            assert!(!is_late(), "the devices do not come back");
        }
    }

    async fn tokens(&self) -> Vec<String> {
        self.devices.of(&uid()).await.unwrap().into_iter().map(|device| device.token).collect()
    }

    async fn online(&self) -> usize {
        self.sessions.of(SHARD, vec![uid()]).await.unwrap().found[0].sessions.len()
    }
}

#[tokio::test]
async fn stores_of_a_killed_redis_are_unavailable_at_once_and_complete_after_its_restart() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    redis.kill();
    let began = Instant::now();
    stores.are_all_unavailable().await;
    assert!(began.elapsed() < 3 * PATIENCE_MAX, "it took {:?}", began.elapsed());
    redis.start_again();
    stores.until_they_answer().await;
    assert_eq!(stores.inbox.open(PARTITION, 4).await, Ok(None), "an older owner is refused as before");
    assert_eq!(stores.inbox.open(PARTITION, 5).await, Ok(Some(10)));
    assert!(is_stored(&stores.inbox, 1).await && !is_stored(&stores.inbox, 2).await);
    assert_eq!((stores.online().await, stores.tokens().await), (1, vec!["first".to_owned()]));
}

#[tokio::test]
async fn calls_to_a_frozen_redis_time_out_and_a_write_happens_once() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    redis.freeze();
    let began = Instant::now();
    let shared = InboxChange::PutShared { seq: 2, row: Bytes::from_static(b"shared"), references: 1 };
    let written = stores.inbox.apply(PARTITION, write(10, 20, vec![shared.clone()])).await;
    let read = stores.sessions.of(SHARD, vec![uid()]).await;
    let waited = began.elapsed();
    redis.go_on();
    assert!(matches!(written, Err(InboxError::Unavailable(_))), "{written:?}");
    assert!(matches!(read, Err(SessionsError::Unavailable(_))), "{read:?}");
    assert!(waited < 2 * PATIENCE_MAX, "it took {waited:?}");
    stores.until_they_answer().await;
    // The write waited in the frozen server's socket: the server executed it when it continued. A second one would count its references
    // twice.
    assert_eq!(stores.inbox.apply(PARTITION, write(10, 20, vec![shared])).await, Ok(ApplyOutcome::Behind { at: 20 }));
    assert_eq!(stores.inbox.open(PARTITION, 5).await, Ok(Some(20)), "whoever takes it anew knows where it is");
    let release = InboxChange::ReleaseShared { seq: 2, references: 1 };
    assert_eq!(stores.inbox.apply(PARTITION, write(20, 20, vec![release])).await, Ok(ApplyOutcome::Done));
    let rows = stores.inbox.rows(PARTITION, vec![RowKey::Shared { seq: 2 }]).await.unwrap();
    assert_eq!(rows.found, [None], "its one reference was the last");
}

#[tokio::test]
async fn a_full_redis_serves_reads_and_writes_are_whole_or_absent() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    assert_eq!(redis.cli(&["config", "set", "maxmemory-policy", "noeviction"]), "OK");
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "1"]), "OK");
    let written = stores.inbox.apply(PARTITION, write(10, 20, vec![box_of(b"two"), row(2)])).await;
    assert!(matches!(written, Err(InboxError::Unavailable(_))), "{written:?}");
    let put = stores.sessions.put(SHARD, vec![came(2)]).await;
    assert!(matches!(put, Err(SessionsError::Unavailable(_))), "{put:?}");
    let put = stores.devices.put(&uid(), device("second")).await;
    assert!(matches!(put, Err(DevicesError::Unavailable(_))), "{put:?}");
    let found = stores.inbox.boxes(PARTITION, vec![uid()]).await.unwrap();
    assert_eq!((found.applied, found.found), (10, vec![Some(Bytes::from_static(b"one"))]));
    assert!(!is_stored(&stores.inbox, 2).await);
    assert_eq!((stores.online().await, stores.tokens().await), (1, vec!["first".to_owned()]));
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "0"]), "OK");
    assert_eq!(stores.inbox.apply(PARTITION, write(10, 20, vec![row(2)])).await, Ok(ApplyOutcome::Done));
    stores.sessions.put(SHARD, vec![came(2)]).await.unwrap();
    stores.devices.put(&uid(), device("second")).await.unwrap();
    assert_eq!((stores.online().await, stores.tokens().await), (2, vec!["second".to_owned()]));
}

#[tokio::test]
async fn inboxes_that_lost_writes_report_their_offset_to_readers_and_to_the_writer() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    let earlier = redis.copy_of_disk();
    assert_eq!(
        stores.inbox.apply(PARTITION, write(10, 20, vec![box_of(b"two"), row(2)])).await,
        Ok(ApplyOutcome::Done)
    );
    redis.fall_back_to(&earlier);
    stores.until_they_answer().await;
    assert_eq!(stores.inbox.boxes(PARTITION, vec![uid()]).await.unwrap().applied, 10);
    assert_eq!(stores.inbox.apply(PARTITION, write(20, 30, vec![row(3)])).await, Ok(ApplyOutcome::Behind { at: 10 }));
    assert!(!is_stored(&stores.inbox, 3).await, "nothing was written");
    assert_eq!(stores.inbox.open(PARTITION, 6).await, Ok(Some(10)), "it is folded again from there");
    let again = InboxWrite { epoch: 6, ..write(10, 20, vec![box_of(b"two"), row(2)]) };
    assert_eq!(stores.inbox.apply(PARTITION, again).await, Ok(ApplyOutcome::Done));
    assert!(is_stored(&stores.inbox, 2).await);
}

#[tokio::test]
async fn inboxes_that_lost_only_acknowledgements_reject_the_next_write() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    let earlier = redis.copy_of_disk();
    let acknowledged = vec![box_of(b"acknowledged"), InboxChange::DropOwn { uid: uid(), seq: 1 }];
    assert_eq!(stores.inbox.apply(PARTITION, write(10, 10, acknowledged)).await, Ok(ApplyOutcome::Done));
    redis.fall_back_to(&earlier);
    stores.until_they_answer().await;
    // The row is visible again. The writer would replace the box with one that does not refer to the row, and the row would never be
    // removed.
    assert!(is_stored(&stores.inbox, 1).await);
    let written = stores.inbox.apply(PARTITION, write(10, 20, vec![box_of(b"next"), row(2)])).await;
    assert_eq!(written, Ok(ApplyOutcome::Behind { at: 10 }));
    assert_eq!(stores.inbox.open(PARTITION, 6).await, Ok(Some(10)));
    let found = stores.inbox.boxes(PARTITION, vec![uid()]).await.unwrap();
    assert_eq!(found.found, [Some(Bytes::from_static(b"one"))], "whoever takes it anew finds the row in its box");
}

#[tokio::test]
async fn sessions_that_were_lost_are_restored_by_the_next_picture() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    let earlier = redis.copy_of_disk();
    let gone_at = Some(Timestamp::from_millis(9));
    stores.sessions.put(SHARD, vec![SessionUpdate { version: 2, gone_at, ..came(1) }]).await.unwrap();
    assert_eq!(stores.online().await, 0);
    redis.fall_back_to(&earlier);
    stores.until_they_answer().await;
    assert_eq!(stores.online().await, 1, "it has forgotten who went");
    let session = came(3).session;
    let changes = stores.sessions.replace(SHARD, GATEWAY, 4, vec![(uid(), session.clone())]).await.unwrap();
    assert_eq!(changes.len(), 1);
    let told = stores.sessions.of(SHARD, vec![uid()]).await.unwrap();
    assert_eq!(told.found[0].sessions, [session]);
}

#[tokio::test]
async fn devices_that_lost_writes_have_their_earlier_state_and_accept_changes() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let stores = Stores::on(&redis).await;
    let earlier = redis.copy_of_disk();
    stores.devices.put(&uid(), device("second")).await.unwrap();
    redis.fall_back_to(&earlier);
    stores.until_they_answer().await;
    assert_eq!(stores.tokens().await, ["first"]);
    // A provider that rejects the newer token does not remove the device with the older one.
    assert_eq!(stores.devices.remove(&uid(), "d1", Some("second")).await, Ok(false));
    stores.devices.put(&uid(), device("third")).await.unwrap();
    assert_eq!(stores.tokens().await, ["third"]);
}
