//! A proxy to a server that a test can cut: bytes in transit then stay where they are, like in a network that drops packets.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use whimbrel_engines::conformance::coordination::Switch;

/// Forwards connections to a server while it is open.
pub struct CutProxy {
    address: String,
    open: Arc<watch::Sender<bool>>,
    task: JoinHandle<()>,
}

impl CutProxy {
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let open = Arc::new(watch::Sender::new(true));
        let switch = open.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(carry(from_client, to_server, switch.subscribe()));
                tokio::spawn(carry(from_server, to_client, switch.subscribe()));
            }
        });
        Self { address, open, task }
    }

    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Switch for CutProxy {
    fn cut(&self) {
        self.open.send_replace(false);
    }

    fn mend(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for CutProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut open: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
