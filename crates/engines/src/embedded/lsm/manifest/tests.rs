//! Damaged manifests: each is found before the LSM opens the store, and costs no row without a report.

use std::path::PathBuf;

use fjall::{Database, KeyspaceCreateOptions, PersistMode};

use super::super::guard::StoreGuard;
use super::super::testing::{ObservedReports, Rows, copy_folder, flip, open_rows};
use super::super::verify::{StoreCheck, verify};
use super::super::{StoreError, StoreFault};
use super::*;

/// Rows in tables of the last level, and rows that only the journal has.
const IN_TABLES: usize = 100;
const IN_JOURNAL: usize = 10;
/// The keyspace of the rows. The LSM counts from 1; 0 is its own keyspace.
const ROWS: &str = "keyspaces/1";
const OWN: &str = "keyspaces/0";

#[derive(Debug)]
struct Unavailable;

impl StoreError for Unavailable {
    fn unavailable(_: String) -> Self {
        Self
    }
}

fn put(store: &Rows, numbers: std::ops::Range<usize>) {
    numbers.for_each(|number| store.rows.insert(format!("{number:04}"), "value").unwrap());
    store.database.persist(PersistMode::SyncData).unwrap();
}

/// A closed store. Its journals have few of the zeros that are preallocated, so that copying them is quick.
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open_rows(&folder.path().join("holds")).unwrap();
    put(&store, 0..IN_TABLES);
    store.rows.rotate_memtable_and_wait().unwrap();
    store.rows.major_compact().unwrap();
    put(&store, IN_TABLES..IN_TABLES + IN_JOURNAL);
    drop(store);
    // Opening removes earlier manifests.
    drop(open_rows(&folder.path().join("holds")).unwrap());
    for file in std::fs::read_dir(folder.path().join("holds")).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "jnl") {
            let bytes = std::fs::read(&file).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or_default();
            std::fs::write(&file, &bytes[..bytes.len().min(used + 4096)]).unwrap();
        }
    }
    folder
}

/// The files `current` and `v…` of all keyspaces.
fn manifests(store: &Path) -> Vec<PathBuf> {
    let keyspaces = std::fs::read_dir(store.join("keyspaces")).unwrap().map(|entry| entry.unwrap().path());
    let files = keyspaces.flat_map(|keyspace| std::fs::read_dir(keyspace).unwrap());
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    assert_eq!(files.len(), 4, "{files:?}");
    files
}

/// Opens the store as the server does. Returns the number of its rows, and the events.
fn opened(path: &Path) -> (usize, Vec<&'static str>) {
    let seen = ObservedReports::default();
    let guard = StoreGuard::open("holds", path, seen.reports(), open_rows, |_| {}).unwrap();
    let count = guard.handle().run(|rows| Ok::<_, StoreFault<Unavailable>>(rows.rows.iter().count())).unwrap();
    (count, seen.kinds())
}

fn assert_damaged(path: &Path, file: &Path) {
    let StoreCheck::Damaged { file: found, .. } = verify(path, &|_| {}) else { panic!("the check does not find it") };
    assert_eq!(found, file, "the report of the check");
    assert_eq!(opened(path), (0, vec!["store_rebuilt"]));
}

fn assert_sound(path: &Path) {
    assert!(matches!(verify(path, &|_| {}), StoreCheck::Sound { .. }));
    assert_eq!(opened(path), (IN_TABLES + IN_JOURNAL, vec![]));
}

#[test]
fn every_flipped_bit_of_a_manifest_is_damage() {
    let folder = written();
    let path = folder.path().join("holds");
    check(&path, true).unwrap();
    for file in manifests(&path) {
        let whole = std::fs::read(&file).unwrap();
        for position in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[position / 8] ^= 1 << (position % 8);
            std::fs::write(&file, &flipped).unwrap();
            let checked = check(&path, true);
            let is_named =
                matches!(&checked, Err(FolderError::Damaged { file: found, .. }) if found.parent() == file.parent());
            assert!(is_named, "bit {position} of {}: {checked:?}", file.display());
        }
        std::fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn no_flipped_bit_of_a_manifest_costs_rows_without_an_event() {
    // A number that has no common divisor with the bits of a byte.
    const STEP: usize = 7;
    let folder = written();
    let (whole, path) = (folder.path().join("holds"), folder.path().join("damaged/holds"));
    for file in manifests(&whole) {
        let file = file.strip_prefix(&whole).unwrap();
        let bytes = std::fs::read(whole.join(file)).unwrap();
        for position in (0..bytes.len()).step_by(STEP) {
            copy_folder(&whole, &path);
            let mut flipped = bytes.clone();
            flipped[position] ^= 1 << (position % 8);
            std::fs::write(path.join(file), &flipped).unwrap();
            let (count, events) = opened(&path);
            let is_reported = events == ["store_rebuilt"];
            let place = format!("byte {position} of {}", file.display());
            assert!(is_reported || count == IN_TABLES + IN_JOURNAL, "{place}: {count} rows, {events:?}");
            std::fs::remove_dir_all(folder.path().join("damaged")).unwrap();
        }
    }
}

/// Flips a bit at this distance from the number of runs of the last level.
fn assert_flip_is_damage(distance: usize) {
    let folder = written();
    let path = folder.path().join("holds");
    let rows = manifests(&path).into_iter().filter(|file| file.starts_with(path.join(ROWS)));
    let file = rows.max().unwrap();
    // The last level has one run of one table. Behind that are the table's id, the kind of its checksum, the checksum and the number.
    let last = std::fs::read(&file).unwrap().windows(5).position(|window| window == [1, 1, 0, 0, 0]).unwrap();
    flip(&file, last + distance);
    assert_damaged(&path, &file);
}

#[test]
fn a_flipped_bit_of_the_number_of_runs_is_damage() {
    assert_flip_is_damage(0);
}

#[test]
fn a_flipped_bit_of_the_sequence_number_of_a_table_is_damage() {
    assert_flip_is_damage(5 + 8 + 1 + 16 + 5);
}

#[test]
fn a_keyspace_that_lost_its_current_manifest_is_damage() {
    for keyspace in [OWN, ROWS] {
        let folder = written();
        let path = folder.path().join("holds");
        let file = path.join(keyspace).join("current");
        std::fs::remove_file(&file).unwrap();
        assert_damaged(&path, &file);
    }
}

#[test]
fn a_store_that_lost_a_keyspace_is_damage() {
    for keyspace in [OWN, ROWS] {
        let folder = written();
        let path = folder.path().join("holds");
        std::fs::remove_dir_all(path.join(keyspace)).unwrap();
        assert_damaged(&path, &path.join(keyspace).join("current"));
    }
}

#[test]
fn a_store_that_lost_all_keyspaces_is_damage() {
    let folder = written();
    let path = folder.path().join("holds");
    std::fs::remove_dir_all(path.join("keyspaces")).unwrap();
    std::fs::create_dir(path.join("keyspaces")).unwrap();
    assert_damaged(&path, &path.join(OWN).join("current"));
}

#[test]
fn a_store_that_lost_a_table_is_damage() {
    let folder = written();
    let path = folder.path().join("holds");
    let table = std::fs::read_dir(path.join(ROWS).join("tables")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&table).unwrap();
    assert_eq!(opened(&path), (0, vec!["store_rebuilt"]));
}

#[test]
fn a_keyspace_whose_creation_was_cut_off_is_no_damage() {
    for files in [&[][..], &["v0"]] {
        let folder = written();
        let path = folder.path().join("holds");
        let unfinished = path.join("keyspaces/7");
        std::fs::create_dir_all(unfinished.join("tables")).unwrap();
        files.iter().for_each(|file| std::fs::write(unfinished.join(file), b"").unwrap());
        assert_sound(&path);
    }
}

#[test]
fn a_keyspace_whose_deletion_was_cut_off_is_no_damage() {
    let folder = written();
    let (path, kept) = (folder.path().join("holds"), folder.path().join("kept"));
    let store = open_rows(&path).unwrap();
    let gone = store.database.keyspace("gone", KeyspaceCreateOptions::default).unwrap();
    gone.insert("key", "value").unwrap();
    gone.rotate_memtable_and_wait().unwrap();
    let of_gone = gone.path().to_owned();
    copy_folder(&of_gone, &kept);
    store.database.delete_keyspace(gone).unwrap();
    drop(store);
    assert!(!of_gone.exists());
    // The LSM removes `current` first.
    std::fs::remove_file(kept.join("current")).unwrap();
    std::fs::rename(&kept, &of_gone).unwrap();
    assert_sound(&path);
}

#[test]
fn a_store_whose_creation_was_cut_off_before_its_first_keyspace_is_no_damage() {
    for folders in [&[][..], &["0"], &["0/tables"]] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holds");
        drop(Database::builder(&path).open().unwrap());
        std::fs::remove_dir_all(path.join("keyspaces")).unwrap();
        std::fs::create_dir(path.join("keyspaces")).unwrap();
        folders.iter().for_each(|folder| std::fs::create_dir_all(path.join("keyspaces").join(folder)).unwrap());
        assert_eq!(opened(&path), (0, vec![]));
    }
}
