//! The commands of subscriptions, as a user types them.

use super::commands::{json_of, on};
use super::receiver::{Receiver, reply};
use super::server::{Server, eventually, stderr_of, stdout_of};

#[test]
fn subscriptions_are_managed_from_the_command_line() {
    let server = Server::fresh(&["--set", "topics.partitions=1"]);
    let sub = |arguments: &[&str]| on(&server, &[&["sub"], arguments].concat());
    let made = json_of(&sub(&["create", "mail", "-t", "orders", "--pull", "--concurrency", "4", "--json"]));
    assert_eq!((&made["name"], &made["mode"], &made["concurrency"]), (&"mail".into(), &"pull".into(), &4.into()));
    let again = sub(&["create", "mail", "-t", "orders", "--pull"]);
    assert!(stderr_of(&again).contains("--replace"), "{}", stderr_of(&again));
    assert!(sub(&["create", "mail", "-t", "orders", "--pull", "--replace"]).status.success());
    assert!(on(&server, &["publish", "orders", "hello", "-k", "k"]).status.success());
    let pulled = sub(&["pull", "mail", "--wait", "30s", "--ack"]);
    assert!(stdout_of(&pulled).contains("hello"), "{}", stderr_of(&pulled));
    assert!(stdout_of(&sub(&["pull", "mail"])).contains("nothing to pull"));
    assert_eq!(stdout_of(&sub(&["pause", "mail"])), "mail: paused\n");
    let listed = stdout_of(&sub(&["list"]));
    assert!(listed.contains("mail") && listed.contains("paused") && listed.contains("orders"), "{listed}");
    assert_eq!(stdout_of(&sub(&["resume", "mail"])), "mail: resumed\n");
    let moved = stdout_of(&sub(&["seek", "mail", "earliest"]));
    assert!(moved.starts_with("mail: moved\n") && moved.contains("orders/0"), "{moved}");
    assert!(stdout_of(&sub(&["pull", "mail", "--wait", "30s", "--ack"])).contains("hello"));
    assert!(stdout_of(&sub(&["replay", "mail"])).starts_with("mail: replaying\n"));
    assert!(stdout_of(&sub(&["dead", "mail"])).contains("no dead letters"));
    assert!(stdout_of(&sub(&["redrive", "mail", "--all"])).contains("redriven 0"));
    let shown = stdout_of(&sub(&["show", "mail"]));
    assert!(shown.contains("orders/0") && shown.contains("concurrency"), "{shown}");
    let stats = stdout_of(&on(&server, &["stats", "orders"]));
    assert!(stats.contains("published"), "{stats}");
    let unasked = sub(&["delete", "mail"]);
    assert!(stderr_of(&unasked).contains("--yes"), "{}", stderr_of(&unasked));
    assert_eq!(stdout_of(&sub(&["delete", "mail", "--yes"])), "deleted mail\n");
    let gone = sub(&["show", "mail"]);
    assert!(stderr_of(&gone).contains("(unknown_subscription)"), "{}", stderr_of(&gone));
}

#[test]
fn a_redrive_fails_and_lists_unknown_ids() {
    let server = Server::fresh(&["--set", "topics.partitions=1"]);
    let receiver = Receiver::answering(|_| reply(500));
    let sub = |arguments: &[&str]| on(&server, &[&["sub"], arguments].concat());
    let url = receiver.url("/");
    assert!(sub(&["create", "late", "-t", "orders", "-u", &url, "--retries", "0"]).status.success());
    let published = json_of(&on(&server, &["publish", "orders", "hello", "--json"]));
    let id = published["id"].as_str().unwrap();
    eventually("a dead letter", || stdout_of(&sub(&["dead", "late"])).contains(id));
    let redriven = sub(&["redrive", "late", id, "nobody", "no-one"]);
    assert_eq!(redriven.status.code(), Some(1));
    assert_eq!(stdout_of(&redriven), "late: redriven 1\n");
    let said = stderr_of(&redriven);
    assert!(said.contains("nobody") && said.contains("no-one") && !said.contains(id), "{said}");
    let unsaid = sub(&["redrive", "late"]);
    assert_eq!(unsaid.status.code(), Some(2));
    assert!(stderr_of(&unsaid).contains("--all"), "{}", stderr_of(&unsaid));
    assert_eq!(sub(&["redrive", "late", id, "--all"]).status.code(), Some(2));
}

#[test]
fn unknown_state_is_omitted_and_an_error_is_shown_once() {
    let server = Server::fresh(&["--set", "topics.partitions=1"]);
    let receiver = Receiver::answering(|_| reply(500));
    let sub = |arguments: &[&str]| on(&server, &[&["sub"], arguments].concat());
    let url = receiver.url("/hook");
    let made = stdout_of(&sub(&["create", "billing", "-t", "orders", "-u", &url, "--schedule", "1h,2h"]));
    assert!(made.contains("billing: active, orders → ") && !made.contains("in flight"), "{made}");
    assert!(made.contains("5 times, after 1h, 2h") && !made.contains('{'), "{made}");
    assert!(on(&server, &["publish", "orders", "hello"]).status.success());
    eventually("an error", || stdout_of(&sub(&["show", "billing"])).contains("answered 500"));
    let shown = stdout_of(&sub(&["show", "billing"]));
    assert!(!shown.contains("500, answered") && shown.contains("next try"), "{shown}");
    let at = |word: &str| shown.find(word).unwrap_or_else(|| panic!("{word}: {shown}"));
    assert!(at("lag") < at("breaker") && at("breaker") < at("last error") && at("last error") < at("on exhausted"));
}
