//! A body over the limit: common clients receive the answer, although they send the whole body before they read it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::server::{PATIENCE, Server, stderr_of, stdout_of};

/// Twenty times the limit of a payload, and more than the socket buffers of both sides.
const BODY_BYTES: usize = 20 << 20;

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients").join(name)
}

/// The output of a client in another language. `None` if its program is missing and the test may be skipped.
fn uploaded(server: &Server, program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).arg(server.address()).arg(BODY_BYTES.to_string()).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let quick = std::env::var("WHIMBREL_TEST_QUICK").is_ok_and(|value| value == "1");
            assert!(quick, "this test needs `{program}`: {error}; set WHIMBREL_TEST_QUICK=1 to skip it");
            whimbrel_engines::conformance::say_skipped(&format!("`{program}` is missing"));
            return None;
        }
    };
    assert!(output.status.success(), "{program}: {} {}", stdout_of(&output), stderr_of(&output));
    Some(stdout_of(&output))
}

#[test]
fn clients_in_python_receive_the_answer() {
    let server = Server::fresh(&[]);
    let script = client("upload.py").display().to_string();
    if let Some(printed) = uploaded(&server, "python3", &[&script]) {
        assert_eq!(printed, "http.client 413 True\nurllib 413 True\n");
    }
}

#[test]
fn fetch_of_node_receives_the_answer() {
    let server = Server::fresh(&[]);
    let script = client("upload.mjs").display().to_string();
    if let Some(printed) = uploaded(&server, "node", &[&script]) {
        assert_eq!(printed, "fetch 413 true\n");
    }
}

#[test]
fn a_client_in_go_receives_the_answer() {
    let server = Server::fresh(&[]);
    let script = client("upload.go").display().to_string();
    if let Some(printed) = uploaded(&server, "go", &["run", &script]) {
        assert_eq!(printed, "net/http 413 true\n");
    }
}

/// Sends an endless body until the server closes the connection: the bytes sent, and the time.
fn sent_until_closed(server: &Server) -> (usize, Duration) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let began = Instant::now();
    write!(stream, "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n")
        .unwrap();
    let (mut sent, piece) = (0, vec![b'x'; 64 << 10]);
    while let Ok(count) = stream.write(&piece) {
        sent += count;
    }
    (sent, began.elapsed())
}

#[test]
fn discarding_stops_at_the_byte_limit() {
    let server = Server::fresh(&["--set", "limits.linger_bytes=4MiB", "--set", "limits.linger_timeout=1m"]);
    let (sent, _) = sent_until_closed(&server);
    assert!((4 << 20..64 << 20).contains(&sent), "{sent} bytes were accepted");
}

#[test]
fn discarding_stops_at_the_time_limit() {
    let server = Server::fresh(&["--set", "limits.linger_timeout=1s"]);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n").unwrap();
    let mut answer = String::new();
    // The stream ends after the answer, and the server waits for the announced body; sending continues until the timeout.
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let began = Instant::now();
    while stream.write(b"x").is_ok() {
        assert!(began.elapsed() < PATIENCE, "the connection is never closed");
        std::thread::sleep(Duration::from_millis(10));
    }
}
