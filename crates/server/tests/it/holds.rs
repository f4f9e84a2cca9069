//! Holds in the real binary: they survive failures of the process and of the store beside the log.

use std::path::Path;

use serde_json::Value;

use super::commands::{json_of, on};
use super::server::{Server, run, stderr_of, stdout_of};

fn start(folder: &Path) -> Server {
    Server::start(folder, &["--set", "topics.partitions=1"])
}

/// Every message of the topic, once at least one has arrived.
fn messages(server: &Server) -> Vec<Value> {
    let page = json_of(&on(server, &["read", "orders", "--wait", "30s", "--json"]));
    page["messages"].as_array().unwrap().clone()
}

#[test]
fn a_hold_survives_a_kill_and_fires() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let held = json_of(&on(&server, &["hold", "orders", "x", "--delay", "1s", "--json"]));
    server.kill();
    let server = start(folder.path());
    let fired = messages(&server);
    assert_eq!(fired.len(), 1);
    assert_eq!(fired[0]["id"], held["id"]);
}

#[test]
fn a_removed_store_of_holds_is_rebuilt_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let held = json_of(&on(&server, &["hold", "orders", "x", "--delay", "1h", "--json"]));
    let id = held["id"].as_str().unwrap();
    let refused = run(folder.path(), &["check", "--rebuild"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr_of(&refused).contains("nothing was removed") && stderr_of(&refused).contains("hint: stop"));

    assert!(server.end().success());
    let rebuilt = run(folder.path(), &["check", "--rebuild"]);
    assert!(stdout_of(&rebuilt).contains("removed the store of holds"), "{}", stderr_of(&rebuilt));
    assert!(!folder.path().join("whimbrel-data/holds").exists());

    let server = start(folder.path());
    assert!(server.banner.contains("the store is empty; folding 1 records"), "{}", server.banner);
    assert_eq!(json_of(&on(&server, &["holds", "show", id, "--json"]))["state"], "held");
    assert!(on(&server, &["holds", "fire", id]).status.success());
    assert_eq!(messages(&server)[0]["id"], held["id"]);
}

#[test]
fn a_hold_is_extended_listed_counted_and_withdrawn_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let held = json_of(&on(&server, &["hold", "orders", "x", "--delay", "1h", "-k", "k", "--json"]));
    let id = held["id"].as_str().unwrap();
    let moved = json_of(&on(&server, &["extend", id, "--by", "10m", "--json"]));
    assert_eq!(moved["outcome"], "rescheduled");
    let back = on(&server, &["extend", id, "--by", "-10m"]);
    assert!(stdout_of(&back).contains(held["due"].as_str().unwrap()), "{}", stderr_of(&back));
    let stale = on(&server, &["extend", id, "--by", "1s", "--if-version", "999"]);
    assert_eq!(stale.status.code(), Some(1), "{}", stdout_of(&stale));

    let listed = stdout_of(&on(&server, &["holds", "list", "--topic", "orders"]));
    assert!(listed.contains(id) && listed.contains("held"), "{listed}");
    assert_eq!(json_of(&on(&server, &["holds", "count", "--json"]))["count"], 1);

    let withdrawn = stdout_of(&on(&server, &["withdraw", id]));
    assert!(withdrawn.starts_with("withdrawn"), "{withdrawn}");
    let again = on(&server, &["withdraw", id]);
    assert!(stderr_of(&again).contains("(already_withdrawn)"), "{}", stderr_of(&again));
    let unknown = on(&server, &["holds", "fire", "h-none"]);
    assert!(stderr_of(&unknown).contains("(unknown_hold)"), "{}", stderr_of(&unknown));
}
