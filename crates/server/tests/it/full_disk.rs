//! The real binary on a disk without a free byte: it starts for reading, and accepts publishes again when there is free space.
//!
//! The disk is a file system in memory. Mounting it needs a privilege; without it the test prints that it was skipped.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use whimbrel_client::{NewMessage, SubscriptionSettings};
use whimbrel_engines::conformance::say_skipped;

use super::receiver::{Receiver, reply};
use super::server::{Server, converse, eventually, read_all, set};

const NEEDS_MOUNT: &str = "tests of full disks need the privilege to mount a file system";
const DISK_BYTES: &str = "size=900m";
const MESSAGES: usize = 20;
const SETTINGS: [&str; 4] =
    ["topics.partitions=1", "log.journal_file_bytes=33554432", "log.disk_reserve_bytes=1048576", "holds.shards=4"];

/// A small disk. It is unmounted at the end of the test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK_BYTES, "tmpfs"]).arg(path);
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then(|| Self(path.to_owned()))
    }

    /// Starts a neighbour that uses every free byte, also those freed later, until it is dropped.
    fn fill(&self) -> Neighbour {
        let (path, is_over) = (self.0.join("neighbour"), Arc::new(AtomicBool::new(false)));
        let mut file = File::create(&path).unwrap();
        let mut take_all = move || {
            let mut piece = vec![7; 1 << 20];
            while !piece.is_empty() {
                if file.write_all(&piece).is_err() {
                    piece.truncate(piece.len() / 2);
                }
            }
        };
        take_all();
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                take_all();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Neighbour { path, is_over, thread: Some(thread) }
    }
}

struct Neighbour {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_server_killed_on_a_disk_without_a_free_byte_starts_for_reading() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk")) else {
        return say_skipped(NEEDS_MOUNT);
    };
    let server = Server::start(&disk.0, &set(&SETTINGS));
    converse(server.client().publish("orders", &NewMessage::text("before"))).unwrap();
    let held = converse(server.client().hold("orders", &NewMessage::text("held").delay("1s"))).unwrap();
    server.kill();
    let neighbour = disk.fill();
    let server = Server::start(&disk.0, &set(&SETTINGS));
    let client = server.client();
    let (messages, _) = converse(read_all(&client, "orders", 0, 0));
    assert_eq!(messages[0].bytes().unwrap(), b"before");
    // The start frees space, which this publish can use before the neighbour does.
    let mut accepted = 0;
    eventually("a publish is refused", || match converse(client.publish("orders", &NewMessage::text("early"))) {
        Ok(_) => {
            accepted += 1;
            false
        }
        Err(refused) => {
            assert_eq!(refused.code(), Some("disk_full"), "{refused:?}");
            true
        }
    });
    let early =
        converse(read_all(&client, "orders", 0, 0)).0.iter().filter(|it| it.bytes().unwrap() == b"early").count();
    assert_eq!(early, accepted, "messages whose publish was accepted");
    drop(neighbour);
    eventually("publishing resumes", || converse(client.publish("orders", &NewMessage::text("after"))).is_ok());
    eventually("the hold fires", || converse(read_all(&client, "orders", 0, 0)).0.iter().any(|it| it.id == held.id));
    drop(server);
}

#[test]
fn a_server_killed_during_deliveries_on_a_full_disk_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk")) else {
        return say_skipped(NEEDS_MOUNT);
    };
    let server = Server::start(&disk.0, &set(&SETTINGS));
    let (client, is_full) = (server.client(), Arc::new(AtomicBool::new(false)));
    // No delivery ends before the disk is full, so the notebook has nothing to write before.
    let receiver = Receiver::answering({
        let is_full = Arc::clone(&is_full);
        move |_| {
            while !is_full.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(10));
            }
            reply(200)
        }
    });
    converse(client.publish("orders", &NewMessage::text("first"))).unwrap();
    converse(client.put_subscription("s", &SubscriptionSettings::push(["orders"], receiver.url("/")))).unwrap();
    for number in 0..MESSAGES {
        converse(client.publish("orders", &NewMessage::text(number.to_string()))).unwrap();
    }
    let neighbour = disk.fill();
    is_full.store(true, Ordering::Release);
    receiver.wait_for(MESSAGES);
    // The notebook tries to write once per second.
    std::thread::sleep(Duration::from_secs(3));
    server.kill();
    let slices = std::fs::read_dir(disk.0.join("whimbrel-data/notebook")).unwrap().count();
    assert!(slices <= 4, "{slices} files: each failed write left one behind");
    let server = Server::start(&disk.0, &set(&SETTINGS));
    let client = server.client();
    assert_eq!(converse(read_all(&client, "orders", 0, 0)).0.len(), 1 + MESSAGES);
    drop(neighbour);
    eventually("publishing resumes", || converse(client.publish("orders", &NewMessage::text("after"))).is_ok());
    eventually("the message is delivered", || receiver.all().iter().any(|one| one.text() == "after"));
}
