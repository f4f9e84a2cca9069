//! The gateway side: reports arrivals and departures in numbered packets on two paths, and answers queries of writers.
//!
//! It learns of sessions only from calls of the gateway, and delays the gateway only for a short lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, SessionId, Uid};
use whimbrel_model::ports::Reporter;

use super::live_members::LiveMembers;
use super::metrics::PresenceMetrics;
use super::packet::{GatewayQuery, GatewayReply, Packet};
use super::packet_log::PacketLog;
use super::proxy::Proxy;
use super::remote::{PeerMessage, PeerQueues};
use super::settings::{NodeLocation, PresenceSettings};

pub struct GatewayReporter {
    packet_log: Mutex<PacketLog>,
    began: Instant,
    gather: Duration,
    /// This process's internal address.
    me: String,
    proxy: Arc<Proxy>,
    peer_queues: Arc<PeerQueues>,
    metrics: Arc<PresenceMetrics>,
}

impl GatewayReporter {
    pub fn new(
        settings: &PresenceSettings,
        me: &str,
        proxy: Arc<Proxy>,
        peer_queues: Arc<PeerQueues>,
        metrics: Arc<PresenceMetrics>,
    ) -> Self {
        Self {
            packet_log: Mutex::new(PacketLog::new(settings.packet_log_limits(), me)),
            began: Instant::now(),
            gather: settings.gather,
            me: me.to_owned(),
            proxy,
            peer_queues,
            metrics,
        }
    }

    /// The node has joined, for the first time or again. Everything is reported under the new incarnation.
    pub fn reincarnate(&self, gateway: GatewayId) {
        let now_ms = self.now_ms();
        self.packet_log().reincarnate(gateway, now_ms);
    }

    /// Answers a query. A query for another incarnation is answered with the current one.
    pub fn answer(&self, ask: &GatewayQuery) -> GatewayReply {
        let now_ms = self.now_ms();
        self.packet_log().answer(ask, now_ms)
    }

    pub fn gateway(&self) -> Option<GatewayId> {
        self.packet_log().gateway()
    }

    pub fn sessions(&self) -> usize {
        self.packet_log().len()
    }

    /// Sends packets, each on two paths, until `shutdown`.
    pub async fn run(&self, living: watch::Receiver<Arc<LiveMembers>>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(self.gather);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let now_ms = self.now_ms();
            let (packets, gateway) = {
                let mut packet_log = self.packet_log();
                (packet_log.cut(now_ms), packet_log.gateway())
            };
            let Some(gateway) = gateway.filter(|_| !packets.is_empty()) else { continue };
            let paths = living.borrow().paths(&self.me, gateway.node);
            for packet in packets {
                self.metrics.packets_sent.increment(1);
                self.metrics.news_sent.increment(packet.news.len() as u64);
                paths.iter().for_each(|path| self.send(path, &packet));
            }
        }
    }

    fn send(&self, path: &NodeLocation, packet: &Arc<Packet>) {
        match path {
            NodeLocation::ThisProcess => self.proxy.relay(packet),
            NodeLocation::At(address) => self.peer_queues.post(address, PeerMessage::Relay(packet.clone())),
        }
    }

    fn packet_log(&self) -> MutexGuard<'_, PacketLog> {
        self.packet_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl Reporter for GatewayReporter {
    fn session_started(&self, uid: &Uid, session: OnlineSession) {
        self.packet_log().came(uid, session);
    }

    fn session_ended(&self, _uid: &Uid, session: SessionId, at: Timestamp) {
        self.packet_log().went(session, at);
    }
}
