//! `whimbrel check --deep` on a real server's folder: beside the server, after a kill, and with damage.

use std::path::{Path, PathBuf};

use serde_json::Value;
use whimbrel_client::{NewMessage, SubscriptionSettings};

use super::receiver::Receiver;
use super::server::{Server, converse, run, stderr_of, stdout_of};

const MESSAGES: usize = 200;

/// The report, and whether the exit code is 0, which means no damage.
fn deep_check(folder: &Path) -> (Value, bool) {
    let output = run(folder, &["check", "--deep", "--json"]);
    assert_eq!(stderr_of(&output), "", "no progress bar without a terminal");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.success())
}

fn publish(server: &Server) {
    converse(async {
        let client = server.client();
        for number in 0..MESSAGES {
            let message = NewMessage { payload: format!("message {number}").into(), ..NewMessage::default() };
            client.publish("orders", &message).await.unwrap();
        }
    });
}

/// The largest file with that suffix below the folder.
fn largest(folder: &Path, suffix: &str) -> PathBuf {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() { walk(&entry.path(), found) } else { found.push(entry.path()) }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    found.retain(|path| path.to_string_lossy().ends_with(suffix));
    found.into_iter().max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap()
}

fn flip(path: &Path, position: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[position] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_intact_folder_has_no_damage_beside_the_server_and_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    publish(&server);
    let (beside, is_clean) = deep_check(folder.path());
    assert!(is_clean, "{beside}");
    assert_eq!((&beside["damaged"], &beside["findings"]), (&false.into(), &serde_json::json!([])));
    assert!(beside["files"].as_u64().unwrap() > 5 && beside["bytes"].as_u64().unwrap() > 0, "{beside}");
    publish(&server);
    server.kill();
    let (killed, is_clean) = deep_check(folder.path());
    assert!(is_clean, "{killed}");
    assert_eq!(killed["not_checked"], serde_json::json!([]), "every file is checked, also the notebook");
}

/// Damages a file of a stopped server, and expects the report to name it.
fn assert_found(folder: &Path, file: &Path, position: usize) {
    let whole = std::fs::read(file).unwrap();
    flip(file, position);
    let (report, is_clean) = deep_check(folder);
    assert!(!is_clean, "{}: {report}", file.display());
    let named = file.strip_prefix(folder).unwrap().display().to_string();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report}");
    assert_eq!(findings[0]["file"], format!("./{named}"), "{report}");
    std::fs::write(file, whole).unwrap();
}

#[test]
fn damage_in_a_store_or_in_the_notebook_is_reported_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--set", "holds.shards=1"]);
    let (client, receiver) = (server.client(), Receiver::willing());
    publish(&server);
    converse(client.put_subscription("s", &SubscriptionSettings::push(["orders"], receiver.url("/")))).unwrap();
    for number in 0..20 {
        converse(client.hold("orders", &NewMessage::text(number.to_string()).delay("1h"))).unwrap();
        converse(client.publish("orders", &NewMessage::text("delivered"))).unwrap();
    }
    receiver.wait_for(20);
    // A clean shutdown flushes the store of holds into tables.
    assert!(server.end().success());
    let data = folder.path().join("whimbrel-data");
    let tables = data.join("holds/keyspaces");
    let table = std::fs::read_dir(&tables).unwrap().map(|keyspace| keyspace.unwrap().path());
    let table = table.filter(|keyspace| !keyspace.ends_with("0")).map(|keyspace| keyspace.join("tables"));
    let table = table.filter(|tables| tables.is_dir()).flat_map(|tables| std::fs::read_dir(tables).unwrap()).next();
    assert_found(folder.path(), &table.expect("a table exists").unwrap().path(), 40);
    let slices = std::fs::read_dir(data.join("notebook")).unwrap().map(|slice| slice.unwrap().path());
    let mut slices = slices.filter(|slice| slice.file_name().unwrap().to_string_lossy().starts_with("attempts"));
    assert_found(folder.path(), &slices.next().expect("a slice exists"), 12);
    let (report, is_clean) = deep_check(folder.path());
    assert!(is_clean, "{report}");
}

#[test]
fn a_part_that_cannot_be_checked_has_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    publish(&server);
    assert!(server.end().success());
    let data = folder.path().join("whimbrel-data");
    std::fs::write(data.join("notebook/attempts-1700000000000.slice"), b"WBNOTES\x02and more").unwrap();
    let output = run(folder.path(), &["check", "--deep"]);
    assert_eq!(output.status.code(), Some(3), "{}", stdout_of(&output));
    assert!(stdout_of(&output).contains("not checked: ./whimbrel-data/notebook/attempts-1700000000000.slice: "));
}

#[test]
fn damage_is_reported_by_file_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    publish(&server);
    assert!(server.end().success());
    let data = folder.path().join("whimbrel-data");
    for (name, position) in
        [("FORMAT", 40), ("catalogue.json", 60), ("catalogue.json.previous", 60), ("log/checkpoint.copy", 20)]
    {
        let path = data.join(name);
        let whole = std::fs::read(&path).unwrap();
        flip(&path, position);
        let (report, is_clean) = deep_check(folder.path());
        assert!(!is_clean, "{name}: {report}");
        let files: Vec<&str> =
            report["findings"].as_array().unwrap().iter().map(|one| one["file"].as_str().unwrap()).collect();
        assert_eq!(files, [format!("./whimbrel-data/{name}")], "{report}");
        std::fs::write(&path, whole).unwrap();
    }
    let segment = largest(&data, ".segment");
    flip(&segment, 70);
    let output = run(folder.path(), &["check", "--deep"]);
    let said = stdout_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let name = segment.strip_prefix(&data).unwrap().display();
    assert!(said.contains(&format!("damaged: ./whimbrel-data/{name} at byte 0: ")), "{said}");
    for word in ["means: ", "do: ", "1 place is damaged"] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn damage_of_an_optional_file_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    publish(&server);
    assert!(server.end().success());
    let data = folder.path().join("whimbrel-data");
    std::fs::write(data.join("clock"), "whimbrel-clock 1 nonsense").unwrap();
    std::fs::write(largest(&data, ".segment").with_extension("index"), [7; 24]).unwrap();
    let (report, is_clean) = deep_check(folder.path());
    assert!(is_clean, "{report}");
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 2, "{report}");
    assert!(findings.iter().all(|finding| finding["harmless"] == true), "{report}");
}
