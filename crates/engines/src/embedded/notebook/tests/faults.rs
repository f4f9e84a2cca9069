//! A notebook with damaged slices, and on a disk that accepts nothing.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::*;
use crate::embedded::lsm::testing::flip;

const PATIENCE: Duration = Duration::from_secs(20);

fn open_seen(folder: &TempDir, seen: &ObservedReports) -> FileNotebook {
    let (path, settings) = (folder.path().join("notebook"), NotebookSettings::default());
    FileNotebook::open(&path, settings, Arc::new(SystemClock), seen.reports()).unwrap()
}

/// A slice with one chunk for each of these offsets, and the positions of the chunks.
async fn three_chunks(folder: &TempDir) -> (PathBuf, Vec<u64>) {
    let notebook = open(folder);
    let mut positions = vec![slice::MAGIC_BYTES];
    for offset in 0..3 {
        notebook.note(vec![delivered(offset)]);
        notebook.close().await;
        positions.push(slice_of(folder, "attempts").1);
    }
    drop(notebook);
    (slice_of(folder, "attempts").0, positions)
}

async fn found(notebook: &FileNotebook) -> Vec<u64> {
    let mut found = Vec::new();
    for offset in 0..4 {
        found.extend(notebook.attempts(SUB, ORDERS, offset).await.iter().map(|note| note.offset));
    }
    found
}

#[tokio::test]
async fn chunks_behind_a_flipped_bit_are_found_and_the_damage_is_reported_once() {
    let body_at = slice::HEAD_BYTES as u64;
    for into in [0, 7, 20, body_at - 1, body_at, body_at + 2] {
        let (folder, seen) = (folder(), ObservedReports::default());
        let (path, positions) = three_chunks(&folder).await;
        flip(&path, (positions[1] + into) as usize);
        let notebook = open_seen(&folder, &seen);
        assert_eq!(found(&notebook).await, [0, 2], "a bit of byte {into} of the chunk is flipped");
        notebook.note(vec![delivered(3)]);
        assert_eq!(found(&notebook).await, [0, 2, 3]);
        assert_eq!(seen.kinds(), ["store_damaged"]);
        assert_eq!(seen.field("store_damaged", "store").as_deref(), Some("notebook"));
        assert_eq!(seen.field("store_damaged", "file"), Some(path.display().to_string()));
        assert_eq!(seen.field("store_damaged", "position"), Some(positions[1].to_string()));
        drop(notebook);
        assert_eq!(found(&open(&folder)).await, [0, 2, 3], "and after a restart");
    }
}

#[tokio::test]
async fn damage_that_a_start_did_not_meet_is_reported_when_it_is_read() {
    let (folder, seen) = (folder(), ObservedReports::default());
    let (path, positions) = three_chunks(&folder).await;
    let notebook = open_seen(&folder, &seen);
    notebook.close().await;
    assert!(seen.kinds().is_empty());
    // As if the disk had changed the bytes meanwhile.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 30], positions[0] + 10).unwrap();
    assert_eq!(found(&notebook).await, [1, 2]);
    assert_eq!(seen.kinds(), ["store_damaged"]);
    assert_eq!(seen.field("store_damaged", "position"), Some(positions[0].to_string()));
}

#[tokio::test]
async fn empty_slices_of_an_earlier_process_are_removed_and_the_last_one_is_used() {
    let folder = folder();
    let path = folder.path().join("notebook");
    std::fs::create_dir_all(&path).unwrap();
    for (number, bytes) in [&b""[..], b"", b"WBN", b""].into_iter().enumerate() {
        std::fs::write(path.join(format!("attempts-{:013}.slice", 1_700_000_000_000u64 + number as u64)), bytes)
            .unwrap();
    }
    let notebook = open_with(&folder, NotebookSettings { keep: Duration::MAX, ..NotebookSettings::default() });
    notebook.note(vec![delivered(1)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 1).await, [delivered(1)]);
    let (used, _) = slice_of(&folder, "attempts");
    assert_eq!(used.file_name().unwrap(), "attempts-1700000000003.slice");
}

#[tokio::test]
async fn a_folder_that_cannot_be_opened_is_reported_and_used_when_it_can() {
    let (folder, seen) = (folder(), ObservedReports::default());
    // A file has the name of the folder.
    let path = folder.path().join("notebook");
    std::fs::write(&path, b"not a folder").unwrap();
    let notebook = open_seen(&folder, &seen);
    notebook.note(vec![delivered(1)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 1).await, []);
    assert_eq!(seen.kinds(), ["store_failed"], "one event for two shelves");
    assert!(seen.health.problems().is_empty(), "the process serves without it");
    assert_eq!(seen.health.warnings().len(), 1);
    std::fs::remove_file(&path).unwrap();
    let began = Instant::now();
    while seen.kinds().len() < 2 {
        assert!(began.elapsed() < PATIENCE, "the notebook does not recover without a note");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(seen.kinds(), ["store_failed", "store_recovered"]);
    assert!(seen.health.warnings().is_empty());
    notebook.note(vec![delivered(2)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 2).await, [delivered(2)]);
}
