//! Measures inboxes in the data folder on this machine: writes in batches, reads of a box and of a page, and the disk space that one body
//! to many users takes.
//!
//! ```text
//! cargo run --release -p whimbrel-engines --no-default-features --example inbox_throughput -- [messages]
//! ```

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use whimbrel_engines::embedded::{LsmInbox, StoreReports};
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::timers::ApplyOutcome;
use whimbrel_model::ports::{Inbox, InboxChange, InboxWrite, RowKey};

const USERS: u64 = 10_000;
const BATCH: u64 = 500;
const ROW_BYTES: usize = 200;
const BOX_BYTES: usize = 60;
const BODY_BYTES: usize = 1024;
const READS: u64 = 2_000;
const PAGE: u64 = 50;

#[tokio::main]
async fn main() {
    let messages: u64 = std::env::args().nth(1).map_or(200_000, |text| text.parse().expect("a number of messages"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut owner = PartitionWriter {
        inbox: LsmInbox::open(folder.path(), StoreReports::default()).expect("it opens"),
        applied: 0,
    };
    shared(&mut owner, folder.path()).await;
    stored(&mut owner, messages).await;
    read(&owner).await;
    owner.inbox.close().await;
}

struct PartitionWriter {
    inbox: LsmInbox,
    applied: u64,
}

impl PartitionWriter {
    async fn write(&mut self, changes: Vec<InboxChange>) {
        let (expected, applied) = (self.applied, self.applied + 1);
        let write = InboxWrite { epoch: 1, expected, reset: false, changes, applied, synced: false };
        assert_eq!(self.inbox.apply(0, write).await, Ok(ApplyOutcome::Done));
        self.applied = applied;
    }
}

fn uid(number: u64) -> Uid {
    Uid::new(&format!("user-{number:06}")).expect("it is a good id")
}

fn put_box(user: u64) -> InboxChange {
    let reclaim_at = Some(Timestamp::from_millis(1_800_000_000_000));
    InboxChange::PutBox { uid: uid(user), state: Some(vec![7; BOX_BYTES].into()), reclaim_at, was: None }
}

async fn shared(owner: &mut PartitionWriter, folder: &Path) {
    let body = InboxChange::PutShared { seq: 1, row: vec![7; BODY_BYTES].into(), references: USERS as u32 };
    owner.write((0..USERS).map(put_box).chain([body]).collect()).await;
    owner.inbox.close().await;
    println!("one body of {BODY_BYTES} bytes to {USERS} users: {} KB of tables", table_bytes(folder) >> 10);
}

async fn stored(owner: &mut PartitionWriter, messages: u64) {
    let began = Instant::now();
    for first in (0..messages).step_by(BATCH as usize) {
        let row = |seq: u64| {
            let row = Bytes::from(vec![7; ROW_BYTES]);
            [InboxChange::PutOwn { uid: uid(seq % USERS), seq, row }, put_box(seq % USERS)]
        };
        owner.write((first..first + BATCH).flat_map(row).collect()).await;
    }
    let rate = messages as f64 / began.elapsed().as_secs_f64();
    println!("{rate:.0} messages/s put with their boxes, in writes of {BATCH}");
    let began = Instant::now();
    let dropped = messages / 2;
    for first in (0..dropped).step_by(BATCH as usize) {
        let ack = |seq: u64| [InboxChange::DropOwn { uid: uid(seq % USERS), seq }, put_box(seq % USERS)];
        owner.write((first..first + BATCH).flat_map(ack).collect()).await;
    }
    println!("{:.0} messages/s acknowledged", dropped as f64 / began.elapsed().as_secs_f64());
    let page = (0..PAGE * 200).map(|seq| InboxChange::PutOwn {
        uid: uid(1),
        seq: seq + (1 << 32),
        row: vec![7; ROW_BYTES].into(),
    });
    owner.write(page.collect()).await;
}

async fn read(owner: &PartitionWriter) {
    let began = Instant::now();
    for n in 0..READS {
        let found = owner.inbox.boxes(0, vec![uid(n * 7919 % USERS)]).await.expect("it reads").found;
        assert!(found[0].is_some());
    }
    println!("a box in {:.0} µs", began.elapsed().as_secs_f64() * 1e6 / READS as f64);
    let began = Instant::now();
    for n in 0..READS {
        let first = (1 << 32) + n % 150 * PAGE;
        let keys = (first..first + PAGE).map(|seq| RowKey::Own { uid: uid(1), seq }).collect();
        let found = owner.inbox.rows(0, keys).await.expect("it reads").found;
        assert!(found.iter().all(Option::is_some));
    }
    println!("a page of {PAGE} rows in {:.0} µs", began.elapsed().as_secs_f64() * 1e6 / READS as f64);
}

/// Bytes of all files except journals.
fn table_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("the folder can be read").flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.path() {
        path if path.is_dir() => table_bytes(&path),
        path if path.extension().is_some_and(|extension| extension == "jnl") => 0,
        path => path.metadata().map_or(0, |file| file.len()),
    };
    entries.map(bytes).sum()
}
