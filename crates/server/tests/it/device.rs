//! A device under test: a WebSocket to a test's own server. It records every frame, answers pings, and acknowledges only on request.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use whimbrel_model::CloseCode;
use whimbrel_people::gateway::websocket::{ClientSocket, SocketMessage};

use super::server::{PATIENCE, Server};

/// Long enough that a forbidden frame would have arrived.
const A_WHILE: Duration = Duration::from_millis(300);

/// The first frame of a device.
#[derive(Debug, Clone, Default)]
pub struct ConnectFrame {
    pub uid: String,
    pub platform: String,
    pub device: String,
    pub token: Option<String>,
    pub resume: Option<(String, u64)>,
}

impl ConnectFrame {
    pub fn of(uid: &str, platform: &str) -> Self {
        Self { uid: uid.to_owned(), platform: platform.to_owned(), ..Self::default() }
    }

    pub fn device(mut self, device: &str) -> Self {
        self.device = device.to_owned();
        self
    }

    pub fn resume(mut self, epoch: &str, cursor: u64) -> Self {
        self.resume = Some((epoch.to_owned(), cursor));
        self
    }

    fn frame(&self) -> Value {
        let mut connect = json!({ "platform": self.platform, "device": self.device });
        match &self.token {
            Some(token) => connect["token"] = token.as_str().into(),
            None => connect["uid"] = self.uid.as_str().into(),
        }
        if let Some((epoch, cursor)) = &self.resume {
            connect["resume"] = json!({ "epoch": epoch, "cursor": cursor });
        }
        json!({ "connect": connect })
    }
}

/// The next event of a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceEvent {
    Frame(Value),
    Closed(u16, String),
    /// The stream ended without a close frame, or broke.
    Broke,
    /// No frame within the time.
    Nothing,
}

pub struct Device {
    runtime: Runtime,
    socket: ClientSocket,
    /// The content of `connected`; `null` if the connection was rejected.
    pub connected: Value,
}

impl Device {
    /// Connects, and expects success.
    pub fn connect(server: &Server, hello: &ConnectFrame) -> Self {
        Self::try_connect(server.address(), hello, PATIENCE)
            .unwrap_or_else(|reason| panic!("{hello:?} was answered with {reason}"))
    }

    /// Connects to a server that has just started again. Reconnects, as a client must, while the user's partition has no owner.
    pub fn connect_after_kill(server: &Server, hello: &ConnectFrame) -> Self {
        let (began, no_owner) = (Instant::now(), format!("Closed({}", CloseCode::NoOwner.number()));
        loop {
            match Self::try_connect(server.address(), hello, PATIENCE) {
                Ok(device) => return device,
                Err(reason) if reason.starts_with(&no_owner) && began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(reason) => panic!("{hello:?} was answered with {reason}"),
            }
        }
    }

    /// Connects. The error is the reason if the server rejects it or does not answer within that time.
    pub fn try_connect(address: &str, hello: &ConnectFrame, within: Duration) -> Result<Self, String> {
        let mut device = Self::open_at(address)?;
        device.say(&hello.frame());
        match device.next(within) {
            DeviceEvent::Frame(frame) if frame.get("connected").is_some() => {
                device.connected = frame["connected"].clone()
            }
            other => return Err(format!("{other:?}")),
        }
        Ok(device)
    }

    /// Connects, expects a rejection, and returns its code and reason.
    pub fn refused(server: &Server, hello: &ConnectFrame) -> (u16, String) {
        let mut device = Self::open(server);
        device.say(&hello.frame());
        device.closed()
    }

    /// A connection that has sent no frame yet.
    pub fn open(server: &Server) -> Self {
        Self::open_at(server.address()).unwrap()
    }

    fn open_at(address: &str) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let opening = ClientSocket::connect(address, address, "/v1/connect", Some("whimbrel.v1.json"));
        let socket = runtime.block_on(opening).map_err(|error| error.to_string())?;
        Ok(Self { runtime, socket, connected: Value::Null })
    }

    pub fn epoch(&self) -> String {
        self.connected["epoch"].as_str().unwrap().to_owned()
    }

    pub fn session(&self) -> String {
        self.connected["session"].as_str().unwrap().to_owned()
    }

    pub fn say(&mut self, frame: &Value) {
        self.say_text(&frame.to_string());
    }

    pub fn say_text(&mut self, text: &str) {
        // The error of a server that has already closed appears on the next read.
        let _ = self.runtime.block_on(self.socket.send_text(text));
    }

    pub fn ack(&mut self, seq: u64) {
        self.say(&json!({ "ack": seq }));
    }

    /// The next event, without pings.
    pub fn next(&mut self, within: Duration) -> DeviceEvent {
        let socket = &mut self.socket;
        let answer = async {
            loop {
                match socket.next().await {
                    Ok(Some(SocketMessage::Text(text))) => {
                        let frame: Value = serde_json::from_str(&text).unwrap();
                        if frame.get("ping").is_some() {
                            let _ = socket.send_text(json!({ "pong": {} }).to_string()).await;
                            continue;
                        }
                        return DeviceEvent::Frame(frame);
                    }
                    Ok(Some(SocketMessage::Close(Some((code, reason))))) => return DeviceEvent::Closed(code, reason),
                    Ok(Some(SocketMessage::Close(None)) | None) | Err(_) => return DeviceEvent::Broke,
                    Ok(Some(_)) => {}
                }
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(within, answer).await }).unwrap_or(DeviceEvent::Nothing)
    }

    /// The next frame, which must be a message.
    pub fn message(&mut self) -> Value {
        match self.next(PATIENCE) {
            DeviceEvent::Frame(frame) if frame.get("message").is_some() => frame["message"].clone(),
            other => panic!("expected a message, got {other:?}"),
        }
    }

    /// Acknowledges this many messages and returns their payloads.
    pub fn take(&mut self, count: usize) -> Vec<String> {
        let mut payloads = Vec::new();
        for _ in 0..count {
            let message = self.message();
            payloads.push(message["payload"].as_str().unwrap().to_owned());
            if let Some(seq) = message["seq"].as_u64() {
                self.ack(seq);
            }
        }
        payloads
    }

    /// The next frame, which must have that name.
    pub fn frame(&mut self, name: &str) -> Value {
        match self.next(PATIENCE) {
            DeviceEvent::Frame(frame) if frame.get(name).is_some() => frame[name].clone(),
            other => panic!("expected `{name}`, got {other:?}"),
        }
    }

    /// Expects no frame for a while.
    pub fn silence(&mut self) {
        assert_eq!(self.next(A_WHILE), DeviceEvent::Nothing);
    }

    /// Reads until the connection is closed, and returns the code and reason.
    pub fn closed(&mut self) -> (u16, String) {
        loop {
            match self.next(PATIENCE) {
                DeviceEvent::Closed(code, reason) => return (code, reason),
                DeviceEvent::Frame(_) => {}
                other => panic!("expected a close, got {other:?}"),
            }
        }
    }

    /// Closes normally, so that the server has read all frames.
    pub fn leave(mut self) {
        let socket = &mut self.socket;
        self.runtime.block_on(async {
            let _ = socket.send(&SocketMessage::Close(Some((1000, String::new())))).await;
            while let Ok(Some(_)) = socket.next().await {}
        });
    }
}
