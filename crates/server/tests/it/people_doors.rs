//! Other doors to the same inbox: the event stream, gRPC and the command line, each property on a site.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use super::deliver::Site;
use super::device::{Device, Hello};
use super::server::{run, stderr_of, stdout_of, whimbrel};

pub fn the_command_line_is_a_device_too(site: &Site) {
    let command = |arguments: &[&str]| {
        let arguments = [arguments, &["--server", &site.server.url]].concat();
        let output = run(site.folder.path(), &arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr_of(&output));
        stdout_of(&output)
    };
    let json_of = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let pushed = json_of(&command(&["push", "cli-user", "hello", "--json"]));
    site.stores("cli-user", 1);
    let mut terminal = whimbrel(site.folder.path())
        .args([
            "connect",
            "--uid",
            "cli-user",
            "--device",
            "tty",
            "--json",
            "--limit",
            "2",
            "--server",
            &site.server.url,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(terminal.stdout.take().unwrap()).lines().map(|line| json_of(&line.unwrap()));
    assert_eq!(lines.next().unwrap()["connected"]["resumed"], json!(false));
    let message = lines.next().unwrap();
    assert_eq!(message["message"]["id"], pushed["id"], "{message}");
    site.is_online("cli-user", true);
    let presence = json_of(&command(&["presence", "cli-user", "--json"]));
    assert_eq!(presence["sessions"][0]["device"], json!("tty"));
    command(&["push", "cli-user", "--payload", "again", "--ephemeral"]);
    assert_eq!(lines.next().unwrap()["message"]["payload"], json!("again"));
    assert!(terminal.wait().unwrap().success());
    // It acknowledged what it showed.
    site.stores("cli-user", 0);
    let mut device = Device::connect(&site.server, &Hello::of("cli-user", "cli"));
    command(&["kick", "cli-user", "--reason", "bye"]);
    assert_eq!(device.frame("kick")["reason"], json!("bye"));
    assert!(command(&["platform", "set", "tty", "--sessions", "3", "--json"]).contains("\"many\":3"));
    assert!(command(&["inbox", "cli-user"]).contains("nothing is stored"));
}
