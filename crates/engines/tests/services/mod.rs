//! Real services on free loopback ports, which a test can kill, freeze and restart. They are stopped at the end of the test, and start
//! empty, so that no run finds another's data.
//!
//! The test programs of the engines and of the server include this file.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Timeout for a service to start.
const START_MAX: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A process that is killed when it is dropped.
pub struct Process(Option<Child>);

impl Process {
    pub fn none() -> Self {
        Self(None)
    }

    pub fn of(child: Child) -> Self {
        Self(Some(child))
    }

    pub fn signal(&self, signal: Signal) {
        let process = self.0.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    /// Sends SIGTERM. Returns `false` if the process has not exited within that time.
    pub fn terminate(&mut self, within: Duration) -> bool {
        self.signal(Signal::TERM);
        let mut process = self.0.take().expect("it runs");
        let began = Instant::now();
        while process.try_wait().unwrap().is_none() {
            if began.elapsed() > within {
                self.0 = Some(process);
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The faults that a test can inject into a service.
pub trait Outage {
    /// Kills the service like a crash.
    fn kill(&mut self);
    /// Restarts it on its data, and waits until it serves.
    fn start_again(&mut self);
    /// Stops it from answering, while its connections stay open.
    fn freeze(&self);
    fn go_on(&self);
}

macro_rules! signals {
    () => {
        fn kill(&mut self) {
            self.process.kill();
        }

        fn freeze(&self) {
            self.process.signal(Signal::STOP);
        }

        fn go_on(&self) {
            self.process.signal(Signal::CONT);
        }
    };
}

pub fn silent(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// A Redis in a folder of its own.
pub struct OwnRedis {
    port: u16,
    options: Vec<String>,
    folder: TempDir,
    process: Process,
}

impl OwnRedis {
    /// Starts one with an append-only file that is synced before every answer.
    pub fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let mut redis = Self { port, options, folder, process: Process::none() };
        redis.start_again();
        redis
    }

    pub fn port(&self) -> String {
        self.port.to_string()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A copy of its disk. With an append-only file it has every acknowledged write.
    pub fn copy_of_disk(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&self.data(), copy.path());
        copy
    }

    /// Kills it, restores an earlier state of its disk, and restarts it.
    pub fn fall_back_to(&mut self, copy: &TempDir) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
        copy_folder(copy.path(), &self.data());
        self.start_again();
    }

    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &self.port()]).args(arguments).output();
        let output = output.expect("redis-cli runs: scripts/services installs it");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Outage for OwnRedis {
    signals!();

    fn start_again(&mut self) {
        std::fs::create_dir_all(self.data()).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port(), "--save", "", "--daemonize", "no", "--dir"]);
        command.arg(self.data()).args(&self.options);
        let process = silent(&mut command).spawn().expect("redis-server runs: scripts/services installs it");
        self.process = Process::of(process);
        wait_until("Redis serves", || self.cli(&["ping"]) == "PONG");
    }
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// An etcd in a folder of its own.
pub struct OwnEtcd {
    address: String,
    peer: String,
    folder: TempDir,
    process: Process,
}

impl OwnEtcd {
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = Self { address: free_address(), peer: free_address(), folder, process: Process::none() };
        etcd.start_again();
        etcd
    }
}

impl Outage for OwnEtcd {
    signals!();

    fn start_again(&mut self) {
        let [client, peer] = [&self.address, &self.peer].map(|address| format!("http://{address}"));
        let mut command = Command::new("etcd");
        command.args(["--name", "default", "--logger", "zap", "--data-dir"]).arg(self.folder.path().join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        let process = silent(&mut command).spawn().expect("etcd runs: scripts/services installs it");
        self.process = Process::of(process);
        wait_until("etcd serves", || {
            let health = Command::new("curl").args(["-s", "-m", "2", &format!("{client}/health")]).output();
            health.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).contains("\"health\":\"true\""))
        });
    }
}

pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < START_MAX, "timed out until {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A free port, below those that the system assigns to outgoing connections.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Concurrent test binaries start at different ports.
    let begin = std::process::id().wrapping_mul(37);
    let mut candidates = std::iter::repeat_with(|| begin.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let found = candidates.by_ref().take(COUNT as usize).map(|each| (FIRST + each) as u16).find(free);
    found.expect("a port is free")
}
