//! The ports of people, in memory, with scripted replies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::watch;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, Carriers, Inbox, InboxError, InboxRead, InboxView, InboxWrite, NoCarrier, OwnerLink,
    PeopleError, PeopleQuery, PeopleReply, PortFuture, Presence, PresenceAnswer, PresenceError, RowKey, ToCarrier,
    UserSessions,
};

/// Owners of users that return the same inbox for all of them.
#[derive(Default)]
pub struct MemoryCarriers {
    pub inbox: Mutex<InboxView>,
    pub refuses: Mutex<Option<PeopleError>>,
    pub asked: Mutex<Vec<(u32, PeopleQuery)>>,
}

impl Carriers for MemoryCarriers {
    fn partitions(&self) -> u32 {
        1
    }

    fn tell(&self, partition: u32, _: GatewayId, _: Vec<ToCarrier>) -> Result<(), NoCarrier> {
        Err(NoCarrier(partition))
    }

    fn owner_links(&self) -> watch::Receiver<Arc<Vec<Option<OwnerLink>>>> {
        watch::channel(Arc::default()).1
    }

    fn ask(&self, partition: u32, ask: PeopleQuery) -> PortFuture<'_, Result<PeopleReply, PeopleError>> {
        self.asked.lock().unwrap().push((partition, ask));
        let answer = match self.refuses.lock().unwrap().clone() {
            Some(error) => Err(error),
            None => Ok(PeopleReply::Inbox(self.inbox.lock().unwrap().clone())),
        };
        Box::pin(async { answer })
    }
}

/// The behaviour of the store when a carrier reads boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMode {
    Answers,
    Stalls,
    /// It causes the carrier to panic.
    Panics,
}

/// An inbox store that keeps only the progress of its writers, and answers on command.
pub struct ScriptedInboxes {
    pub mode: watch::Sender<StoreMode>,
    pub applied: AtomicU64,
}

impl ScriptedInboxes {
    pub fn new(mode: StoreMode, applied: u64) -> Self {
        Self { mode: watch::Sender::new(mode), applied: AtomicU64::new(applied) }
    }

    fn read<T: Send + 'static>(&self, found: T) -> InboxRead<'_, T> {
        let mut mode = self.mode.subscribe();
        Box::pin(async move {
            let mode = *mode.wait_for(|mode| *mode != StoreMode::Stalls).await.expect("the store exists");
            assert_ne!(mode, StoreMode::Panics, "the store causes its carrier to panic");
            Ok(AtOffset { applied: self.applied.load(Ordering::SeqCst), found })
        })
    }
}

impl Inbox for ScriptedInboxes {
    fn open(&self, _: u32, _: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>> {
        Box::pin(async { Ok(Some(self.applied.load(Ordering::SeqCst))) })
    }

    fn apply(&self, _: u32, write: InboxWrite) -> PortFuture<'_, Result<ApplyOutcome, InboxError>> {
        self.applied.store(write.applied, Ordering::SeqCst);
        Box::pin(async { Ok(ApplyOutcome::Done) })
    }

    fn boxes(&self, _: u32, uids: Vec<Uid>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        self.read(vec![None; uids.len()])
    }

    fn rows(&self, _: u32, keys: Vec<RowKey>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        self.read(vec![None; keys.len()])
    }

    fn reclaimable(&self, _: u32, _: Timestamp, _: usize) -> InboxRead<'_, Vec<Uid>> {
        self.read(Vec::new())
    }
}

#[derive(Default)]
pub struct MemoryPresence {
    pub online: Mutex<BTreeMap<String, UserSessions>>,
    pub refuses: Mutex<Option<PresenceError>>,
}

impl Presence for MemoryPresence {
    fn of(&self, uids: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>> {
        let online = self.online.lock().unwrap();
        let users = uids.iter().map(|uid| online.get(uid.as_str()).cloned().unwrap_or_default()).collect();
        let answer = match self.refuses.lock().unwrap().clone() {
            Some(error) => Err(error),
            None => Ok(PresenceAnswer { users, fresh_as_of: Timestamp::from_millis(2_000) }),
        };
        Box::pin(async { answer })
    }
}
