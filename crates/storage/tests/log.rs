//! The log on a real disk: appended records are read, also after a restart, and errors are reported.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{DiskCall, Folder, UnsyncedDisk, append, key, small, values};
use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::{
    AppendError, Core, DataFolder, LogEvent, LogReply, LogSettings, LogStore, LogWrite, ReadError, TopicRetention,
};

/// A log whose topic 1 has this many partitions.
fn new_log(settings: LogSettings, partitions: u32) -> (Folder, LogStore) {
    let folder = Folder::new();
    let store = folder.store(settings);
    store.create_partitions(1, partitions).unwrap();
    (folder, store)
}

#[test]
fn appended_records_are_read_in_order() {
    let (_folder, store) = new_log(small(), 2);
    assert_eq!(append(&store, key(1, 0), &["a", "b"]), 0);
    assert_eq!(append(&store, key(1, 1), &["x"]), 0);
    assert_eq!(append(&store, key(1, 0), &["c"]), 2);
    assert_eq!(values(&store, key(1, 0), 0), ["a", "b", "c"]);
    assert_eq!(values(&store, key(1, 0), 2), ["c"]);
    assert_eq!(values(&store, key(1, 1), 0), ["x"]);
    assert_eq!(store.bounds(key(1, 0)), Ok((0, 3)));
}

#[test]
fn a_clean_restart_and_a_kill_keep_everything() {
    let (folder, store) = new_log(small(), 1);
    append(&store, key(1, 0), &["a"]);
    drop(store);
    let store = folder.store(small());
    append(&store, key(1, 0), &["b"]);
    let crashed = folder.copy();
    drop(store);
    for folder in [folder, crashed] {
        let store = folder.store(small());
        assert_eq!(values(&store, key(1, 0), 0), ["a", "b"]);
        assert_eq!(append(&store, key(1, 0), &["c"]), 2);
    }
}

#[test]
fn segments_serve_records_that_were_evicted_from_memory() {
    let (_folder, store) = new_log(LogSettings { tail_bytes: 0, ..small() }, 1);
    let texts: Vec<String> = (0..3000).map(|n| format!("message {n} {}", "x".repeat(50))).collect();
    for chunk in texts.chunks(100) {
        append(&store, key(1, 0), &chunk.iter().map(String::as_str).collect::<Vec<_>>());
        store.relieve_memory(0).unwrap();
    }
    append(&store, key(1, 0), &["last"]);
    for from in [0, 1, 99, 100, 101, 1777, 2999] {
        let read = values(&store, key(1, 0), from);
        assert_eq!(read[..read.len() - 1], texts[from as usize..]);
        assert_eq!(read.last().map(String::as_str), Some("last"));
    }
}

#[test]
fn a_time_leads_to_the_first_record_at_or_after_it() {
    let (_folder, store) = new_log(LogSettings { tail_bytes: 0, ..small() }, 1);
    // `append` gives each record its offset times ten as its time.
    let filler = "x".repeat(200);
    for _ in 0..50 {
        append(&store, key(1, 0), &[filler.as_str(); 20]);
        store.relieve_memory(0).unwrap();
    }
    append(&store, key(1, 0), &["in memory"]);
    for (time, offset) in
        [(-5, 0), (0, 0), (1, 1), (5000, 500), (5001, 501), (9990, 999), (10_000, 1000), (10_001, 1001)]
    {
        assert_eq!(store.offset_at(key(1, 0), time), Ok(offset), "time {time}");
    }
}

#[test]
fn a_fence_voids_the_earlier_one() {
    let (_folder, store) = new_log(small(), 2);
    let open = || match store.submit(LogWrite::OpenFence("holds/1".into())).unwrap().wait() {
        LogReply::FenceOpened(token) => token,
        other => panic!("{other:?}"),
    };
    let commit = |token, text: &str| {
        let parts = vec![support::part(key(1, 0), 0, &[text]), support::part(key(1, 1), 0, &[text])];
        store.submit(LogWrite::Commit { fence: "holds/1".into(), token, parts }).unwrap().wait()
    };
    let old = open();
    assert_eq!(commit(old, "a"), LogReply::Committed(vec![0, 0]));
    let new = open();
    assert_eq!(commit(old, "zombie"), LogReply::Fenced);
    assert_eq!(commit(new, "b"), LogReply::Committed(vec![1, 1]));
    assert_eq!(values(&store, key(1, 1), 0), ["a", "b"]);
}

#[test]
fn a_commit_with_a_part_that_can_never_be_written_writes_nothing() {
    let (_folder, store) = new_log(small(), 1);
    let LogReply::FenceOpened(token) = store.submit(LogWrite::OpenFence("f".into())).unwrap().wait() else { panic!() };
    let parts = vec![support::part(key(1, 0), 0, &["a"]), support::part(key(9, 9), 0, &["b"])];
    let outcome = store.submit(LogWrite::Commit { fence: "f".into(), token, parts }).unwrap().wait();
    assert_eq!(outcome, LogReply::Refused { part: 1, error: AppendError::UnknownPartition(key(9, 9)) });
    assert_eq!(store.bounds(key(1, 0)), Ok((0, 0)));
}

#[test]
fn errors_for_offsets_outside_have_the_bounds() {
    let (_folder, store) = new_log(small(), 1);
    append(&store, key(1, 0), &["a", "b", "c"]);
    store.trim(key(1, 0), 2).unwrap();
    assert_eq!(store.read(key(1, 0), 0, 100).unwrap_err(), ReadError::Trimmed { asked: 0, first: 2 });
    assert_eq!(store.read(key(1, 0), 9, 100).unwrap_err(), ReadError::BeyondEnd { asked: 9, next: 3 });
    assert_eq!(store.read(key(7, 0), 0, 100).unwrap_err(), ReadError::UnknownPartition(key(7, 0)));
}

#[test]
fn retention_drops_whole_old_segments_and_the_next_offset_stays() {
    let (folder, store) = new_log(LogSettings { segment_bytes: 4096, ..small() }, 1);
    let filler = "x".repeat(1000);
    for _ in 0..10 {
        append(&store, key(1, 0), &[filler.as_str(); 3]);
        store.relieve_memory(0).unwrap();
    }
    store.set_retention(1, TopicRetention { time: None, bytes: Some(10_000) });
    store.retain(0).unwrap();
    let (first, next) = store.bounds(key(1, 0)).unwrap();
    assert!(first > 0 && next == 30, "{first} {next}");
    assert_eq!(values(&store, key(1, 0), first).len() as u64, next - first);
    store.set_retention(1, TopicRetention { time: Some(Duration::from_millis(1)), bytes: None });
    store.retain(1_000_000).unwrap();
    assert_eq!(store.bounds(key(1, 0)), Ok((30, 30)));
    drop(store);
    let store = folder.store(small());
    assert_eq!(store.bounds(key(1, 0)), Ok((30, 30)));
    assert_eq!(append(&store, key(1, 0), &["on"]), 30);
}

#[test]
fn a_segment_that_cannot_be_read_blocks_no_other_topic_and_is_reported_once() {
    let folder = Folder::new();
    let (core, _, events) = folder.core(LogSettings { segment_bytes: 4096, ..small() });
    let filler = "x".repeat(1000);
    for topic in 1..=3 {
        core.create_partitions(topic, 1).unwrap();
        core.set_retention(topic, TopicRetention { time: Some(Duration::from_millis(1)), bytes: None });
        for _ in 0..4 {
            core.commit(&[LogWrite::Append(vec![support::part(key(topic, 0), 0, &[filler.as_str(); 3])])]);
            core.relieve_memory(0).unwrap();
        }
    }
    // A folder in place of the segment cannot be opened as a file, even by root.
    let segment = folder.segments().remove(1);
    let away = segment.with_extension("away");
    std::fs::rename(&segment, &away).unwrap();
    std::fs::create_dir(&segment).unwrap();
    std::fs::remove_file(segment.with_extension("index")).ok();
    let reported = |events: &support::Events| {
        let events = events.lock().unwrap();
        let files = events.iter().filter_map(|event| match event {
            LogEvent::SegmentUnreadable { file, .. } => Some(file.clone()),
            _ => None,
        });
        files.collect::<Vec<_>>()
    };
    for _ in 0..3 {
        core.retain(1_000_000).ok();
    }
    assert_eq!(core.bounds(key(2, 0)), Ok((12, 12)), "later topics are retained");
    assert_eq!(core.bounds(key(3, 0)), Ok((12, 12)));
    assert_eq!(reported(&events), std::slice::from_ref(&segment), "it is named once");
    std::fs::remove_dir(&segment).unwrap();
    std::fs::rename(&away, &segment).unwrap();
    core.retain(1_000_000).unwrap();
    assert_eq!(core.bounds(key(1, 0)), Ok((12, 12)));
}

#[test]
fn a_log_that_is_synced_file_by_file_opens_as_it_was() {
    let folder = Folder::new();
    let open = || {
        let data = Arc::new(DataFolder::open(Arc::new(RealDisk::by_file()), folder.path()).unwrap());
        Core::open(data, small(), 0, Box::new(|event| panic!("{event:?}"))).unwrap().0
    };
    let core = open();
    core.create_partitions(1, 2).unwrap();
    for partition in [0, 1] {
        core.commit(&[LogWrite::Append(vec![support::part(key(1, partition), 0, &["a", "b"])])]);
    }
    core.checkpoint(0, &mut || {}).unwrap();
    drop(core);
    let core = open();
    assert_eq!(core.bounds(key(1, 1)), Ok((0, 2)));
    assert_eq!(core.bounds(key(1, 0)), Ok((0, 2)));
}

#[test]
fn a_deleted_topic_is_gone_also_after_a_restart() {
    let (folder, store) = new_log(small(), 1);
    store.create_partitions(2, 1).unwrap();
    append(&store, key(1, 0), &["a"]);
    append(&store, key(2, 0), &["b"]);
    store.delete_topic(1).unwrap();
    assert_eq!(store.bounds(key(1, 0)), Err(ReadError::UnknownPartition(key(1, 0))));
    drop(store);
    let store = folder.store(small());
    assert_eq!(store.partition_count(1), 0);
    assert_eq!(values(&store, key(2, 0), 0), ["b"]);
}

#[test]
fn an_append_that_is_too_large_is_rejected_and_others_are_not() {
    let (_folder, store) = new_log(small(), 1);
    let huge = "x".repeat(small().frame_bytes_max);
    let refused = store.submit(LogWrite::Append(vec![support::part(key(1, 0), 0, &[&huge])]));
    assert!(matches!(refused, Err(AppendError::TooLarge { .. })));
    assert_eq!(append(&store, key(1, 0), &["a"]), 0);
}

#[test]
fn a_folder_that_is_in_use_of_another_format_or_foreign_is_rejected() {
    use whimbrel_storage::OpenError;
    let folder = Folder::new();
    let store = folder.store(small());
    assert!(matches!(folder.try_folder(), Err(OpenError::InUse(_))));
    drop(store);
    std::fs::write(folder.path().join("FORMAT"), "whimbrel data folder, format 99\n").unwrap();
    assert!(matches!(folder.try_folder(), Err(OpenError::OtherFormat { found, .. }) if found == "99"));
    let strange = Folder::new();
    std::fs::write(strange.path().join("thesis.doc"), "words").unwrap();
    assert!(matches!(strange.try_folder(), Err(OpenError::NotOurs(_))));
}

#[test]
fn a_first_start_between_the_read_and_the_lock_of_another_start_keeps_its_records() {
    let folder = Arc::new(Folder::new());
    let first = folder.clone();
    let disk = UnsyncedDisk::with(move |call| {
        if call == DiskCall::Lock {
            let store = first.store(small());
            store.create_partitions(1, 1).unwrap();
            append(&store, key(1, 0), &["of the first"]);
        }
        Ok(())
    });
    let (core, recovered, _) = folder.core_on(disk, small());
    assert_eq!(recovered.damage, []);
    assert_eq!(values(&core, key(1, 0), 0), ["of the first"]);
}
