//! Look-ups of holds return the same after tables were merged and garbage below the line was dropped.

use fjall::AbstractTree;
use whimbrel_model::ports::{ApplyOutcome, DueKey, StoredHold, TimerChange, TimersWrite};
use whimbrel_model::{Hold, HoldEndKind, HoldId};

use super::LsmStore as _;
use super::keys::tests::at;
use super::{TimerSettings, TimerStore};
use crate::conformance;

const SHARD: u32 = 3;

struct MergeScene {
    inner: TimerStore,
    applied: u64,
    _folder: tempfile::TempDir,
}

impl MergeScene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inner = TimerStore::open(&folder.path().join("holds"), TimerSettings::default()).unwrap();
        Self { inner, applied: 0, _folder: folder }
    }

    /// Writes and syncs, as if every hold below `floor` had ended.
    fn write(&mut self, changes: Vec<TimerChange>, floor: i64) {
        self.write_synced(changes, floor, true);
    }

    fn write_synced(&mut self, changes: Vec<TimerChange>, floor: i64, synced: bool) {
        let (expected, applied) = (self.applied, self.applied + 1);
        let write = TimersWrite {
            epoch: 1,
            expected,
            reset: false,
            changes,
            applied,
            floor: at(floor),
            now: at(floor),
            synced,
        };
        assert_eq!(self.inner.apply(SHARD, write).unwrap().0, ApplyOutcome::Done);
        self.applied = applied;
    }

    fn flush(&self) {
        for keyspace in [&self.inner.rows, &self.inner.ids, &self.inner.late, &self.inner.late_ids] {
            keyspace.rotate_memtable_and_wait().unwrap();
        }
    }

    fn merge(&self) {
        self.flush();
        self.inner.rows.major_compact().unwrap();
        self.inner.ids.major_compact().unwrap();
    }

    fn known(&self) -> Option<StoredHold> {
        self.inner.get(SHARD, &[HoldId::new("a")]).unwrap().found.remove(0)
    }

    fn keys(&self) -> [usize; 2] {
        [&self.inner.rows, &self.inner.ids].map(|keyspace| keyspace.iter().count())
    }
}

fn hold(due: i64) -> Hold {
    Hold { due: at(due), ..conformance::timers::hold("a", 0) }
}

fn row(due: i64) -> DueKey {
    DueKey { due: at(due), topic: hold(due).topic }
}

fn put(due: i64, was: Option<i64>) -> Vec<TimerChange> {
    vec![TimerChange::Put { hold: hold(due).into(), was: was.map(row) }]
}

fn fire(due: i64) -> Vec<TimerChange> {
    let end = hold(due).ended(HoldEndKind::Fired { partition: 0 }, at(due));
    vec![TimerChange::End { id: HoldId::new("a"), end, was: Some(row(due)) }]
}

#[test]
fn a_hold_that_fired_on_time_leaves_only_its_end() {
    let mut scene = MergeScene::new();
    scene.write(put(10, None), 0);
    scene.flush();
    scene.write(fire(10), 50);
    assert!(matches!(scene.known(), Some(StoredHold::Ended(_))), "while its row is still there");
    scene.merge();
    assert_eq!(scene.keys(), [0, 0]);
    assert!(matches!(scene.known(), Some(StoredHold::Ended(_))));
}

#[test]
fn an_earlier_due_time_of_a_moved_hold_is_not_visible() {
    let mut scene = MergeScene::new();
    scene.write(put(1_000, None), 0);
    scene.merge();
    scene.write(put(10, Some(1_000)), 0);
    scene.flush();
    scene.write(fire(10), 50);
    scene.merge();
    assert!(matches!(scene.known(), Some(StoredHold::Ended(_))));
    assert_eq!(scene.inner.due(SHARD, None, at(9_999), 9, 9_999).unwrap().found, []);
}

#[test]
fn a_pending_hold_stays_found() {
    let mut scene = MergeScene::new();
    scene.write(put(100, None), 0);
    scene.write(Vec::new(), 100);
    scene.merge();
    assert_eq!(scene.known(), Some(StoredHold::Pending(hold(100).into())));
}

#[test]
fn a_late_hold_stays_found_until_it_ends() {
    let mut scene = MergeScene::new();
    scene.write(Vec::new(), 100);
    scene.write(put(10, None), 10);
    scene.merge();
    assert_eq!(scene.known(), Some(StoredHold::Pending(hold(10).into())));
    scene.write(fire(10), 100);
    assert!(matches!(scene.known(), Some(StoredHold::Ended(_))));
}

#[test]
fn a_late_hold_that_is_extended_is_found_at_its_new_time() {
    let mut scene = MergeScene::new();
    scene.write(put(500, None), 0);
    scene.write(Vec::new(), 100);
    for (due, was) in [(10, 500), (300, 10)] {
        scene.write(put(due, Some(was)), due.min(100));
        scene.merge();
        assert_eq!(scene.known(), Some(StoredHold::Pending(hold(due).into())));
    }
    scene.write(fire(300), 300);
    assert!(matches!(scene.known(), Some(StoredHold::Ended(_))));
}

#[test]
fn merges_keep_rows_whose_end_is_not_synced() {
    let mut scene = MergeScene::new();
    scene.write(put(10, None), 0);
    scene.write_synced(fire(10), 50, false);
    scene.merge();
    assert_eq!(scene.keys()[0], 1, "a power cut would bring the hold back as pending, and its row is needed");
    scene.write(Vec::new(), 50);
    scene.merge();
    assert_eq!(scene.keys()[0], 0);
}

#[test]
fn a_clean_stop_flushes_every_row_to_tables() {
    let mut scene = MergeScene::new();
    scene.write(put(100, None), 0);
    let in_memory = |scene: &MergeScene| {
        let trees = scene.inner.keyspaces();
        trees
            .iter()
            .filter(|each| !each.tree.active_memtable().is_empty() || each.tree.sealed_memtable_count() > 0)
            .count()
    };
    assert!(in_memory(&scene) > 0);
    scene.inner.flush().unwrap();
    assert_eq!(in_memory(&scene), 0);
    assert_eq!(scene.known(), Some(StoredHold::Pending(hold(100).into())));
}
