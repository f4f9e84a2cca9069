//! Power cuts under the real binary, on its own file system: afterwards every acknowledged publish, hold and registration exists once.
//!
//! The file system is ext4 on a loop device. The cut is the ioctl `EXT4_IOC_SHUTDOWN` without a flush of the journal: from then on nothing
//! reaches the device, and the next mount recovers the state on the device. Pages that the server had not synced and transactions that
//! ext4 had not committed are lost. A copy of the image under load would mix states of different moments, which no power cut produces.
//!
//! The test is less strict than a real cut in one respect: a block that the kernel has written to the device counts as durable, although a
//! disk with a volatile cache may still lose it before the next flush. The test needs root, loop devices and `mkfs.ext4`; otherwise it
//! prints that it was skipped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::ioctl::{Setter, opcode};
use whimbrel_client::{Accepted, Client, ClientError, NewDevice, NewMessage};
use whimbrel_engines::conformance::say_skipped;

use super::random::Random;
use super::server::{Server, converse, eventually, read_all, set};

const SETTINGS: [&str; 5] = [
    "topics.partitions=1",
    "log.journal_file_bytes=33554432",
    "log.disk_reserve_bytes=1048576",
    "holds.shards=4",
    "push.partitions=4",
];
const IMAGE_BYTES: u64 = 3 << 30;
const CUTS: usize = 3;
/// How long the load runs before a cut.
const LOAD_MS: (i64, i64) = (500, 2_500);
/// Dirty pages stay in memory for 30 s unless a sync writes them, so a cut loses whatever was not synced.
const EXT4_IOC_SHUTDOWN: rustix::ioctl::Opcode = opcode::read::<u32>(b'X', 125);
const WITHOUT_JOURNAL_FLUSH: u32 = 2;

/// An ext4 of its own in an image file, unmounted with the test.
struct LoopDisk {
    image: PathBuf,
    folder: PathBuf,
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl LoopDisk {
    /// Creates the file system and mounts it. The error is the reason why that is not possible on this machine.
    fn make(folder: &Path) -> Result<Self, String> {
        let disk = Self { image: folder.join("image"), folder: folder.join("disk") };
        File::create(&disk.image).and_then(|image| image.set_len(IMAGE_BYTES)).map_err(|error| error.to_string())?;
        std::fs::create_dir(&disk.folder).map_err(|error| error.to_string())?;
        succeeds(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk.image))
            .map_err(|why| format!("mkfs.ext4: {why}"))?;
        disk.mount().map_err(|why| format!("mount -o loop: {why}"))?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        succeeds(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.folder))
    }

    /// From this call on, no write reaches the device.
    fn cut_power(&self) {
        let root = File::open(&self.folder).unwrap();
        // SAFETY: the call reads one `u32`, as the opcode states.
        unsafe {
            let cut = Setter::<EXT4_IOC_SHUTDOWN, u32>::new(WITHOUT_JOURNAL_FLUSH);
            rustix::ioctl::ioctl(&root, cut).expect("ext4 shuts down at once");
        }
    }

    fn remount(&self) {
        eventually("the file system is unmounted", || succeeds(Command::new("umount").arg(&self.folder)).is_ok());
        self.mount().unwrap();
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

/// Everything that the server has acknowledged, across all cuts.
#[derive(Default)]
struct Acknowledged {
    plain: Mutex<Vec<String>>,
    keyed: Mutex<Vec<(String, Accepted)>>,
    held: Mutex<Vec<String>>,
    devices: Mutex<Vec<String>>,
}

impl Acknowledged {
    /// Runs a load for some time, then cuts the power. Answers that arrive after the cut has begun do not count: while ext4 shuts down, a
    /// sync in progress can succeed although its block is lost. At a real cut, no process could answer any more.
    fn load(&self, server: &Server, cut: usize, duration: Duration, disk: &LoopDisk) {
        let is_cut = AtomicBool::new(false);
        let load = Load { server, is_cut: &is_cut };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                load.repeat(&self.plain, |client, number| {
                    let text = format!("plain-{cut}-{number}");
                    converse(client.publish("plain", &NewMessage::text(text.clone()))).map(|_| text)
                })
            });
            scope.spawn(|| {
                load.repeat(&self.keyed, |client, number| {
                    let key = format!("keyed-{cut}-{number}");
                    converse(client.publish("keyed", &keyed(&key))).map(|published| (key, published))
                })
            });
            scope.spawn(|| {
                load.repeat(&self.held, |client, number| {
                    let id = format!("held-{cut}-{number}");
                    converse(client.hold("held", &NewMessage::text("held").id(id.clone()).delay("1s"))).map(|_| id)
                })
            });
            scope.spawn(|| {
                load.repeat(&self.devices, |client, number| {
                    let user = format!("user-{cut}-{number}");
                    converse(client.put_device(&user, "phone", &device())).map(|_| user)
                })
            });
            std::thread::sleep(duration);
            is_cut.store(true, Ordering::SeqCst);
            disk.cut_power();
        });
    }
}

struct Load<'a> {
    server: &'a Server,
    is_cut: &'a AtomicBool,
}

impl Load<'_> {
    /// Repeats an operation until the first error or the cut, and records each one that is acknowledged before the cut.
    fn repeat<T>(&self, done: &Mutex<Vec<T>>, act: impl Fn(&Client, usize) -> Result<T, ClientError>) {
        let client = self.server.client();
        for number in 0.. {
            match act(&client, number) {
                Ok(one) if !self.is_cut.load(Ordering::SeqCst) => done.lock().unwrap().push(one),
                _ => return,
            }
        }
    }
}

fn keyed(key: &str) -> NewMessage {
    NewMessage::text(key).idempotency_key(key)
}

fn device() -> NewDevice {
    let (platform, provider, token) = ("ios".to_owned(), "fcm".to_owned(), "token".to_owned());
    NewDevice { platform, provider, token, ..NewDevice::default() }
}

/// The texts of a topic's messages in their order.
fn texts(client: &Client, topic: &str) -> Vec<String> {
    let (messages, _) = converse(read_all(client, topic, 0, 0));
    messages.iter().map(|message| String::from_utf8(message.bytes().unwrap()).unwrap()).collect()
}

/// Asserts that every expected item was found exactly once.
fn assert_each_once(mut found: Vec<String>, wanted: &[String]) {
    found.sort_unstable();
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "an item was found twice");
    let lost: Vec<_> = wanted.iter().filter(|one| found.binary_search(one).is_err()).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {:?}", lost.len(), wanted.len(), &lost[..lost.len().min(5)]);
}

#[test]
fn everything_acknowledged_survives_power_cuts_once() {
    let folder = tempfile::tempdir().unwrap();
    let disk = match LoopDisk::make(folder.path()) {
        Ok(disk) => disk,
        Err(why) => {
            return say_skipped(&format!("the power-loss test needs ext4 on a loop device: {why}"));
        }
    };
    let (acknowledged, mut random) = (Acknowledged::default(), Random(7));
    for cut in 0..CUTS {
        let server = Server::start(&disk.folder, &set(&SETTINGS));
        let load_ms = random.between(LOAD_MS.0, LOAD_MS.1).unsigned_abs();
        acknowledged.load(&server, cut, Duration::from_millis(load_ms), &disk);
        server.kill();
        disk.remount();
    }
    let server = Server::start(&disk.folder, &set(&SETTINGS));
    let client = server.client();
    let Acknowledged { plain, keyed: keys, held, devices } = acknowledged;
    let [plain, held, devices] = [plain, held, devices].map(|all| all.into_inner().unwrap());
    let keys = keys.into_inner().unwrap();
    let counts = [plain.len(), keys.len(), held.len(), devices.len()];
    assert!(counts.iter().all(|count| *count > CUTS), "there was no load: {counts:?}");
    assert_each_once(texts(&client, "plain"), &plain);
    for (key, first) in &keys {
        assert_eq!(converse(client.publish("keyed", &keyed(key))).unwrap(), *first, "the repeat gets the first answer");
    }
    let names: Vec<_> = keys.iter().map(|(key, _)| key.clone()).collect();
    assert_each_once(texts(&client, "keyed"), &names);
    let ids = || converse(read_all(&client, "held", 0, 0)).0.into_iter().map(|message| message.id).collect::<Vec<_>>();
    eventually("all holds fire", || {
        let fired = ids();
        held.iter().all(|id| fired.contains(id))
    });
    assert_each_once(ids(), &held);
    for user in &devices {
        assert_eq!(converse(client.devices(user)).unwrap().len(), 1, "{user}");
    }
    let events = texts(&client, "_events");
    let kinds = ["damage_found", "store_data_lost", "catalogue_damaged"];
    let losses: Vec<_> = events.iter().filter(|event| kinds.iter().any(|kind| event.contains(kind))).collect();
    assert!(losses.is_empty(), "{losses:?}");
}
