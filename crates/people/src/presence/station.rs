//! Everything of presence in one process, put together: reporter, proxy, writers, reader, and what other nodes ask of them. Whether a process
//! is alone or one of many, it is this same code.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Heard, Presence, Sessions, UserSessions};

use super::events::PresenceEvents;
use super::figures::Figures;
use super::living::Living;
use super::packet::{Answer, AskGateway};
use super::proxy::Proxy;
use super::reader::Reader;
use super::remote::{Outlets, Post, Remote};
use super::reporter::GatewayReporter;
use super::settings::{Layout, PresenceSettings, PresenceSettingsError};
use super::writer::{Arrived, WriterDesk, WriterParts, write};
use whimbrel_cluster::presence_shards::PresenceShards;

/// What presence works with.
pub struct StationParts {
    pub settings: PresenceSettings,
    /// This process's internal address, as other members see it.
    pub me: String,
    /// Whether this process has the role `presence`: it writes the shards that are configured to it.
    pub writes: bool,
    /// Whether this process has the role `gateway`: it reports who comes and goes.
    pub reports: bool,
    pub sessions: Arc<dyn Sessions>,
    /// Whether all processes of the data centre have the same store.
    pub sessions_are_shared: bool,
    pub remote: Arc<dyn Remote>,
    pub events: Arc<dyn PresenceEvents>,
    pub clock: Arc<dyn Clock>,
}

/// Presence of one process.
pub struct Station {
    settings: Arc<PresenceSettings>,
    me: String,
    reports: bool,
    layout: Arc<Layout>,
    desk: Arc<WriterDesk>,
    proxy: Arc<Proxy>,
    reporter: Arc<GatewayReporter>,
    reader: Arc<Reader>,
    sessions: Arc<dyn Sessions>,
    remote: Arc<dyn Remote>,
    events: Arc<dyn PresenceEvents>,
    clock: Arc<dyn Clock>,
    figures: Arc<Figures>,
    /// The writers' ends of the desk, until they run.
    ends: Mutex<Vec<(u32, mpsc::Receiver<Arrived>)>>,
    shutdown: CancellationToken,
}

impl Station {
    /// Puts everything together; [`Station::run`] makes it go. Call it within a runtime.
    pub fn new(parts: StationParts, shutdown: CancellationToken) -> Result<Arc<Self>, PresenceSettingsError> {
        parts.settings.check()?;
        let StationParts { settings, me, writes, reports, sessions, sessions_are_shared, remote, events, clock } =
            parts;
        let settings = Arc::new(settings);
        let figures = Arc::new(Figures::new());
        let layout = Arc::new(Layout::of(&settings, &me));
        let shards = if writes { layout.own_shards() } else { Vec::new() };
        let (desk, ends) = WriterDesk::new(layout.here() as u32, &shards, figures.clone());
        let desk = Arc::new(desk);
        let outlets = Outlets::new(remote.clone(), settings.answer_within, figures.clone(), shutdown.clone());
        let outlets = Arc::new(outlets);
        let proxy = Arc::new(Proxy::new(layout.clone(), desk.clone(), outlets.clone()));
        let reporter = GatewayReporter::new(&settings, &me, proxy.clone(), outlets, figures.clone());
        let reader = Reader {
            layout: layout.clone(),
            settings: settings.clone(),
            sessions: sessions.clone(),
            is_shared: sessions_are_shared,
            remote: remote.clone(),
            clock: clock.clone(),
            figures: figures.clone(),
        };
        Ok(Arc::new(Self {
            settings,
            me,
            reports,
            layout,
            desk,
            proxy,
            reporter: Arc::new(reporter),
            reader: Arc::new(reader),
            sessions,
            remote,
            events,
            clock,
            figures,
            ends: Mutex::new(ends),
            shutdown,
        }))
    }

    /// Where this process's gateway reports.
    pub fn reporter(&self) -> Arc<GatewayReporter> {
        self.reporter.clone()
    }

    /// The port `Presence`.
    pub fn reader(&self) -> Arc<dyn Presence> {
        self.reader.clone()
    }

    /// How fresh the shards of this data centre are, as this process sees them.
    pub fn shards(&self) -> Arc<dyn PresenceShards> {
        self.reader.clone()
    }

    /// Reports, writes and spreads until the shutdown, with the living told by the caller, who also says which incarnation the gateway is.
    /// Once.
    pub async fn run_with(&self, living: watch::Receiver<Arc<Living>>) {
        let mut tasks = JoinSet::new();
        let ends = std::mem::take(&mut *self.ends.lock().unwrap_or_else(PoisonError::into_inner));
        for (shard, packets) in ends {
            let parts = WriterParts {
                shard,
                shards: self.layout.shards(self.layout.here()),
                settings: self.settings.clone(),
                me: self.me.clone(),
                sessions: self.sessions.clone(),
                living: living.clone(),
                remote: self.remote.clone(),
                reporter: self.reporter.clone(),
                events: self.events.clone(),
                clock: self.clock.clone(),
                figures: self.figures.clone(),
            };
            tasks.spawn(write(parts, packets, self.shutdown.clone()));
        }
        self.reporter.run(living, self.shutdown.clone()).await;
        tasks.join_all().await;
    }

    pub(super) fn reports(&self) -> bool {
        self.reports
    }

    pub(super) fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// What another node sent.
    pub fn take(&self, posts: Vec<Post>) {
        for post in posts {
            match post {
                Post::Relay(packet) => self.proxy.relay(&packet),
                Post::Report(packets) => packets.into_iter().for_each(|packet| self.desk.take(packet)),
            }
        }
    }

    /// A writer's question to the gateway of this process; with `forward`, to whichever it is about.
    pub async fn answer(&self, ask: AskGateway, forward: bool) -> Result<Answer, String> {
        if !forward || *ask.address == *self.me {
            return Ok(self.reporter.answer(&ask));
        }
        let (address, within) = (ask.address.clone(), self.settings.answer_within);
        let answer = timeout(within, self.remote.ask(&address, ask, false)).await;
        answer.unwrap_or_else(|_| Err(format!("the gateway did not answer within {within:?}")))
    }

    /// Another node's reader wants users of a shard that is written here.
    pub async fn read(&self, centre: u32, shard: u32, uids: Vec<Uid>) -> Result<Heard<Vec<UserSessions>>, String> {
        if !self.desk.has(centre, shard) {
            return Err(format!("shard {shard} of data centre {centre} is not written here"));
        }
        self.sessions.of(shard, uids).await.map_err(|error| error.to_string())
    }
}
