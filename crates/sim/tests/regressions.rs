//! Bugs that the simulator found. Each test is named after the property that was violated.

use std::path::Path;
use std::sync::Arc;

use whimbrel_sim::SimDisk;
use whimbrel_sim::disk::Faults;
use whimbrel_storage::{
    Core, DataFolder, LogRecord, LogRecovery, LogReply, LogSettings, LogWrite, PartitionKey, TopicRetention, WritePart,
};

const FOLDER: &str = "/a/new/folder";

/// The number of disks for each power loss. They lose different changes.
const DISKS: u64 = 30;

fn settings() -> LogSettings {
    LogSettings {
        frame_bytes_max: 8 << 10,
        frame_bytes_target: 8 << 10,
        journal_file_bytes: 16 << 10,
        journal_bytes_max: 96 << 10,
        checkpoint_bytes: 48 << 10,
        segment_bytes: 4 << 10,
        index_interval_bytes: 256,
        tail_bytes: 0,
        unsaved_bytes_max: 64 << 10,
        disk_reserve_bytes: 0,
        ..LogSettings::default()
    }
}

/// Disks that sync everything at once, and disks that sync file by file, only the listed files.
fn disks() -> impl Iterator<Item = SimDisk> {
    (0..DISKS).map(|seed| {
        let disk = SimDisk::new(seed);
        disk.set_faults(Faults { sync_by_file: seed % 2 == 0, ..Faults::default() });
        disk
    })
}

fn try_open(disk: &SimDisk) -> Result<(Core, LogRecovery), whimbrel_storage::OpenError> {
    let folder = DataFolder::open(Arc::new(disk.clone()), Path::new(FOLDER))?;
    Core::open(folder.into(), settings(), 0, Box::new(|_| {}))
}

fn open(disk: &SimDisk) -> Core {
    let (core, recovered) = try_open(disk).unwrap();
    assert_eq!(recovered.damage, [], "nothing was damaged");
    core
}

fn open_with_topic(disk: &SimDisk) -> Core {
    let core = open(disk);
    core.create_partitions(1, 1).unwrap();
    core
}

fn kill(disk: &SimDisk, core: Core) -> Core {
    drop(core);
    disk.kill();
    open(disk)
}

fn kill_on_full_disk(disk: &SimDisk, core: Core) -> Core {
    drop(core);
    disk.kill();
    disk.set_budget(disk.used_bytes());
    let core = open(disk);
    assert!(core.refusal().is_some(), "the disk is full");
    core
}

fn crash(disk: &SimDisk, core: Core) -> Core {
    drop(core);
    disk.crash();
    open(disk)
}

fn key(topic: u32) -> PartitionKey {
    PartitionKey { topic, partition: 0 }
}

/// Appends one record of a size. Returns its offset if it was accepted.
fn append(core: &Core, topic: u32, timestamp: i64, bytes: usize) -> Option<u64> {
    let mut records = Vec::new();
    LogRecord::encode(&mut records, timestamp, None, &[], &vec![7; bytes]);
    let part = WritePart { partition: key(topic), count: 1, max_timestamp: timestamp, records };
    match core.commit(&[LogWrite::Append(vec![part])]).remove(0) {
        LogReply::Appended(offsets) => offsets[0].clone().ok(),
        _ => None,
    }
}

fn records(core: &Core, topic: u32) -> u64 {
    let (first, next) = core.bounds(key(topic)).unwrap();
    let mut from = first;
    while from < next {
        from = core.read(key(topic), from, 1000).unwrap().next;
    }
    next - first
}

/// Appends 20 records of 1 000 bytes, each in its own segment, and makes a checkpoint.
fn fill_segments(core: &Core, first_timestamp: i64) {
    for record in 0..20 {
        append(core, 1, first_timestamp + record, 1000).unwrap();
        core.relieve_memory(record).unwrap();
    }
    core.checkpoint(0, &mut || {}).unwrap();
}

#[test]
fn a_new_data_folder_survives_a_power_loss() {
    for disk in disks() {
        let core = open_with_topic(&disk);
        append(&core, 1, 0, 10).unwrap();
        assert_eq!(records(&crash(&disk, core), 1), 1);
    }
}

#[test]
fn a_topic_created_before_the_first_checkpoint_survives_a_power_loss() {
    for disk in disks() {
        disk.set_budget(4096);
        let core = open(&disk);
        assert!(core.refusal().is_some(), "the disk has no space for a checkpoint");
        core.create_partitions(1, 1).unwrap();
        assert_eq!(crash(&disk, core).partition_count(1), 1);
    }
}

#[test]
fn a_data_folder_whose_creator_was_killed_survives_a_power_loss() {
    for calls in 1..12 {
        for disk in disks() {
            disk.lose_power_after(calls);
            drop(try_open(&disk));
            disk.kill();
            let core = open_with_topic(&disk);
            append(&core, 1, 0, 10).unwrap();
            assert_eq!(records(&crash(&disk, core), 1), 1, "killed at call {calls}");
        }
    }
}

#[test]
fn a_folder_whose_creation_was_interrupted_twice_opens() {
    for (first, second) in (1..12).flat_map(|first| (1..8).map(move |second| (first, second))) {
        for disk in disks() {
            disk.lose_power_after(first);
            drop(try_open(&disk));
            disk.kill();
            disk.lose_power_after(second);
            drop(try_open(&disk));
            disk.crash();
            open(&disk);
        }
    }
}

#[test]
fn a_checkpoint_syncs_segments_written_to_relieve_memory() {
    for disk in disks() {
        let core = open_with_topic(&disk);
        for _ in 0..5 {
            append(&core, 1, 0, 300).unwrap();
        }
        core.relieve_memory(0).unwrap();
        core.checkpoint(0, &mut || {}).unwrap();
        assert_eq!(records(&crash(&disk, core), 1), 5);
    }
}

#[test]
fn segments_that_retention_dropped_are_no_damage_after_a_power_loss() {
    for disk in disks() {
        let core = open_with_topic(&disk);
        fill_segments(&core, 0);
        core.set_retention(1, TopicRetention { time: Some(std::time::Duration::from_millis(1)), bytes: None });
        core.retain(1_000_000).unwrap();
        assert_eq!(core.bounds(key(1)), Ok((20, 20)));
        let core = crash(&disk, core);
        assert_eq!(records(&core, 1), 0);
        assert_eq!(append(&core, 1, 0, 10), Some(20));
    }
}

#[test]
fn a_topic_whose_deletion_failed_keeps_its_records_at_the_next_checkpoint() {
    let mut failed = 0;
    for disk in disks() {
        let core = open_with_topic(&disk);
        append(&core, 1, 0, 10).unwrap();
        disk.set_faults(Faults { name_error: 1, ..Faults::default() });
        failed += u64::from(core.delete_topic(1).is_err());
        disk.set_faults(Faults::default());
        core.checkpoint(0, &mut || {}).unwrap();
        assert_eq!(records(&crash(&disk, core), 1), 1, "it exists completely");
    }
    assert_eq!(failed, DISKS);
}

#[test]
fn a_topic_whose_deletion_was_killed_does_not_come_back_after_a_power_loss() {
    for calls in 1..6 {
        for disk in disks() {
            let core = open_with_topic(&disk);
            append(&core, 1, 0, 10).unwrap();
            disk.lose_power_after(calls);
            core.delete_topic(1).ok();
            let core = kill(&disk, core);
            let partitions = core.partition_count(1);
            assert_eq!(
                crash(&disk, core).partition_count(1),
                partitions,
                "a topic that was gone stays gone, at call {calls}"
            );
        }
    }
}

#[test]
fn a_journal_file_whose_creator_was_killed_keeps_acknowledged_frames() {
    for calls in 1..5 {
        for disk in disks() {
            let core = open_with_topic(&disk);
            disk.lose_power_after(calls);
            core.prepare_journal();
            let core = kill(&disk, core);
            append(&core, 1, 0, 10).unwrap();
            assert_eq!(records(&crash(&disk, core), 1), 1, "killed at call {calls}");
        }
    }
}

#[test]
fn a_partition_whose_creator_was_killed_keeps_acknowledged_records() {
    for calls in 1..4 {
        for disk in disks() {
            let core = open(&disk);
            disk.lose_power_after(calls);
            core.create_partitions(1, 1).ok();
            let core = kill(&disk, core);
            if append(&core, 1, 0, 10).is_some() {
                assert_eq!(records(&crash(&disk, core), 1), 1, "killed at call {calls}");
            }
        }
    }
}

#[test]
fn a_partition_created_again_on_a_full_disk_survives_a_power_loss() {
    for calls in 1..4 {
        for disk in disks() {
            let core = open(&disk);
            core.create_partitions(2, 1).unwrap();
            append(&core, 2, 0, 3000).unwrap();
            disk.lose_power_after(calls);
            core.create_partitions(1, 1).ok();
            let core = kill_on_full_disk(&disk, core);
            core.create_partitions(1, 1).unwrap();
            assert_eq!(crash(&disk, core).partition_count(1), 1, "killed at call {calls}");
        }
    }
}

#[test]
fn a_frame_in_the_cache_that_was_read_on_a_full_disk_is_not_lost() {
    for disk in disks() {
        let core = open_with_topic(&disk);
        append(&core, 1, 0, 3000).unwrap();
        disk.lose_power_after(2);
        assert_eq!(append(&core, 1, 0, 3000), None, "its sync fails");
        let core = kill_on_full_disk(&disk, core);
        let seen = records(&core, 1);
        assert_eq!(seen, 2, "the frame is in the cache");
        assert_eq!(records(&crash(&disk, core), 1), seen);
    }
}

#[test]
fn the_first_frame_of_a_file_is_not_lost_with_the_header_on_a_full_disk() {
    for seed in 0..8 * DISKS {
        let disk = SimDisk::new(seed);
        let core = open_with_topic(&disk);
        append(&core, 1, 0, 10).unwrap();
        // The file is reused now, and has the header of an earlier generation.
        let core = crash(&disk, core);
        disk.set_faults(Faults { sync_error: 2, ..Faults::default() });
        let acknowledged = 1 + u64::from(append(&core, 1, 0, 3000).is_some());
        disk.set_faults(Faults::default());
        drop(core);
        disk.kill();
        disk.set_budget(disk.used_bytes());
        let core = open(&disk);
        let seen = records(&core, 1);
        assert!(seen >= acknowledged);
        assert_eq!(records(&crash(&disk, core), 1), seen, "records that were read stay, on disk {seed}");
    }
}

#[test]
fn a_checkpoint_used_for_recovery_on_a_full_disk_survives_a_power_loss() {
    // The process is killed at each call of the last checkpoint in turn.
    for calls in 1..10 {
        for disk in disks() {
            let core = open_with_topic(&disk);
            for _ in 0..4 {
                append(&core, 1, 0, 1000).unwrap();
            }
            core.checkpoint(0, &mut || {}).unwrap();
            core.trim(key(1), 2).unwrap();
            disk.lose_power_after(calls);
            core.checkpoint(0, &mut || {}).ok();
            drop(core);
            disk.kill();
            disk.set_budget(0);
            let core = open(&disk);
            let (first, _) = core.bounds(key(1)).unwrap();
            let core = crash(&disk, core);
            assert_eq!(core.bounds(key(1)).unwrap().0, first, "killed at call {calls}");
        }
    }
}

#[test]
fn a_full_disk_opens_and_can_be_emptied() {
    for disk in disks() {
        let core = open_with_topic(&disk);
        fill_segments(&core, 0);
        drop(core);
        disk.kill();
        disk.set_budget(0);
        let core = open(&disk);
        assert_eq!(records(&core, 1), 20);
        disk.set_budget(disk.used_bytes());
        core.set_retention(1, TopicRetention { time: None, bytes: Some(5000) });
        core.retain(0).unwrap();
        let (first, next) = core.bounds(key(1)).unwrap();
        assert!(first > 0 && next == 20);
        core.watch_room(0);
        assert_eq!(core.refusal(), None, "retention freed space");
        assert_eq!(append(&core, 1, 0, 10), Some(20));
    }
}

#[test]
fn retention_keeps_a_segment_whose_age_it_cannot_read() {
    let disk = SimDisk::new(1);
    let core = open_with_topic(&disk);
    fill_segments(&core, 1000);
    drop(core);
    disk.kill();
    let folder = format!("{FOLDER}/log/topics/1/0/{:020}", 0);
    let (segment, index) = (format!("{folder}.segment"), format!("{folder}.index"));
    disk.flip_bit(Path::new(&segment), 60, 1);
    disk.tamper(Path::new(&index), |bytes| bytes.fill(0));
    let core = open(&disk);
    core.set_retention(1, TopicRetention { time: Some(std::time::Duration::from_millis(500)), bytes: None });
    core.retain(1200).unwrap();
    assert_eq!(core.bounds(key(1)), Ok((0, 20)), "all records are younger");
}
