//! What owners say to a gateway elsewhere, on its way into that gateway's stream: who gives way where the gateway does not keep up.
//!
//! A stream that has too much waiting is ended, and then every session behind it is announced again. Two kinds of news give way before it
//! comes to that. **Ephemeral messages** first: they are dropped, and the gateway is told how many each session lost as soon as there is
//! room. **Stored messages** next, as when many devices come back at once and their pages are more than may wait: what is stored stays in the
//! inbox, and in its place the gateway is told of a gap; when it hears that, what waited before has gone, and it asks for the rest. All
//! other news are small, and keep the rest of the room to themselves.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use metrics::Counter;
use whimbrel_model::ports::{Delivery, DeliveryPlace, FromCarrier, ToGateway};

use super::limits::{EPHEMERAL_PART, LOSERS_MAX, LOSSES_PART, STORED_PART, TOGETHER_MAX};
use super::outbox::{Outbox, Outgoing, outbox};
use super::wire::Batch;
use crate::gateway::DROPPED;
use whimbrel_cluster::wire::protocol::LinkDown;

/// Where news for a gateway are put. Cloning shares it.
#[derive(Clone)]
pub(super) struct DownBox {
    outbox: Outbox<LinkDown>,
    losses: Arc<Losses>,
    dropped: Counter,
}

/// What the stream to the gateway sends.
pub(super) struct DownStream {
    outgoing: Outgoing<LinkDown>,
    losses: Arc<Losses>,
}

pub(super) fn down(bytes_max: usize) -> (DownBox, DownStream) {
    let (outbox, outgoing) = outbox(bytes_max);
    let losses = Arc::<Losses>::default();
    (
        DownBox { outbox, losses: Arc::clone(&losses), dropped: metrics::counter!(DROPPED) },
        DownStream { outgoing, losses },
    )
}

impl DownBox {
    /// Puts news of an owner in, as far as there is room for each. `false` where the stream has ended, or is ended now.
    pub fn tell(&self, news: FromCarrier) -> bool {
        let FromCarrier { partition, epoch, news } = news;
        let mut batch = Batch::new(partition, epoch);
        for one in news {
            let Some(one) = self.fitting(partition, epoch, one, &batch) else { continue };
            if batch.add(&one).is_some_and(|full| !self.outbox.push(full)) {
                return false;
            }
        }
        batch.take().is_none_or(|rest| self.outbox.push(rest))
    }

    /// What goes in place of that news: itself, where there is room.
    fn fitting(&self, partition: u32, epoch: u64, one: ToGateway, batch: &Batch) -> Option<ToGateway> {
        let ToGateway::Deliver(Delivery { session, place, message, .. }) = &one else { return Some(one) };
        let waiting = self.outbox.waiting() + batch.bytes();
        match place {
            _ if batch.has_body(message) => Some(one),
            DeliveryPlace::Stored { .. } if waiting <= self.outbox.part(STORED_PART) => Some(one),
            // A loss of nothing, after a number that no session has been sent: the gateway takes it for a gap.
            DeliveryPlace::Stored { .. } => {
                Some(ToGateway::Truncated { session: *session, from: 0, to: 0, prev: u64::MAX })
            }
            // One that is alone is never too much.
            DeliveryPlace::Ephemeral { .. }
                if waiting == 0 || waiting + message.payload.len() <= self.outbox.part(EPHEMERAL_PART) =>
            {
                Some(one)
            }
            DeliveryPlace::Ephemeral { .. } => {
                self.dropped.increment(1);
                self.losses.note(partition, epoch, *session);
                None
            }
        }
    }

    /// Puts in what is no owner's.
    pub fn push(&self, down: LinkDown) -> bool {
        self.outbox.push(down)
    }

    pub fn end(&self) {
        self.outbox.end();
    }

    pub async fn ended(&self) {
        self.outbox.ended().await;
    }
}

impl Stream for DownStream {
    type Item = LinkDown;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LinkDown>> {
        self.losses.waker.register(context.waker());
        if !self.outgoing.is_above(LOSSES_PART)
            && let Some(told) = self.losses.take()
        {
            return Poll::Ready(Some(told));
        }
        Pin::new(&mut self.outgoing).poll_next(context)
    }
}

/// What was dropped and not told yet.
#[derive(Default)]
struct Losses {
    book: Mutex<Book>,
    /// Of the stream: what is noted when nothing waits any more would otherwise not be seen.
    waker: AtomicWaker,
}

#[derive(Default)]
struct Book {
    /// By partition.
    partitions: BTreeMap<u32, Lost>,
    /// Sessions in all of them.
    losers: usize,
}

#[derive(Default)]
struct Lost {
    epoch: u64,
    /// By session, how many.
    sessions: HashMap<u64, u64, foldhash::fast::RandomState>,
}

impl Losses {
    fn note(&self, partition: u32, epoch: u64, session: u64) {
        {
            let book = &mut *self.book();
            let has_room = book.losers < LOSERS_MAX;
            if !has_room && !book.partitions.contains_key(&partition) {
                return;
            }
            let lost = book.partitions.entry(partition).or_default();
            lost.epoch = lost.epoch.max(epoch);
            match lost.sessions.get_mut(&session) {
                Some(count) => *count += 1,
                None if has_room => {
                    lost.sessions.insert(session, 1);
                    book.losers += 1;
                }
                None => {}
            }
        }
        self.waker.wake();
    }

    /// Some of what is to be told, where anything is.
    fn take(&self) -> Option<LinkDown> {
        let book = &mut *self.book();
        let mut entry = book.partitions.first_entry()?;
        let partition = *entry.key();
        let Lost { epoch, sessions } = entry.get_mut();
        let mut batch = Batch::new(partition, *epoch);
        let told: Vec<u64> = sessions.keys().copied().take(TOGETHER_MAX).collect();
        for session in told {
            let count = sessions.remove(&session).unwrap_or_default();
            book.losers -= 1;
            // No more of them than a batch has room for: none is full.
            batch.add(&ToGateway::Lost { session, count });
        }
        if sessions.is_empty() {
            entry.remove();
        }
        batch.take()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};
    use whimbrel_model::ports::OutMessage;

    use super::super::wire::from_batch;
    use super::*;
    use whimbrel_cluster::wire::protocol::link_down::Says;

    const ROOM: usize = 64_000;

    fn body(bytes: usize) -> Arc<OutMessage> {
        Arc::new(OutMessage { payload: vec![b'x'; bytes].into(), ..OutMessage::default() })
    }

    fn deliver(session: u64, place: DeliveryPlace, message: &Arc<OutMessage>) -> ToGateway {
        ToGateway::Deliver(Delivery { session, place, again: false, message: Arc::clone(message) })
    }

    fn stored(seq: u64) -> ToGateway {
        deliver(7, DeliveryPlace::Stored { seq, prev: seq - 1 }, &body(1_000))
    }

    fn ephemeral(session: u64) -> ToGateway {
        deliver(session, DeliveryPlace::Ephemeral { place: 1 }, &body(1_000))
    }

    fn of(news: Vec<ToGateway>) -> FromCarrier {
        FromCarrier { partition: 3, epoch: 1, news }
    }

    /// Everything that goes out now, in order.
    fn sent(stream: &mut DownStream) -> Vec<ToGateway> {
        let mut sent = Vec::new();
        while let Some(Some(down)) = stream.next().now_or_never() {
            let Some(Says::Batch(batch)) = down.says else { panic!("{down:?} and not a batch") };
            let from = from_batch(batch).unwrap();
            assert_eq!((from.partition, from.epoch), (3, 1));
            sent.extend(from.news);
        }
        sent
    }

    fn numbers(sent: &[ToGateway]) -> Vec<u64> {
        let number = |one: &ToGateway| match one {
            ToGateway::Deliver(Delivery { place: DeliveryPlace::Stored { seq, .. }, .. }) => Some(*seq),
            _ => None,
        };
        sent.iter().filter_map(number).collect()
    }

    fn delivered(sent: &[ToGateway], whom: u64) -> u64 {
        let is_theirs = |one: &&ToGateway| matches!(one, ToGateway::Deliver(Delivery { session, place: DeliveryPlace::Ephemeral { .. }, .. }) if *session == whom);
        sent.iter().filter(is_theirs).count() as u64
    }

    fn lost(sent: &[ToGateway], whom: u64) -> u64 {
        let count = |one: &ToGateway| match one {
            ToGateway::Lost { session, count } if *session == whom => *count,
            _ => 0,
        };
        sent.iter().map(count).sum()
    }

    #[tokio::test]
    async fn a_burst_of_pages_leaves_the_stream_as_it_is_and_what_had_no_room_is_told_as_a_gap() {
        for at_once in [1, 100] {
            let (told, mut stream) = down(ROOM);
            let pages: Vec<ToGateway> = (1..=100).map(stored).collect();
            for news in pages.chunks(at_once) {
                assert!(told.tell(of(news.to_vec())), "the stream was ended");
            }
            let first = sent(&mut stream);
            let whole = numbers(&first).len();
            assert!(whole > 1 && whole < 100, "{whole}");
            let is_gap = |one: &ToGateway| matches!(one, ToGateway::Truncated { session: 7, prev: u64::MAX, .. });
            assert!(first.len() == 100 && first[whole..].iter().all(is_gap), "{first:?}");
            // There is room again, and the gateway asked from there on.
            assert!(told.tell(of(vec![stored(whole as u64 + 1)])));
            assert_eq!(numbers(&sent(&mut stream)), [whole as u64 + 1]);
        }
    }

    #[tokio::test]
    async fn a_flood_that_may_be_lost_costs_neither_the_stream_nor_what_is_stored() {
        for at_once in [1, 1_000] {
            let (told, mut stream) = down(ROOM);
            let flood: Vec<ToGateway> = (0..1_000).map(|_| ephemeral(5)).collect();
            for (news, seq) in flood.chunks(at_once).zip(1..) {
                assert!(told.tell(of(news.to_vec())), "the stream was ended");
                if seq <= 10 {
                    assert!(told.tell(of(vec![stored(seq)])));
                }
            }
            let sent = sent(&mut stream);
            let expected = 10.min(1_000 / at_once as u64);
            assert_eq!(numbers(&sent), (1..=expected).collect::<Vec<_>>());
            assert!(!sent.iter().any(|one| matches!(one, ToGateway::Truncated { .. })), "nothing stored had to wait");
        }
    }

    #[tokio::test]
    async fn each_session_is_told_how_many_it_lost_once_there_is_room() {
        let (told, mut stream) = down(ROOM);
        let flood = (0..200).map(|number| ephemeral(number % 2)).collect();
        assert!(told.tell(of(flood)));
        let sent = sent(&mut stream);
        for session in [0, 1] {
            let (delivered, lost) = (delivered(&sent, session), lost(&sent, session));
            assert!(delivered > 0 && lost > 0, "{delivered} and {lost}");
            assert_eq!(delivered + lost, 100, "each was delivered or told as lost");
        }
        let told_of = sent.iter().filter(|one| matches!(one, ToGateway::Lost { .. })).count();
        assert_eq!(told_of, 2, "once for all that a session lost");
    }

    #[tokio::test]
    async fn a_loss_that_is_noted_after_everything_was_sent_wakes_the_stream() {
        let (told, mut stream) = down(ROOM);
        let waiting = tokio::spawn(async move { stream.next().await });
        tokio::task::yield_now().await;
        told.losses.note(3, 1, 5);
        let down = waiting.await.unwrap().unwrap();
        let Some(Says::Batch(batch)) = down.says else { panic!("{down:?} and not a batch") };
        assert_eq!(from_batch(batch).unwrap(), of(vec![ToGateway::Lost { session: 5, count: 1 }]));
    }

    #[tokio::test]
    async fn one_body_for_many_sessions_counts_once() {
        let (told, mut stream) = down(ROOM);
        let message = body(ROOM);
        let place = DeliveryPlace::Ephemeral { place: 1 };
        assert!(told.tell(of((0..100).map(|session| deliver(session, place, &message)).collect())));
        let sent = sent(&mut stream);
        assert!((0..100).all(|session| delivered(&sent, session) == 1), "{} were sent", sent.len());
    }

    #[test]
    fn losses_of_too_many_sessions_are_not_kept() {
        let losses = Losses::default();
        for session in 0..LOSERS_MAX as u64 + 10 {
            losses.note(0, 1, session);
        }
        let mut told = 0;
        while let Some(down) = losses.take() {
            let Some(Says::Batch(batch)) = down.says else { panic!("{down:?} and not a batch") };
            told += from_batch(batch).unwrap().news.len();
        }
        assert_eq!((told, losses.book().losers), (LOSERS_MAX, 0));
    }
}
