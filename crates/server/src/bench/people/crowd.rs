//! The crowd: many devices in one process, as lean as they can be. `whimbrel bench crowd` runs it; orders come as lines of JSON on its standard
//! input, each is answered with one line on its standard output.
//!
//! A device is a small task that waits for its socket. It finds what it needs in a frame without parsing it, and acknowledges once for
//! everything that one read brought.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use whimbrel_people::gateway::websocket::handshake::key_of;
use whimbrel_people::gateway::websocket::{Decoder, Incoming, Limits, Opcode, Role, encode};

use super::super::histogram::Histogram;
use super::crowd_process::Identity;
use super::token::token_of;
use crate::cli::Failure;

/// Bytes that one read takes, into a buffer that all devices share.
const READ_BYTES: usize = 64 << 10;
const LIMITS: Limits = Limits { frame_bytes: 16 << 20, message_bytes: 16 << 20 };
/// Masks hide nothing here; any will do.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
/// How long an order to connect may take in all.
const CONNECT_WAIT: Duration = Duration::from_secs(120);
/// Bytes of an answer to a handshake.
const ANSWER_MAX_BYTES: usize = 4096;

/// What the crowd is told to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Connects the users of these numbers, so many of them at the same time.
    Open {
        address: SocketAddr,
        first: u32,
        count: u32,
        at_once: usize,
        identity: Identity,
        #[serde(default)]
        speaks: Speaks,
        /// Acknowledge nothing, so that what is stored stays stored.
        #[serde(default)]
        mute: bool,
    },
    /// Drops every connection, without a word.
    Drop,
    Figures,
    /// Counts from nothing again.
    Reset,
}

/// Whose devices they are. `scripts/compare` has the same crowd at another server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaks {
    #[default]
    Whimbrel,
    Centrifugo,
}

/// How devices behave.
#[derive(Debug, Clone, Copy)]
struct Manner {
    identity: Identity,
    speaks: Speaks,
    mute: bool,
}

/// What the crowd answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Told {
    pub connected: u64,
    pub failed: u64,
    pub first_failure: Option<String>,
    /// How long the order took.
    pub took: Duration,
    /// Messages that came, and those of them that were acknowledged.
    pub messages: u64,
    pub acknowledged: u64,
    /// By the crowd's clock, since it began.
    pub at: Duration,
    /// From the time that a payload says to its arrival.
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
    /// From the handshake's answer to the first message, of the last device that had one.
    pub first_message: Option<Duration>,
}

#[derive(Default)]
struct Crowd {
    connected: Cell<u64>,
    failed: Cell<u64>,
    first_failure: RefCell<Option<String>>,
    messages: Cell<u64>,
    acknowledged: Cell<u64>,
    latency: RefCell<Histogram>,
    first_message: Cell<Option<Duration>>,
    settled: Notify,
    devices: RefCell<HashMap<u32, JoinHandle<()>>>,
}

/// The user of that number.
pub fn uid(number: u32) -> String {
    format!("bench-{number}")
}

/// Obeys until its standard input ends.
pub fn run() -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (lines, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let began = Instant::now();
    let crowd = Rc::new(Crowd::default());
    LocalSet::new().block_on(&runtime, async {
        while let Some(line) = orders.recv().await {
            let order: Order = serde_json::from_str(&line).map_err(|error| Failure::new(error.to_string()))?;
            let ordered = Instant::now();
            crowd.obey(order).await;
            let told = crowd.told(ordered.elapsed(), began.elapsed());
            let mut stdout = io::stdout().lock();
            serde_json::to_writer(&mut stdout, &told).map_err(|error| Failure::new(error.to_string()))?;
            stdout.write_all(b"\n")?;
            stdout.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

impl Crowd {
    async fn obey(self: &Rc<Self>, order: Order) {
        match order {
            Order::Open { address, first, count, at_once, identity, speaks, mute } => {
                self.open(address, first..first + count, at_once, Manner { identity, speaks, mute }).await
            }
            Order::Drop => {
                for (_, device) in self.devices.borrow_mut().drain() {
                    device.abort();
                }
                self.connected.set(0);
                // The sockets close when the tasks have been dropped.
                tokio::task::yield_now().await;
            }
            Order::Figures => {}
            Order::Reset => {
                self.messages.set(0);
                self.acknowledged.set(0);
                self.failed.set(0);
                self.first_message.set(None);
                *self.latency.borrow_mut() = Histogram::default();
                *self.first_failure.borrow_mut() = None;
            }
        }
    }

    fn told(&self, took: Duration, at: Duration) -> Told {
        let latency = self.latency.borrow();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| latency.quantile(share));
        Told {
            connected: self.connected.get(),
            failed: self.failed.get(),
            first_failure: self.first_failure.borrow().clone(),
            took,
            messages: self.messages.get(),
            acknowledged: self.acknowledged.get(),
            at,
            p50,
            p99,
            max,
            first_message: self.first_message.get(),
        }
    }

    async fn open(self: &Rc<Self>, address: SocketAddr, numbers: std::ops::Range<u32>, at_once: usize, manner: Manner) {
        let wanted = self.connected.get() + self.failed.get() + u64::from(numbers.end - numbers.start);
        let turns = Rc::new(Semaphore::new(at_once.max(1)));
        for number in numbers {
            let (crowd, turns) = (Rc::clone(self), Rc::clone(&turns));
            let device = spawn_local(async move {
                let outcome = live(&crowd, address, number, manner, &turns).await;
                if let Err(why) = outcome {
                    crowd.failed.set(crowd.failed.get() + 1);
                    crowd.first_failure.borrow_mut().get_or_insert(why);
                    crowd.settled.notify_one();
                }
            });
            self.devices.borrow_mut().insert(number, device);
        }
        let all = async {
            while self.connected.get() + self.failed.get() < wanted {
                self.settled.notified().await;
            }
        };
        let _ = tokio::time::timeout(CONNECT_WAIT, all).await;
    }
}

/// One device, from its connection to its end.
async fn live(
    crowd: &Rc<Crowd>,
    address: SocketAddr,
    number: u32,
    manner: Manner,
    turns: &Semaphore,
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let turn = turns.acquire().await.map_err(|error| error.to_string())?;
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let (shaken, rest) = shake_hands(&mut stream, address, manner.speaks).await.map_err(failed)?;
    stream.write_all(&first_frame(number, manner)).await.map_err(failed)?;
    let decoder = Decoder::new(Role::Client);
    let mut device = Device { decoder, manner, shaken, is_in: false, has_message: false };
    let mut answers = Vec::new();
    let mut turn = Some(turn);
    let mut early = Some(rest);
    loop {
        let count = match early.take() {
            Some(mut rest) => {
                device.take(&mut rest, crowd, &mut answers)?;
                rest.len()
            }
            None => {
                stream.readable().await.map_err(failed)?;
                BUFFER.with_borrow_mut(|buffer| match stream.try_read(buffer) {
                    Ok(count) => device.take(&mut buffer[..count], crowd, &mut answers).map(|()| count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(usize::MAX),
                    Err(error) => Err(error.to_string()),
                })?
            }
        };
        if device.is_in && turn.take().is_some() {
            crowd.connected.set(crowd.connected.get() + 1);
            crowd.settled.notify_one();
        }
        if !answers.is_empty() {
            stream.write_all(&answers).await.map_err(failed)?;
            answers = Vec::new();
        }
        if count == 0 && device.is_in {
            crowd.connected.set(crowd.connected.get().saturating_sub(1));
            return Err("the server ended a connection".to_owned());
        }
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

fn first_frame(number: u32, manner: Manner) -> Vec<u8> {
    let uid = uid(number);
    let said = match (manner.speaks, manner.identity) {
        (Speaks::Whimbrel, Identity::Token) => {
            serde_json::json!({ "connect": { "token": token_of(&uid), "platform": "bench", "device": "d" } })
        }
        (Speaks::Whimbrel, Identity::Uid) => {
            serde_json::json!({ "connect": { "uid": uid, "platform": "bench", "device": "d" } })
        }
        (Speaks::Centrifugo, _) => serde_json::json!({ "id": 1, "connect": { "token": token_of(&uid) } }),
    };
    let mut frame = Vec::new();
    encode(&mut frame, Opcode::Text, said.to_string().as_bytes(), Some(MASK));
    frame
}

/// When the answer had come, and what came behind it.
async fn shake_hands(stream: &mut TcpStream, address: SocketAddr, speaks: Speaks) -> io::Result<(Instant, Vec<u8>)> {
    let key = key_of([7; 16]);
    let (path, offer) = match speaks {
        Speaks::Whimbrel => ("/v1/connect", "sec-websocket-protocol: whimbrel.v1.json\r\n"),
        Speaks::Centrifugo => ("/connection/websocket", ""),
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n{offer}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::with_capacity(512);
    loop {
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            if !answer.starts_with(b"HTTP/1.1 101") {
                let first_line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
                return Err(io::Error::other(format!("the handshake was answered with {first_line}")));
            }
            return Ok((Instant::now(), answer.split_off(end + 4)));
        }
        if answer.len() > ANSWER_MAX_BYTES || stream.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::other("the handshake was not answered"));
        }
    }
}

struct Device {
    decoder: Decoder,
    manner: Manner,
    shaken: Instant,
    is_in: bool,
    has_message: bool,
}

impl Device {
    /// Takes what came, and writes what it answers behind `answers`.
    fn take(&mut self, bytes: &mut [u8], crowd: &Crowd, answers: &mut Vec<u8>) -> Result<(), String> {
        let (mut highest, mut stored, mut closed) = (None, 0, None);
        let Self { decoder, manner, shaken, is_in, has_message } = self;
        decoder
            .take(bytes, &LIMITS, |incoming| match incoming {
                Incoming::Text(text) if manner.speaks == Speaks::Centrifugo => {
                    for line in text.lines() {
                        match line.get(..7) {
                            Some("{\"push\"") => crowd.messages.set(crowd.messages.get() + 1),
                            None => encode(answers, Opcode::Text, b"{}", Some(MASK)),
                            Some(_) => *is_in |= line.contains("\"connect\""),
                        }
                    }
                }
                Incoming::Text(text) if text.starts_with("{\"message\"") => {
                    crowd.messages.set(crowd.messages.get() + 1);
                    if !std::mem::replace(has_message, true) {
                        crowd.first_message.set(Some(shaken.elapsed()));
                    }
                    if let Some(seq) = number_after(text, "\"seq\":") {
                        highest = Some(seq);
                        stored += 1;
                    }
                    if let Some(took) = number_after(text, "\"payload\":\"").and_then(since) {
                        crowd.latency.borrow_mut().record(took);
                    }
                }
                Incoming::Text(text) if text.starts_with("{\"connected\"") => *is_in = true,
                Incoming::Text(text) if text.starts_with("{\"ping\"") => {
                    encode(answers, Opcode::Text, br#"{"pong":{}}"#, Some(MASK));
                }
                Incoming::Ping(payload) => encode(answers, Opcode::Pong, payload, Some(MASK)),
                Incoming::Close(said) => closed = Some(format!("a device was closed: {said:?}")),
                Incoming::Text(_) | Incoming::Binary(_) | Incoming::Pong(_) => {}
            })
            .map_err(|violation| violation.to_string())?;
        if let Some(seq) = highest.filter(|_| !manner.mute) {
            crowd.acknowledged.set(crowd.acknowledged.get() + stored);
            encode(answers, Opcode::Text, format!("{{\"ack\":{seq}}}").as_bytes(), Some(MASK));
        }
        closed.map_or(Ok(()), Err)
    }
}

/// The number that stands behind a member's name.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = &text[text.find(name)? + name.len()..];
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

/// How long ago those nanoseconds since 1970 were.
fn since(nanos: u64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(Duration::from_nanos(nanos)))
}
