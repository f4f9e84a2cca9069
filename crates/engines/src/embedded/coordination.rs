//! The `Coordination` port within one process: members and owners in memory, and one number in the catalogue that makes epochs increase
//! over restarts. The number is written when the first name is owned, not before: a process that owns nothing, or cannot write because the
//! disk is full, starts nevertheless. Until the number is durable, the process owns nothing.
//!
//! Every member is a part of this process, so a session ends only when it is left or dropped, never by a timeout.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_model::ports::{
    Catalogue, CatalogueError, ClusterSnapshot, Coordination, CoordinationError, Member, Membership, Node, Owner,
    PortFuture,
};

use super::FileCatalogue;

/// The key of the number of starts with this folder.
const STARTS: &str = "coordination/starts";
/// Epochs of one start. When they are used up, another start is counted.
const EPOCHS_PER_START: u64 = 1 << 20;
/// The number of node numbers: as many as fit into a minted id.
const NODES_MAX: u16 = 1 << 12;
/// The value of the last epoch before the start was counted: the last epoch of start zero, which is used up.
const NOT_COUNTED: u64 = EPOCHS_PER_START - 1;
/// The maximum number of attempts to count a start while others count theirs.
const COUNT_TRIES_MAX: usize = 16;

/// Members, owners and their epochs in this process.
pub struct InProcessCoordination {
    catalogue: Arc<dyn Catalogue>,
    shared: Arc<CoordinationShared>,
}

struct CoordinationShared {
    /// The number of starts that the catalogue may have counted and lost.
    starts_lost: u64,
    cluster: Mutex<InProcessCluster>,
    /// Locked while a start is counted: concurrent requests for epochs need one count.
    counting: tokio::sync::Mutex<()>,
    revision: watch::Sender<u64>,
}

struct InProcessCluster {
    next_epoch: u64,
    next_session: u64,
    /// By node number.
    sessions: BTreeMap<u16, (u64, Member)>,
    owners: BTreeMap<String, (u64, Owner)>,
}

impl InProcessCoordination {
    pub fn new(catalogue: Arc<dyn Catalogue>) -> Self {
        Self::with_starts_lost(catalogue, 0)
    }

    /// Uses the catalogue of a data folder. A catalogue that fell back to its previous version may have lost the count of the last start,
    /// whose epochs must not be used again.
    pub fn of_folder(catalogue: &Arc<FileCatalogue>) -> Self {
        Self::with_starts_lost(catalogue.clone(), u64::from(catalogue.finding().is_some()))
    }

    fn with_starts_lost(catalogue: Arc<dyn Catalogue>, starts_lost: u64) -> Self {
        let cluster = InProcessCluster {
            next_epoch: NOT_COUNTED,
            next_session: 1,
            sessions: BTreeMap::new(),
            owners: BTreeMap::new(),
        };
        // Revisions begin at one, so that a watcher of revision zero gets an answer at once.
        let shared = CoordinationShared {
            starts_lost,
            cluster: Mutex::new(cluster),
            counting: tokio::sync::Mutex::default(),
            revision: watch::Sender::new(1),
        };
        Self { catalogue, shared: Arc::new(shared) }
    }
}

/// Counts a start: stores and returns a number that no earlier start had.
async fn count_start(catalogue: &dyn Catalogue, starts_lost: u64) -> Result<u64, CatalogueError> {
    let mut last = None;
    for _ in 0..COUNT_TRIES_MAX {
        let found = catalogue.get(STARTS).await?;
        let starts = match &found {
            None => 0,
            Some(found) => {
                let text = std::str::from_utf8(&found.value).ok();
                let number = text.and_then(|text| text.parse::<u64>().ok());
                number.ok_or_else(|| CatalogueError::Unavailable(format!("`{STARTS}` is not a number")))?
            }
        };
        let (start, expected) = (starts + starts_lost + 1, found.map(|found| found.version));
        match catalogue.put(STARTS, start.to_string().into_bytes(), expected).await {
            Ok(_) => return Ok(start),
            Err(conflict @ CatalogueError::Conflict { .. }) => last = Some(conflict),
            Err(other) => return Err(other),
        }
    }
    Err(last.unwrap_or_else(|| CatalogueError::Unavailable(format!("`{STARTS}` changed during every attempt"))))
}

impl CoordinationShared {
    fn cluster(&self) -> MutexGuard<'_, InProcessCluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    fn end(&self, node: u16, session: u64) {
        let mut cluster = self.cluster();
        if cluster.sessions.get(&node).is_some_and(|(present, _)| *present == session) {
            cluster.sessions.remove(&node);
            cluster.owners.retain(|_, (owner, _)| *owner != session);
            drop(cluster);
            self.tell();
        }
    }
}

impl Coordination for InProcessCoordination {
    fn join(
        &self,
        member: Member,
        wanted: Option<u16>,
    ) -> PortFuture<'_, Result<Arc<dyn Membership>, CoordinationError>> {
        Box::pin(async move {
            let mut cluster = self.shared.cluster();
            if cluster.sessions.values().any(|(_, other)| other.name == member.name) {
                let reason = format!("a member already has the name `{}`", member.name);
                return Err(CoordinationError::Refused(reason));
            }
            let is_free = |number: &u16| *number < NODES_MAX && !cluster.sessions.contains_key(number);
            let number = wanted.filter(is_free).or_else(|| (0..NODES_MAX).find(is_free));
            let Some(node) = number else {
                return Err(CoordinationError::Refused("all node numbers are taken".to_owned()));
            };
            let session = cluster.next_session;
            cluster.next_session += 1;
            cluster.sessions.insert(node, (session, member));
            drop(cluster);
            self.shared.tell();
            let (shared, catalogue) = (self.shared.clone(), self.catalogue.clone());
            let membership = InProcessMembership { shared, catalogue, node, session, left: watch::Sender::new(false) };
            Ok(Arc::new(membership) as Arc<dyn Membership>)
        })
    }

    fn snapshot(&self, seen: u64) -> PortFuture<'_, Result<ClusterSnapshot, CoordinationError>> {
        let mut revisions = self.shared.revision.subscribe();
        Box::pin(async move {
            let revision = revisions.wait_for(|revision| *revision > seen).await;
            let revision = *revision.map_err(|error| CoordinationError::Unavailable(error.to_string()))?;
            let cluster = self.shared.cluster();
            let nodes = cluster.sessions.iter();
            let nodes = nodes.map(|(number, (_, member))| Node { number: *number, member: member.clone() }).collect();
            let owners = cluster.owners.iter().map(|(name, (_, owner))| (name.clone(), *owner)).collect();
            Ok(ClusterSnapshot { revision, nodes, owners })
        })
    }
}

struct InProcessMembership {
    shared: Arc<CoordinationShared>,
    catalogue: Arc<dyn Catalogue>,
    node: u16,
    session: u64,
    left: watch::Sender<bool>,
}

const LEFT: &str = "the member has left";

impl InProcessMembership {
    fn check(&self) -> Result<(), CoordinationError> {
        if self.is_valid() { Ok(()) } else { Err(CoordinationError::Lost(LEFT.to_owned())) }
    }

    fn end(&self) {
        self.left.send_replace(true);
        self.shared.end(self.node, self.session);
    }

    /// Takes the name under the next epoch. `None` if this start is not counted yet, or its epochs are used up.
    fn try_own(&self, name: &str) -> Result<Option<u64>, CoordinationError> {
        let mut cluster = self.shared.cluster();
        self.check()?;
        match cluster.owners.get(name) {
            Some((session, owner)) if *session == self.session => return Ok(Some(owner.epoch)),
            Some(_) => return Err(CoordinationError::Owned(name.to_owned())),
            None => {}
        }
        let epoch = cluster.next_epoch;
        if (epoch + 1).is_multiple_of(EPOCHS_PER_START) {
            return Ok(None);
        }
        cluster.next_epoch += 1;
        cluster.owners.insert(name.to_owned(), (self.session, Owner { node: self.node, epoch }));
        drop(cluster);
        self.shared.tell();
        Ok(Some(epoch))
    }
}

impl Drop for InProcessMembership {
    fn drop(&mut self) {
        self.end();
    }
}

impl Membership for InProcessMembership {
    fn node(&self) -> u16 {
        self.node
    }

    fn is_valid(&self) -> bool {
        !*self.left.borrow()
    }

    fn lost(&self) -> PortFuture<'_, String> {
        let mut left = self.left.subscribe();
        Box::pin(async move {
            // The sender is in `self`, which the future borrows.
            let _ = left.wait_for(|left| *left).await;
            LEFT.to_owned()
        })
    }

    fn own<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>> {
        Box::pin(async move {
            loop {
                if let Some(epoch) = self.try_own(name)? {
                    return Ok(epoch);
                }
                let _counting = self.shared.counting.lock().await;
                // A concurrent call may have counted meanwhile.
                if let Some(epoch) = self.try_own(name)? {
                    return Ok(epoch);
                }
                let counted = count_start(&*self.catalogue, self.shared.starts_lost).await;
                let start = counted.map_err(|error| CoordinationError::Unavailable(error.to_string()))?;
                let mut cluster = self.shared.cluster();
                cluster.next_epoch = cluster.next_epoch.max(start * EPOCHS_PER_START);
            }
        })
    }

    fn owns<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<bool, CoordinationError>> {
        Box::pin(async move {
            let cluster = self.shared.cluster();
            let found = cluster.owners.get(name);
            Ok(found.is_some_and(|(session, owner)| *session == self.session && owner.epoch == epoch))
        })
    }

    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>> {
        Box::pin(async move {
            let mut cluster = self.shared.cluster();
            if cluster.owners.get(name).is_some_and(|(session, _)| *session == self.session) {
                cluster.owners.remove(name);
                drop(cluster);
                self.shared.tell();
            }
            Ok(())
        })
    }

    fn leave(&self) -> PortFuture<'_, ()> {
        Box::pin(async move { self.end() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::io::Errno;

    use super::*;
    use crate::embedded::catalogue::tests::open_on;
    use crate::embedded::catalogue::tests::unsynced::{DiskCall, UnsyncedDisk};
    use crate::embedded::open_folder;

    fn catalogue(folder: &tempfile::TempDir) -> Arc<FileCatalogue> {
        Arc::new(FileCatalogue::open(open_folder(folder.path()).unwrap()).unwrap())
    }

    async fn join(coordination: &InProcessCoordination) -> Arc<dyn Membership> {
        let member = Member { name: "a".to_owned(), ..Member::default() };
        coordination.join(member, None).await.unwrap()
    }

    #[tokio::test]
    async fn a_start_whose_epochs_are_used_up_counts_another_start() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = catalogue(&folder);
        let coordination = InProcessCoordination::new(catalogue.clone());
        let membership = join(&coordination).await;
        let first = membership.own("x").await.unwrap();
        coordination.shared.cluster().next_epoch = first / EPOCHS_PER_START * EPOCHS_PER_START + EPOCHS_PER_START - 1;
        let next = membership.own("y").await.unwrap();
        assert_eq!(next, (first / EPOCHS_PER_START + 1) * EPOCHS_PER_START);
        drop((membership, coordination));
        let again = InProcessCoordination::new(catalogue);
        assert!(join(&again).await.own("x").await.unwrap() > next);
    }

    #[tokio::test]
    async fn a_start_on_a_full_disk_joins_and_owns_names_after_space_is_freed() {
        let folder = tempfile::tempdir().unwrap();
        let is_full = Arc::new(AtomicBool::new(false));
        let is_create = |call: DiskCall<'_>| matches!(call, DiskCall::Create(_));
        let disk = UnsyncedDisk::failing(&is_full, Errno::NOSPC.raw_os_error(), is_create);
        let catalogue = Arc::new(open_on(disk, &folder).unwrap());
        let before = join(&InProcessCoordination::new(catalogue.clone())).await.own("x").await.unwrap();
        is_full.store(true, Ordering::SeqCst);
        let coordination = InProcessCoordination::new(catalogue.clone());
        let membership = join(&coordination).await;
        assert!(matches!(membership.own("x").await, Err(CoordinationError::Unavailable(_))));
        is_full.store(false, Ordering::SeqCst);
        assert!(membership.own("x").await.unwrap() > before);
    }

    #[tokio::test]
    async fn a_start_writes_once_when_the_first_name_is_owned() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = catalogue(&folder);
        let coordination = InProcessCoordination::new(catalogue.clone());
        let membership = join(&coordination).await;
        assert!(catalogue.is_new());
        let owned = futures_util::future::join_all(["x", "y", "z"].map(|name| membership.own(name))).await;
        assert!(owned.iter().all(Result::is_ok), "{owned:?}");
        assert_eq!(catalogue.changed(0).await, Ok(1), "the revision counts the writes");
    }

    #[tokio::test]
    async fn a_start_after_a_damaged_catalogue_repeats_no_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let catalogue = FileCatalogue::open(open_folder(folder.path()).unwrap()).unwrap();
            InProcessCoordination::of_folder(&Arc::new(catalogue))
        };
        let mut last = 0;
        for _ in 0..2 {
            last = join(&open()).await.own("x").await.unwrap();
        }
        // The last change is the count of the last start.
        let file = folder.path().join("catalogue.json");
        let mut bytes = std::fs::read(&file).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert!(join(&open()).await.own("x").await.unwrap() > last);
    }
}
