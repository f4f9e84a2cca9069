//! Failed starts: one clear line, a hint, exit code 1, and no debug output of Rust.

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use super::server::{Server, run, stderr_of, stdout_of};

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: ") || said.contains("\nerror: "), "{said}");
    for word in ["panicked", "Err(", "unwrap", "RUST_BACKTRACE"] {
        assert!(!said.contains(word), "{said}");
    }
    said
}

#[test]
fn an_address_in_use_is_reported_and_nothing_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(folder.path(), &["serve", "--listen", &address]);
    assert!(said.contains(&format!("{address} is in use")) && said.contains("hint: "), "{said}");
    assert!(!folder.path().join("whimbrel-data").exists());
}

#[test]
fn a_data_folder_in_use_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let _first = Server::start(folder.path(), &[]);
    let said = refused(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("in use by another process") && said.contains("hint: "), "{said}");
}

#[test]
fn a_folder_with_foreign_files_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.doc"), "precious").unwrap();
    let said = refused(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--data", "."]);
    assert!(said.contains("not Whimbrel's") && said.contains("hint: "), "{said}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["thesis.doc"]);
}

#[test]
fn a_folder_of_a_newer_format_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Server::start(folder.path(), &[]).end().success());
    let format = folder.path().join("whimbrel-data/FORMAT");
    std::fs::write(&format, "whimbrel data folder, format 99\n").unwrap();
    let said = refused(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("format") && said.contains("hint: "), "{said}");
}

#[test]
fn an_unknown_key_is_reported_with_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("whimbrel.toml"), "[log]\nretension = \"3d\"\n").unwrap();
    let said = refused(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("unknown key `log.retension` at line 2: did you mean `log.retention`?"), "{said}");
}

#[test]
fn all_problems_of_a_configuration_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("w.toml"), "lissen = 1\nworkers = 0\n").unwrap();
    let said = refused(folder.path(), &["serve", "--config", "w.toml", "--set", "node=5000"]);
    for word in ["3 problems", "did you mean `listen`", "`workers` at line 2", "--set node"] {
        assert!(said.contains(word), "{word} is missing in: {said}");
    }
}

#[test]
fn a_public_address_without_keys_requires_insecure() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(folder.path(), &["serve", "--listen", "0.0.0.0:0"]);
    assert!(said.contains("--insecure") && said.contains("[[keys]]"), "{said}");
}

#[test]
fn an_unreachable_kafka_is_reported_with_its_address() {
    let folder = tempfile::tempdir().unwrap();
    // A free port, where no server listens.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let bootstrap = format!("kafka.bootstrap={free}");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--log-engine", "kafka", "--set", &bootstrap];
    let said = refused(folder.path(), &[&arguments[..], &["--set", "kafka.request_timeout=1s"]].concat());
    assert!(said.contains(&free) || said.contains("built without Kafka"), "{said}");
}

fn checked(folder: &Path, arguments: &[&str]) -> Output {
    run(folder, &[&["check"], arguments].concat())
}

#[test]
fn check_shows_every_setting_with_its_source() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("whimbrel.toml"), "node = 7\n").unwrap();
    let output = checked(folder.path(), &["--json", "--set", "log.retention=3d"]);
    assert!(output.status.success());
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let setting = |name: &str| {
        let settings = shown["settings"].as_array().unwrap();
        let found = settings.iter().find(|one| one["setting"] == name).unwrap();
        (found["value"].as_str().unwrap().to_owned(), found["source"].as_str().unwrap().to_owned())
    };
    assert_eq!(setting("node"), ("7".into(), "whimbrel.toml:1".into()));
    assert_eq!(setting("log.retention"), ("\"3d\"".into(), "--set log.retention".into()));
    assert_eq!(setting("listen"), ("\"127.0.0.1:7600\"".into(), "default".into()));
}

#[test]
fn check_reports_problems_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let output = checked(folder.path(), &["--set", "workers=0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout_of(&output).contains("error: --set workers"), "{}", stdout_of(&output));
}

#[test]
fn check_reports_unusable_key_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("junk"), "no key").unwrap();
    std::fs::write(folder.path().join("short.json"), r#"{"keys":[{"kty":"oct","k":""}]}"#).unwrap();
    let apns =
        |file: &str| ["horn.apns.key_id=K", "horn.apns.team_id=T", &format!("horn.apns.key_file={file}")].join(" ");
    let kinds = [
        (apns("nowhere.p8"), "`horn.apns.key_file`: nowhere.p8 cannot be read"),
        (apns("junk"), "[horn.apns] the key cannot be used"),
        ("horn.fcm.service_account=junk".to_owned(), "`horn.fcm.service_account` is not a service account"),
        ("clients.jwks=nowhere.json".to_owned(), "`clients.jwks`: nowhere.json cannot be read"),
        ("clients.jwks=short.json".to_owned(), "[clients]: key 0 of the JWKS is a secret of fewer than 32 bytes"),
    ];
    for (settings, said) in kinds {
        let arguments: Vec<&str> = settings.split(' ').flat_map(|setting| ["--set", setting]).collect();
        let output = checked(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{settings}");
        assert!(stdout_of(&output).contains(said), "{settings}: {}", stdout_of(&output));
    }
}

#[test]
fn the_example_of_check_is_a_valid_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let example = checked(folder.path(), &["--example"]);
    std::fs::write(folder.path().join("whimbrel.toml"), example.stdout).unwrap();
    assert!(Server::start(folder.path(), &[]).end().success());
}

#[test]
fn check_reports_the_state_of_the_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| stdout_of(&checked(folder.path(), arguments));
    assert!(said(&[]).contains("does not exist"), "{}", said(&[]));
    assert!(!folder.path().join("whimbrel-data").exists());
    let server = Server::start(folder.path(), &[]);
    assert!(said(&[]).contains("is in use by a running server"), "{}", said(&[]));
    server.kill();
    assert!(said(&[]).contains("and not in use"), "{}", said(&[]));
    let not_ours = checked(folder.path(), &["--data", "."]);
    assert_eq!(not_ours.status.code(), Some(1));
    assert!(stdout_of(&not_ours).contains("error: the data folder"), "{}", stdout_of(&not_ours));
}
