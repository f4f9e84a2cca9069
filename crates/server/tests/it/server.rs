//! A server under test: this build's binary with its own folder and a free port, stopped at the end of the test.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use whimbrel_client::{Client, ClientError, Message, Position, ReadFrom};

/// Timeout for expected events, on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Number of a server's last log lines that a failed test prints.
const LAST_LINES: usize = 60;

pub struct Server {
    folder: PathBuf,
    /// The same folder, if it is removed with the server.
    own_folder: Option<TempDir>,
    process: Child,
    stdout: Option<BufReader<ChildStdout>>,
    /// Its standard error. Only a failed test prints it: the output of several servers at once would hide the failure.
    said: File,
    pub banner: String,
    pub url: String,
}

/// The binary, without the environment variables of the tests themselves.
pub fn whimbrel(folder: &Path) -> Command {
    isolated(Command::new(env!("CARGO_BIN_EXE_whimbrel")), folder)
}

fn isolated(mut command: Command, folder: &Path) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WHIMBREL_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// The arguments that set these settings.
pub fn set(settings: &[impl AsRef<str>]) -> Vec<&str> {
    settings.iter().flat_map(|setting| ["--set", setting.as_ref()]).collect()
}

pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    whimbrel(folder).args(arguments).output().unwrap()
}

pub fn stdout_of(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

impl Server {
    /// Starts a server in a new folder of its own, which is removed with it.
    pub fn fresh(arguments: &[&str]) -> Self {
        Self::start_own(tempfile::tempdir().unwrap(), arguments)
    }

    /// Starts a server in `folder`, which is removed with it.
    pub fn start_own(folder: TempDir, arguments: &[&str]) -> Self {
        let mut server = Self::start(folder.path(), arguments);
        server.own_folder = Some(folder);
        server
    }

    /// Starts a server in `folder` and waits for its banner.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut server = Self::spawn(folder, arguments);
        server.wait_for_banner();
        server
    }

    /// Like `start`, with environment variables, for example a library to preload.
    pub fn start_with(folder: &Path, arguments: &[&str], environment: &[(&str, OsString)]) -> Self {
        let mut server = Self::spawn_with(folder, arguments, environment);
        server.wait_for_banner();
        server
    }

    /// Like `start`, with a soft and a hard limit of file descriptors.
    pub fn start_limited(folder: &Path, arguments: &[&str], soft: u64, hard: u64) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -Sn $1 && ulimit -Hn $2 && shift 2 && exec \"$@\"", "sh"]);
        shell.args([soft.to_string(), hard.to_string()]).arg(env!("CARGO_BIN_EXE_whimbrel"));
        let mut server = Self::spawn_as(isolated(shell, folder), arguments, &[]);
        server.wait_for_banner();
        server
    }

    pub fn spawn(folder: &Path, arguments: &[&str]) -> Self {
        Self::spawn_with(folder, arguments, &[])
    }

    fn spawn_with(folder: &Path, arguments: &[&str], environment: &[(&str, OsString)]) -> Self {
        Self::spawn_as(whimbrel(folder), arguments, environment)
    }

    fn spawn_as(mut command: Command, arguments: &[&str], environment: &[(&str, OsString)]) -> Self {
        let said = tempfile::tempfile().unwrap();
        let folder = command.get_current_dir().unwrap().to_owned();
        let mut process = command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .args(["serve", "--listen", "127.0.0.1:0", "--set", "telemetry.level=warn"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(said.try_clone().unwrap())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().map(BufReader::new);
        let (banner, url) = (String::new(), String::new());
        Self { folder, own_folder: None, process, stdout, said, banner, url }
    }

    pub fn wait_for_banner(&mut self) {
        // The banner ends with one of these lines: a node without the role `receive` has no commands to try.
        let stdout = self.stdout.as_mut().unwrap();
        while !["\n  try ", "\n  serves "].iter().any(|line| self.banner.contains(line)) {
            let read = stdout.read_line(&mut self.banner).unwrap();
            assert!(read > 0, "the server ended before its banner: {}", self.banner);
        }
        let address = self.banner.lines().find_map(|line| line.trim().strip_prefix("address")).unwrap();
        self.url = address.trim().to_owned();
    }

    /// Reads the banner until that line begins.
    pub fn read_banner_until(&mut self, line: &str) {
        let stdout = self.stdout.as_mut().unwrap();
        while !self.banner.contains(line) {
            let read = stdout.read_line(&mut self.banner).unwrap();
            assert!(read > 0, "the server ended within its banner: {}", self.banner);
        }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url).unwrap()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }

    /// Sends the bytes of a request, and returns what the server sends until it closes the connection.
    pub fn exchange(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
    }

    /// SIGSTOP: the process stands still, and its connections stay open.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).unwrap();
    }

    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
    }

    /// SIGKILL: an end without cleanup.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Kills a server that is replaced, and may have exited by itself.
    pub fn kill_and_wait(&mut self) {
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }

    /// Sends Ctrl-C, and waits for the exit.
    pub fn end(mut self) -> ExitStatus {
        self.interrupt();
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Its standard error so far.
    pub fn stderr(&mut self) -> String {
        let mut said = Vec::new();
        match self.said.rewind().and_then(|()| self.said.read_to_end(&mut said)) {
            Ok(_) => String::from_utf8_lossy(&said).into_owned(),
            Err(_) => String::new(),
        }
    }

    /// Prints its last log lines.
    pub fn show_what_it_said(&mut self) {
        let said = self.stderr();
        if !said.is_empty() {
            let lines: Vec<&str> = said.lines().collect();
            println!("the last output of the server at {}:", self.url);
            lines[lines.len().saturating_sub(LAST_LINES)..].iter().for_each(|line| println!("  {line}"));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            self.show_what_it_said();
        }
    }
}

/// Waits until a condition is true.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs requests to a server on a runtime of its own.
pub fn converse<T>(conversation: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(conversation)
}

/// Whether a repeat of the request may succeed.
pub fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Problem(problem) => problem.status == 503,
        ClientError::Timeout { .. } => true,
        _ => false,
    }
}

/// All messages of a partition from an offset on, and the next offset. Repeats the read while the log cannot answer, for example a
/// broker on a busy machine.
pub async fn read_all(client: &Client, topic: &str, partition: u32, from: u64) -> (Vec<Message>, u64) {
    let mut messages: Vec<Message> = Vec::new();
    let mut next = from;
    loop {
        let from = ReadFrom { partition, position: Position::Offset(next), limit: Some(10_000), wait: None };
        let began = Instant::now();
        let page = loop {
            match client.read(topic, &from).await {
                Ok(page) => break page,
                Err(error) => assert!(may_pass(&error) && began.elapsed() < PATIENCE, "{topic}/{partition}: {error}"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        assert!(page.messages.iter().map(|message| message.offset).is_sorted_by(|one, other| one < other));
        let is_end = page.messages.is_empty() && page.next_offset == next;
        messages.extend(page.messages);
        next = page.next_offset;
        if is_end {
            return (messages, next);
        }
    }
}
