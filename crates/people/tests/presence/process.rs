//! Presence nodes with a shared cluster view, users that come and go, and helpers that wait for a condition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_engines::memory::MemorySessions;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_model::ports::{PortFuture, PresenceError, Reporter, Sessions};
use whimbrel_model::{SystemClock, Timestamp};
use whimbrel_people::presence::{
    LiveMembers, PresenceEvent, PresenceEvents, PresenceNode, PresenceNodeParts, PresenceSettings, Remote,
};

/// Upper bound of each wait, in the test's own time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Records the published events.
#[derive(Default)]
pub struct EventRecorder {
    pub events: Mutex<Vec<PresenceEvent>>,
}

impl EventRecorder {
    pub fn told(&self) -> Vec<(String, bool)> {
        self.events.lock().unwrap().iter().map(|event| (event.uid.to_string(), event.online)).collect()
    }
}

impl PresenceEvents for EventRecorder {
    fn publish(&self, events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>> {
        self.events.lock().unwrap().extend(events);
        Box::pin(async { Ok(()) })
    }
}

pub fn memory_sessions() -> Arc<MemorySessions> {
    Arc::new(MemorySessions::new(Arc::new(SystemClock)))
}

/// One process with presence.
pub struct PresenceProcess {
    pub node: Arc<PresenceNode>,
    pub recorder: Arc<EventRecorder>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl PresenceProcess {
    pub fn open(
        me: &str,
        settings: PresenceSettings,
        sessions: Arc<dyn Sessions>,
        remote: Arc<dyn Remote>,
        living: watch::Receiver<Arc<LiveMembers>>,
    ) -> Self {
        let (shutdown, recorder) = (CancellationToken::new(), Arc::new(EventRecorder::default()));
        let parts = PresenceNodeParts {
            settings,
            me: me.to_owned(),
            writes: true,
            reports: true,
            sessions,
            sessions_are_shared: false,
            remote,
            events: recorder.clone(),
            clock: Arc::new(SystemClock),
        };
        let node = PresenceNode::new(parts, shutdown.clone()).expect("good settings");
        let run = node.clone();
        let running = tokio::spawn(async move { run.run_with(living).await });
        Self { node, recorder, shutdown, running }
    }

    pub async fn close(self) {
        self.shutdown.cancel();
        self.running.await.expect("the node panicked");
    }

    pub fn come(&self, user: &str, number: u64) {
        let session = OnlineSession {
            session: session(number),
            platform: Platform::new("web").unwrap(),
            device: "".into(),
            since: Timestamp::from_millis(number as i64),
        };
        self.node.reporter().session_started(&uid(user), session);
    }

    pub fn go(&self, user: &str, number: u64) {
        self.node.reporter().session_ended(&uid(user), session(number), Timestamp::from_millis(9));
    }

    /// How many sessions each user has according to this process's reader.
    pub async fn sees(&self, users: &[String]) -> Result<Vec<usize>, PresenceError> {
        let uids = users.iter().map(|user| uid(user)).collect();
        let answer = self.node.reader().of(uids).await?;
        Ok(answer.users.iter().map(|user| user.sessions.len()).collect())
    }

    /// Waits until the reader returns these counts.
    pub async fn wait_to_see(&self, wanted: &BTreeMap<String, usize>) {
        let users: Vec<String> = wanted.keys().cloned().collect();
        let counts: Vec<usize> = wanted.values().copied().collect();
        let seen = async {
            while self.sees(&users).await.as_ref() != Ok(&counts) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, seen).await.is_err() {
            panic!("timeout while waiting for {counts:?}: {:?}", self.sees(&users).await);
        }
    }
}

pub fn uid(user: &str) -> Uid {
    Uid::new(user).unwrap()
}

/// The gateway replaces the id with its own incarnation.
fn session(number: u64) -> SessionId {
    SessionId { gateway: GatewayId { node: 0, incarnation: 0 }, number }
}

pub fn gateway(node: u16, incarnation: u64) -> GatewayId {
    GatewayId { node, incarnation }
}

pub fn living(gateways: &[(GatewayId, &str)], proxies: &[&str]) -> Arc<LiveMembers> {
    Arc::new(LiveMembers {
        gateways: gateways.iter().map(|(id, address)| (*id, (*address).into())).collect(),
        proxies: proxies.iter().map(|address| (*address).to_owned()).collect(),
    })
}

pub fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(user, count)| ((*user).to_owned(), *count)).collect()
}

/// Waits until the condition holds.
pub async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "timeout while waiting until {what}");
}
