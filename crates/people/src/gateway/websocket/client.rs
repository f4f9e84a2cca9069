//! The client's side over a TCP stream: what the terminal client and the bench connect with.
//!
//! It is a plain client, not a library for everybody: no TLS, no redirects, no extensions.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, ToSocketAddrs};

use super::decoder::{Decoder, Incoming, Limits, Role, Violation};
use super::frame::{Opcode, encode, encode_close};
use super::handshake::{accept_of, key_of};

/// Bytes of an answer to the handshake.
const ANSWER_MAX_BYTES: usize = 16 << 10;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// What a server may send at most: the largest payload, in base64, and what is around it.
const LIMITS: Limits = Limits { frame_bytes: 64 << 20, message_bytes: 64 << 20 };

/// What came, or is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The answer, its body included as far as it had come.
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server broke the protocol: {0}")]
    Violation(#[from] Violation),
}

/// A connection that the handshake was made on.
pub struct ClientSocket {
    stream: TcpStream,
    decoder: Decoder,
    arrived: VecDeque<Message>,
    random: Random,
}

impl ClientSocket {
    /// Connects and shakes hands. `host` is what the request says it is for.
    pub async fn connect(
        address: impl ToSocketAddrs,
        host: &str,
        path: &str,
        subprotocol: Option<&str>,
    ) -> Result<Self, ClientError> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut random = Random::seeded()?;
        let key = key_of(random.sixteen());
        let offer = subprotocol.map_or(String::new(), |name| format!("sec-websocket-protocol: {name}\r\n"));
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n{offer}\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let rest = read_answer(&mut stream, &key).await?;
        let mut socket = Self { stream, decoder: Decoder::new(Role::Client), arrived: VecDeque::new(), random };
        socket.take(rest)?;
        Ok(socket)
    }

    pub async fn send(&mut self, message: &Message) -> Result<(), ClientError> {
        let mut bytes = Vec::new();
        let mask = Some(self.random.four());
        match message {
            Message::Text(text) => encode(&mut bytes, Opcode::Text, text.as_bytes(), mask),
            Message::Binary(payload) => encode(&mut bytes, Opcode::Binary, payload, mask),
            Message::Ping(payload) => encode(&mut bytes, Opcode::Ping, payload, mask),
            Message::Pong(payload) => encode(&mut bytes, Opcode::Pong, payload, mask),
            Message::Close(Some((code, reason))) => encode_close(&mut bytes, *code, reason, mask),
            Message::Close(None) => encode(&mut bytes, Opcode::Close, &[], mask),
        }
        Ok(self.stream.write_all(&bytes).await?)
    }

    pub async fn send_text(&mut self, text: impl Into<String>) -> Result<(), ClientError> {
        self.send(&Message::Text(text.into())).await
    }

    /// What comes next; `None` once the server has closed the stream. Pings are answered by themselves and handed over too. May be given
    /// up while it waits without losing anything.
    pub async fn next(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = self.arrived.pop_front() {
                if let Message::Ping(payload) = &message {
                    let pong = Message::Pong(payload.clone());
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

    fn take(&mut self, mut bytes: Vec<u8>) -> Result<(), Violation> {
        let arrived = &mut self.arrived;
        self.decoder.take(&mut bytes, &LIMITS, |incoming| {
            arrived.push_back(match incoming {
                Incoming::Text(text) => Message::Text(text.to_owned()),
                Incoming::Binary(payload) => Message::Binary(payload.to_vec()),
                Incoming::Ping(payload) => Message::Ping(payload.to_vec()),
                Incoming::Pong(payload) => Message::Pong(payload.to_vec()),
                Incoming::Close(said) => Message::Close(said.map(|(code, reason)| (code, reason.to_owned()))),
            });
        })
    }
}

/// Reads the answer's head; returns what came after it.
async fn read_answer(stream: &mut TcpStream, key: &str) -> Result<Vec<u8>, ClientError> {
    let mut answer = Vec::with_capacity(512);
    let end = loop {
        if let Some(at) = memchr::memmem::find(&answer, b"\r\n\r\n") {
            break at + 4;
        }
        if answer.len() > ANSWER_MAX_BYTES || stream.read_buf(&mut answer).await? == 0 {
            return Err(ClientError::Refused("its answer to the handshake has no end".to_owned()));
        }
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    if !head.starts_with("HTTP/1.1 101") {
        return Err(ClientError::Refused(String::from_utf8_lossy(&answer).into_owned()));
    }
    let accepted = head.lines().filter_map(|line| line.split_once(':'));
    let accepted = accepted.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-accept"));
    if !accepted.map(|(_, value)| value.trim()).any(|value| value == accept_of(key)) {
        return Err(ClientError::Refused("its answer is not to this handshake".to_owned()));
    }
    Ok(answer.split_off(end))
}

/// Masks, so that nothing in between takes what a client sends for something else. They need not be secret for this client's uses.
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
