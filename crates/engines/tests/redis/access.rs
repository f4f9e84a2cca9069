//! The user of Redis that docs/operating/redis.md describes: every store works with its rights, and other commands are rejected.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::RedisSettings;

use crate::{ONE, Shared};

const USER: &str = "whimbrel-documented";
const PASSWORD: &str = "open-sesame";

/// The rules of the access list, as the page has them.
fn documented_rules() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/redis.md");
    let text = std::fs::read_to_string(page).expect("the page is there");
    let rules = text.split('`').find(|part| part.starts_with("~whimbrel:*")).expect("the page lists the rights");
    rules.split_whitespace().map(str::to_owned).collect()
}

fn cli(settings: &RedisSettings, arguments: &[String]) -> String {
    let url = settings.urls[0].rsplit('/').next().expect("an address").to_owned();
    let (host, port) = url.rsplit_once(':').expect("host:port");
    let output = Command::new("redis-cli").args(["-h", host, "-p", port]).args(arguments).output();
    let output = output.expect("redis-cli runs: scripts/services installs it");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The settings of the documented user, under a prefix that its keys may have.
pub fn settings(shared: RedisSettings) -> RedisSettings {
    static MADE: OnceLock<String> = OnceLock::new();
    let answer = MADE.get_or_init(|| {
        let user = ["acl", "setuser", USER, "reset", "on", ">open-sesame"].map(str::to_owned);
        cli(&shared, &[&user[..], &documented_rules()].concat())
    });
    assert_eq!(answer, "OK", "Redis takes the documented rules");
    let (user, password) = (USER.to_owned(), PASSWORD.to_owned());
    RedisSettings { prefix: format!("whimbrel:{}", shared.prefix), user, password, ..shared }
}

#[test]
fn the_documented_user_can_neither_empty_redis_nor_change_it() {
    needs_servers!(ONE);
    let settings = settings(Shared(ONE).settings());
    for command in
        [&["flushall"][..], &["flushdb"], &["config", "set", "maxmemory", "1"], &["keys", "*"], &["shutdown"]]
    {
        let user = ["--no-auth-warning", "--user", USER, "--pass", PASSWORD].map(str::to_owned);
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let answer = cli(&settings, &[&user[..], &command].concat());
        assert!(answer.contains("NOPERM"), "{command:?}: {answer}");
    }
}
