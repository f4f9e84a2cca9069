//! The client side over a TCP stream, for the terminal client and the bench.
//!
//! A minimal client: no TLS, no redirects, no extensions.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, ToSocketAddrs};

use super::decoder::{Decoder, Limits, MessageRef, Role, WsViolation};
use super::frame::{Opcode, encode, encode_close};
use super::handshake::{accept_of, key_of};

/// Bytes of an answer to the handshake, at most.
const ANSWER_MAX_BYTES: usize = 16 << 10;
const READ_BYTES: usize = 16 << 10;
/// Limits for the server's frames: the largest payload in base64 fits.
const LIMITS: Limits = Limits { frame_bytes: 64 << 20, message_bytes: 64 << 20 };

/// A received message, or one to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketMessage {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

#[derive(Debug, thiserror::Error)]
pub enum ClientSocketError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The answer, with as much of its body as was received.
    #[error("the server rejected the handshake: {0}")]
    Refused(String),
    #[error("the server violated the protocol: {0}")]
    WsViolation(#[from] WsViolation),
}

pub struct ClientSocket {
    stream: TcpStream,
    decoder: Decoder,
    arrived: VecDeque<SocketMessage>,
    random: Random,
}

impl ClientSocket {
    /// Connects and performs the handshake. `host` is the value of the `Host` header.
    pub async fn connect(
        address: impl ToSocketAddrs,
        host: &str,
        path: &str,
        subprotocol: Option<&str>,
    ) -> Result<Self, ClientSocketError> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut random = Random::seeded()?;
        let rest = open_websocket(&mut stream, host, path, subprotocol, random.sixteen()).await?;
        let mut socket = Self { stream, decoder: Decoder::new(Role::Client), arrived: VecDeque::new(), random };
        socket.take(rest)?;
        Ok(socket)
    }

    pub async fn send(&mut self, message: &SocketMessage) -> Result<(), ClientSocketError> {
        let mut bytes = Vec::new();
        let mask = Some(self.random.four());
        match message {
            SocketMessage::Text(text) => encode(&mut bytes, Opcode::Text, text.as_bytes(), mask),
            SocketMessage::Binary(payload) => encode(&mut bytes, Opcode::Binary, payload, mask),
            SocketMessage::Ping(payload) => encode(&mut bytes, Opcode::Ping, payload, mask),
            SocketMessage::Pong(payload) => encode(&mut bytes, Opcode::Pong, payload, mask),
            SocketMessage::Close(Some((code, reason))) => encode_close(&mut bytes, *code, reason, mask),
            SocketMessage::Close(None) => encode(&mut bytes, Opcode::Close, &[], mask),
        }
        Ok(self.stream.write_all(&bytes).await?)
    }

    pub async fn send_text(&mut self, text: impl Into<String>) -> Result<(), ClientSocketError> {
        self.send(&SocketMessage::Text(text.into())).await
    }

    /// The next message; `None` after the server has closed the stream. Answers pings, and returns them too. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<SocketMessage>, ClientSocketError> {
        loop {
            if let Some(message) = self.arrived.pop_front() {
                if let SocketMessage::Ping(payload) = &message {
                    let pong = SocketMessage::Pong(payload.clone());
                    self.send(&pong).await?;
                }
                return Ok(Some(message));
            }
            self.stream.readable().await?;
            let mut buffer = [0; READ_BYTES];
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => self.take(buffer[..count].to_vec())?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self, mut bytes: Vec<u8>) -> Result<(), WsViolation> {
        let arrived = &mut self.arrived;
        self.decoder.take(&mut bytes, &LIMITS, |incoming| {
            arrived.push_back(match incoming {
                MessageRef::Text(text) => SocketMessage::Text(text.to_owned()),
                MessageRef::Binary(payload) => SocketMessage::Binary(payload.to_vec()),
                MessageRef::Ping(payload) => SocketMessage::Ping(payload.to_vec()),
                MessageRef::Pong(payload) => SocketMessage::Pong(payload.to_vec()),
                MessageRef::Close(said) => SocketMessage::Close(said.map(|(code, reason)| (code, reason.to_owned()))),
            });
        })
    }
}

/// Performs the handshake over a new connection, with a key of these random bytes. Returns the bytes after the answer.
pub async fn open_websocket(
    stream: &mut TcpStream,
    host: &str,
    path: &str,
    subprotocol: Option<&str>,
    random: [u8; 16],
) -> Result<Vec<u8>, ClientSocketError> {
    let key = key_of(random);
    let offer = subprotocol.map_or(String::new(), |name| format!("sec-websocket-protocol: {name}\r\n"));
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n{offer}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    read_answer(stream, &key).await
}

/// Reads the head of the answer; returns the bytes after it.
async fn read_answer(stream: &mut TcpStream, key: &str) -> Result<Vec<u8>, ClientSocketError> {
    let mut answer = Vec::with_capacity(512);
    let end = loop {
        if let Some(at) = memchr::memmem::find(&answer, b"\r\n\r\n") {
            break at + 4;
        }
        if answer.len() > ANSWER_MAX_BYTES || stream.read_buf(&mut answer).await? == 0 {
            return Err(ClientSocketError::Refused("the answer to the handshake is incomplete or too long".to_owned()));
        }
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    if !head.starts_with("HTTP/1.1 101") {
        return Err(ClientSocketError::Refused(String::from_utf8_lossy(&answer).into_owned()));
    }
    let accepted = head.lines().filter_map(|line| line.split_once(':'));
    let accepted = accepted.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-accept"));
    if !accepted.map(|(_, value)| value.trim()).any(|value| value == accept_of(key)) {
        return Err(ClientSocketError::Refused("`Sec-WebSocket-Accept` does not match the key".to_owned()));
    }
    Ok(answer.split_off(end))
}

/// A generator of masks, which protect proxies from crafted bytes. They need not be secret for the uses of this client.
struct Random(u64);

impl Random {
    fn seeded() -> io::Result<Self> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(u64::from_ne_bytes(seed) | 1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn four(&mut self) -> [u8; 4] {
        (self.next() as u32).to_ne_bytes()
    }

    fn sixteen(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next().to_ne_bytes());
        bytes[8..].copy_from_slice(&self.next().to_ne_bytes());
        bytes
    }
}
