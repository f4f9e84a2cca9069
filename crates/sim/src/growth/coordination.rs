//! The coordination: members with leases, the names that they own, and the entry of the topic. It keeps all states, so that nodes can see
//! changes late.

use std::collections::BTreeMap;

use whimbrel_catalogue::topics::Growth;
use whimbrel_catalogue::topics::agreement::PendingGrowth;
use whimbrel_model::ports::{ClusterSnapshot, Member, Node, Owner};

/// The time for which a lease is valid after a keep-alive.
pub const LEASE_MS: u64 = 5_000;

/// The entry of the topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimEntry {
    pub version: u64,
    pub partitions: u32,
    pub growing: Option<PendingGrowth>,
    pub growths: Vec<Growth>,
}

#[derive(Debug, Clone, Copy)]
struct MemberLease {
    session: u64,
    expires_at: u64,
}

#[derive(Debug)]
pub struct SimCoordination {
    revision: u64,
    members: BTreeMap<u16, MemberLease>,
    /// The owner of each name, and its session.
    owners: BTreeMap<String, (u16, u64)>,
    entries: Vec<SimEntry>,
    pictures: Vec<ClusterSnapshot>,
}

impl SimCoordination {
    pub fn new(partitions: u32) -> Self {
        let entry = SimEntry { version: 1, partitions, growing: None, growths: Vec::new() };
        let (members, owners, pictures) = (BTreeMap::new(), BTreeMap::new(), vec![ClusterSnapshot::default()]);
        Self { revision: 1, members, owners, entries: vec![entry], pictures }
    }

    /// The current entry.
    pub fn entry(&self) -> &SimEntry {
        self.entries.last().expect("there is always an entry")
    }

    /// All states of the entry.
    pub fn entries(&self) -> &[SimEntry] {
        &self.entries
    }

    /// All pictures.
    pub fn pictures(&self) -> &[ClusterSnapshot] {
        &self.pictures
    }

    /// Writes the entry if it has the expected version.
    pub fn put(&mut self, expected: u64, mut entry: SimEntry) -> bool {
        if self.entry().version != expected {
            return false;
        }
        self.revision += 1;
        entry.version = self.revision;
        self.entries.push(entry);
        true
    }

    /// Adds a member. An earlier session of the node ends.
    pub fn join(&mut self, node: u16, session: u64, now: u64) {
        self.leave(node);
        self.members.insert(node, MemberLease { session, expires_at: now + LEASE_MS });
        self.draw();
    }

    pub fn leave(&mut self, node: u16) {
        self.members.remove(&node);
        self.owners.retain(|_, (owner, _)| *owner != node);
    }

    /// Keeps a lease alive. Returns `false` if it has expired.
    pub fn keep_alive(&mut self, node: u16, session: u64, now: u64) -> bool {
        let lease = self.members.get_mut(&node).filter(|lease| lease.session == session);
        lease.map(|lease| lease.expires_at = now + LEASE_MS).is_some()
    }

    /// Ends expired leases.
    pub fn expire(&mut self, now: u64) -> u64 {
        let over: Vec<u16> =
            self.members.iter().filter(|(_, lease)| lease.expires_at <= now).map(|(node, _)| *node).collect();
        for node in &over {
            self.leave(*node);
            self.draw();
        }
        over.len() as u64
    }

    /// Acquires a name for a session whose lease is valid.
    pub fn own(&mut self, name: &str, node: u16, session: u64) {
        if self.members.get(&node).is_some_and(|lease| lease.session == session) {
            self.owners.insert(name.to_owned(), (node, session));
            self.draw();
        }
    }

    fn draw(&mut self) {
        self.revision += 1;
        let nodes = self.members.keys().map(|number| Node { number: *number, member: Member::default() });
        let owners = self.owners.iter().map(|(name, (node, session))| {
            let owner = Owner { node: *node, epoch: *session };
            (name.clone(), owner)
        });
        let (nodes, owners) = (nodes.collect(), owners.collect());
        self.pictures.push(ClusterSnapshot { revision: self.revision, nodes, owners });
    }
}
