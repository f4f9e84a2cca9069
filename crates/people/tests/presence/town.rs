//! Stations that see each other, users that come and go, and waiting until something is so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_model::ports::{PortFuture, PresenceError, Reporter, Sessions};
use whimbrel_model::{SystemClock, Timestamp};
use whimbrel_people::presence::{
    Living, PresenceEvent, PresenceEvents, PresenceSettings, Remote, Station, StationParts,
};

/// How long the property of a test may take to come about, in the test's own time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Events, as they were published.
#[derive(Default)]
pub struct Diary {
    pub events: Mutex<Vec<PresenceEvent>>,
}

impl Diary {
    pub fn told(&self) -> Vec<(String, bool)> {
        self.events.lock().unwrap().iter().map(|event| (event.uid.to_string(), event.online)).collect()
    }
}

impl PresenceEvents for Diary {
    fn publish(&self, events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>> {
        self.events.lock().unwrap().extend(events);
        Box::pin(async { Ok(()) })
    }
}

/// A process with presence in it.
pub struct House {
    pub station: Arc<Station>,
    pub diary: Arc<Diary>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl House {
    pub fn open(
        me: &str,
        settings: PresenceSettings,
        sessions: Arc<dyn Sessions>,
        remote: Arc<dyn Remote>,
        living: watch::Receiver<Arc<Living>>,
    ) -> Self {
        let (shutdown, diary) = (CancellationToken::new(), Arc::new(Diary::default()));
        let parts = StationParts {
            settings,
            me: me.to_owned(),
            writes: true,
            reports: true,
            sessions,
            sessions_are_shared: false,
            remote,
            events: diary.clone(),
            clock: Arc::new(SystemClock),
        };
        let station = Station::new(parts, shutdown.clone()).expect("good settings");
        let run = station.clone();
        let running = tokio::spawn(async move { run.run_with(living).await });
        Self { station, diary, shutdown, running }
    }

    pub async fn close(self) {
        self.shutdown.cancel();
        self.running.await.expect("a station ends in order");
    }

    pub fn come(&self, user: &str, number: u64) {
        let session = OnlineSession {
            session: session(number),
            platform: Platform::new("web").unwrap(),
            device: "".into(),
            since: Timestamp::from_millis(number as i64),
        };
        self.station.reporter().came(&uid(user), session);
    }

    pub fn go(&self, user: &str, number: u64) {
        self.station.reporter().went(&uid(user), session(number), Timestamp::from_millis(9));
    }

    /// How many sessions these users have, as this house's reader says.
    pub async fn sees(&self, users: &[String]) -> Result<Vec<usize>, PresenceError> {
        let uids = users.iter().map(|user| uid(user)).collect();
        let answer = self.station.reader().of(uids).await?;
        Ok(answer.users.iter().map(|user| user.sessions.len()).collect())
    }

    /// Waits until the reader says so.
    pub async fn wait_to_see(&self, wanted: &BTreeMap<String, usize>) {
        let users: Vec<String> = wanted.keys().cloned().collect();
        let counts: Vec<usize> = wanted.values().copied().collect();
        let seen = async {
            while self.sees(&users).await.as_ref() != Ok(&counts) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, seen).await.is_err() {
            panic!("waited in vain for {counts:?}: {:?}", self.sees(&users).await);
        }
    }
}

pub fn uid(user: &str) -> Uid {
    Uid::new(user).unwrap()
}

/// Gateways stamp their own incarnation.
fn session(number: u64) -> SessionId {
    SessionId { gateway: GatewayId { node: 0, incarnation: 0 }, number }
}

pub fn gateway(node: u16, incarnation: u64) -> GatewayId {
    GatewayId { node, incarnation }
}

pub fn living(gateways: &[(GatewayId, &str)], proxies: &[&str]) -> Arc<Living> {
    Arc::new(Living {
        gateways: gateways.iter().map(|(id, address)| (*id, (*address).into())).collect(),
        proxies: proxies.iter().map(|address| (*address).to_owned()).collect(),
    })
}

pub fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(user, count)| ((*user).to_owned(), *count)).collect()
}

/// Waits until it is so.
pub async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "waited in vain until {what}");
}
