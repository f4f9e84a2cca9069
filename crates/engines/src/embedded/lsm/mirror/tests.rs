//! Two copies of a store after damage and failures of one or both.

use std::os::unix::fs::MetadataExt as _;

use super::super::testing::{ObservedReports, copy_folder, flip};
use super::*;

const SETTINGS: MirrorSettings =
    MirrorSettings { store: "devices", keyspaces: &["rows"], cache_bytes: 1 << 20, journal_bytes_max: 64 << 20 };
const ROWS: usize = 0;
const COUNT: usize = 50;

struct Scene {
    folder: tempfile::TempDir,
    seen: ObservedReports,
}

impl Scene {
    /// Two copies with rows, closed.
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap(), seen: ObservedReports::default() };
        let mut mirror = scene.open();
        for number in 0..COUNT {
            put(&mut mirror, number);
        }
        scene
    }

    fn copies(&self) -> [PathBuf; 2] {
        ["devices", "devices.mirror"].map(|name| self.folder.path().join(name))
    }

    fn open(&self) -> LsmMirror {
        LsmMirror::open(&self.copies()[0], SETTINGS, self.seen.reports()).unwrap()
    }

    /// Copies a side, for [`Self::put_back`].
    fn keep(&self, side: usize) {
        copy_folder(&self.copies()[side], &self.folder.path().join("kept"));
    }

    /// Replaces a side with its copy, as if it had not received the writes since then.
    fn put_back(&self, side: usize) {
        std::fs::remove_dir_all(&self.copies()[side]).unwrap();
        std::fs::rename(self.folder.path().join("kept"), &self.copies()[side]).unwrap();
    }

    fn flush(&self) {
        self.open().flush().unwrap();
    }

    /// All rows are there, in both copies.
    fn assert_whole(&self) {
        let mut mirror = self.open();
        assert_eq!(count(&mut mirror), COUNT);
        close(mirror.copies[0].db.take());
        assert_eq!(count(&mut mirror), COUNT, "the second copy");
    }
}

fn put(mirror: &mut LsmMirror, number: usize) {
    let key = format!("key {number:04}").into_bytes();
    mirror.commit(&vec![(ROWS, RowChange::Insert(key, vec![7; 100]))]).unwrap();
    mirror.sync().unwrap();
}

fn count(mirror: &mut LsmMirror) -> usize {
    mirror.prefix(ROWS, b"key", usize::MAX).unwrap().len()
}

#[test]
fn a_copy_with_a_flipped_bit_in_its_journal_is_rebuilt_and_its_place_reported() {
    for side in 0..2 {
        let scene = Scene::new();
        let journal = scene.copies()[side].join("0.jnl");
        flip(&journal, 3_000);
        assert_eq!(count(&mut scene.open()), COUNT);
        assert_eq!(scene.seen.kinds(), ["store_copy_rebuilt"]);
        assert_eq!(scene.seen.field("store_copy_rebuilt", "file"), Some(journal.display().to_string()));
        assert!(scene.seen.field("store_copy_rebuilt", "position").is_some());
        scene.assert_whole();
        assert_eq!(scene.seen.kinds().len(), 1, "the copy is whole at the next start");
    }
}

#[test]
fn a_copy_that_lost_its_synced_end_is_rebuilt_and_reported() {
    for side in 0..2 {
        let scene = Scene::new();
        scene.keep(side);
        let mut mirror = scene.open();
        put(&mut mirror, COUNT - 1);
        put(&mut mirror, COUNT - 1);
        drop(mirror);
        scene.put_back(side);
        scene.assert_whole();
        assert_eq!(scene.seen.kinds(), ["store_copy_rebuilt"]);
    }
}

/// Copies of which the side has the last, acknowledged rows alone, and cannot be opened until the returned file is removed.
fn with_an_unreadable_newer_copy(scene: &Scene, side: usize) -> PathBuf {
    scene.keep(1 - side);
    let mut mirror = scene.open();
    put(&mut mirror, COUNT);
    put(&mut mirror, COUNT + 1);
    drop(mirror);
    scene.put_back(1 - side);
    // A link to itself: every access fails, as it would on a failing disk.
    let journal = scene.copies()[side].join("1.jnl");
    std::os::unix::fs::symlink(&journal, &journal).unwrap();
    journal
}

#[test]
fn a_newer_copy_that_cannot_be_opened_for_a_moment_is_used_afterwards() {
    for side in 0..2 {
        let scene = Scene::new();
        let obstacle = with_an_unreadable_newer_copy(&scene, side);
        let mut mirror = scene.open();
        assert!(mirror.get(ROWS, b"key 0000").is_err(), "the mirror does not know yet which copy is newer");
        assert_eq!(scene.seen.kinds(), ["store_failed"]);
        std::fs::remove_file(obstacle).unwrap();
        mirror.heal();
        assert_eq!(count(&mut mirror), COUNT + 2);
        assert_eq!(scene.seen.kinds(), ["store_failed", "store_copy_rebuilt", "store_recovered"]);
    }
}

#[test]
fn a_copy_that_cannot_be_opened_for_long_is_kept_under_another_name() {
    let scene = Scene::new();
    with_an_unreadable_newer_copy(&scene, 0);
    let mut mirror = scene.open();
    std::thread::sleep(UNREADABLE_FOR);
    mirror.heal();
    assert_eq!(count(&mut mirror), COUNT);
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_copy_rebuilt", "store_recovered"]);
    assert!(scene.folder.path().join("devices.damaged/0.jnl").exists());
}

#[test]
fn a_copy_that_misses_only_unsynced_batches_is_rebuilt_without_an_event() {
    let scene = Scene::new();
    scene.keep(1);
    let mut mirror = scene.open();
    let key = b"key 0000".to_vec();
    mirror.commit(&vec![(ROWS, RowChange::Insert(key, vec![8]))]).unwrap();
    drop(mirror);
    scene.put_back(1);
    scene.assert_whole();
    assert!(scene.seen.kinds().is_empty());
}

#[test]
fn a_store_without_a_second_copy_gets_one() {
    let scene = Scene::new();
    std::fs::remove_dir_all(&scene.copies()[1]).unwrap();
    scene.assert_whole();
    let scene = Scene::new();
    std::fs::remove_dir_all(&scene.copies()[0]).unwrap();
    scene.assert_whole();
}

#[test]
fn a_copy_that_fails_is_rebuilt_while_the_other_one_serves() {
    let scene = Scene::new();
    let mut mirror = scene.open();
    mirror.fail(0, CopyFailure::Lsm(fjall::Error::Poisoned));
    assert_eq!(count(&mut mirror), COUNT);
    put(&mut mirror, 0);
    mirror.heal();
    assert!(mirror.heal_at().is_none());
    drop(mirror);
    scene.assert_whole();
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_copy_rebuilt", "store_recovered"]);
}

#[test]
fn a_store_with_one_copy_left_is_a_warning_and_one_without_a_copy_a_failure() {
    let scene = Scene::new();
    let (health, mut mirror) = (&scene.seen.health, scene.open());
    mirror.fail(0, CopyFailure::Lsm(fjall::Error::Poisoned));
    assert_eq!((health.problems().len(), health.warnings().len()), (0, 1), "{:?}", health.problems());
    assert!(health.warnings()[0].contains("one of its two copies"), "{:?}", health.warnings());
    mirror.fail(1, CopyFailure::Lsm(fjall::Error::Poisoned));
    assert_eq!((health.problems().len(), health.warnings().len()), (1, 0));
    mirror.heal();
    assert_eq!((health.problems().len(), health.warnings().len()), (0, 0));
}

#[test]
fn a_store_whose_second_copy_cannot_be_written_is_a_warning_until_it_can() {
    let scene = Scene::new();
    std::fs::remove_dir_all(&scene.copies()[1]).unwrap();
    // A file has the name of the folder in which the copy is rebuilt.
    let blocked = scene.copies()[1].with_extension(REBUILD);
    std::fs::write(&blocked, b"").unwrap();
    let (health, mut mirror) = (&scene.seen.health, scene.open());
    assert_eq!((health.problems().len(), health.warnings().len()), (0, 1), "{:?}", health.problems());
    assert_eq!(count(&mut mirror), COUNT);
    std::fs::remove_file(&blocked).unwrap();
    mirror.heal();
    assert_eq!((health.problems().len(), health.warnings().len()), (0, 0));
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_copy_rebuilt", "store_recovered"]);
}

#[test]
fn a_copy_with_a_flipped_bit_in_a_manifest_is_rebuilt_from_the_other_one() {
    for side in 0..2 {
        let scene = Scene::new();
        scene.flush();
        let manifest = manifest_with_table(&scene.copies()[side].join("keyspaces/1"));
        // The number of runs in the last level.
        let runs = std::fs::read(&manifest).unwrap().windows(5).position(|bytes| bytes == [1, 1, 0, 0, 0]).unwrap();
        flip(&manifest, runs);
        assert_eq!(count(&mut scene.open()), COUNT);
        assert_eq!(scene.seen.kinds(), ["store_copy_rebuilt"]);
        assert_eq!(scene.seen.field("store_copy_rebuilt", "file"), Some(manifest.display().to_string()));
        scene.assert_whole();
    }
}

#[test]
fn two_copies_with_damaged_manifests_are_kept_and_the_loss_is_reported() {
    let scene = Scene::new();
    scene.flush();
    for copy in scene.copies() {
        flip(&manifest_with_table(&copy.join("keyspaces/1")), 1);
    }
    assert_eq!(count(&mut scene.open()), 0);
    assert!(scene.seen.kinds().contains(&"store_data_lost"), "{:?}", scene.seen.kinds());
    for copy in scene.copies() {
        let kept = PathBuf::from(format!("{}.damaged", copy.display()));
        assert_eq!(std::fs::read_dir(kept.join("keyspaces/1/tables")).unwrap().count(), 1, "the tables are kept");
    }
}

/// The newest manifest of a keyspace.
fn manifest_with_table(keyspace: &Path) -> PathBuf {
    let files = std::fs::read_dir(keyspace).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with('v')).max().unwrap()
}

#[test]
fn after_both_copies_failed_both_are_written_again() {
    let scene = Scene::new();
    let before = scene.copies().map(|copy| std::fs::metadata(copy).unwrap().ino());
    let mut mirror = scene.open();
    mirror.fail(0, CopyFailure::Lsm(fjall::Error::Poisoned));
    mirror.fail(1, CopyFailure::Lsm(fjall::Error::Poisoned));
    assert!(mirror.get(ROWS, b"key 0000").is_err());
    assert_eq!(scene.seen.health.problems().len(), 1);
    mirror.heal();
    assert_eq!(count(&mut mirror), COUNT);
    assert!(mirror.heal_at().is_none());
    assert!(scene.seen.health.problems().is_empty());
    for (copy, before) in scene.copies().iter().zip(before) {
        assert_ne!(std::fs::metadata(copy).unwrap().ino(), before, "{} is not replaced", copy.display());
    }
    drop(mirror);
    scene.assert_whole();
    assert_eq!(scene.seen.kinds().first(), Some(&"store_failed"));
    assert_eq!(scene.seen.kinds().last(), Some(&"store_recovered"));
}

#[test]
fn readable_rows_of_two_damaged_copies_are_kept_and_the_loss_is_reported() {
    let scene = Scene::new();
    for copy in scene.copies() {
        flip(&copy.join("0.jnl"), 3_000);
    }
    let mut mirror = scene.open();
    let left = count(&mut mirror);
    assert!(left > 0 && left < COUNT, "{left} rows are left");
    assert!(scene.seen.kinds().contains(&"store_data_lost"));
    drop(mirror);
    assert_eq!(count(&mut scene.open()), left);
}

#[test]
fn a_damaged_table_is_read_from_the_other_copy() {
    let scene = Scene::new();
    scene.flush();
    damage_tables(&scene.copies()[0]);
    assert_eq!(count(&mut scene.open()), COUNT);
    scene.assert_whole();
    assert!(!scene.seen.kinds().contains(&"store_data_lost"), "{:?}", scene.seen.kinds());
}

/// Flips a bit in every table of a copy.
fn damage_tables(copy: &Path) {
    let mut damaged = 0;
    for keyspace in std::fs::read_dir(copy.join("keyspaces")).unwrap() {
        for table in std::fs::read_dir(keyspace.unwrap().path().join("tables")).into_iter().flatten() {
            flip(&table.unwrap().path(), 40);
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there are tables");
}

#[test]
fn entries_that_the_only_good_copy_cannot_read_are_taken_from_the_failed_one() {
    let scene = Scene::new();
    scene.flush();
    damage_tables(&scene.copies()[1]);
    let mut mirror = scene.open();
    // A temporary failure of the first copy makes the second one the source.
    mirror.fail(0, CopyFailure::Lsm(fjall::Error::Poisoned));
    mirror.heal();
    assert_eq!(count(&mut mirror), COUNT);
    drop(mirror);
    assert_eq!(count(&mut scene.open()), COUNT);
}

#[test]
fn a_damaged_copy_with_newer_synced_batches_is_preferred_and_the_loss_reported() {
    let scene = Scene::new();
    scene.keep(0);
    let mut mirror = scene.open();
    for number in COUNT..COUNT + 20 {
        put(&mut mirror, number);
    }
    drop(mirror);
    // The first copy had failed before the new batches; the second one is damaged near its end.
    scene.put_back(0);
    let journal = scene.copies()[1].join("0.jnl");
    let bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    flip(&journal, used - 500);
    let mut mirror = scene.open();
    assert!(count(&mut mirror) > COUNT, "{} rows", count(&mut mirror));
    assert!(scene.seen.kinds().contains(&"store_data_lost"), "{:?}", scene.seen.kinds());
}

#[test]
fn a_copy_without_its_version_is_rebuilt_from_the_other_one() {
    let scene = Scene::new();
    let version = scene.copies()[0].join("version");
    std::fs::remove_file(&version).unwrap();
    assert_eq!(count(&mut scene.open()), COUNT);
    assert_eq!(scene.seen.kinds(), ["store_copy_rebuilt"]);
    assert_eq!(scene.seen.field("store_copy_rebuilt", "file"), Some(version.display().to_string()));
    scene.assert_whole();
}

#[test]
fn two_copies_without_their_versions_are_reported_and_their_entries_kept() {
    let scene = Scene::new();
    for copy in scene.copies() {
        std::fs::remove_file(copy.join("version")).unwrap();
    }
    assert_eq!(count(&mut scene.open()), COUNT);
    assert!(scene.seen.kinds().contains(&"store_data_lost"), "{:?}", scene.seen.kinds());
    scene.assert_whole();
}

#[test]
fn a_copy_of_a_newer_version_is_refused_and_not_replaced() {
    let scene = Scene::new();
    let copy = &scene.copies()[1];
    std::fs::write(copy.join("version"), b"FJL\x04").unwrap();
    std::fs::write(copy.join("0.jnl"), b"a journal of another format").unwrap();
    let opened = LsmMirror::open(&scene.copies()[0], SETTINGS, scene.seen.reports());
    let refused = opened.err().expect("the store is opened").0;
    assert!(refused.contains("version 4") && refused.contains("`devices`"), "{refused}");
    assert_eq!(std::fs::read(copy.join("0.jnl")).unwrap(), b"a journal of another format");
}
