//! The README's examples: every command that calls `curl` works against a fresh server, in order, and the receiver in it gets the
//! published messages.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use super::server::Server;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
/// curl's exit code for a timeout: a command that follows a stream ends with it here.
const CURL_TIMED_OUT: i32 = 28;

/// The commands of the `sh` blocks that call curl. A line that ends with a backslash or a pipe continues on the next.
fn curl_commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let joined = block.replace("\\\n", " ").replace("|\n", "| ");
        let lines = joined.lines().map(str::trim).filter(|line| !line.starts_with('#') && line.contains("curl "));
        commands.extend(lines.map(str::to_owned));
    }
    commands
}

/// The README's receiver on a free port, stopped at the end of the test.
struct PythonReceiver {
    process: Child,
    port: u16,
}

impl PythonReceiver {
    /// `None` without Python, reported on standard error.
    fn start(text: &str) -> Option<Self> {
        let code = text.split("```python\n").nth(1)?.split("```").next()?;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let code = code.replace("9000", &port.to_string());
        let mut command = Command::new("python3");
        command.args(["-u", "-c", &code]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        match command.spawn() {
            Ok(process) => Some(Self { process, port }),
            Err(error) => {
                whimbrel_engines::conformance::say_skipped(&format!("the README's receiver needs python3: {error}"));
                None
            }
        }
    }

    /// The next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for PythonReceiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs one command against this server and returns its output.
fn run(command: &str, server: &Server, receiver_port: u16) -> String {
    let bounded = command.replacen("curl ", "curl -sS --fail-with-body --max-time 3 ", 1);
    let here = bounded.replace("127.0.0.1:7600", server.address());
    let here = here.replace("127.0.0.1:9000", &format!("127.0.0.1:{receiver_port}"));
    let output = Command::new("sh").args(["-c", &here]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let follows = command.contains("/tail");
    let worked = output.status.success() || (follows && output.status.code() == Some(CURL_TIMED_OUT));
    assert!(worked, "{command}\n{printed}");
    printed
}

#[test]
fn every_curl_command_of_the_readme_works() {
    let text = std::fs::read_to_string(README).unwrap();
    let commands = curl_commands(&text);
    assert!(commands.len() >= 3, "{commands:?}");
    let server = Server::fresh(&[]);
    let mut receiver = PythonReceiver::start(&text);
    let port = receiver.as_ref().map_or(9000, |receiver| receiver.port);
    let printed: Vec<String> = commands.iter().map(|command| run(command, &server, port)).collect();
    for (index, command) in commands.iter().enumerate() {
        if command.contains("offset=earliest") {
            assert!(
                printed[index].contains("hello"),
                "{command} does not show the published message: {}",
                printed[index]
            );
        }
        if index > 0 && commands[index - 1] == *command {
            assert_eq!(printed[index - 1], printed[index], "{command} must answer the same twice");
        }
    }
    if let Some(receiver) = &mut receiver {
        let line = receiver.line();
        assert!(line.starts_with("greetings ") && line.contains("b'"), "the receiver printed {line:?}");
    }
}

#[test]
fn commands_over_several_lines_are_found_whole() {
    let text = "curl no\n```sh\n# curl no\nls\ncurl x \\\n  y\nprintf z |\n  curl @-\n```\ncurl no\n";
    assert_eq!(curl_commands(text), ["curl x    y", "printf z |   curl @-"]);
}
