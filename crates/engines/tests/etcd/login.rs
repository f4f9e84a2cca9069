//! An etcd with authentication. The test starts its own, since the shared one has none.

use std::process::Command;
use std::time::Duration;

use whimbrel_engines::etcd::{EtcdCatalogue, EtcdConnection, EtcdLogin, EtcdSettings, EtcdStartError};
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::Catalogue;

use crate::services::{Outage as _, OwnEtcd};
use crate::{ADDRESS, settings};

const PASSWORD: &str = "correct horse";

/// Calls an operation of etcd's JSON API.
fn command(etcd: &OwnEtcd, path: &str, body: &str) {
    let called =
        Command::new("curl").args(["-s", "-S", "-f", "-d", body, &format!("http://{}{path}", etcd.address())]).output();
    let called = called.expect("curl runs");
    assert!(called.status.success(), "{path}: {}", String::from_utf8_lossy(&called.stderr));
}

fn with_password(etcd: &OwnEtcd, password: &str) -> EtcdSettings {
    let login = EtcdLogin { user: "root".to_owned(), password: password.to_owned() };
    EtcdSettings { login: Some(login), ..settings(etcd.address(), "login/") }
}

#[tokio::test]
async fn the_engine_logs_in_and_logs_in_again_after_a_restart_of_etcd() {
    needs_servers!(ADDRESS);
    let mut etcd = OwnEtcd::start();
    command(&etcd, "/v3/auth/user/add", &format!(r#"{{"name":"root","password":"{PASSWORD}"}}"#));
    command(&etcd, "/v3/auth/role/add", r#"{"name":"root"}"#);
    command(&etcd, "/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    command(&etcd, "/v3/auth/enable", "{}");

    let short = Duration::from_millis(700);
    let wrong = EtcdSettings { request_timeout: short, ..with_password(&etcd, "wrong") };
    let refused = EtcdConnection::connect(wrong).await.err().expect("it is refused");
    assert!(matches!(&refused, EtcdStartError::Unreachable { reason, .. } if reason.contains("password")), "{refused}");

    let connection = EtcdConnection::connect(with_password(&etcd, PASSWORD)).await.expect("it is let in");
    let catalogue = EtcdCatalogue::new(connection);
    let version = catalogue.put("x", b"1".to_vec(), None).await.expect("it may write");
    etcd.kill();
    etcd.start_again();
    let found = catalogue.get("x").await.expect("it is let in again").expect("it is there");
    assert_eq!(found.version, version);
}
