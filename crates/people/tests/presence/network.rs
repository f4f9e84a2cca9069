//! An in-memory network between presence nodes that loses, repeats and delays messages by a fixed pseudo-random sequence.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use whimbrel_model::people::Uid;
use whimbrel_people::presence::packet::{GatewayQuery, GatewayReply};
use whimbrel_people::presence::remote::{PeerMessage, RemoteAnswer, ShardUsers};
use whimbrel_people::presence::{PresenceNode, Remote};

#[derive(Default)]
pub struct Network {
    nodes: Mutex<HashMap<String, Arc<PresenceNode>>>,
    cut_off: Mutex<HashSet<String>>,
    draws: AtomicU64,
    /// Percentage of messages that are lost.
    pub loses: AtomicU64,
    pub lost: AtomicU64,
    pub repeated: AtomicU64,
}

impl Network {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn add(&self, address: &str, node: Arc<PresenceNode>) {
        self.nodes.lock().unwrap().insert(address.to_owned(), node);
    }

    pub fn remove(&self, address: &str) {
        self.nodes.lock().unwrap().remove(address);
    }

    /// Cuts all connections from and to that address.
    pub fn cut_off(&self, address: &str) {
        self.cut_off.lock().unwrap().insert(address.to_owned());
    }

    pub fn heal(&self) {
        self.cut_off.lock().unwrap().clear();
    }

    fn between(&self, from: &str, to: &str) -> Result<Arc<PresenceNode>, String> {
        let cut_off = self.cut_off.lock().unwrap();
        if from != to && (cut_off.contains(from) || cut_off.contains(to)) {
            return Err("cut off".to_owned());
        }
        self.nodes.lock().unwrap().get(to).cloned().ok_or_else(|| "no node there".to_owned())
    }

    fn below(&self, bound: u64) -> u64 {
        let drawn = self.draws.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        let mixed = (drawn ^ (drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20) % bound
    }

    fn loses(&self) -> bool {
        let loses = self.below(100) < self.loses.load(Ordering::SeqCst);
        self.lost.fetch_add(u64::from(loses), Ordering::SeqCst);
        loses
    }

    async fn carry(&self, from: &str, to: &str) -> Result<Arc<PresenceNode>, String> {
        tokio::time::sleep(Duration::from_millis(1 + self.below(20))).await;
        let node = self.between(from, to)?;
        if self.loses() { Err("lost on the way".to_owned()) } else { Ok(node) }
    }
}

/// A node's connection to the network, with its address.
pub struct Line(pub Arc<Network>, pub String);

impl Remote for Line {
    fn send<'a>(&'a self, address: &'a str, posts: Vec<PeerMessage>) -> RemoteAnswer<'a, ()> {
        Box::pin(async move {
            // Each message is lost or repeated independently; the sender gets no error.
            let mut all_posts = Vec::new();
            for post in posts {
                if self.0.below(5) == 0 {
                    self.0.repeated.fetch_add(1, Ordering::SeqCst);
                    all_posts.push(post.clone());
                }
                all_posts.push(post);
            }
            all_posts.retain(|_| !self.0.loses());
            let length = all_posts.len();
            if length > 1 {
                all_posts.swap(0, length - 1);
            }
            self.0.carry(&self.1, address).await?.take(all_posts);
            Ok(())
        })
    }

    fn ask<'a>(&'a self, address: &'a str, ask: GatewayQuery, forward: bool) -> RemoteAnswer<'a, GatewayReply> {
        Box::pin(async move {
            let answer = self.0.carry(&self.1, address).await?.answer(ask, forward).await;
            if self.0.loses() { Err("the answer was lost".to_owned()) } else { answer }
        })
    }

    fn read<'a>(&'a self, address: &'a str, centre: u32, shard: u32, uids: Vec<Uid>) -> RemoteAnswer<'a, ShardUsers> {
        Box::pin(async move {
            // Readers are not under test: their network loses nothing.
            self.0.between(&self.1, address)?.read(centre, shard, uids).await
        })
    }
}
