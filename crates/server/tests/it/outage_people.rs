//! The users of an outage round: each gets numbers as pushes, and has a device that stays connected, acknowledges, and reconnects when
//! its session ends. Devices of the probe do the same for the probe's pushes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_client::Client;

use super::device::{ConnectFrame, Device, DeviceEvent};
use super::people_crash::{Pusher, uid};
use super::server::Server;

const USERS: usize = 3;
const PUSH_PAUSE: Duration = Duration::from_millis(60);
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long a device waits for a frame before it checks whether it must stop.
const FRAME_WAIT: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Messages that the server sends ahead of a device's acknowledgements. After a disconnect it may send these again.
const SENT_AHEAD_MAX: u64 = 64;

/// A message at its first arrival.
#[derive(Debug)]
struct Received {
    seq: u64,
    payload: String,
    session: u64,
}

/// Messages as one device received them.
#[derive(Default)]
struct DeviceLog {
    messages: Vec<Received>,
    sessions: u64,
    repeats_in_session: u64,
    repeats_after_break: u64,
}

impl DeviceLog {
    /// Records a message. Returns its sequence number.
    fn take(&mut self, message: &Value) -> u64 {
        let seq = message["seq"].as_u64().unwrap();
        let payload = message["payload"].as_str().unwrap();
        match self.messages.iter().rev().find(|known| known.seq == seq) {
            Some(known) => {
                assert_eq!(known.payload, payload, "number {seq} was previously another message");
                let is_same_session = known.session == self.sessions;
                *(if is_same_session { &mut self.repeats_in_session } else { &mut self.repeats_after_break }) += 1;
            }
            None => self.messages.push(Received { seq, payload: payload.to_owned(), session: self.sessions }),
        }
        seq
    }

    /// Checks that no message was repeated while the device was connected, and after a disconnect only messages whose acknowledgement may
    /// have been lost. Each message is acknowledged at once, long before the server would repeat it.
    fn check_repeats(&self, uid: &str) -> String {
        let Self { sessions, repeats_in_session, repeats_after_break, .. } = self;
        assert_eq!(
            *repeats_in_session, 0,
            "{uid} received messages again that it had acknowledged in the same session"
        );
        let breaks = sessions.saturating_sub(1);
        let allowed = breaks * SENT_AHEAD_MAX;
        assert!(*repeats_after_break <= allowed, "{uid}: {repeats_after_break} repeats after {breaks} breaks");
        format!("{breaks} breaks, {repeats_after_break} repeated")
    }
}

/// A device on a thread of its own.
struct DeviceReader {
    uid: String,
    ends: Arc<AtomicBool>,
    log: Arc<Mutex<DeviceLog>>,
    thread: JoinHandle<()>,
}

impl DeviceReader {
    fn begin(uid: String, address: &str) -> Self {
        let (ends, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(DeviceLog::default())));
        let (told, kept) = (Arc::clone(&ends), Arc::clone(&log));
        let (hello, address) = (ConnectFrame::of(&uid, "web").device("d"), address.to_owned());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                match Device::try_connect(&address, &hello, CONNECT_WAIT) {
                    Ok(device) => read_session(device, &kept, &told),
                    Err(_) => std::thread::sleep(CONNECT_PAUSE),
                }
            }
        });
        Self { uid, ends, log, thread }
    }

    fn count(&self) -> u64 {
        self.log.lock().unwrap().messages.len() as u64
    }

    fn has(&self, payload: &str) -> bool {
        self.log.lock().unwrap().messages.iter().rev().any(|message| message.payload == payload)
    }

    fn end(self) -> DeviceLog {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

/// Acknowledges messages until the session ends or the device must stop.
fn read_session(mut device: Device, log: &Mutex<DeviceLog>, ends: &AtomicBool) {
    log.lock().unwrap().sessions += 1;
    while !ends.load(Ordering::Relaxed) {
        match device.next(FRAME_WAIT) {
            DeviceEvent::Frame(frame) => {
                if let Some(message) = frame.get("message") {
                    let seq = log.lock().unwrap().take(message);
                    device.ack(seq);
                }
            }
            DeviceEvent::Nothing => {}
            DeviceEvent::Closed(..) | DeviceEvent::Broke => return,
        }
    }
    device.leave();
}

/// A connected device for each partition of the pushes.
pub struct ProbeDevices(Vec<DeviceReader>);

impl ProbeDevices {
    /// The users must be in the order of their partitions.
    pub fn begin(server: &Server, users: impl Iterator<Item = String>) -> Self {
        Self(users.map(|uid| DeviceReader::begin(uid, server.address())).collect())
    }

    pub fn uid(&self, partition: u32) -> &str {
        &self.0[partition as usize].uid
    }

    pub fn has(&self, partition: u32, payload: &str) -> bool {
        self.0[partition as usize].has(payload)
    }

    /// Disconnects the devices, and checks that no message was repeated.
    pub fn check(self) {
        for device in self.0 {
            let uid = device.uid.clone();
            device.end().check_repeats(&uid);
        }
    }
}

pub struct Users {
    pushers: Vec<Pusher>,
    devices: Vec<DeviceReader>,
}

impl Users {
    pub fn begin(server: &Server) -> Self {
        let url = Arc::new(Mutex::new(server.url.clone()));
        let devices = (0..USERS).map(|user| DeviceReader::begin(uid(user), server.address())).collect();
        let pushers = (0..USERS).map(|user| Pusher::begin(user, Arc::clone(&url), PUSH_PAUSE)).collect();
        Self { pushers, devices }
    }

    /// Stops pushing, waits until every device has every acknowledged push, and checks order, repeats and inboxes.
    pub async fn check(self, client: &Client, within: Duration) -> String {
        let acknowledged: Vec<u64> = self.pushers.into_iter().map(Pusher::end).collect();
        let began = Instant::now();
        let mut repeats = Vec::new();
        for (user, (device, count)) in self.devices.into_iter().zip(&acknowledged).enumerate() {
            while device.count() < *count {
                let received = device.count();
                assert!(began.elapsed() < within, "{} has {received} of {count} pushes after {within:?}", uid(user));
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            wait_for_empty_inbox(client, user, *count, began, within).await;
            let log = device.end();
            repeats.push(log.check_repeats(&uid(user)));
            let seqs = log.messages.iter().map(|message| message.seq);
            assert!(seqs.is_sorted(), "{} received messages out of order", uid(user));
            let numbers: Vec<u64> = log.messages.iter().map(|message| message.payload.parse().unwrap()).collect();
            let expected: Vec<u64> = (0..numbers.len() as u64).collect();
            assert_eq!(numbers, expected, "{} received other messages than were pushed", uid(user));
            assert!(numbers.len() as u64 <= count + 1, "{} received more messages than were pushed", uid(user));
        }
        format!("pushes: {acknowledged:?} acknowledged; {}", repeats.join("; "))
    }
}

/// Waits until the inbox has at most one push, which was not acknowledged to its pusher.
async fn wait_for_empty_inbox(client: &Client, user: usize, count: u64, began: Instant, within: Duration) {
    loop {
        let stored = match client.inbox(&uid(user), None).await {
            Ok(inbox) => {
                let numbers = inbox.messages.iter().filter_map(|message| message.payload.as_deref()?.parse().ok());
                numbers.filter(|number: &u64| *number < count).count().to_string()
            }
            Err(error) => error.to_string(),
        };
        if stored == "0" {
            return;
        }
        assert!(began.elapsed() < within, "the inbox of {} is not empty: {stored}", uid(user));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
