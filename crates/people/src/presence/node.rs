//! All parts of presence in one process: reporter, proxy, writers, reader, and the answers to other nodes. Also used by a single node.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Presence, Sessions};

use super::events::PresenceEvents;
use super::live_members::LiveMembers;
use super::metrics::PresenceMetrics;
use super::packet::{GatewayQuery, GatewayReply};
use super::proxy::Proxy;
use super::reader::PresenceReader;
use super::remote::{PeerMessage, PeerQueues, Remote, ShardUsers};
use super::reporter::GatewayReporter;
use super::settings::{Layout, PresenceSettings, PresenceSettingsError};
use super::writer::{TimedPacket, WriterParts, WriterQueues, write};
use whimbrel_cluster::presence_shards::PresenceShards;

pub struct PresenceNodeParts {
    pub settings: PresenceSettings,
    /// This process's internal address, as in the cluster view.
    pub me: String,
    /// Whether this process has the role `presence`: it writes the shards that are configured for it.
    pub writes: bool,
    /// Whether this process has the role `gateway`: it reports its sessions.
    pub reports: bool,
    pub sessions: Arc<dyn Sessions>,
    /// Whether all processes of the data centre share the store.
    pub sessions_are_shared: bool,
    pub remote: Arc<dyn Remote>,
    pub events: Arc<dyn PresenceEvents>,
    pub clock: Arc<dyn Clock>,
}

pub struct PresenceNode {
    settings: Arc<PresenceSettings>,
    me: String,
    reports: bool,
    layout: Arc<Layout>,
    writers: Arc<WriterQueues>,
    proxy: Arc<Proxy>,
    reporter: Arc<GatewayReporter>,
    reader: Arc<PresenceReader>,
    sessions: Arc<dyn Sessions>,
    remote: Arc<dyn Remote>,
    events: Arc<dyn PresenceEvents>,
    clock: Arc<dyn Clock>,
    metrics: Arc<PresenceMetrics>,
    /// The receiving ends of the writers' queues, until the writers run.
    ends: Mutex<Vec<(u32, mpsc::Receiver<TimedPacket>)>>,
    shutdown: CancellationToken,
}

impl PresenceNode {
    /// Assembles the parts. [`PresenceNode::run`] starts them. Must be called within a runtime.
    pub fn new(parts: PresenceNodeParts, shutdown: CancellationToken) -> Result<Arc<Self>, PresenceSettingsError> {
        parts.settings.check()?;
        let PresenceNodeParts { settings, me, writes, reports, sessions, sessions_are_shared, remote, events, clock } =
            parts;
        let settings = Arc::new(settings);
        let metrics = Arc::new(PresenceMetrics::new());
        let layout = Arc::new(Layout::of(&settings, &me));
        let shards = if writes { layout.own_shards() } else { Vec::new() };
        let (writers, ends) = WriterQueues::new(layout.here() as u32, &shards, metrics.clone());
        let writers = Arc::new(writers);
        let peer_queues = PeerQueues::new(remote.clone(), settings.answer_within, metrics.clone(), shutdown.clone());
        let peer_queues = Arc::new(peer_queues);
        let proxy = Arc::new(Proxy::new(layout.clone(), writers.clone(), peer_queues.clone()));
        let reporter = GatewayReporter::new(&settings, &me, proxy.clone(), peer_queues, metrics.clone());
        let reader = PresenceReader {
            layout: layout.clone(),
            settings: settings.clone(),
            sessions: sessions.clone(),
            is_shared: sessions_are_shared,
            remote: remote.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        };
        Ok(Arc::new(Self {
            settings,
            me,
            reports,
            layout,
            writers,
            proxy,
            reporter: Arc::new(reporter),
            reader: Arc::new(reader),
            sessions,
            remote,
            events,
            clock,
            metrics,
            ends: Mutex::new(ends),
            shutdown,
        }))
    }

    pub fn reporter(&self) -> Arc<GatewayReporter> {
        self.reporter.clone()
    }

    pub fn reader(&self) -> Arc<dyn Presence> {
        self.reader.clone()
    }

    /// The freshness of this data centre's shards, as this process sees it.
    pub fn shards(&self) -> Arc<dyn PresenceShards> {
        self.reader.clone()
    }

    /// Runs reporter, proxy and writers until the shutdown. The caller supplies live members and the gateway's incarnation. Call it once.
    pub async fn run_with(&self, living: watch::Receiver<Arc<LiveMembers>>) {
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
                metrics: self.metrics.clone(),
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

    pub fn take(&self, posts: Vec<PeerMessage>) {
        for post in posts {
            match post {
                PeerMessage::Relay(packet) => self.proxy.relay(&packet),
                PeerMessage::Report(packets) => packets.into_iter().for_each(|packet| self.writers.take(packet)),
            }
        }
    }

    /// Answers a writer's query for this process's gateway; with `forward`, passes it on to the gateway that it names.
    pub async fn answer(&self, ask: GatewayQuery, forward: bool) -> Result<GatewayReply, String> {
        if !forward || *ask.address == *self.me {
            return Ok(self.reporter.answer(&ask));
        }
        let (address, within) = (ask.address.clone(), self.settings.answer_within);
        let answer = timeout(within, self.remote.ask(&address, ask, false)).await;
        answer.unwrap_or_else(|_| Err(format!("the gateway did not answer within {within:?}")))
    }

    /// Reads users of a shard that is written here, for a reader on another node.
    pub async fn read(&self, centre: u32, shard: u32, uids: Vec<Uid>) -> Result<ShardUsers, String> {
        if !self.writers.has(centre, shard) {
            return Err(format!("shard {shard} of data centre {centre} is not written here"));
        }
        self.sessions.of(shard, uids).await.map_err(|error| error.to_string())
    }
}
