//! A device under test: a WebSocket to a server of a test's own. It shows every frame, answers pings, and acknowledges only when told.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use whimbrel_people::gateway::websocket::{ClientSocket, Message};

use super::server::{PATIENCE, Server};

/// Long enough that something which must not come would have come.
const A_WHILE: Duration = Duration::from_millis(300);

/// What a device says first.
#[derive(Debug, Clone, Default)]
pub struct Hello {
    pub uid: String,
    pub platform: String,
    pub device: String,
    pub token: Option<String>,
    pub resume: Option<(String, u64)>,
}

impl Hello {
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

/// Something that came.
#[derive(Debug, Clone, PartialEq)]
pub enum Came {
    Frame(Value),
    Closed(u16, String),
    /// The stream ended without a word, or broke.
    Broke,
    /// Nothing within the time.
    Nothing,
}

pub struct Device {
    runtime: Runtime,
    socket: ClientSocket,
    /// What `connected` said; `null` where it was refused.
    pub connected: Value,
}

impl Device {
    /// Connects and is let in.
    pub fn connect(server: &Server, hello: &Hello) -> Self {
        let mut device = Self::open(server);
        device.say(&hello.frame());
        match device.next(PATIENCE) {
            Came::Frame(frame) if frame.get("connected").is_some() => device.connected = frame["connected"].clone(),
            other => panic!("{hello:?} was answered with {other:?}"),
        }
        device
    }

    /// The same where the server may refuse, or not answer within that time: the reason is the error.
    pub fn try_connect(address: &str, hello: &Hello, within: Duration) -> Result<Self, String> {
        let mut device = Self::open_at(address)?;
        device.say(&hello.frame());
        match device.next(within) {
            Came::Frame(frame) if frame.get("connected").is_some() => device.connected = frame["connected"].clone(),
            other => return Err(format!("{other:?}")),
        }
        Ok(device)
    }

    /// The same where it is turned away: what it was told.
    pub fn refused(server: &Server, hello: &Hello) -> (u16, String) {
        let mut device = Self::open(server);
        device.say(&hello.frame());
        device.closed()
    }

    /// A connection that has said nothing yet.
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
        // A server that has closed already says so when it is read from.
        let _ = self.runtime.block_on(self.socket.send_text(text));
    }

    pub fn ack(&mut self, seq: u64) {
        self.say(&json!({ "ack": seq }));
    }

    /// What comes next, pings aside.
    pub fn next(&mut self, within: Duration) -> Came {
        let socket = &mut self.socket;
        let answer = async {
            loop {
                match socket.next().await {
                    Ok(Some(Message::Text(text))) => {
                        let frame: Value = serde_json::from_str(&text).unwrap();
                        if frame.get("ping").is_some() {
                            let _ = socket.send_text(json!({ "pong": {} }).to_string()).await;
                            continue;
                        }
                        return Came::Frame(frame);
                    }
                    Ok(Some(Message::Close(Some((code, reason))))) => return Came::Closed(code, reason),
                    Ok(Some(Message::Close(None)) | None) | Err(_) => return Came::Broke,
                    Ok(Some(_)) => {}
                }
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(within, answer).await }).unwrap_or(Came::Nothing)
    }

    /// The next frame, which is a message.
    pub fn message(&mut self) -> Value {
        match self.next(PATIENCE) {
            Came::Frame(frame) if frame.get("message").is_some() => frame["message"].clone(),
            other => panic!("a message was to come, not {other:?}"),
        }
    }

    /// The next messages, each acknowledged: their payloads.
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

    /// The frame of that name, which is the next one.
    pub fn frame(&mut self, name: &str) -> Value {
        match self.next(PATIENCE) {
            Came::Frame(frame) if frame.get(name).is_some() => frame[name].clone(),
            other => panic!("`{name}` was to come, not {other:?}"),
        }
    }

    /// Nothing comes for a while.
    pub fn silence(&mut self) {
        assert_eq!(self.next(A_WHILE), Came::Nothing);
    }

    /// Reads until it is closed: what it was told.
    pub fn closed(&mut self) -> (u16, String) {
        loop {
            match self.next(PATIENCE) {
                Came::Closed(code, reason) => return (code, reason),
                Came::Frame(_) => {}
                other => panic!("it was to be closed, not {other:?}"),
            }
        }
    }

    /// Ends in order, so that everything it said was read before.
    pub fn leave(mut self) {
        let socket = &mut self.socket;
        self.runtime.block_on(async {
            let _ = socket.send(&Message::Close(Some((1000, String::new())))).await;
            while let Ok(Some(_)) = socket.next().await {}
        });
    }
}
