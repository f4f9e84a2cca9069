//! What presence asks of other nodes, and the queues in front of it: one for each node, bounded, so that a node that hangs holds up nobody
//! and costs what was meant for it. What is lost shows as a gap. What waited too long is lost too: packets that came late would pass for fresh.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Heard, PortFuture, UserSessions};

use super::figures::Figures;
use super::limits::{NEWS_PER_CALL_MAX, OUTLETS_MAX, POSTS_PER_CALL_MAX, POSTS_QUEUED_MAX};
use super::packet::{Answer, AskGateway, Packet, ShardPacket};

/// Something for another node, sent and not answered.
#[derive(Debug, Clone)]
pub enum Post {
    /// A gateway's packet, to be spread.
    Relay(Arc<Packet>),
    /// What shards of that node get of a packet.
    Report(Vec<ShardPacket>),
}

impl Post {
    fn news(&self) -> usize {
        match self {
            Self::Relay(packet) => packet.news.len(),
            Self::Report(packets) => packets.iter().map(|each| each.packet.news.len()).sum(),
        }
    }
}

/// Other nodes, by their internal addresses. Errors are for people to read.
pub trait Remote: Send + Sync {
    fn send<'a>(&'a self, address: &'a str, posts: Vec<Post>) -> PortFuture<'a, Result<(), String>>;

    /// Asks a gateway; with `forward`, through the node at that address.
    fn ask<'a>(&'a self, address: &'a str, ask: AskGateway, forward: bool) -> PortFuture<'a, Result<Answer, String>>;

    /// Reads users of a shard that the node at that address writes.
    fn read<'a>(
        &'a self,
        address: &'a str,
        centre: u32,
        shard: u32,
        uids: Vec<Uid>,
    ) -> PortFuture<'a, Result<Heard<Vec<UserSessions>>, String>>;
}

/// The queues to other nodes.
pub struct Outlets {
    remote: Arc<dyn Remote>,
    queues: Mutex<HashMap<String, mpsc::Sender<(Instant, Post)>>>,
    send_within: Duration,
    figures: Arc<Figures>,
    shutdown: CancellationToken,
}

impl Outlets {
    pub fn new(
        remote: Arc<dyn Remote>,
        send_within: Duration,
        figures: Arc<Figures>,
        shutdown: CancellationToken,
    ) -> Self {
        Self { remote, queues: Mutex::default(), send_within, figures, shutdown }
    }

    /// Puts a post on its way. Never waits: what there is no room for is lost, and counted.
    pub fn post(&self, address: &str, post: Post) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if !queues.contains_key(address) {
            if queues.len() >= OUTLETS_MAX {
                queues.clear();
            }
            let (sender, receiver) = mpsc::channel(POSTS_QUEUED_MAX);
            let (remote, within, figures) = (self.remote.clone(), self.send_within, self.figures.clone());
            let sending = send_all(remote, address.to_owned(), receiver, within, figures);
            let shutdown = self.shutdown.clone();
            tokio::spawn(async move { shutdown.run_until_cancelled(sending).await });
            queues.insert(address.to_owned(), sender);
        }
        if queues[address].try_send((Instant::now(), post)).is_err() {
            self.figures.posts_lost.increment(1);
        }
    }
}

async fn send_all(
    remote: Arc<dyn Remote>,
    address: String,
    mut posts: mpsc::Receiver<(Instant, Post)>,
    within: Duration,
    figures: Arc<Figures>,
) {
    while let Some(first) = posts.recv().await {
        let (mut news, mut batch) = (0, Vec::new());
        let mut next = Some(first);
        while let Some((posted_at, post)) = next {
            if posted_at.elapsed() > within {
                figures.posts_lost.increment(1);
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
        figures.posts_lost.increment(count);
        tracing::debug!(address, failure, posts = count, "packets of presence did not arrive; they will be asked for");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use whimbrel_model::people::GatewayId;

    use super::*;

    /// A node that hangs: it takes everything and never says so.
    #[derive(Default)]
    struct Hanging {
        posts: AtomicUsize,
    }

    impl Remote for Hanging {
        fn send<'a>(&'a self, _address: &'a str, posts: Vec<Post>) -> PortFuture<'a, Result<(), String>> {
            self.posts.fetch_add(posts.len(), Ordering::SeqCst);
            Box::pin(std::future::pending())
        }

        fn ask<'a>(&'a self, _: &'a str, _: AskGateway, _: bool) -> PortFuture<'a, Result<Answer, String>> {
            Box::pin(std::future::pending())
        }

        fn read<'a>(
            &'a self,
            _: &'a str,
            _: u32,
            _: u32,
            _: Vec<Uid>,
        ) -> PortFuture<'a, Result<Heard<Vec<UserSessions>>, String>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_too_long_for_its_turn_is_not_sent() {
        let (remote, within) = (Arc::new(Hanging::default()), Duration::from_secs(1));
        let outlets = Outlets::new(remote.clone(), within, Arc::new(Figures::new()), CancellationToken::new());
        let gateway = GatewayId { node: 1, incarnation: 10 };
        let post = |number| Post::Relay(Arc::new(Packet { gateway, address: "g".into(), number, news: Vec::new() }));
        // As many as two calls take, and one: the second call begins when the first has hung for so long, the third would after twice that.
        (0..=2 * POSTS_PER_CALL_MAX as u64).for_each(|number| outlets.post("there", post(number)));
        tokio::time::sleep(within * 3).await;
        let sent = remote.posts.load(Ordering::SeqCst);
        assert!(sent <= 2 * POSTS_PER_CALL_MAX, "{sent}");
        outlets.post("there", post(9_999));
        tokio::time::sleep(within).await;
        assert_eq!(remote.posts.load(Ordering::SeqCst), sent + 1, "what is new is sent");
    }
}
