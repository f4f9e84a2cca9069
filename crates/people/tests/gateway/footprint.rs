//! Measures the memory of an idle connection. It tests no property, so it runs only on request:
//! `cargo test -p whimbrel-people --test gateway footprint -- --ignored --nocapture`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::scene::{Scene, soon};

const CONNECTIONS: usize = 5_000;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A device that is only a file descriptor, so that its own memory is the kernel's.
fn bare_device(address: std::net::SocketAddr, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = "GET /v1/connect HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 1024];
    let count = stream.read(&mut answer).unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 101"));
    let mut hello = Vec::new();
    let text = format!(r#"{{"connect":{{"uid":"user-{number}","platform":"web","device":"device-{number}"}}}}"#);
    use whimbrel_people::gateway::websocket::{Opcode, encode};
    encode(&mut hello, Opcode::Text, text.as_bytes(), Some([1, 2, 3, 4]));
    stream.write_all(&hello).unwrap();
    stream
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "a measurement"]
async fn bytes_of_an_idle_connection() {
    let mut scene = Scene::start().await;
    let address = scene.address;
    let (sent, mut devices) = tokio::sync::mpsc::unbounded_channel();
    let connecting = std::thread::spawn(move || {
        // The first 100 are connected before the measurement starts.
        for number in 0..CONNECTIONS + 100 {
            sent.send(bare_device(address, number)).unwrap();
        }
    });
    let mut kept = Vec::with_capacity(CONNECTIONS + 100);
    let mut before = 0;
    for number in 0..CONNECTIONS + 100 {
        if number == 100 {
            before = resident_bytes();
        }
        scene.admit_next(0).await;
        scene.reported().await;
        kept.push(soon(devices.recv()).await.unwrap());
    }
    connecting.join().unwrap();
    let grown = resident_bytes() - before;
    println!("{CONNECTIONS} idle connections: {} bytes of resident memory each", grown / CONNECTIONS);
    assert_eq!(scene.gateway.connections(), CONNECTIONS + 100);
}
