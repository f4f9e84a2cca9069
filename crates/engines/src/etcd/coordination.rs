//! The `Coordination` port on etcd. All keys of a member are under its lease. A member takes a name with one transaction: a comparison and
//! a write.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use whimbrel_model::ports::{
    ClusterSnapshot, Coordination, CoordinationError, Member, Membership, Node, Owner, PortFuture,
};

use super::connection::{
    EtcdConnection, TransactionResult, delete, get, is_absent, is_lease_gone, is_under, put, reason, under,
};
use super::mirror::{MirrorContents, PrefixMirror};
use super::session::LeaseSession;
use super::wire::{KeyValue, RangeRequest};

/// The number of node numbers: as many as fit into a minted id.
const NODES_MAX: u16 = 1 << 12;
/// The maximum number of attempts to take a node number while other members join.
const JOIN_TRIES_MAX: usize = 64;

/// Members and owners of an installation on etcd.
pub struct EtcdCoordination {
    connection: EtcdConnection,
    keys: EtcdKeys,
    mirror: PrefixMirror,
}

impl EtcdCoordination {
    /// Must be called within a tokio runtime: it starts the watch of the cluster.
    pub fn new(connection: EtcdConnection) -> Self {
        let keys = EtcdKeys { prefix: format!("{}cluster/", connection.settings().prefix) };
        // No events: the mirror of the catalogue reports already that etcd went back.
        let mirror = PrefixMirror::new(connection.clone(), keys.prefix.clone().into_bytes(), Arc::new(|_| {}));
        Self { connection, keys, mirror }
    }

    async fn enter(
        &self,
        session: &LeaseSession,
        member: &Member,
        wanted: Option<u16>,
    ) -> Result<u16, CoordinationError> {
        let mut wanted = wanted.filter(|number| *number < NODES_MAX);
        for _ in 0..JOIN_TRIES_MAX {
            let number = match wanted.take() {
                Some(number) => number,
                None => self.free_number().await?,
            };
            let (node, name) = (self.keys.node(number), self.keys.name(&member.name));
            let taken = self.connection.transact(
                vec![is_absent(&node), is_absent(&name)],
                vec![
                    put(&node, encode(member), session.lease),
                    put(&name, number.to_string().into_bytes(), session.lease),
                ],
                vec![get(&name)],
            );
            let taken = taken.await.map_err(|status| failed(session, &status))?;
            if taken.succeeded {
                return Ok(number);
            }
            if let Some(other) = taken.found.first() {
                let number = String::from_utf8_lossy(&other.value).into_owned();
                let reason = format!("a live member already has the name `{}`: node {number}", member.name);
                return Err(CoordinationError::Refused(reason));
            }
        }
        Err(CoordinationError::Unavailable("other members took every node number that was tried".to_owned()))
    }

    async fn free_number(&self) -> Result<u16, CoordinationError> {
        let nodes = RangeRequest { keys_only: true, ..under(&self.keys.nodes()) };
        let read = self.connection.range(nodes).await;
        let read = read.map_err(|status| CoordinationError::Unavailable(reason(&status)))?;
        let taken: BTreeSet<u16> = read.kvs.iter().filter_map(|entry| self.keys.number(&entry.key)).collect();
        let free = (0..NODES_MAX).find(|number| !taken.contains(number));
        free.ok_or_else(|| CoordinationError::Refused("all node numbers are taken".to_owned()))
    }

    fn picture_of(&self, mirrored: &MirrorContents) -> ClusterSnapshot {
        let mut picture = ClusterSnapshot { revision: mirrored.revision, ..ClusterSnapshot::default() };
        for (key, entry) in mirrored.entries.iter() {
            // Ignores entries that cannot be decoded: no node of this installation wrote them.
            if let Some(number) = self.keys.number(key) {
                let member = serde_json::from_slice(&entry.value);
                picture.nodes.extend(member.ok().map(|member| Node { number, member }));
            } else if let Some(name) = self.keys.owned_name(key) {
                picture.owners.extend(owner_of(entry).map(|owner| (name, owner)));
            }
        }
        picture.nodes.sort_by_key(|node| node.number);
        picture
    }
}

impl Coordination for EtcdCoordination {
    fn join(
        &self,
        member: Member,
        wanted: Option<u16>,
    ) -> PortFuture<'_, Result<Arc<dyn Membership>, CoordinationError>> {
        Box::pin(async move {
            let session = LeaseSession::begin(self.connection.clone()).await;
            let session = session.map_err(|status| CoordinationError::Unavailable(reason(&status)))?;
            match self.enter(&session, &member, wanted).await {
                Ok(node) => {
                    let (connection, keys) = (self.connection.clone(), self.keys.clone());
                    Ok(Arc::new(EtcdMembership { connection, keys, session, node }) as Arc<dyn Membership>)
                }
                Err(error) => {
                    session.end().await;
                    Err(error)
                }
            }
        })
    }

    fn snapshot(&self, seen: u64) -> PortFuture<'_, Result<ClusterSnapshot, CoordinationError>> {
        Box::pin(async move {
            let newer = self.mirror.newer_than(seen).await.map_err(CoordinationError::Unavailable)?;
            Ok(self.picture_of(&newer))
        })
    }
}

struct EtcdMembership {
    connection: EtcdConnection,
    keys: EtcdKeys,
    session: LeaseSession,
    node: u16,
}

impl EtcdMembership {
    fn check(&self) -> Result<(), CoordinationError> {
        self.session.standing.check().map_err(CoordinationError::Lost)
    }

    async fn take(&self, name: &str) -> Result<TransactionResult, CoordinationError> {
        let key = self.keys.owner(name);
        let value = encode(&StoredOwner { node: self.node });
        let taken = self.connection.transact(
            vec![is_absent(&key)],
            vec![put(&key, value, self.session.lease)],
            vec![get(&key)],
        );
        taken.await.map_err(|status| failed(&self.session, &status))
    }
}

impl Membership for EtcdMembership {
    fn node(&self) -> u16 {
        self.node
    }

    fn is_valid(&self) -> bool {
        self.session.standing.check().is_ok()
    }

    fn lost(&self) -> PortFuture<'_, String> {
        Box::pin(self.session.standing.lost())
    }

    fn own<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>> {
        Box::pin(async move {
            self.check()?;
            let taken = self.take(name).await?;
            self.check()?;
            if taken.succeeded {
                return Ok(epoch(taken.revision));
            }
            match taken.found.first() {
                Some(mine) if mine.lease == self.session.lease => Ok(epoch(mine.create_revision)),
                _ => Err(CoordinationError::Owned(name.to_owned())),
            }
        })
    }

    fn owns<'a>(&'a self, name: &'a str, of_epoch: u64) -> PortFuture<'a, Result<bool, CoordinationError>> {
        Box::pin(async move {
            let request = RangeRequest { key: self.keys.owner(name), ..RangeRequest::default() };
            let read = self.connection.range(request).await.map_err(|status| failed(&self.session, &status))?;
            let is_mine =
                |entry: &KeyValue| entry.lease == self.session.lease && epoch(entry.create_revision) == of_epoch;
            Ok(self.is_valid() && read.kvs.first().is_some_and(is_mine))
        })
    }

    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>> {
        Box::pin(async move {
            let key = self.keys.owner(name);
            let released =
                self.connection.transact(vec![is_under(&key, self.session.lease)], vec![delete(&key)], Vec::new());
            released.await.map(drop).map_err(|status| failed(&self.session, &status))
        })
    }

    fn leave(&self) -> PortFuture<'_, ()> {
        Box::pin(self.session.end())
    }
}

/// If etcd does not have the lease any more, the session is lost.
fn failed(session: &LeaseSession, status: &tonic::Status) -> CoordinationError {
    if is_lease_gone(status) {
        session.standing.lose("etcd has ended the lease");
    }
    match session.standing.check() {
        Err(lost) => CoordinationError::Lost(lost),
        Ok(()) => CoordinationError::Unavailable(reason(status)),
    }
}

fn epoch(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn owner_of(entry: &KeyValue) -> Option<Owner> {
    let stored = serde_json::from_slice::<StoredOwner>(&entry.value).ok()?;
    Some(Owner { node: stored.node, epoch: epoch(entry.create_revision) })
}

#[derive(Clone)]
struct EtcdKeys {
    prefix: String,
}

impl EtcdKeys {
    fn nodes(&self) -> Vec<u8> {
        format!("{}nodes/", self.prefix).into_bytes()
    }

    fn node(&self, number: u16) -> Vec<u8> {
        format!("{}nodes/{number:04}", self.prefix).into_bytes()
    }

    fn name(&self, name: &str) -> Vec<u8> {
        format!("{}names/{name}", self.prefix).into_bytes()
    }

    fn owner(&self, name: &str) -> Vec<u8> {
        format!("{}owners/{name}", self.prefix).into_bytes()
    }

    fn number(&self, key: &[u8]) -> Option<u16> {
        self.rest(key, "nodes/")?.parse().ok()
    }

    fn owned_name(&self, key: &[u8]) -> Option<String> {
        self.rest(key, "owners/").map(str::to_owned)
    }

    fn rest<'a>(&self, key: &'a [u8], folder: &str) -> Option<&'a str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?.strip_prefix(folder)
    }
}

#[derive(Serialize, Deserialize)]
struct StoredOwner {
    node: u16,
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("names and numbers are always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_an_older_binary_wrote_has_no_incarnation() {
        let stored: Member = serde_json::from_str(r#"{"name":"a","roles":[],"address":"a:1"}"#).unwrap();
        assert_eq!(stored.incarnation, 0);
    }

    #[test]
    fn a_member_reads_as_it_was_written() {
        let (name, address, key_check) = ("a".to_owned(), "a:1".to_owned(), "c0ffee".to_owned());
        let key_check_previous = "decaf".to_owned();
        let member = Member { name, roles: vec![], address, incarnation: 7, key_check, key_check_previous };
        assert_eq!(serde_json::from_slice::<Member>(&encode(&member)).unwrap(), member);
    }
}
