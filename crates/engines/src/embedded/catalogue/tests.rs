//! The file of the catalogue when it is damaged, of an earlier version, or replaced on a disk that fails.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tempfile::TempDir;
use unsynced::{DiskCall, UnsyncedDisk};

use super::*;

#[path = "../../../../storage/tests/support/unsynced.rs"]
pub mod unsynced;

fn open(folder: &TempDir) -> Result<FileCatalogue, OpenError> {
    FileCatalogue::open(crate::embedded::open_folder(folder.path()).unwrap())
}

async fn entries(catalogue: &FileCatalogue) -> Vec<(String, Versioned)> {
    catalogue.list("").await.unwrap()
}

pub fn open_on(disk: UnsyncedDisk, folder: &TempDir) -> Result<FileCatalogue, OpenError> {
    FileCatalogue::open(Arc::new(DataFolder::open(Arc::new(disk), folder.path()).unwrap()))
}

/// Whether the call puts a file in the place of the catalogue.
fn is_rename(call: DiskCall<'_>) -> bool {
    matches!(call, DiskCall::Rename(to) if to.ends_with(FILE))
}

/// A closed catalogue whose key `k` has the second value, and the versions of both.
async fn written_twice() -> (TempDir, u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = open(&folder).unwrap();
    let first = catalogue.put("k", b"1".to_vec(), None).await.unwrap();
    let second = catalogue.put("k", b"2".to_vec(), Some(first)).await.unwrap();
    (folder, first, second)
}

#[tokio::test]
async fn no_flipped_bit_changes_the_contents_without_an_event() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = open(&folder).unwrap();
    catalogue.put("topics/a", b"{\"number\":9}".to_vec(), None).await.unwrap();
    let before = entries(&catalogue).await;
    catalogue.put("topics/b", b"{\"number\":10}".to_vec(), None).await.unwrap();
    let after = entries(&catalogue).await;
    drop(catalogue);
    let path = folder.path().join(FILE);
    let whole = std::fs::read(&path).unwrap();
    for position in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[position] ^= 1 << (position % 8);
        std::fs::write(&path, &flipped).unwrap();
        let catalogue = open(&folder).unwrap();
        let found = entries(&catalogue).await;
        match catalogue.finding() {
            Some(event) => {
                assert_eq!((found, event.kind), (before.clone(), "catalogue_damaged"), "byte {position}");
                assert!(whimbrel_storage::fallback::aside(&path).exists());
            }
            None => assert_eq!(found, after, "byte {position}"),
        }
    }
}

#[tokio::test]
async fn a_damaged_file_never_becomes_the_previous_version() {
    let (folder, first, _) = written_twice().await;
    let path = folder.path().join(FILE);
    std::fs::write(&path, b"garbage").unwrap();
    let catalogue = open(&folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"1");
    catalogue.put("k", b"3".to_vec(), Some(first)).await.unwrap();
    drop(catalogue);
    std::fs::write(&path, b"garbage again").unwrap();
    let catalogue = open(&folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"1", "the last sound version but one");
}

#[tokio::test]
async fn a_damaged_file_without_a_previous_version_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    open(&folder).unwrap().put("k", b"1".to_vec(), None).await.unwrap();
    std::fs::write(folder.path().join(FILE), b"garbage").unwrap();
    let refused = open(&folder).err().unwrap().to_string();
    assert!(refused.contains(FILE), "{refused}");
}

#[tokio::test]
async fn a_file_without_a_checksum_opens_and_gets_one_with_the_next_change() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder).unwrap());
    let path = folder.path().join(FILE);
    let old = r#"{"format":1,"revision":7,"entries":{"k":{"version":7,"text":"v"}}}"#;
    std::fs::write(&path, old).unwrap();
    let catalogue = open(&folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap(), Some(Versioned { value: b"v".to_vec(), version: 7 }));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), old, "opening changes nothing");
    catalogue.put("l", b"w".to_vec(), None).await.unwrap();
    drop(catalogue);
    assert!(std::fs::read_to_string(&path).unwrap().contains("checksum"));
    assert_eq!(std::fs::read_to_string(folder.path().join(PREVIOUS)).unwrap(), old);
    assert_eq!(entries(&open(&folder).unwrap()).await.len(), 2);
}

#[tokio::test]
async fn a_change_that_was_interrupted_between_its_renames_is_complete_after_the_next_start() {
    let (folder, _, _) = written_twice().await;
    let path = folder.path().join(FILE);
    std::fs::rename(&path, beside(&path)).unwrap();
    let catalogue = open(&folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"2");
    assert_eq!(catalogue.finding(), None);
    assert!(path.exists() && !beside(&path).exists(), "the change is in place");
    drop(catalogue);
    // The next change is interrupted before its file is complete.
    std::fs::write(beside(&path), b"{").unwrap();
    let catalogue = open(&folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"2");
    assert_eq!(catalogue.finding(), None);
    drop(catalogue);
    std::fs::remove_file(&path).unwrap();
    let catalogue = open(&folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"1");
    assert!(catalogue.finding().is_some(), "a lost file is reported");
}

#[tokio::test]
async fn a_change_whose_rename_fails_is_kept_until_a_rename_succeeds() {
    let (folder, _, second) = written_twice().await;
    let path = folder.path().join(FILE);
    std::fs::rename(&path, beside(&path)).unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let disk = UnsyncedDisk::failing(&fails, Errno::NOSPC.raw_os_error(), is_rename);
    let catalogue = open_on(disk, &folder).unwrap();
    assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"2", "the catalogue opens on a full disk");
    let whole = std::fs::read(beside(&path)).unwrap();
    assert!(catalogue.put("k", b"3".to_vec(), Some(second)).await.is_err());
    assert_eq!(std::fs::read(beside(&path)).unwrap(), whole, "the only copy of the change is not replaced");
    fails.store(false, Ordering::Relaxed);
    catalogue.put("k", b"3".to_vec(), Some(second)).await.unwrap();
    drop(catalogue);
    assert_eq!(open(&folder).unwrap().get("k").await.unwrap().unwrap().value, b"3");
}

#[tokio::test]
async fn a_change_whose_rename_failed_is_complete_after_the_next_one() {
    // In the second case the disk does not tell where the change is either.
    let cases: [fn(DiskCall<'_>) -> bool; 2] =
        [is_rename, |call| matches!(call, DiskCall::Exists(_)) || is_rename(call)];
    for (case, is_failing) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let disk = UnsyncedDisk::failing(&fails, Errno::IO.raw_os_error(), is_failing);
        let catalogue = open_on(disk, &folder).unwrap();
        let first = catalogue.put("k", b"1".to_vec(), None).await.unwrap();
        fails.store(true, Ordering::Relaxed);
        let unknown = catalogue.put("k", b"2".to_vec(), Some(first)).await;
        assert!(matches!(unknown, Err(CatalogueError::OutcomeUnknown(_))), "case {case}: {unknown:?}");
        assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"2", "case {case}");
        fails.store(false, Ordering::Relaxed);
        catalogue.put("l", b"3".to_vec(), None).await.unwrap();
        drop(catalogue);
        let catalogue = open(&folder).unwrap();
        assert_eq!((catalogue.finding(), entries(&catalogue).await.len()), (None, 2), "case {case}");
        assert_eq!(catalogue.get("k").await.unwrap().unwrap().value, b"2", "case {case}");
    }
}

#[tokio::test]
async fn a_temporary_read_error_does_not_lose_the_last_change() {
    let (folder, _, _) = written_twice().await;
    let is_open = |call: DiskCall<'_>| matches!(call, DiskCall::Open(path) if path.ends_with(FILE));
    let disk = UnsyncedDisk::failing(&Arc::new(AtomicBool::new(true)), Errno::IO.raw_os_error(), is_open);
    let error = open_on(disk, &folder).err().expect("the version before lacks the last change").to_string();
    assert!(error.contains(FILE), "{error}");
    assert_eq!(open(&folder).unwrap().get("k").await.unwrap().unwrap().value, b"2");
}

#[tokio::test]
async fn a_failed_write_is_one_event_until_a_write_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let events = Arc::<Mutex<Vec<Event>>>::default();
    let sink = Arc::clone(&events);
    let catalogue = open(&folder).unwrap().reporting_to(Arc::new(move |event| sink.lock().unwrap().push(event)));
    let path = folder.path().join(FILE);
    for incident in 1..=2 {
        // A folder has the name of the new file.
        std::fs::create_dir(beside(&path)).unwrap();
        for _ in 0..3 {
            assert!(catalogue.put(&format!("k{incident}"), b"1".to_vec(), None).await.is_err());
        }
        std::fs::remove_dir(beside(&path)).unwrap();
        catalogue.put(&format!("k{incident}"), b"1".to_vec(), None).await.unwrap();
        let events = events.lock().unwrap();
        assert_eq!(events.len(), incident, "{events:?}");
        assert_eq!(events[0].kind, "catalogue_not_written");
        assert!(events[0].fields.contains(&("file", path.display().to_string())), "{events:?}");
    }
}

#[tokio::test]
async fn a_change_whose_folder_was_not_synced_has_an_unknown_outcome_and_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let disk = UnsyncedDisk::failing(&fails, Errno::IO.raw_os_error(), |call| call == DiskCall::SyncFolder);
    let catalogue = open_on(disk, &folder).unwrap();
    let first = catalogue.put("k", b"1".to_vec(), None).await.unwrap();
    fails.store(true, Ordering::Relaxed);
    let unknown = catalogue.put("k", b"2".to_vec(), Some(first)).await;
    assert!(matches!(unknown, Err(CatalogueError::OutcomeUnknown(_))), "{unknown:?}");
    let seen = catalogue.get("k").await.unwrap().unwrap();
    assert_eq!(seen.value, b"2", "a read returns the change");
    assert_eq!(catalogue.changed(first).await.unwrap(), seen.version, "a watch reports the change");
    fails.store(false, Ordering::Relaxed);
    catalogue.put("k", b"3".to_vec(), Some(seen.version)).await.unwrap();
    drop(catalogue);
    assert_eq!(open(&folder).unwrap().get("k").await.unwrap().unwrap().value, b"3");
}
