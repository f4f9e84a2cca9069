//! A data folder restored from a backup: the log assigns numbers again that devices already have.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use whimbrel_client::NewPush;

use super::device::{ConnectFrame, Device};
use super::server::{Server, converse};

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args(["-a"]).args([from, to]).status().unwrap().success());
}

fn push(server: &Server, text: &str) {
    converse(server.client().push("u", &NewPush::text(text))).unwrap();
}

#[test]
fn after_a_restored_backup_a_raised_generation_resets_the_cursors_of_devices() {
    let (folder, backups) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = folder.path().join("whimbrel-data");
    let one_place = ["--set", "push.partitions=1"];
    let server = Server::start(folder.path(), &one_place);
    let mut device = Device::connect(&server, &ConnectFrame::of("u", "web"));
    push(&server, "before");
    assert_eq!(device.take(1), ["before"]);
    let epoch = device.epoch();
    device.leave();
    assert!(server.end().success());
    copy(&data, &backups.path().join("whimbrel-data"));

    let server = Server::start(folder.path(), &one_place);
    let mut device = Device::connect(&server, &ConnectFrame::of("u", "web"));
    push(&server, "lost with the disk");
    let lost = device.message()["seq"].as_u64().unwrap();
    device.ack(lost);
    device.leave();
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&backups.path().join("whimbrel-data"), &data);

    let server = Server::start(folder.path(), &[&one_place[..], &["--set", "push.generation=1"]].concat());
    ["new", "newer"].iter().for_each(|text| push(&server, text));
    let mut device = Device::connect(&server, &ConnectFrame::of("u", "web").resume(&epoch, lost));
    assert_eq!(device.connected["resumed"], json!(false), "{}", device.connected);
    assert_eq!(device.connected["why"], json!("other_epoch"), "{}", device.connected);
    assert_eq!(device.take(2), ["new", "newer"]);
}
