//! What is known of a hold stays known when tables have been merged and what lies below the line has gone.

use fjall::AbstractTree;
use whimbrel_model::ports::{Applied, Change, Known, Row, Write};
use whimbrel_model::{Ending, Headers, HeldMessage, Hold, HoldId, TopicNumber};

use super::LsmStore as _;
use super::keys::tests::at;
use super::{Inner, TimerSettings};

const SHARD: u32 = 3;

struct Scene {
    inner: Inner,
    applied: u64,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inner = Inner::open(&folder.path().join("holds"), TimerSettings::default()).unwrap();
        Self { inner, applied: 0, _folder: folder }
    }

    fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Writes to the disk, with everything below `floor` over and past.
    fn write(&mut self, changes: Vec<Change>, floor: i64) {
        self.write_synced(changes, floor, true);
    }

    fn write_synced(&mut self, changes: Vec<Change>, floor: i64, synced: bool) {
        let (expected, applied) = (self.applied, self.applied + 1);
        let write =
            Write { epoch: 1, expected, reset: false, changes, applied, floor: at(floor), now: at(floor), synced };
        assert_eq!(self.inner().apply(SHARD, write).unwrap().0, Applied::Done);
        self.applied = applied;
    }

    fn flush(&self) {
        for keyspace in [&self.inner().rows, &self.inner().ids, &self.inner().late, &self.inner().late_ids] {
            keyspace.rotate_memtable_and_wait().unwrap();
        }
    }

    fn merge(&self) {
        self.flush();
        self.inner().rows.major_compact().unwrap();
        self.inner().ids.major_compact().unwrap();
    }

    fn known(&self) -> Option<Known> {
        self.inner().get(SHARD, &[HoldId::new("a")]).unwrap().found.remove(0)
    }

    fn keys(&self) -> [usize; 2] {
        [&self.inner().rows, &self.inner().ids].map(|keyspace| keyspace.iter().count())
    }
}

fn hold(due: i64) -> Hold {
    Hold {
        id: HoldId::new("a"),
        topic: TopicNumber(1),
        topic_name: "orders".into(),
        due: at(due),
        published_at: at(0),
        version: 1,
        fresh: true,
        moves: Vec::new(),
        message: HeldMessage { key: None, value: "body".into(), headers: Headers::EMPTY },
    }
}

fn row(due: i64) -> Row {
    Row { due: at(due), topic: TopicNumber(1) }
}

fn put(due: i64, was: Option<i64>) -> Vec<Change> {
    vec![Change::Put { hold: hold(due).into(), was: was.map(row) }]
}

fn fire(due: i64) -> Vec<Change> {
    let end = hold(due).ended(Ending::Fired { partition: 0 }, at(due));
    vec![Change::End { id: HoldId::new("a"), end, was: Some(row(due)) }]
}

#[test]
fn what_fired_in_its_time_leaves_nothing_but_its_end() {
    let mut scene = Scene::new();
    scene.write(put(10, None), 0);
    scene.flush();
    scene.write(fire(10), 50);
    assert!(matches!(scene.known(), Some(Known::Ended(_))), "while its row is still there");
    scene.merge();
    assert_eq!(scene.keys(), [0, 0]);
    assert!(matches!(scene.known(), Some(Known::Ended(_))));
}

#[test]
fn where_a_hold_was_before_it_moved_does_not_show_through() {
    let mut scene = Scene::new();
    scene.write(put(1_000, None), 0);
    scene.merge();
    scene.write(put(10, Some(1_000)), 0);
    scene.flush();
    scene.write(fire(10), 50);
    scene.merge();
    assert!(matches!(scene.known(), Some(Known::Ended(_))));
    assert_eq!(scene.inner().due(SHARD, None, at(9_999), 9, 9_999).unwrap().found, []);
}

#[test]
fn a_pending_hold_stays_found() {
    let mut scene = Scene::new();
    scene.write(put(100, None), 0);
    scene.write(Vec::new(), 100);
    scene.merge();
    assert_eq!(scene.known(), Some(Known::Pending(hold(100).into())));
}

#[test]
fn a_hold_that_came_late_stays_found_until_it_ends() {
    let mut scene = Scene::new();
    scene.write(Vec::new(), 100);
    scene.write(put(10, None), 10);
    scene.merge();
    assert_eq!(scene.known(), Some(Known::Pending(hold(10).into())));
    scene.write(fire(10), 100);
    assert!(matches!(scene.known(), Some(Known::Ended(_))));
}

#[test]
fn a_hold_that_was_late_and_moves_on_is_found_where_it_is() {
    let mut scene = Scene::new();
    scene.write(put(500, None), 0);
    scene.write(Vec::new(), 100);
    for (due, was) in [(10, 500), (300, 10)] {
        scene.write(put(due, Some(was)), due.min(100));
        scene.merge();
        assert_eq!(scene.known(), Some(Known::Pending(hold(due).into())));
    }
    scene.write(fire(300), 300);
    assert!(matches!(scene.known(), Some(Known::Ended(_))));
}

#[test]
fn merges_leave_out_nothing_that_is_over_only_by_a_write_that_is_not_on_disk() {
    let mut scene = Scene::new();
    scene.write(put(10, None), 0);
    scene.write_synced(fire(10), 50, false);
    scene.merge();
    assert_eq!(scene.keys()[0], 1, "a power cut would bring the hold back as pending, and its row is needed");
    scene.write(Vec::new(), 50);
    scene.merge();
    assert_eq!(scene.keys()[0], 0);
}

#[test]
fn a_clean_stop_leaves_nothing_that_only_the_journal_has() {
    let mut scene = Scene::new();
    scene.write(put(100, None), 0);
    let in_memory = |scene: &Scene| {
        let trees = scene.inner().keyspaces();
        trees
            .iter()
            .filter(|each| !each.tree.active_memtable().is_empty() || each.tree.sealed_memtable_count() > 0)
            .count()
    };
    assert!(in_memory(&scene) > 0);
    scene.inner().flush().unwrap();
    assert_eq!(in_memory(&scene), 0);
    assert_eq!(scene.known(), Some(Known::Pending(hold(100).into())));
}
