//! The gateway's side: says who came and went in numbered packets on two paths, and answers writers who missed some.
//!
//! It knows who is there because it was told; it never asks the gateway, and never makes the gateway wait for anything but a short lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, SessionId, Uid};
use whimbrel_model::ports::Reporter;

use super::book::Book;
use super::figures::Figures;
use super::living::Living;
use super::packet::{Answer, AskGateway, Packet};
use super::proxy::Proxy;
use super::remote::{Outlets, Post};
use super::settings::{Place, PresenceSettings};

/// The reporter of this process's gateway.
pub struct GatewayReporter {
    book: Mutex<Book>,
    began: Instant,
    gather: Duration,
    /// This process's internal address.
    me: String,
    proxy: Arc<Proxy>,
    outlets: Arc<Outlets>,
    figures: Arc<Figures>,
}

impl GatewayReporter {
    pub fn new(
        settings: &PresenceSettings,
        me: &str,
        proxy: Arc<Proxy>,
        outlets: Arc<Outlets>,
        figures: Arc<Figures>,
    ) -> Self {
        Self {
            book: Mutex::new(Book::new(settings.book_limits(), me)),
            began: Instant::now(),
            gather: settings.gather,
            me: me.to_owned(),
            proxy,
            outlets,
            figures,
        }
    }

    /// The node has joined, or joined again: everything is reported anew under that incarnation.
    pub fn reincarnate(&self, gateway: GatewayId) {
        let now_ms = self.now_ms();
        self.book().reincarnate(gateway, now_ms);
    }

    /// Answers a writer. An incarnation that is not this gateway's is answered with the one that is.
    pub fn answer(&self, ask: &AskGateway) -> Answer {
        let now_ms = self.now_ms();
        self.book().answer(ask, now_ms)
    }

    /// Which incarnation it reports as.
    pub fn gateway(&self) -> Option<GatewayId> {
        self.book().gateway()
    }

    /// Sessions that are there.
    pub fn sessions(&self) -> usize {
        self.book().len()
    }

    /// Sends packets, each on two paths, until `shutdown`.
    pub async fn run(&self, living: watch::Receiver<Arc<Living>>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(self.gather);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let now_ms = self.now_ms();
            let (packets, gateway) = {
                let mut book = self.book();
                (book.cut(now_ms), book.gateway())
            };
            let Some(gateway) = gateway.filter(|_| !packets.is_empty()) else { continue };
            let paths = living.borrow().paths(&self.me, gateway.node);
            for packet in packets {
                self.figures.packets_sent.increment(1);
                self.figures.news_sent.increment(packet.news.len() as u64);
                paths.iter().for_each(|path| self.send(path, &packet));
            }
        }
    }

    fn send(&self, path: &Place, packet: &Arc<Packet>) {
        match path {
            Place::ThisProcess => self.proxy.relay(packet),
            Place::At(address) => self.outlets.post(address, Post::Relay(packet.clone())),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl Reporter for GatewayReporter {
    fn came(&self, uid: &Uid, session: OnlineSession) {
        self.book().came(uid, session);
    }

    fn went(&self, _uid: &Uid, session: SessionId, at: Timestamp) {
        self.book().went(session, at);
    }
}
