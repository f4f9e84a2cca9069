//! A server that is kept running, as whoever runs it in earnest does.
//!
//! Kafka's client library takes garbage for a leader where a broker names none, as it does for a topic that was just made or when it has just
//! started (librdkafka's issue 5280; there is no version without it for us to take). Seldom, and more so on a busy machine, a process ends by
//! it, or a partition is never read again. A new start mends both; docs/operating/kafka.md says so to operators. What is proven here is that
//! nothing is lost or doubled either way.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use whimbrel_client::{Client, HoldFilter};

use super::hold_crash::Crew;
use super::server::Server;

/// New starts by which the client library's fault is mended; more would be another fault.
const STARTS_AGAIN_MAX: usize = 2;
/// Holds have certainly ended after this, where their partitions are read.
const END_OF_HOLDS_WAIT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub struct Kept {
    pub server: Server,
    start: Box<dyn FnMut() -> Server>,
    starts_again: usize,
    starts_again_max: usize,
}

impl Kept {
    /// One that must not end by itself.
    pub fn new(mut start: Box<dyn FnMut() -> Server>) -> Self {
        Self { server: start(), start, starts_again: 0, starts_again_max: 0 }
    }

    /// One that may have to be started again.
    pub fn on_kafka(start: Box<dyn FnMut() -> Server>) -> Self {
        Self { starts_again_max: STARTS_AGAIN_MAX, ..Self::new(start) }
    }

    /// Waits until so much more was asked, of a server that runs.
    pub fn wait_for(&mut self, crew: &Crew, more: u64) {
        crew.wait_while(more, || {
            let has_ended = !self.server.is_running();
            if has_ended {
                self.start_again("the process has ended");
                crew.open(&[&self.server]);
            }
            has_ended
        });
    }

    /// SIGKILL, and nothing instead yet.
    pub fn kill(&mut self) {
        self.server.kill_and_wait();
    }

    /// The next one, after a kill.
    pub fn start(&mut self) {
        self.server = (self.start)();
    }

    /// Waits until nothing is pending.
    pub fn see_holds_end(&mut self, runtime: &Runtime) {
        if !runtime.block_on(nothing_is_pending_within(&self.server.client(), END_OF_HOLDS_WAIT)) {
            self.start_again("a partition is not read on");
        }
    }

    fn start_again(&mut self, why: &str) {
        println!("the server is started again: {why}");
        self.server.show_what_it_said();
        self.starts_again += 1;
        assert!(self.starts_again <= self.starts_again_max, "it does not stay: {why}");
        // The earlier one, where it still runs, must have let go of the folder.
        self.kill();
        self.start();
    }
}

async fn nothing_is_pending_within(client: &Client, wait: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < wait {
        if client.count_holds(&HoldFilter::default()).await.is_ok_and(|counts| counts.count == 0) {
            return true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    false
}
