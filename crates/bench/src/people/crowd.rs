//! The crowd: many devices in one lean process. `whimbrel bench crowd` runs it. It reads orders as lines of JSON from standard input, and
//! answers each with one line on standard output.
//!
//! A device is a small task that waits for its socket. It finds the fields of a frame without parsing it, and acknowledges all messages of
//! one read at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use whimbrel_people::gateway::websocket::{Decoder, Limits, MessageRef, Opcode, Role, encode, open_websocket};

use super::super::histogram::Histogram;
use super::crowd_process::CrowdIdentity;
use super::token::token_of;
use crate::BenchError;

/// Bytes of one read, into a buffer that all devices share.
const READ_BYTES: usize = 64 << 10;
const LIMITS: Limits = Limits { frame_bytes: 16 << 20, message_bytes: 16 << 20 };
/// The mask has no purpose here; any value works.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
const CONNECT_WAIT: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrowdOrder {
    /// Connects the users with these numbers, at most this many concurrently.
    Open {
        address: SocketAddr,
        first: u32,
        count: u32,
        at_once: usize,
        identity: CrowdIdentity,
        #[serde(default)]
        speaks: CrowdProtocol,
        /// Acknowledge no messages, so that stored messages stay in the inbox.
        #[serde(default)]
        mute: bool,
    },
    /// Drops every connection without a close frame.
    Drop,
    Figures,
    Reset,
}

/// The protocol of the devices. `scripts/compare` runs the same crowd with another server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrowdProtocol {
    #[default]
    Whimbrel,
    Centrifugo,
}

#[derive(Debug, Clone, Copy)]
struct DeviceBehaviour {
    identity: CrowdIdentity,
    speaks: CrowdProtocol,
    mute: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CrowdReply {
    pub connected: u64,
    pub failed: u64,
    pub first_failure: Option<String>,
    pub took: Duration,
    /// Messages received, and those of them that were acknowledged.
    pub messages: u64,
    pub acknowledged: u64,
    /// Time since the crowd started, by its own clock.
    pub at: Duration,
    /// Latency from the time in a payload to its arrival.
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
    /// Time from the handshake's answer to the first message, of the last device that received one.
    pub first_message: Option<Duration>,
}

#[derive(Default)]
struct DeviceCrowd {
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

pub fn uid(number: u32) -> String {
    format!("bench-{number}")
}

/// Runs until its standard input ends.
pub fn run() -> Result<ExitCode, BenchError> {
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
    let crowd = Rc::new(DeviceCrowd::default());
    LocalSet::new().block_on(&runtime, async {
        while let Some(line) = orders.recv().await {
            let order: CrowdOrder = serde_json::from_str(&line).map_err(|error| BenchError::new(error.to_string()))?;
            let ordered = Instant::now();
            crowd.obey(order).await;
            let told = crowd.told(ordered.elapsed(), began.elapsed());
            let mut stdout = io::stdout().lock();
            serde_json::to_writer(&mut stdout, &told).map_err(|error| BenchError::new(error.to_string()))?;
            stdout.write_all(b"\n")?;
            stdout.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

impl DeviceCrowd {
    async fn obey(self: &Rc<Self>, order: CrowdOrder) {
        match order {
            CrowdOrder::Open { address, first, count, at_once, identity, speaks, mute } => {
                self.open(address, first..first + count, at_once, DeviceBehaviour { identity, speaks, mute }).await
            }
            CrowdOrder::Drop => {
                for (_, device) in self.devices.borrow_mut().drain() {
                    device.abort();
                }
                self.connected.set(0);
                // The sockets close when the tasks have been dropped.
                tokio::task::yield_now().await;
            }
            CrowdOrder::Figures => {}
            CrowdOrder::Reset => {
                self.messages.set(0);
                self.acknowledged.set(0);
                self.failed.set(0);
                self.first_message.set(None);
                *self.latency.borrow_mut() = Histogram::default();
                *self.first_failure.borrow_mut() = None;
            }
        }
    }

    fn told(&self, took: Duration, at: Duration) -> CrowdReply {
        let latency = self.latency.borrow();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| latency.quantile(share));
        CrowdReply {
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

    async fn open(
        self: &Rc<Self>,
        address: SocketAddr,
        numbers: std::ops::Range<u32>,
        at_once: usize,
        manner: DeviceBehaviour,
    ) {
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
    crowd: &Rc<DeviceCrowd>,
    address: SocketAddr,
    number: u32,
    manner: DeviceBehaviour,
    turns: &Semaphore,
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let turn = turns.acquire().await.map_err(|error| error.to_string())?;
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let (path, subprotocol) = match manner.speaks {
        CrowdProtocol::Whimbrel => ("/v1/connect", Some("whimbrel.v1.json")),
        CrowdProtocol::Centrifugo => ("/connection/websocket", None),
    };
    let host = address.to_string();
    let opening = open_websocket(&mut stream, &host, path, subprotocol, [7; 16]);
    let rest = opening.await.map_err(|error| error.to_string())?;
    let shaken = Instant::now();
    stream.write_all(&first_frame(number, manner)).await.map_err(failed)?;
    let decoder = Decoder::new(Role::Client);
    let mut device = CrowdDevice { decoder, manner, shaken, is_in: false, has_message: false };
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
            return Err("the server closed a connection".to_owned());
        }
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

fn first_frame(number: u32, manner: DeviceBehaviour) -> Vec<u8> {
    let uid = uid(number);
    let said = match (manner.speaks, manner.identity) {
        (CrowdProtocol::Whimbrel, CrowdIdentity::Token) => {
            serde_json::json!({ "connect": { "token": token_of(&uid), "platform": "bench", "device": "d" } })
        }
        (CrowdProtocol::Whimbrel, CrowdIdentity::Uid) => {
            serde_json::json!({ "connect": { "uid": uid, "platform": "bench", "device": "d" } })
        }
        (CrowdProtocol::Centrifugo, _) => serde_json::json!({ "id": 1, "connect": { "token": token_of(&uid) } }),
    };
    let mut frame = Vec::new();
    encode(&mut frame, Opcode::Text, said.to_string().as_bytes(), Some(MASK));
    frame
}

struct CrowdDevice {
    decoder: Decoder,
    manner: DeviceBehaviour,
    shaken: Instant,
    is_in: bool,
    has_message: bool,
}

impl CrowdDevice {
    /// Consumes received bytes, and appends the replies to `answers`.
    fn take(&mut self, bytes: &mut [u8], crowd: &DeviceCrowd, answers: &mut Vec<u8>) -> Result<(), String> {
        let (mut highest, mut stored, mut closed) = (None, 0, None);
        let Self { decoder, manner, shaken, is_in, has_message } = self;
        decoder
            .take(bytes, &LIMITS, |incoming| match incoming {
                MessageRef::Text(text) if manner.speaks == CrowdProtocol::Centrifugo => {
                    for line in text.lines() {
                        match line.get(..7) {
                            Some("{\"push\"") => crowd.messages.set(crowd.messages.get() + 1),
                            None => encode(answers, Opcode::Text, b"{}", Some(MASK)),
                            Some(_) => *is_in |= line.contains("\"connect\""),
                        }
                    }
                }
                MessageRef::Text(text) if text.starts_with("{\"message\"") => {
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
                MessageRef::Text(text) if text.starts_with("{\"connected\"") => *is_in = true,
                MessageRef::Text(text) if text.starts_with("{\"ping\"") => {
                    encode(answers, Opcode::Text, br#"{"pong":{}}"#, Some(MASK));
                }
                MessageRef::Ping(payload) => encode(answers, Opcode::Pong, payload, Some(MASK)),
                MessageRef::Close(said) => closed = Some(format!("the server closed a device: {said:?}")),
                MessageRef::Text(_) | MessageRef::Binary(_) | MessageRef::Pong(_) => {}
            })
            .map_err(|violation| violation.to_string())?;
        if let Some(seq) = highest.filter(|_| !manner.mute) {
            crowd.acknowledged.set(crowd.acknowledged.get() + stored);
            encode(answers, Opcode::Text, format!("{{\"ack\":{seq}}}").as_bytes(), Some(MASK));
        }
        closed.map_or(Ok(()), Err)
    }
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = &text[text.find(name)? + name.len()..];
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

/// Time since these nanoseconds since 1970.
fn since(nanos: u64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(Duration::from_nanos(nanos)))
}
