//! A guarded store after failures, damage and interrupted creations.

use std::sync::atomic::{AtomicU32, Ordering};

use fjall::PersistMode;
use rustix::io::Errno;

use super::super::testing::{ObservedReports, Rows, flip, open_rows};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, PartialEq)]
struct Unavailable(String);

impl StoreError for Unavailable {
    fn unavailable(reason: String) -> Self {
        Self(reason)
    }
}

fn put(rows: &Rows, key: &str) -> Result<(), StoreFault<Unavailable>> {
    rows.rows.insert(key, "value")?;
    Ok(rows.database.persist(PersistMode::SyncData)?)
}

fn count(rows: &Rows) -> Result<usize, StoreFault<Unavailable>> {
    Ok(rows.rows.iter().count())
}

fn fails(error: fjall::Error) -> impl FnOnce(&Rows) -> Result<(), StoreFault<Unavailable>> {
    move |_| Err(error.into())
}

fn flush(rows: &Rows) -> Result<(), StoreFault<Unavailable>> {
    Ok(rows.rows.rotate_memtable_and_wait()?)
}

/// Fails some times before it opens the rows.
fn opens_after(failures: u32, errno: Errno) -> impl Fn(&Path) -> fjall::Result<Rows> {
    let failures = AtomicU32::new(failures);
    move |path| {
        let is_failing =
            failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if is_failing { Err(fjall::Error::Io(errno.into())) } else { open_rows(path) }
    }
}

struct Scene {
    folder: tempfile::TempDir,
    seen: ObservedReports,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), seen: ObservedReports::default() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("holds")
    }

    /// A closed store with one row.
    fn with_a_row() -> Self {
        let scene = Self::new();
        scene.open().handle().run(|rows| put(rows, "a")).unwrap();
        scene
    }

    fn open(&self) -> StoreGuard<Rows> {
        self.open_with(open_rows)
    }

    fn open_with(&self, open: impl Fn(&Path) -> fjall::Result<Rows> + Send + Sync + 'static) -> StoreGuard<Rows> {
        StoreGuard::open("holds", &self.path(), self.seen.reports(), open, |_| {}).unwrap()
    }
}

/// Waits until the store is open and its recovery is reported.
fn wait_until_open(scene: &Scene, store: &StoreHandle<Rows>) {
    let began = Instant::now();
    while !store.is_open() || !scene.seen.health.problems().is_empty() {
        assert!(began.elapsed() < PATIENCE, "the store is not opened again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_store_that_stopped_is_opened_again_with_all_its_rows_and_two_events() {
    let scene = Scene::with_a_row();
    let guard = scene.open();
    let store = guard.handle();
    store.run(|rows| put(rows, "of this session")).unwrap();
    assert!(store.run(fails(fjall::Error::Poisoned)).is_err());
    assert_eq!(scene.seen.health.problems().len(), 1, "`/readyz` names the store");
    assert!(store.run(|rows| put(rows, "b")).is_err(), "calls fail until the store is open");
    wait_until_open(&scene, &store);
    assert_eq!(store.run(count), Ok(2));
    store.run(|rows| put(rows, "b")).unwrap();
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_recovered"]);
    assert!(scene.seen.health.problems().is_empty());
}

#[test]
fn a_store_with_a_wrong_checksum_is_set_aside_and_begins_empty() {
    let scene = Scene::with_a_row();
    let guard = scene.open();
    let store = guard.handle();
    assert!(store.run(fails(fjall::LsmError::InvalidTrailer.into())).is_err());
    wait_until_open(&scene, &store);
    assert_eq!(store.run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_rebuilt", "store_recovered"]);
    assert!(scene.folder.path().join("holds.damaged").is_dir());
}

#[test]
fn a_panic_of_the_lsm_does_not_end_the_thread_that_met_it() {
    let scene = Scene::new();
    let guard = scene.open();
    let store = guard.handle();
    let panicked = store.run(|_| -> Result<(), StoreFault<Unavailable>> { panic!("a bug") });
    assert_eq!(panicked, Err(Unavailable("the LSM panicked: a bug".to_owned())));
    wait_until_open(&scene, &store);
    store.run(|rows| put(rows, "a")).unwrap();
}

#[test]
fn a_store_is_not_set_aside_while_its_files_can_be_read() {
    let scene = Scene::with_a_row();
    let guard = scene.open();
    let store = guard.handle();
    store.run(|rows| put(rows, "of this session")).unwrap();
    for _ in 0..VERIFIED_AT_FAILURE + 2 {
        assert_eq!(store.run(count), Ok(2));
        assert!(store.run(fails(fjall::Error::Io(Errno::IO.into()))).is_err());
        wait_until_open(&scene, &store);
    }
    assert_eq!(store.run(count), Ok(2));
    assert!(!scene.seen.kinds().contains(&"store_rebuilt"), "{:?}", scene.seen.kinds());
}

#[test]
fn a_flipped_bit_in_the_journal_is_reported_with_its_place_and_the_store_begins_empty() {
    let scene = Scene::new();
    let guard = scene.open();
    for key in ["a", "b", "c"] {
        guard.handle().run(|rows| put(rows, key)).unwrap();
    }
    drop(guard);
    flip(&scene.path().join("0.jnl"), 3);
    let guard = scene.open();
    assert_eq!(guard.handle().run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_rebuilt"]);
    assert_eq!(scene.seen.field("store_rebuilt", "position").as_deref(), Some("0"));
    let file = scene.path().join("0.jnl").display().to_string();
    assert_eq!(scene.seen.field("store_rebuilt", "file"), Some(file));
}

#[test]
fn a_journal_behind_its_tables_is_damage_although_its_end_looks_torn() {
    let scene = Scene::new();
    let guard = scene.open();
    guard.handle().run(|rows| put(rows, "a")).unwrap();
    guard.handle().run(flush).unwrap();
    drop(guard);
    let journal = scene.path().join("0.jnl");
    flip(&journal, 20);
    let guard = scene.open();
    assert_eq!(guard.handle().run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_rebuilt"]);
}

#[test]
fn a_store_that_cannot_be_opened_at_the_start_is_opened_later() {
    let scene = Scene::new();
    drop(scene.open());
    let guard = scene.open_with(opens_after(2, Errno::NOSPC));
    assert!(!guard.handle().is_open());
    wait_until_open(&scene, &guard.handle());
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_recovered"]);
}

#[test]
fn a_store_that_stops_repeatedly_is_verified_and_set_aside_if_a_table_is_damaged() {
    let scene = Scene::with_a_row();
    let guard = scene.open();
    let store = guard.handle();
    store.run(flush).unwrap();
    // The LSM's own thread would stop at the damage; callers see only that it stopped.
    // The keyspace 0 is the LSM's own.
    for table in std::fs::read_dir(scene.path().join("keyspaces/1/tables")).unwrap() {
        flip(&table.unwrap().path(), 30);
    }
    for _ in 0..VERIFIED_AT_FAILURE {
        assert!(!scene.seen.kinds().contains(&"store_rebuilt"));
        assert!(store.run(fails(fjall::Error::Poisoned)).is_err());
        wait_until_open(&scene, &store);
    }
    assert!(scene.seen.kinds().contains(&"store_rebuilt"), "{:?}", scene.seen.kinds());
    assert_eq!(store.run(count), Ok(0));
}

#[test]
fn a_folder_whose_creation_was_interrupted_is_created_again() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.path()).unwrap();
    std::fs::write(scene.path().join("0.jnl"), [0; 4096]).unwrap();
    let guard = scene.open();
    guard.handle().run(|rows| put(rows, "a")).unwrap();
}

#[test]
fn a_folder_with_an_unreadable_version_is_not_changed_and_opened_later() {
    let scene = Scene::with_a_row();
    let (version, kept) = (scene.path().join("version"), scene.folder.path().join("kept"));
    std::fs::rename(&version, &kept).unwrap();
    // A link to itself: every access fails, as it would on a failing disk.
    std::os::unix::fs::symlink(&version, &version).unwrap();
    let guard = scene.open();
    assert!(!guard.handle().is_open());
    std::fs::remove_file(&version).unwrap();
    std::fs::rename(&kept, &version).unwrap();
    wait_until_open(&scene, &guard.handle());
    assert_eq!(guard.handle().run(count), Ok(1));
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_recovered"]);
}

#[test]
fn a_store_with_entries_and_without_its_version_is_set_aside() {
    let scene = Scene::with_a_row();
    let version = scene.path().join("version");
    std::fs::remove_file(&version).unwrap();
    let guard = scene.open();
    assert_eq!(guard.handle().run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_rebuilt"]);
    assert_eq!(scene.seen.field("store_rebuilt", "file"), Some(version.display().to_string()));
    assert!(scene.folder.path().join("holds.damaged/0.jnl").exists(), "the entries are kept");
}

#[test]
fn a_store_of_a_newer_version_is_rejected_and_not_changed() {
    let scene = Scene::with_a_row();
    std::fs::write(scene.path().join("version"), b"FJL\x04").unwrap();
    std::fs::write(scene.path().join("0.jnl"), b"a journal of another format").unwrap();
    let opened = StoreGuard::open("holds", &scene.path(), scene.seen.reports(), open_rows, |_| {});
    let refused = opened.err().expect("the store is opened");
    assert!(refused.contains("version 4") && refused.contains("`holds`"), "{refused}");
    assert!(scene.seen.kinds().is_empty());
    assert_eq!(std::fs::read(scene.path().join("0.jnl")).unwrap(), b"a journal of another format");
}

#[test]
fn a_flipped_bit_in_the_version_is_damage_and_no_newer_version() {
    let scene = Scene::with_a_row();
    std::fs::write(scene.path().join("version"), b"FJL\x07").unwrap();
    let guard = scene.open();
    assert_eq!(guard.handle().run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_rebuilt"]);
}

#[test]
fn a_failed_store_is_not_reopened_until_its_last_call_has_ended() {
    let scene = Scene::new();
    let guard = scene.open();
    let (store, user) = (guard.handle(), guard.handle());
    let (entered, enters) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let using = std::thread::spawn(move || {
        user.run(|rows| {
            entered.send(()).unwrap();
            left.recv().unwrap();
            put(rows, "late")
        })
    });
    enters.recv().unwrap();
    assert!(store.run(fails(fjall::LsmError::InvalidTrailer.into())).is_err());
    // Longer than the first pause before the store would be opened again.
    std::thread::sleep(REOPEN_PAUSE_MIN * 3);
    assert!(!store.is_open() && scene.path().is_dir() && !scene.seen.kinds().contains(&"store_rebuilt"));
    leave.send(()).unwrap();
    using.join().unwrap().unwrap();
    wait_until_open(&scene, &store);
    assert_eq!(store.run(count), Ok(0), "the new store is empty");
}

/// The name of a file in a store whose files cannot be read.
const UNREADABLE: &str = "unreadable";

/// Fails with an error of the device while the store has its old files.
fn open_readable(path: &Path) -> fjall::Result<Rows> {
    if path.join(UNREADABLE).exists() { Err(fjall::Error::Io(Errno::IO.into())) } else { open_rows(path) }
}

#[test]
fn a_store_that_cannot_be_read_at_the_start_is_set_aside_after_some_attempts() {
    let scene = Scene::with_a_row();
    std::fs::write(scene.path().join(UNREADABLE), b"").unwrap();
    let guard = scene.open_with(open_readable);
    assert_eq!(scene.seen.kinds(), ["store_failed"], "one error is no reason to set the store aside");
    wait_until_open(&scene, &guard.handle());
    assert_eq!(guard.handle().run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_rebuilt", "store_recovered"]);
    assert!(scene.folder.path().join("holds.damaged/0.jnl").exists());
}

#[test]
fn a_store_that_cannot_be_read_again_after_a_failure_is_set_aside() {
    let scene = Scene::new();
    let guard = scene.open_with(open_readable);
    let store = guard.handle();
    store.run(|rows| put(rows, "a")).unwrap();
    std::fs::write(scene.path().join(UNREADABLE), b"").unwrap();
    assert!(store.run(fails(fjall::Error::Poisoned)).is_err());
    wait_until_open(&scene, &store);
    assert_eq!(store.run(count), Ok(0));
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_rebuilt", "store_recovered"]);
}

#[test]
fn a_disk_that_fails_for_long_sets_a_store_aside_once() {
    let scene = Scene::with_a_row();
    let guard = scene.open_with(opens_after(UNREADABLE_ATTEMPTS_MAX * 2 + 1, Errno::IO));
    wait_until_open(&scene, &guard.handle());
    assert_eq!(scene.seen.kinds(), ["store_failed", "store_rebuilt", "store_recovered"]);
    assert!(scene.folder.path().join("holds.damaged/0.jnl").exists(), "the first files are kept");
}

#[test]
fn a_store_that_cannot_be_created_on_a_full_disk_is_created_later() {
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::IO] {
        let scene = Scene::new();
        let guard = scene.open_with(opens_after(2, errno));
        wait_until_open(&scene, &guard.handle());
        assert_eq!(scene.seen.kinds(), ["store_failed", "store_recovered"]);
    }
    let scene = Scene::new();
    let open = |_: &Path| Err::<Rows, _>(fjall::Error::Io(Errno::ACCESS.into()));
    assert!(StoreGuard::open("holds", &scene.path(), scene.seen.reports(), open, |_| {}).is_err());
}

#[test]
fn the_files_of_a_damaged_store_make_room_for_the_rebuilt_one() {
    let scene = Scene::new();
    let guard = scene.open();
    let (store, kept) = (guard.handle(), scene.folder.path().join("holds.damaged"));
    assert!(store.run(fails(fjall::LsmError::InvalidTrailer.into())).is_err());
    wait_until_open(&scene, &store);
    store.run(|rows| put(rows, "a")).unwrap();
    assert!(kept.is_dir(), "the disk has room");
    assert!(store.run(fails(fjall::Error::Io(Errno::NOSPC.into()))).is_err());
    wait_until_open(&scene, &store);
    assert!(!kept.exists(), "the disk has no room for the rebuilt store");
    assert_eq!(store.run(count), Ok(1));
    assert_eq!(scene.seen.field("store_files_removed", "folder"), Some(kept.display().to_string()));
}
