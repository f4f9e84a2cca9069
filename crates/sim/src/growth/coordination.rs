//! The coordination: members under leases, names that they own, and the topic's entry. It keeps all earlier states, so that nodes can see
//! changes late.

use std::collections::BTreeMap;

use whimbrel_catalogue::topics::Growth;
use whimbrel_catalogue::topics::agreement::Growing;
use whimbrel_model::ports::{Member, Node, Owner, Picture};

/// How long a lease lasts after it was kept alive.
pub const LEASE_MS: u64 = 5_000;

/// The topic's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimEntry {
    pub version: u64,
    pub partitions: u32,
    pub growing: Option<Growing>,
    pub growths: Vec<Growth>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    session: u64,
    expires_at: u64,
}

#[derive(Debug)]
pub struct SimCoordination {
    revision: u64,
    members: BTreeMap<u16, Lease>,
    /// The owner of each name, and its session.
    owners: BTreeMap<String, (u16, u64)>,
    entries: Vec<SimEntry>,
    pictures: Vec<Picture>,
}

impl SimCoordination {
    pub fn new(partitions: u32) -> Self {
        let entry = SimEntry { version: 1, partitions, growing: None, growths: Vec::new() };
        let (members, owners, pictures) = (BTreeMap::new(), BTreeMap::new(), vec![Picture::default()]);
        Self { revision: 1, members, owners, entries: vec![entry], pictures }
    }

    /// The entry as it is now.
    pub fn entry(&self) -> &SimEntry {
        self.entries.last().expect("there is always an entry")
    }

    /// Every state of the entry.
    pub fn entries(&self) -> &[SimEntry] {
        &self.entries
    }

    /// All pictures so far.
    pub fn pictures(&self) -> &[Picture] {
        &self.pictures
    }

    /// Writes the entry if it is at that version.
    pub fn put(&mut self, expected: u64, mut entry: SimEntry) -> bool {
        if self.entry().version != expected {
            return false;
        }
        self.revision += 1;
        entry.version = self.revision;
        self.entries.push(entry);
        true
    }

    /// A node joins; an earlier session of it ends.
    pub fn join(&mut self, node: u16, session: u64, now: u64) {
        self.leave(node);
        self.members.insert(node, Lease { session, expires_at: now + LEASE_MS });
        self.draw();
    }

    pub fn leave(&mut self, node: u16) {
        self.members.remove(&node);
        self.owners.retain(|_, (owner, _)| *owner != node);
    }

    /// Keeps a lease alive; `false` if it has expired.
    pub fn keep_alive(&mut self, node: u16, session: u64, now: u64) -> bool {
        let lease = self.members.get_mut(&node).filter(|lease| lease.session == session);
        lease.map(|lease| lease.expires_at = now + LEASE_MS).is_some()
    }

    /// Ends leases that have expired.
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
        self.pictures.push(Picture { revision: self.revision, nodes, owners });
    }
}
