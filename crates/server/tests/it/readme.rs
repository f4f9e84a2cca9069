//! The README's promises to a new user: every `curl` line in it works against a fresh server, in order.

use std::process::Command;

use super::server::Server;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
/// curl's exit code for a time limit: how a line that follows a stream ends here.
const CURL_TIMED_OUT: i32 = 28;

/// Commands that begin with `curl`, lines that end with a backslash joined.
fn curl_commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.trim().trim_start_matches("$ "));
    lines.filter(|line| line.starts_with("curl ")).map(str::to_owned).collect()
}

#[test]
fn every_curl_line_of_the_readme_works() {
    let text = std::fs::read_to_string(README).unwrap();
    let commands = curl_commands(&text);
    assert!(!commands.is_empty(), "the README shows no curl line");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for command in commands {
        let bounded = command.replacen("curl ", "curl -sS --fail-with-body --max-time 3 ", 1);
        let here = bounded.replace("127.0.0.1:7600", server.address()).replace("localhost:7600", server.address());
        let output = Command::new("sh").args(["-c", &here]).current_dir(folder.path()).output().unwrap();
        let follows = command.contains("/tail");
        let code = output.status.code();
        let worked = code == Some(0) || (follows && code == Some(CURL_TIMED_OUT));
        assert!(worked, "{command}\n{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn commands_over_several_lines_are_found_whole() {
    assert_eq!(curl_commands("a\n  curl x \\\n   y\n$ curl z\ncurling"), ["curl x     y", "curl z"]);
}
