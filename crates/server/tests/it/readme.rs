//! The README's promises to a new user: every command in it that calls `curl` works against a fresh server, in order.

use std::process::Command;

use super::server::Server;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
/// curl's exit code for a time limit: how a command that follows a stream ends here.
const CURL_TIMED_OUT: i32 = 28;

/// The commands of the `sh` blocks that call curl; a line that ends with a backslash or a pipe goes on in the next.
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

/// Runs one command against this server and gives what it printed.
fn run(command: &str, server: &Server) -> String {
    let bounded = command.replacen("curl ", "curl -sS --fail-with-body --max-time 3 ", 1);
    let here = bounded.replace("127.0.0.1:7600", server.address());
    let output = Command::new("sh").args(["-c", &here]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let follows = command.contains("/tail");
    let worked = output.status.success() || (follows && output.status.code() == Some(CURL_TIMED_OUT));
    assert!(worked, "{command}\n{printed}");
    printed
}

#[test]
fn every_curl_line_of_the_readme_does_what_it_says() {
    let commands = curl_commands(&std::fs::read_to_string(README).unwrap());
    assert!(commands.len() >= 3, "{commands:?}");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let printed: Vec<String> = commands.iter().map(|command| run(command, &server)).collect();
    for (index, command) in commands.iter().enumerate() {
        if command.contains("earliest") {
            assert!(printed[index].contains("hello"), "{command} does not show what was published: {}", printed[index]);
        }
        if index > 0 && commands[index - 1] == *command {
            assert_eq!(printed[index - 1], printed[index], "{command} is said to answer the same twice");
        }
    }
}

#[test]
fn commands_over_several_lines_are_found_whole() {
    let text = "curl no\n```sh\n# curl no\nls\ncurl x \\\n  y\nprintf z |\n  curl @-\n```\ncurl no\n";
    assert_eq!(curl_commands(text), ["curl x    y", "printf z |   curl @-"]);
}
