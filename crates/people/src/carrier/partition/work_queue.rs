//! The work of a partition in its order: records, arrivals, queries, reclaims. The head waits until its users are in memory.

use std::collections::VecDeque;

use whimbrel_model::Record;
use whimbrel_model::people::{GatewayId, Uid, check_uid};
use whimbrel_model::ports::{AnnouncedSession, Arrival, PeopleQuery, ToCarrier};
use whimbrel_model::push::{BadPush, PushTask};

use super::QueryId;
use super::pending_arrivals::PendingArrivals;

pub(super) enum QueuedWork {
    Record { offset: u64, record: Record, task: Result<Box<PushTask>, BadPush> },
    Arrive { gateway: GatewayId, arrival: Box<Arrival> },
    Announce { gateway: GatewayId, announced: Box<AnnouncedSession> },
    Ask { ask: QueryId, what: PeopleQuery, end: u64 },
    Reclaim(Uid),
}

#[derive(Default)]
pub(super) struct WorkQueue {
    work: VecDeque<QueuedWork>,
    records: usize,
    /// Sessions whose arrival or announcement is queued.
    arrivals: PendingArrivals,
}

impl QueuedWork {
    /// Calls `each` with the users whose boxes the work needs in memory.
    pub fn each_needed_user(&self, each: &mut dyn FnMut(&str)) {
        // An invalid name has no box.
        let mut named = |uid: &String| {
            if check_uid(uid).is_ok() {
                each(uid);
            }
        };
        match self {
            Self::Record { task: Ok(task), .. } => match &**task {
                // An ephemeral message concerns only users with a session, who are in memory.
                PushTask::Message(message) if message.store => message.uids.iter().for_each(named),
                PushTask::NoticeDue(due) => due.uids.iter().for_each(named),
                PushTask::Wipe { uid } => named(uid),
                PushTask::Kick(kick) => named(&kick.uid),
                PushTask::Message(_) | PushTask::Retry(_) => {}
            },
            Self::Record { task: Err(_), .. } => {}
            Self::Arrive { arrival, .. } => each(arrival.uid.as_str()),
            Self::Announce { announced, .. } => each(announced.arrival.uid.as_str()),
            Self::Ask { what: PeopleQuery::Inbox { uid, .. }, .. } | Self::Reclaim(uid) => each(uid.as_str()),
        }
    }
}

impl WorkQueue {
    pub fn push(&mut self, work: QueuedWork) {
        self.records += usize::from(matches!(work, QueuedWork::Record { .. }));
        self.work.push_back(work);
    }

    /// Queues the arrivals and announcements among the messages of a gateway, and notes what follows them. Returns the other messages.
    pub fn take_from(&mut self, gateway: GatewayId, message: ToCarrier) -> Option<ToCarrier> {
        match message {
            ToCarrier::Arrive(arrival) => {
                self.arrivals.queued(gateway, arrival.session);
                self.push(QueuedWork::Arrive { gateway, arrival });
                return None;
            }
            ToCarrier::Announce(announced) => {
                self.arrivals.queued(gateway, announced.arrival.session);
                self.push(QueuedWork::Announce { gateway, announced });
                return None;
            }
            ToCarrier::Ack { session, upto, .. } => self.arrivals.acknowledged(gateway, session, upto),
            ToCarrier::Gone { session, .. } => self.arrivals.left(gateway, session),
        }
        Some(message)
    }

    pub fn iter(&self) -> impl Iterator<Item = &QueuedWork> {
        self.work.iter()
    }

    /// The number of queued records.
    pub fn records(&self) -> usize {
        self.records
    }

    pub fn next_record(&self) -> Option<u64> {
        self.work.iter().find_map(|work| match work {
            QueuedWork::Record { offset, .. } => Some(*offset),
            _ => None,
        })
    }

    pub fn front(&self) -> Option<&QueuedWork> {
        self.work.front()
    }

    /// Takes the head. An announcement includes what the session has acknowledged since. `Err`: the user of an arrival or announcement
    /// whose session has left since.
    pub fn pop(&mut self) -> Option<Result<QueuedWork, Uid>> {
        let mut work = self.work.pop_front()?;
        match &mut work {
            QueuedWork::Record { .. } => self.records -= 1,
            QueuedWork::Arrive { gateway, arrival } => {
                if self.arrivals.dequeued(*gateway, arrival.session).is_none() {
                    return Some(Err(arrival.uid.clone()));
                }
            }
            QueuedWork::Announce { gateway, announced } => {
                let Some(acked) = self.arrivals.dequeued(*gateway, announced.arrival.session) else {
                    return Some(Err(announced.arrival.uid.clone()));
                };
                announced.acked = announced.acked.max(acked);
                announced.sent = announced.sent.max(acked);
            }
            QueuedWork::Ask { .. } | QueuedWork::Reclaim(_) => {}
        }
        Some(Ok(work))
    }

    /// Moves a query that must wait for more of the log behind the queued records. `false` if there are none.
    pub fn postpone_query(&mut self) -> bool {
        let Some(at) = self.work.iter().position(|work| !matches!(work, QueuedWork::Ask { .. })) else { return false };
        if let Some(ask) = self.work.pop_front() {
            self.work.insert(at, ask);
        }
        true
    }

    /// Removes the arrivals and announcements of gateways that have ended.
    pub fn remove_gateways(&mut self, dead: &[GatewayId]) {
        self.work.retain(|work| match work {
            QueuedWork::Arrive { gateway, .. } | QueuedWork::Announce { gateway, .. } => !dead.contains(gateway),
            _ => true,
        });
        self.arrivals.died(dead);
    }
}
