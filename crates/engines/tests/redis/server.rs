//! A Redis of a test's own, which can be killed, frozen, reset to an older state, and started again.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use whimbrel_engines::redis::RedisSettings;

const START_MAX: Duration = Duration::from_secs(20);

/// A Redis in a folder of its own. It is killed when it is dropped.
pub struct OwnRedis {
    port: u16,
    options: Vec<String>,
    folder: TempDir,
    process: Option<Child>,
}

impl OwnRedis {
    /// Starts one with an append-only file.
    pub fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let mut redis = Self {
            port: free_port(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            folder: tempfile::tempdir().expect("a folder for Redis"),
            process: None,
        };
        redis.start_again();
        redis
    }

    pub fn port(&self) -> String {
        self.port.to_string()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Settings with timeouts short enough for a test.
    pub fn settings(&self) -> RedisSettings {
        RedisSettings {
            connect_timeout: Duration::from_millis(300),
            response_timeout: Duration::from_millis(700),
            ..RedisSettings::new([self.address()])
        }
    }

    pub fn start_again(&mut self) {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--daemonize", "no", "--dir"])
            .arg(self.data())
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        std::fs::create_dir_all(self.data()).expect("the folder can be written");
        self.process = Some(command.spawn().expect("redis-server runs: scripts/services installs it"));
        wait_until("Redis serves", || self.cli(&["ping"]) == "PONG");
    }

    /// Ends it like a crash.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("Redis can be killed");
            process.wait().expect("Redis ends");
        }
    }

    /// Stops it without closing its connections, or continues it.
    pub fn freeze(&self, frozen: bool) {
        let process = self.process.as_ref().expect("Redis runs");
        let signal = if frozen { "-STOP" } else { "-CONT" };
        let sent = Command::new("kill").args([signal, &process.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// A copy of its disk, with every acknowledged write: Redis syncs the append-only file before each answer.
    pub fn copy_of_disk(&self) -> TempDir {
        let copy = tempfile::tempdir().expect("a folder for the copy");
        copy_folder(self.data(), copy.path().to_owned());
        copy
    }

    /// Kills it, restores an earlier state of its disk, and starts it again.
    pub fn fall_back_to(&mut self, copy: &TempDir) {
        self.kill();
        std::fs::remove_dir_all(self.data()).expect("its folder can be emptied");
        copy_folder(copy.path().to_owned(), self.data());
        self.start_again();
    }

    pub fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &port]).args(arguments).output();
        let output = output.expect("redis-cli runs: scripts/services installs it");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn copy_folder(from: PathBuf, to: PathBuf) {
    std::fs::create_dir_all(&to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(entry.path(), target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < START_MAX, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A port without a listener, below those that the system gives to outgoing connections.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run at the same time begin with different ports.
    let begin = std::process::id().wrapping_mul(37);
    let mut candidates = std::iter::repeat_with(|| begin.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let found = candidates.by_ref().take(COUNT as usize).map(|each| (FIRST + each) as u16).find(free);
    found.expect("a port is free")
}
