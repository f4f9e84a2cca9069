//! The ports around subscriptions, in memory: owners with scripted replies, a progress store that records deletions, an attempt store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use whimbrel_model::ports::{
    AttemptRecord, AttemptStore, Dispatch, DispatchError, DispatchReply, DispatchRequest, MinuteRow, PortFuture,
    Progress, ProgressError, ProgressRow,
};
use whimbrel_model::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

type Answer = Result<DispatchReply, DispatchError>;
type Script = Arc<dyn Fn(&DispatchRequest) -> Option<Answer> + Send + Sync>;

/// Owners that reply as an idle owner unless a test scripts them, and record all requests.
#[derive(Default)]
pub struct MemoryDispatch {
    say: Mutex<Option<Script>>,
    asked: Mutex<Vec<(SubscriptionNumber, DispatchRequest)>>,
    pub minutes: Mutex<BTreeMap<(TopicNumber, Timestamp), MinuteRow>>,
    silent: Mutex<bool>,
}

impl MemoryDispatch {
    /// The reply to a request. `None` means the reply of an idle owner.
    pub fn say(&self, say: impl Fn(&DispatchRequest) -> Option<Answer> + Send + Sync + 'static) {
        *self.say.lock().unwrap() = Some(Arc::new(say));
    }

    /// No subscription has an owner.
    pub fn nobody(&self) {
        self.say(|_| Some(Err(DispatchError::NoOwner)));
    }

    /// Owners accept requests and never reply.
    pub fn silence(&self) {
        *self.silent.lock().unwrap() = true;
    }

    pub fn asked(&self) -> Vec<(SubscriptionNumber, DispatchRequest)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Dispatch for MemoryDispatch {
    fn ask(&self, subscription: SubscriptionNumber, ask: DispatchRequest) -> PortFuture<'_, Answer> {
        self.asked.lock().unwrap().push((subscription, ask.clone()));
        if *self.silent.lock().unwrap() {
            return Box::pin(std::future::pending());
        }
        let said = self.say.lock().unwrap().clone().and_then(|say| say(&ask));
        let answer = said.unwrap_or_else(|| match ask {
            DispatchRequest::Status => Ok(DispatchReply::Status(Box::default())),
            DispatchRequest::CaughtUp { .. } => Ok(DispatchReply::CaughtUp),
            DispatchRequest::Pull { .. } => Ok(DispatchReply::Pulled(Vec::new())),
            DispatchRequest::DeadLetters { .. } => Ok(DispatchReply::DeadLetters { letters: Vec::new(), next: None }),
            DispatchRequest::Redrive { ids } => {
                Ok(DispatchReply::Redriven { count: 0, unknown: ids.unwrap_or_default() })
            }
            DispatchRequest::Ack { ack_ids }
            | DispatchRequest::Nack { ack_ids, .. }
            | DispatchRequest::Extend { ack_ids, .. } => Ok(DispatchReply::Settled { known: 0, unknown: ack_ids }),
            DispatchRequest::Message { .. } => Err(DispatchError::Unknown),
        });
        Box::pin(async { answer })
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, (Vec<(Timestamp, MinuteRow)>, usize)> {
        let rows = self.minutes.lock().unwrap();
        let found = rows.range((topic, from)..(topic, to)).map(|((_, at), row)| (*at, row.clone())).collect();
        Box::pin(async { (found, 0) })
    }
}

/// Progress that is never saved. It records which subscriptions are deleted.
#[derive(Default)]
pub struct MemoryProgress {
    pub forgotten: Mutex<Vec<SubscriptionNumber>>,
    refuses: Mutex<bool>,
}

impl MemoryProgress {
    pub fn refuse(&self, refuses: bool) {
        *self.refuses.lock().unwrap() = refuses;
    }
}

impl Progress for MemoryProgress {
    fn open(&self, _: SubscriptionNumber, _: u64) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn save(&self, _: SubscriptionNumber, _: u64, _: Vec<ProgressRow>) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async { Ok(()) })
    }

    fn end_line(&self, _: SubscriptionNumber, _: u64, _: u32) -> PortFuture<'_, Result<(), ProgressError>> {
        Box::pin(async { Ok(()) })
    }

    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>> {
        let outcome = if *self.refuses.lock().unwrap() {
            Err(ProgressError::Unavailable("away".to_owned()))
        } else {
            self.forgotten.lock().unwrap().push(subscription);
            Ok(())
        };
        Box::pin(async { outcome })
    }
}

/// An attempt store that returns fixed minutes.
#[derive(Default)]
pub struct MemoryNotebook {
    minutes: Mutex<BTreeMap<(TopicNumber, Timestamp), MinuteRow>>,
}

impl AttemptStore for MemoryNotebook {
    fn note(&self, _: Vec<AttemptRecord>) {}

    fn attempts(&self, _: SubscriptionNumber, _: PartitionId, _: u64) -> PortFuture<'_, Vec<AttemptRecord>> {
        Box::pin(async { Vec::new() })
    }

    fn note_minute(&self, topic: TopicNumber, minute: Timestamp, row: MinuteRow) {
        self.minutes.lock().unwrap().entry((topic, minute)).or_default().add(&row);
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        let rows = self.minutes.lock().unwrap();
        let found = rows.range((topic, from)..(topic, to)).map(|((_, at), row)| (*at, row.clone())).collect();
        Box::pin(async { found })
    }
}
