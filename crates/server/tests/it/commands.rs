//! The commands that call a server, as a user types them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Output, Stdio};

use serde_json::Value;

use super::server::{Server, run, stderr_of, stdout_of, whimbrel};
use super::server_life::get;

/// Runs a command against the server, in its folder; `--server` comes last, after any subcommand.
pub fn on(server: &Server, arguments: &[&str]) -> Output {
    run(server.folder(), &[arguments, &["--server", &server.url]].concat())
}

pub fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr_of(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_published_message_can_be_read() {
    let server = Server::fresh(&[]);
    let published =
        json_of(&on(&server, &["publish", "orders", "héllo", "-k", "customer-7", "-H", "color: blue", "--json"]));
    let partition = published["partition"].to_string();
    let page = json_of(&on(&server, &["read", "orders", "-p", &partition, "--json"]));
    let message = &page["messages"][0];
    assert_eq!((&message["payload"], &message["key"]), (&"héllo".into(), &"customer-7".into()));
    assert_eq!(message["headers"]["color"], "blue");
    let table = stdout_of(&on(&server, &["read", "orders", "-p", &partition]));
    assert!(table.contains("héllo") && table.contains("continue with --from 1"), "{table}");
}

#[test]
fn a_topic_is_read_over_all_its_partitions_in_the_order_of_publishing() {
    let server = Server::fresh(&["--set", "topics.partitions=4"]);
    let partitions: Vec<Value> = (0..12)
        .map(|n| {
            let (payload, key) = (format!("hello {n}"), format!("k{n}"));
            json_of(&on(&server, &["publish", "greetings", &payload, "-k", &key, "--json"]))["partition"].clone()
        })
        .collect();
    assert!(partitions.iter().any(|partition| *partition != partitions[0]), "{partitions:?}");
    let read = |arguments: &[&str]| on(&server, &[&["read", "greetings"], arguments].concat());
    let payloads = |page: &Value| -> Vec<String> {
        page["messages"].as_array().unwrap().iter().map(|one| one["payload"].as_str().unwrap().to_owned()).collect()
    };
    let expected: Vec<String> = (0..12).map(|n| format!("hello {n}")).collect();
    let all = json_of(&read(&["--json"]));
    assert_eq!((payloads(&all), &all["has_more"]), (expected.clone(), &false.into()));
    let some = json_of(&read(&["--limit", "5", "--json"]));
    assert_eq!((payloads(&some), &some["has_more"]), (expected[..5].to_vec(), &true.into()));
    let since = all["messages"][7]["published_at"].as_str().unwrap();
    assert_eq!(payloads(&json_of(&read(&["--from", since, "--json"]))).last(), expected.last());
    assert!(payloads(&json_of(&read(&["--from", "1000", "--json"]))).is_empty());
    let table = stdout_of(&read(&[]));
    assert!(table.contains("hello 0") && table.contains("hello 11") && table.contains("12 messages of greetings"));
}

#[test]
fn a_read_of_all_partitions_waits_for_the_first_message_of_any() {
    let server = Server::fresh(&["--set", "topics.partitions=4"]);
    assert!(on(&server, &["topic", "create", "orders"]).status.success());
    assert_eq!(json_of(&on(&server, &["read", "orders", "--json"]))["messages"], serde_json::json!([]));
    let held = on(&server, &["hold", "orders", "x", "-k", "k3", "--delay", "300ms"]);
    assert!(held.status.success(), "{}", stderr_of(&held));
    let page = json_of(&on(&server, &["read", "orders", "--wait", "30s", "--json"]));
    assert_eq!(page["messages"][0]["payload"], "x");
}

#[test]
fn a_payload_is_read_from_standard_input() {
    let server = Server::fresh(&[]);
    let mut publish = whimbrel(server.folder())
        .args(["publish", "orders", "-", "--json", "--server", &server.url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    publish.stdin.take().unwrap().write_all(&[0, 255, 10]).unwrap();
    let published = json_of(&publish.wait_with_output().unwrap());
    let partition = published["partition"].to_string();
    let page = json_of(&on(&server, &["read", "orders", "-p", &partition, "--json"]));
    assert_eq!(page["messages"][0]["payload_base64"], "AP8K");
}

#[test]
fn a_command_without_a_payload_publishes_no_empty_message() {
    let server = Server::fresh(&[]);
    for command in [&["publish", "orders"][..], &["hold", "orders", "--delay", "1h"], &["push", "u1"]] {
        // The standard input of these commands is empty, as under cron.
        let output = on(&server, command);
        assert!(!output.status.success() && stderr_of(&output).contains("nothing to pu"), "{}", stderr_of(&output));
    }
    assert!(on(&server, &["publish", "orders", ""]).status.success(), "an empty payload on purpose");
}

#[test]
fn a_file_is_published_whole_and_in_order() {
    let server = Server::fresh(&[]);
    let lines: String = (0..2500).map(|n| format!("{{\"payload\":\"{n}\",\"key\":\"k\"}}\n")).collect();
    std::fs::write(server.folder().join("x.ndjson"), lines).unwrap();
    let output = on(&server, &["publish", "orders", "--file", "x.ndjson", "--json"]);
    assert_eq!(json_of(&output)["published"], 2500);
    let topic = json_of(&on(&server, &["topic", "show", "orders", "--json"]));
    let partition = topic["partition_list"].as_array().unwrap().iter().find(|one| one["messages"] == 2500).unwrap();
    let partition = partition["partition"].to_string();
    let read = ["read", "orders", "-p", &partition, "--limit", "10000", "--json"];
    let page = json_of(&on(&server, &read));
    let payloads: Vec<&str> =
        page["messages"].as_array().unwrap().iter().map(|one| one["payload"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..2500).map(|n| n.to_string()).collect();
    assert_eq!(payloads, expected);
}

#[test]
fn an_invalid_line_of_a_file_is_reported_by_its_number() {
    let server = Server::fresh(&[]);
    std::fs::write(server.folder().join("x.ndjson"), "{\"payload\":\"a\"}\n{\"payload\":\"b\"}\n{\"pay\n").unwrap();
    let output = on(&server, &["publish", "orders", "--file", "x.ndjson", "--batch", "2"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr_of(&output);
    assert!(said.contains("x.ndjson: line 3:") && said.contains("the 2 messages before"), "{said}");
}

#[test]
fn a_tail_prints_messages_as_they_arrive() {
    let server = Server::fresh(&[]);
    assert!(on(&server, &["publish", "orders", "before"]).status.success());
    let mut tail = whimbrel(server.folder())
        .args(["tail", "orders", "--from", "earliest", "--limit", "2", "--json", "--server", &server.url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let payload = |line: String| serde_json::from_str::<Value>(&line).unwrap()["payload"].clone();
    assert_eq!(payload(lines.next().unwrap().unwrap()), "before");
    assert!(on(&server, &["publish", "orders", "after"]).status.success());
    assert_eq!(payload(lines.next().unwrap().unwrap()), "after");
    assert!(tail.wait().unwrap().success());
}

#[test]
fn a_topic_is_created_shown_grown_and_deleted() {
    let server = Server::fresh(&[]);
    let topic = |arguments: &[&str]| on(&server, &[&["topic"], arguments].concat());
    let made = json_of(&topic(&["create", "orders", "--partitions", "2", "--retention", "3d", "--json"]));
    assert_eq!((&made["partitions"], &made["retention"]), (&2.into(), &"3d".into()));
    let again = topic(&["create", "orders"]);
    assert!(stderr_of(&again).contains("already exists"), "{}", stderr_of(&again));
    assert_eq!(json_of(&topic(&["alter", "orders", "--partitions", "5", "--json"]))["partitions"], 5);
    let shrunk = topic(&["alter", "orders", "--partitions", "1"]);
    assert_eq!(shrunk.status.code(), Some(1));
    let listed = stdout_of(&topic(&["list"]));
    assert!(listed.find("orders").unwrap() < listed.find("_events").unwrap(), "{listed}");
    let unasked = topic(&["delete", "orders"]);
    assert!(stderr_of(&unasked).contains("--yes"), "{}", stderr_of(&unasked));
    assert!(topic(&["delete", "orders", "--yes"]).status.success());
    let gone = topic(&["show", "orders"]);
    assert!(stderr_of(&gone).contains("(unknown_topic)"), "{}", stderr_of(&gone));
    let altered = topic(&["alter", "orders", "--partitions", "5"]);
    assert!(stderr_of(&altered).contains("(unknown_topic)"), "{}", stderr_of(&altered));
}

#[test]
fn the_number_of_messages_is_labelled_as_an_upper_bound() {
    let server = Server::fresh(&[]);
    json_of(&on(&server, &["publish", "orders", "x", "--json"]));
    let shown = |arguments: &[&str]| stdout_of(&on(&server, arguments));
    let (list, topic) = (shown(&["topic", "list"]), shown(&["topic", "show", "orders"]));
    assert!(list.contains("messages (at most)"), "{list}");
    assert!(topic.contains("at most 1 messages") && topic.contains("messages (at most)"), "{topic}");
    let page = get(&server, "/");
    assert!(page.contains("Messages (at most)"), "{page}");
}

#[test]
fn a_held_message_is_in_its_topic_from_its_due_time_on() {
    let server = Server::fresh(&["--set", "topics.partitions=1"]);
    let held = json_of(&on(&server, &["hold", "orders", "x", "--delay", "300ms", "--json"]));
    assert_eq!(held["state"], "held");
    let page = json_of(&on(&server, &["read", "orders", "--wait", "30s", "--json"]));
    let message = &page["messages"][0];
    assert_eq!((&message["id"], &message["due"]), (&held["id"], &held["due"]));
    assert!(message["fired_at"].as_str().unwrap() >= held["due"].as_str().unwrap(), "{message}");
}

#[test]
fn an_unreachable_server_is_reported_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["topic", "list", "--server", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr_of(&output);
    assert!(said.contains("no connection to http://127.0.0.1:1") && said.contains("hint: is it running?"), "{said}");
}

#[test]
fn completions_contain_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(folder.path(), &["completions", shell]);
        assert!(stdout_of(&output).contains("publish"), "{shell}");
    }
}

#[test]
fn a_quick_bench_measures_everything_and_removes_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let report = json_of(&run(folder.path(), &["bench", "publish", "--quick", "--json"]));
    let rows = report["rows"].as_array().unwrap();
    let named = |word: &str| rows.iter().filter(|row| row["measured"].as_str().unwrap().contains(word)).count();
    assert!(named("device") >= 3 && named("healthz") == 3 && named("batches") == 3, "{report}");
    assert_eq!(report["remarks"], serde_json::json!([]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_bench_of_one_round_measures_only_that_round() {
    let folder = tempfile::tempdir().unwrap();
    let report = json_of(&run(folder.path(), &["bench", "publish", "--quick", "--json", "--only", "batches"]));
    let rates = report["rows"].as_array().unwrap().iter().filter(|row| row["figures"]["per_second"].is_number());
    let names: Vec<_> = rates.map(|row| row["measured"].as_str().unwrap()).collect();
    assert_eq!(names, ["batches of 1000 × 100 B, messages"]);
}

#[test]
fn a_quick_bench_of_holds_measures_every_round_and_removes_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let report = json_of(&run(folder.path(), &["bench", "hold", "--quick", "--json"]));
    let rows = report["rows"].as_array().unwrap();
    for word in ["idle", "fire", "accept", "burst", "extend", "withdraw", "resident", "restart"] {
        assert!(rows.iter().any(|row| row["measured"].as_str().unwrap().starts_with(word)), "{word}: {report}");
    }
    assert_eq!(report["remarks"], serde_json::json!([]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_quick_bench_of_deliveries_measures_every_round_and_removes_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let report = json_of(&run(folder.path(), &["bench", "deliver", "--quick", "--json"]));
    let rows = report["rows"].as_array().unwrap();
    for word in [
        "publish to callback",
        "bare client loop",
        "deliver, ordering none",
        "deliver, ordering key",
        "deliver beside",
        "four keys while",
        "catch up",
        "catching up",
    ] {
        assert!(rows.iter().any(|row| row["measured"].as_str().unwrap().starts_with(word)), "{word}: {report}");
    }
    assert_eq!(report["remarks"], serde_json::json!([]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let server = Server::fresh(&[]);
    on(&server, &["publish", "orders", "hello"]);
    let url = ["--server", server.url.as_str()];
    for arguments in [
        vec!["completions", "bash"],
        [&["read", "orders"], &url[..]].concat(),
        [&["topic", "list", "--json"], &url[..]].concat(),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = whimbrel(server.folder()).args(&arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {:?} {}", output.status, stderr_of(&output));
        assert_eq!(stderr_of(&output), "", "{arguments:?}");
    }
}
