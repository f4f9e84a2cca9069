//! The ports around subscriptions, in memory: owners that answer what a test told them to, a store of progress that remembers what it
//! was asked to forget, a notebook.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use whimbrel_model::ports::{
    AttemptNote, Dispatch, DispatchAsk, DispatchError, DispatchTold, MinuteRow, Notebook, PortFuture, Progress,
    ProgressError, ProgressRow,
};
use whimbrel_model::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

type Answer = Result<DispatchTold, DispatchError>;
type Say = Arc<dyn Fn(&DispatchAsk) -> Option<Answer> + Send + Sync>;

/// Owners that know nothing until a test tells them, and remember what they were asked.
#[derive(Default)]
pub struct MemoryDispatch {
    say: Mutex<Option<Say>>,
    asked: Mutex<Vec<(SubscriptionNumber, DispatchAsk)>>,
    pub minutes: Mutex<BTreeMap<(TopicNumber, Timestamp), MinuteRow>>,
    silent: Mutex<bool>,
}

impl MemoryDispatch {
    /// What is answered; `None` leaves it to what an idle owner would say.
    pub fn say(&self, say: impl Fn(&DispatchAsk) -> Option<Answer> + Send + Sync + 'static) {
        *self.say.lock().unwrap() = Some(Arc::new(say));
    }

    /// There is no owner at all.
    pub fn nobody(&self) {
        self.say(|_| Some(Err(DispatchError::NoOwner)));
    }

    /// Owners take questions and never answer them.
    pub fn silence(&self) {
        *self.silent.lock().unwrap() = true;
    }

    pub fn asked(&self) -> Vec<(SubscriptionNumber, DispatchAsk)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Dispatch for MemoryDispatch {
    fn ask(&self, subscription: SubscriptionNumber, ask: DispatchAsk) -> PortFuture<'_, Answer> {
        self.asked.lock().unwrap().push((subscription, ask.clone()));
        if *self.silent.lock().unwrap() {
            return Box::pin(std::future::pending());
        }
        let said = self.say.lock().unwrap().clone().and_then(|say| say(&ask));
        let answer = said.unwrap_or_else(|| match ask {
            DispatchAsk::Status => Ok(DispatchTold::Status(Box::default())),
            DispatchAsk::CaughtUp { .. } => Ok(DispatchTold::CaughtUp),
            DispatchAsk::Pull { .. } => Ok(DispatchTold::Pulled(Vec::new())),
            DispatchAsk::DeadLetters { .. } => Ok(DispatchTold::DeadLetters { letters: Vec::new(), next: None }),
            DispatchAsk::Redrive { ids } => Ok(DispatchTold::Redriven { count: 0, unknown: ids.unwrap_or_default() }),
            DispatchAsk::Ack { ack_ids } | DispatchAsk::Nack { ack_ids, .. } | DispatchAsk::Extend { ack_ids, .. } => {
                Ok(DispatchTold::Settled { known: 0, unknown: ack_ids })
            }
            DispatchAsk::Message { .. } => Err(DispatchError::Unknown),
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

/// Progress that nobody saves to here: what matters to the door is what it forgets.
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

/// A notebook that keeps the minutes that it is handed.
#[derive(Default)]
pub struct MemoryNotebook {
    pub minutes: Mutex<HashMap<(TopicNumber, Timestamp), MinuteRow>>,
}

impl Notebook for MemoryNotebook {
    fn note(&self, _: Vec<AttemptNote>) {}

    fn attempts(&self, _: SubscriptionNumber, _: PartitionId, _: u64) -> PortFuture<'_, Vec<AttemptNote>> {
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
        let wanted = rows.iter().filter(|((of, at), _)| *of == topic && from <= *at && *at < to);
        let mut found: Vec<_> = wanted.map(|((_, at), row)| (*at, row.clone())).collect();
        found.sort_by_key(|(at, _)| *at);
        Box::pin(async { found })
    }
}
