//! An etcd with authentication. The test starts its own, since the shared one has none.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use whimbrel_engines::conformance::say_skipped;
use whimbrel_engines::etcd::{EtcdCatalogue, EtcdConnection, EtcdLogin, EtcdSettings, EtcdStartError};
use whimbrel_model::ports::Catalogue;

use crate::{settings, skip_reason};

const PASSWORD: &str = "correct horse";
const START_MAX: Duration = Duration::from_secs(30);

/// An etcd in a folder of its own, killed when it is dropped.
struct OwnEtcd {
    address: String,
    peer: String,
    folder: TempDir,
    process: Child,
}

impl OwnEtcd {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for etcd");
        let (address, peer) = (free_address(), free_address());
        let process = spawn(&folder, &address, &peer);
        let etcd = Self { address, peer, folder, process };
        etcd.wait_until_serving().await;
        etcd
    }

    async fn start_again(&mut self) {
        self.kill();
        self.process = spawn(&self.folder, &self.address, &self.peer);
        self.wait_until_serving().await;
    }

    fn kill(&mut self) {
        self.process.kill().expect("etcd can be killed");
        self.process.wait().expect("etcd ends");
    }

    async fn wait_until_serving(&self) {
        let serves = async {
            while !self.ask("GET", "/health", "").await.is_some_and(|answer| answer.contains("\"true\"")) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START_MAX, serves).await.expect("etcd serves");
    }

    /// Calls an operation of etcd's JSON API.
    async fn command(&self, path: &str, body: &str) {
        let answer = self.ask("POST", path, body).await.expect("etcd answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }
}

impl Drop for OwnEtcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &TempDir, address: &str, peer: &str) -> Child {
    let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
    Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.path().join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd runs: scripts/services installs it")
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").to_string()
}

fn with_password(etcd: &OwnEtcd, password: &str) -> EtcdSettings {
    let login = EtcdLogin { user: "root".to_owned(), password: password.to_owned() };
    EtcdSettings { login: Some(login), ..settings(&etcd.address, "login/") }
}

#[tokio::test]
async fn the_engine_logs_in_and_logs_in_again_after_a_restart_of_etcd() {
    if let Some(why) = skip_reason() {
        return say_skipped(&why);
    }
    let mut etcd = OwnEtcd::start().await;
    etcd.command("/v3/auth/user/add", &format!(r#"{{"name":"root","password":"{PASSWORD}"}}"#)).await;
    etcd.command("/v3/auth/role/add", r#"{"name":"root"}"#).await;
    etcd.command("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#).await;
    etcd.command("/v3/auth/enable", "{}").await;

    let short = Duration::from_millis(700);
    let wrong = EtcdSettings { request_timeout: short, ..with_password(&etcd, "wrong") };
    let refused = EtcdConnection::connect(wrong).await.err().expect("it is refused");
    assert!(matches!(&refused, EtcdStartError::Unreachable { reason, .. } if reason.contains("password")), "{refused}");

    let connection = EtcdConnection::connect(with_password(&etcd, PASSWORD)).await.expect("it is let in");
    let catalogue = EtcdCatalogue::new(connection);
    let version = catalogue.put("x", b"1".to_vec(), None).await.expect("it may write");
    etcd.start_again().await;
    let found = catalogue.get("x").await.expect("it is let in again").expect("it is there");
    assert_eq!(found.version, version);
}
