//! A fresh server from this binary, on a free port and with a folder of its own. It is stopped when it is dropped.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::BenchError;

const READY_WAIT: Duration = Duration::from_secs(30);
/// Timeout for the server to exit before it is killed.
const END_WAIT: Duration = Duration::from_secs(20);
/// The server's data folder, inside its working folder.
const DATA: &str = "data";
const POLL_INTERVAL: Duration = Duration::from_millis(1);

pub struct ChildServer {
    process: Child,
    /// Kept open: with a closed pipe the server would get an error when it prints its banner.
    _stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
    /// Time from the start of the process to the first successful `/readyz`.
    pub ready_after: Duration,
}

impl ChildServer {
    pub fn start(folder: &Path, settings: &[String]) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--set", "telemetry.level=warn", "--data"]);
        command.arg(folder.join(DATA));
        for setting in settings {
            command.arg("--set").arg(setting);
        }
        let began = Instant::now();
        let mut process = command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(stdout) = process.stdout.take() else {
            return Err(BenchError::new("cannot read the server's output"));
        };
        let mut stdout = BufReader::new(stdout);
        let Some(address) = address_in_banner(&mut stdout)? else {
            let _ = process.wait();
            return Err(BenchError::new("the server did not start; its error is above"));
        };
        let mut server = Self { process, _stdout: stdout, address, ready_after: Duration::ZERO };
        while !is_ready(address) {
            if began.elapsed() > READY_WAIT {
                return Err(BenchError::new(format!("the server was not ready after {} s", READY_WAIT.as_secs())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        server.ready_after = began.elapsed();
        Ok(server)
    }

    /// Removes the files that a stopped server left in this folder.
    pub fn remove_data(folder: &Path) -> Result<(), BenchError> {
        Ok(std::fs::remove_dir_all(folder.join(DATA))?)
    }

    /// Resident memory in bytes, if the system reports it.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let began = Instant::now();
        while began.elapsed() < END_WAIT {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn address_in_banner(stdout: &mut BufReader<ChildStdout>) -> Result<Option<SocketAddr>, BenchError> {
    let mut line = String::new();
    while stdout.read_line(&mut line)? > 0 {
        if let Some(address) = line.trim().strip_prefix("address").and_then(|rest| rest.trim().strip_prefix("http://"))
        {
            return Ok(address.trim().parse().ok());
        }
        line.clear();
    }
    Ok(None)
}

fn is_ready(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let request = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut head = [0; 12];
    stream.write_all(request).is_ok() && stream.read_exact(&mut head).is_ok() && &head[9..] == b"200"
}
