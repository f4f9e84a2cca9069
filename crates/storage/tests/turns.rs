//! Publishes and commits take turns in the journal's frames: neither waits behind all requests of the other lane.

mod support;

use std::sync::{Arc, Mutex, PoisonError};

use support::{DiskCall, Folder, UnsyncedDisk, key, part, small};
use whimbrel_storage::{DataFolder, LogReply, LogSettings, LogStore, LogTicket, LogWrite, WallClock};

/// Far more requests than a few frames hold.
const CROWD: u64 = 60;
const VALUE_BYTES: usize = 20 << 10;
/// A late request goes with the frame that is filled next. Before it go the frame that is being written and the other lane's share of its
/// own frame: three values fit into each.
const BEFORE_IT_MAX: u64 = 2 * 3 + 1;

/// A log that syncs its next frame only when the gate is open.
struct Gated {
    store: LogStore,
    gate: Arc<Mutex<()>>,
    token: u64,
    _folder: Folder,
}

impl Gated {
    fn new() -> Self {
        let (folder, gate) = (Folder::new(), Arc::new(Mutex::new(())));
        let closed = gate.clone();
        let disk = UnsyncedDisk::with(move |call| {
            if call == DiskCall::SyncFile {
                drop(closed.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Ok(())
        });
        let data = DataFolder::open(Arc::new(disk), folder.path()).unwrap();
        let settings = LogSettings { queue_bytes_max: 16 << 20, ..small() };
        assert!(CROWD as usize * VALUE_BYTES > 10 * settings.frame_bytes_target);
        let (store, _) = LogStore::open(data.into(), settings, Arc::new(WallClock), Box::new(|_| {})).unwrap();
        store.create_partitions(1, 1).unwrap();
        let LogReply::FenceOpened(token) = store.submit(LogWrite::OpenFence("f".into())).unwrap().wait() else {
            panic!("a fence opens");
        };
        Self { store, gate, token, _folder: folder }
    }

    fn append(&self) -> LogWrite {
        LogWrite::Append(vec![part(key(1, 0), 0, &[&"x".repeat(VALUE_BYTES)])])
    }

    fn commit(&self) -> LogWrite {
        let parts = vec![part(key(1, 0), 0, &[&"x".repeat(VALUE_BYTES)])];
        LogWrite::Commit { fence: "f".into(), token: self.token, parts }
    }

    /// Submits many requests and then one more while nothing is synced, and opens the gate. Returns the offsets of the many and of the
    /// last.
    fn late_to_a_crowd(&self, crowd: impl Fn() -> LogWrite, late: LogWrite) -> (Vec<u64>, u64) {
        let closed = self.gate.lock().unwrap();
        let crowd: Vec<LogTicket> = (0..CROWD).map(|_| self.store.submit(crowd()).unwrap()).collect();
        let late = self.store.submit(late).unwrap();
        drop(closed);
        (crowd.into_iter().map(offset).collect(), offset(late))
    }
}

fn offset(ticket: LogTicket) -> u64 {
    match ticket.wait() {
        LogReply::Appended(offsets) => *offsets[0].as_ref().unwrap(),
        LogReply::Committed(offsets) => offsets[0],
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_append_does_not_wait_behind_all_commits() {
    let log = Gated::new();
    let (commits, append) = log.late_to_a_crowd(|| log.commit(), log.append());
    assert!(append <= BEFORE_IT_MAX, "{append} commits of {CROWD} went before it");
    assert!(commits.is_sorted(), "commits of one fence land in the order of their calls: {commits:?}");
}

#[test]
fn a_commit_does_not_wait_behind_all_appends() {
    let log = Gated::new();
    let (appends, commit) = log.late_to_a_crowd(|| log.append(), log.commit());
    assert!(commit <= BEFORE_IT_MAX, "{commit} appends of {CROWD} went before it");
    assert!(appends.is_sorted(), "appends keep the order of their calls: {appends:?}");
}
