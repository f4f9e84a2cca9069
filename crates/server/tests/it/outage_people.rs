//! The users of an outage round: numbers are pushed to each, and a device of each stays connected, acknowledges, and connects again whenever
//! its session ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use whimbrel_client::Client;

use super::device::{Came, Device, Hello};
use super::people_crash::{Pusher, Seen, uid};
use super::server::Server;

const USERS: usize = 3;
const PUSH_PAUSE: Duration = Duration::from_millis(60);
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long a device waits for a frame before it checks whether it is done.
const FRAME_WAIT: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The device waits for messages until it is told their number.
const NOT_KNOWN: u64 = u64::MAX;

pub struct Users {
    pushers: Vec<Pusher>,
    devices: Vec<DeviceReader>,
}

/// A device on a thread of its own.
struct DeviceReader {
    /// Messages after which the device is done.
    expected: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    thread: JoinHandle<Seen>,
}

impl DeviceReader {
    fn begin(user: usize, address: String) -> Self {
        let (expected, received) = (Arc::new(AtomicU64::new(NOT_KNOWN)), Arc::new(AtomicU64::new(0)));
        let (wanted, counted) = (Arc::clone(&expected), Arc::clone(&received));
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let hello = Hello::of(&uid(user), "web").device("d");
            let is_done = |seen: &Seen| seen.messages.len() as u64 >= wanted.load(Ordering::Relaxed);
            while !is_done(&seen) {
                let Ok(mut device) = Device::try_connect(&address, &hello, CONNECT_WAIT) else {
                    std::thread::sleep(CONNECT_PAUSE);
                    continue;
                };
                while !is_done(&seen) {
                    match device.next(FRAME_WAIT) {
                        Came::Frame(frame) => {
                            if let Some(message) = frame.get("message") {
                                let seq = seen.take(message);
                                device.ack(seq);
                                counted.store(seen.messages.len() as u64, Ordering::Relaxed);
                            }
                        }
                        Came::Nothing => {}
                        Came::Closed(..) | Came::Broke => break,
                    }
                }
                if is_done(&seen) {
                    device.leave();
                }
            }
            seen
        });
        Self { expected, received, thread }
    }
}

impl Users {
    pub fn begin(server: &Server) -> Self {
        let url = Arc::new(Mutex::new(server.url.clone()));
        let devices = (0..USERS).map(|user| DeviceReader::begin(user, server.address().to_owned())).collect();
        let pushers = (0..USERS).map(|user| Pusher::begin(user, Arc::clone(&url), PUSH_PAUSE)).collect();
        Self { pushers, devices }
    }

    /// Ends the pushing, waits until every device has every acknowledged push, and checks order, repeats and inboxes.
    pub async fn check(self, client: &Client, within: Duration) -> String {
        let acknowledged: Vec<u64> = self.pushers.into_iter().map(Pusher::end).collect();
        let began = Instant::now();
        for (user, (device, count)) in self.devices.iter().zip(&acknowledged).enumerate() {
            while device.received.load(Ordering::Relaxed) < *count {
                let received = device.received.load(Ordering::Relaxed);
                assert!(began.elapsed() < within, "{} has {received} of {count} pushes after {within:?}", uid(user));
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        let mut repeated = 0;
        for (user, (device, count)) in self.devices.into_iter().zip(&acknowledged).enumerate() {
            device.expected.store(*count, Ordering::Relaxed);
            let mut seen = device.thread.join().unwrap();
            repeated += seen.again;
            let in_order_of_arrival = seen.messages.clone();
            seen.messages.sort_unstable();
            assert_eq!(seen.messages, in_order_of_arrival, "{} received messages out of order", uid(user));
            let numbers: Vec<u64> = seen.messages.iter().map(|(_, number)| *number).collect();
            let expected: Vec<u64> = (0..numbers.len() as u64).collect();
            assert_eq!(numbers, expected, "{} received other messages than were pushed", uid(user));
            assert!(numbers.len() as u64 <= count + 1, "{} received more than was pushed", uid(user));
            wait_for_empty_inbox(client, user, *count, began, within).await;
        }
        format!("pushes: {acknowledged:?} acknowledged, {repeated} repeated")
    }
}

/// Waits until only a push that was never acknowledged to its pusher may be left.
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
