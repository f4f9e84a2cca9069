//! Calls to other nodes, with a bounded queue for each. A blocked node delays no other one and loses its own messages, which shows as a
//! gap. A message that waited too long is dropped too: late packets would count as fresh.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Confirmed, PortFuture, UserSessions};

use super::limits::{NEWS_PER_CALL_MAX, OUTLETS_MAX, POSTS_PER_CALL_MAX, POSTS_QUEUED_MAX};
use super::metrics::PresenceMetrics;
use super::packet::{GatewayQuery, GatewayReply, Packet, ShardPacket};

/// A message to another node, without an answer.
#[derive(Debug, Clone)]
pub enum PeerMessage {
    /// A gateway's packet, to be spread over the writers.
    Relay(Arc<Packet>),
    /// The parts of a packet for shards of that node.
    Report(Vec<ShardPacket>),
}

impl PeerMessage {
    fn news(&self) -> usize {
        match self {
            Self::Relay(packet) => packet.news.len(),
            Self::Report(packets) => packets.iter().map(|each| each.packet.news.len()).sum(),
        }
    }
}

/// The answer of another node. An error is a text for logs.
pub type RemoteAnswer<'a, T> = PortFuture<'a, Result<T, String>>;

/// Users of one shard, in the order of the request.
pub type ShardUsers = Confirmed<Vec<UserSessions>>;

/// Other nodes, by their internal addresses.
pub trait Remote: Send + Sync {
    fn send<'a>(&'a self, address: &'a str, posts: Vec<PeerMessage>) -> RemoteAnswer<'a, ()>;

    /// Sends a query to a gateway; with `forward`, through the node at that address.
    fn ask<'a>(&'a self, address: &'a str, ask: GatewayQuery, forward: bool) -> RemoteAnswer<'a, GatewayReply>;

    /// Reads users of a shard that the node at that address writes.
    fn read<'a>(&'a self, address: &'a str, centre: u32, shard: u32, uids: Vec<Uid>) -> RemoteAnswer<'a, ShardUsers>;
}

pub struct PeerQueues {
    remote: Arc<dyn Remote>,
    queues: Mutex<HashMap<String, mpsc::Sender<(Instant, PeerMessage)>>>,
    send_within: Duration,
    metrics: Arc<PresenceMetrics>,
    shutdown: CancellationToken,
}

impl PeerQueues {
    pub fn new(
        remote: Arc<dyn Remote>,
        send_within: Duration,
        metrics: Arc<PresenceMetrics>,
        shutdown: CancellationToken,
    ) -> Self {
        Self { remote, queues: Mutex::default(), send_within, metrics, shutdown }
    }

    /// Queues a message. Never waits: a message without room is lost and counted.
    pub fn post(&self, address: &str, post: PeerMessage) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if !queues.contains_key(address) {
            if queues.len() >= OUTLETS_MAX {
                queues.clear();
            }
            let (sender, receiver) = mpsc::channel(POSTS_QUEUED_MAX);
            let (remote, within, metrics) = (self.remote.clone(), self.send_within, self.metrics.clone());
            let sending = send_all(remote, address.to_owned(), receiver, within, metrics);
            let shutdown = self.shutdown.clone();
            tokio::spawn(async move { shutdown.run_until_cancelled(sending).await });
            queues.insert(address.to_owned(), sender);
        }
        if queues[address].try_send((Instant::now(), post)).is_err() {
            self.metrics.posts_lost.increment(1);
        }
    }
}

async fn send_all(
    remote: Arc<dyn Remote>,
    address: String,
    mut posts: mpsc::Receiver<(Instant, PeerMessage)>,
    within: Duration,
    metrics: Arc<PresenceMetrics>,
) {
    while let Some(first) = posts.recv().await {
        let (mut news, mut batch) = (0, Vec::new());
        let mut next = Some(first);
        while let Some((posted_at, post)) = next {
            if posted_at.elapsed() > within {
                metrics.posts_lost.increment(1);
            } else {
                news += post.news();
                batch.push(post);
            }
            let has_room = batch.len() < POSTS_PER_CALL_MAX && news < NEWS_PER_CALL_MAX;
            next = if has_room { posts.try_recv().ok() } else { None };
        }
        if batch.is_empty() {
            continue;
        }
        let count = batch.len() as u64;
        let failure = match timeout(within, remote.send(&address, batch)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {within:?}"),
        };
        metrics.posts_lost.increment(count);
        tracing::debug!(address, failure, posts = count, "cannot send presence packets; writers request them again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use whimbrel_model::people::GatewayId;

    use super::*;

    /// A node that accepts connections and never answers.
    #[derive(Default)]
    struct Hanging {
        posts: AtomicUsize,
    }

    impl Remote for Hanging {
        fn send<'a>(&'a self, _address: &'a str, posts: Vec<PeerMessage>) -> RemoteAnswer<'a, ()> {
            self.posts.fetch_add(posts.len(), Ordering::SeqCst);
            Box::pin(std::future::pending())
        }

        fn ask<'a>(&'a self, _: &'a str, _: GatewayQuery, _: bool) -> RemoteAnswer<'a, GatewayReply> {
            Box::pin(std::future::pending())
        }

        fn read<'a>(&'a self, _: &'a str, _: u32, _: u32, _: Vec<Uid>) -> RemoteAnswer<'a, ShardUsers> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_waited_too_long_is_not_sent() {
        let (remote, within) = (Arc::new(Hanging::default()), Duration::from_secs(1));
        let peer_queues =
            PeerQueues::new(remote.clone(), within, Arc::new(PresenceMetrics::new()), CancellationToken::new());
        let gateway = GatewayId { node: 1, incarnation: 10 };
        let post =
            |number| PeerMessage::Relay(Arc::new(Packet { gateway, address: "g".into(), number, news: Vec::new() }));
        // One message more than two calls take. The second call starts after one timeout, a third one would start after two.
        (0..=2 * POSTS_PER_CALL_MAX as u64).for_each(|number| peer_queues.post("there", post(number)));
        tokio::time::sleep(within * 3).await;
        let sent = remote.posts.load(Ordering::SeqCst);
        assert!(sent <= 2 * POSTS_PER_CALL_MAX, "{sent}");
        peer_queues.post("there", post(9_999));
        tokio::time::sleep(within).await;
        assert_eq!(remote.posts.load(Ordering::SeqCst), sent + 1, "a new message is sent");
    }
}
