//! One node: its view of the entry and of the members, its session by its own clock, and its gate.

use whimbrel_catalogue::topics::agreement::Participant;

use super::coordination::{LEASE_MS, SimEntry};

/// The safety margin at the end of a lease, which a node does not use.
const MARGIN_MS: u64 = LEASE_MS / 8;

/// A session, with the time until which its node may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSession {
    pub id: u64,
    pub until: u64,
}

/// Messages that a reader on this node has read and not processed yet.
#[derive(Debug, Clone, Copy)]
pub struct ReaderPage {
    /// The growths that were in force at the read.
    pub growths: usize,
    pub session: u64,
}

#[derive(Debug)]
pub struct SimNode {
    pub number: u16,
    /// Increases with every start of the process.
    pub life: u64,
    pub session: Option<NodeSession>,
    /// The session under which the node last read the entry. It began before the read.
    pub confirmed_under: Option<u64>,
    pub entry: SimEntry,
    /// The index of the picture that the node sees.
    pub picture: usize,
    pub participant: Option<Participant>,
    /// The growth that this process began.
    pub began: Option<u64>,
    pub page: Option<ReaderPage>,
    /// Cannot reach the coordination until this time.
    pub cut_until: u64,
    /// Paused until this time.
    pub frozen_until: u64,
    /// Sees no change of the entry until this time, although it reaches the coordination.
    pub stale_until: u64,
    pub next_keep_alive: u64,
    /// Waits for the answer to its last write until this time.
    pub busy_until: u64,
}

impl SimNode {
    pub fn new(number: u16, entry: SimEntry) -> Self {
        Self {
            number,
            life: 0,
            session: None,
            confirmed_under: None,
            entry,
            picture: 0,
            participant: None,
            began: None,
            page: None,
            cut_until: 0,
            frozen_until: 0,
            stale_until: 0,
            next_keep_alive: 0,
            busy_until: 0,
        }
    }

    /// Restarts the process: it has read the entry and has no session.
    pub fn restart(&mut self, entry: SimEntry, now: u64) {
        let (number, life, picture) = (self.number, self.life + 1, self.picture);
        *self = Self { life, picture, ..Self::new(number, entry.clone()) };
        self.take(entry, now);
    }

    pub fn runs(&self, now: u64) -> bool {
        now >= self.frozen_until
    }

    pub fn reaches(&self, now: u64) -> bool {
        now >= self.cut_until
    }

    /// The session, if it is valid by this node's own clock.
    pub fn standing(&self, now: u64) -> Option<NodeSession> {
        self.session.filter(|session| now < session.until)
    }

    pub fn stands_under(&self, session: u64, now: u64) -> bool {
        self.standing(now).is_some_and(|standing| standing.id == session)
    }

    /// The session under which this node may use its mapping.
    pub fn lease(&self, now: u64) -> Option<u64> {
        let standing = self.standing(now)?;
        (self.confirmed_under == Some(standing.id)).then_some(standing.id)
    }

    pub fn joined(&mut self, id: u64, now: u64) {
        self.session = Some(NodeSession { id, until: now + LEASE_MS - MARGIN_MS });
    }

    pub fn kept_alive(&mut self, sent: u64) {
        if let Some(session) = &mut self.session {
            session.until = sent + LEASE_MS - MARGIN_MS;
        }
    }

    /// Applies an entry: closes the gate, or opens it.
    pub fn take(&mut self, entry: SimEntry, now: u64) {
        if entry.version < self.entry.version {
            return;
        }
        let known = self.participant.filter(|known| Some(known.growing) == entry.growing);
        self.participant = entry.growing.map(|growing| {
            let began_here = self.began == Some(growing.base);
            known.unwrap_or(Participant { growing, since_ms: now, began_here })
        });
        self.entry = entry;
    }
}
