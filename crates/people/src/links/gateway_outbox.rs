//! The outbox of a remote gateway: messages of owners on their way into that gateway's stream, and what is dropped if it is too slow.
//!
//! A stream with too much waiting is ended; then every session behind it must be announced again. Two kinds of messages give way before.
//! **Ephemeral messages** are dropped first; the gateway is told how many each session lost as soon as there is room. **Stored messages**
//! stay in the inbox next, for example when many devices reconnect and read their backlog. In their place the gateway receives a gap; when
//! it reads that, the queue before it has drained, and it requests the rest. All other messages are small and keep the remaining room.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use metrics::Counter;
use whimbrel_model::ports::{CarrierMessages, Delivery, DeliveryPosition, ToGateway};

use super::limits::{EPHEMERAL_PART, LOSERS_MAX, LOSSES_PART, STORED_PART, TOGETHER_MAX};
use super::outbox::{Outbox, OutboxOutput, outbox};
use super::wire::GatewayBatch;
use crate::gateway::DROPPED;
use whimbrel_cluster::protocol::LinkDown;

/// The sending side. Clones share it.
#[derive(Clone)]
pub(super) struct GatewayOutbox {
    outbox: Outbox<LinkDown>,
    losses: Arc<Losses>,
    dropped: Counter,
}

/// The messages for the gateway's stream.
pub(super) struct GatewayOutput {
    outgoing: OutboxOutput<LinkDown>,
    losses: Arc<Losses>,
}

pub(super) fn gateway_outbox(bytes_max: usize) -> (GatewayOutbox, GatewayOutput) {
    let (outbox, outgoing) = outbox(bytes_max);
    let losses = Arc::<Losses>::default();
    (
        GatewayOutbox { outbox, losses: Arc::clone(&losses), dropped: metrics::counter!(DROPPED) },
        GatewayOutput { outgoing, losses },
    )
}

impl GatewayOutbox {
    /// Queues messages of an owner, as far as each has room. `false` if the stream has ended, also just now.
    pub fn tell(&self, news: CarrierMessages) -> bool {
        let CarrierMessages { partition, epoch, news } = news;
        let mut batch = GatewayBatch::new(partition, epoch);
        for one in news {
            let Some(one) = self.fitting(partition, epoch, one, &batch) else { continue };
            if batch.add(&one).is_some_and(|full| !self.outbox.push(full)) {
                return false;
            }
        }
        batch.take().is_none_or(|rest| self.outbox.push(rest))
    }

    /// The message to queue: the given one if there is room, otherwise its replacement.
    fn fitting(&self, partition: u32, epoch: u64, one: ToGateway, batch: &GatewayBatch) -> Option<ToGateway> {
        let ToGateway::Deliver(Delivery { session, place, message, .. }) = &one else { return Some(one) };
        let waiting = self.outbox.waiting() + batch.bytes();
        match place {
            _ if batch.has_body(message) => Some(one),
            DeliveryPosition::Stored { .. } if waiting <= self.outbox.part(STORED_PART) => Some(one),
            // An empty range after an impossible number, which the gateway treats as a gap.
            DeliveryPosition::Stored { .. } => {
                Some(ToGateway::Truncated { session: *session, from: 0, to: 0, prev: u64::MAX })
            }
            // A message that is alone always has room.
            DeliveryPosition::Ephemeral { .. }
                if waiting == 0 || waiting + message.payload.len() <= self.outbox.part(EPHEMERAL_PART) =>
            {
                Some(one)
            }
            DeliveryPosition::Ephemeral { .. } => {
                self.dropped.increment(1);
                self.losses.note(partition, epoch, *session);
                None
            }
        }
    }

    /// Queues a message that is not from an owner.
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

impl Stream for GatewayOutput {
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

/// Dropped messages that were not reported yet.
#[derive(Default)]
struct Losses {
    table: Mutex<LossTable>,
    /// Wakes the stream, which would otherwise not see a loss that is noted while nothing waits.
    waker: AtomicWaker,
}

#[derive(Default)]
struct LossTable {
    /// By partition.
    partitions: BTreeMap<u32, Lost>,
    losers: usize,
}

#[derive(Default)]
struct Lost {
    epoch: u64,
    sessions: HashMap<u64, u64, foldhash::fast::RandomState>,
}

impl Losses {
    fn note(&self, partition: u32, epoch: u64, session: u64) {
        {
            let table = &mut *self.table();
            let has_room = table.losers < LOSERS_MAX;
            if !has_room && !table.partitions.contains_key(&partition) {
                return;
            }
            let lost = table.partitions.entry(partition).or_default();
            lost.epoch = lost.epoch.max(epoch);
            match lost.sessions.get_mut(&session) {
                Some(count) => *count += 1,
                None if has_room => {
                    lost.sessions.insert(session, 1);
                    table.losers += 1;
                }
                None => {}
            }
        }
        self.waker.wake();
    }

    /// Takes a batch of reports, if there are any.
    fn take(&self) -> Option<LinkDown> {
        let table = &mut *self.table();
        let mut entry = table.partitions.first_entry()?;
        let partition = *entry.key();
        let Lost { epoch, sessions } = entry.get_mut();
        let mut batch = GatewayBatch::new(partition, *epoch);
        let told: Vec<u64> = sessions.keys().copied().take(TOGETHER_MAX).collect();
        for session in told {
            let count = sessions.remove(&session).unwrap_or_default();
            table.losers -= 1;
            // At most as many as a batch has room for, so `add` never returns a full one.
            batch.add(&ToGateway::Lost { session, count });
        }
        if sessions.is_empty() {
            entry.remove();
        }
        batch.take()
    }

    fn table(&self) -> MutexGuard<'_, LossTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};
    use whimbrel_model::ports::OutMessage;

    use super::*;
    use crate::links::wire::from_batch;
    use whimbrel_cluster::protocol::link_down::Says;

    const ROOM: usize = 64_000;

    fn body(bytes: usize) -> Arc<OutMessage> {
        Arc::new(OutMessage { payload: vec![b'x'; bytes].into(), ..OutMessage::default() })
    }

    fn deliver(session: u64, place: DeliveryPosition, message: &Arc<OutMessage>) -> ToGateway {
        ToGateway::Deliver(Delivery { session, place, again: false, message: Arc::clone(message) })
    }

    fn stored(seq: u64) -> ToGateway {
        deliver(7, DeliveryPosition::Stored { seq, prev: seq - 1 }, &body(1_000))
    }

    fn ephemeral(session: u64) -> ToGateway {
        deliver(session, DeliveryPosition::Ephemeral { place: 1 }, &body(1_000))
    }

    fn of(news: Vec<ToGateway>) -> CarrierMessages {
        CarrierMessages { partition: 3, epoch: 1, news }
    }

    /// Everything that is sent now, in order.
    fn sent(stream: &mut GatewayOutput) -> Vec<ToGateway> {
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
            ToGateway::Deliver(Delivery { place: DeliveryPosition::Stored { seq, .. }, .. }) => Some(*seq),
            _ => None,
        };
        sent.iter().filter_map(number).collect()
    }

    fn delivered(sent: &[ToGateway], whom: u64) -> u64 {
        let is_theirs = |one: &&ToGateway| matches!(one, ToGateway::Deliver(Delivery { session, place: DeliveryPosition::Ephemeral { .. }, .. }) if *session == whom);
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
    async fn a_burst_of_stored_messages_becomes_a_gap_without_ending_the_stream() {
        for at_once in [1, 100] {
            let (told, mut stream) = gateway_outbox(ROOM);
            let pages: Vec<ToGateway> = (1..=100).map(stored).collect();
            for news in pages.chunks(at_once) {
                assert!(told.tell(of(news.to_vec())), "the stream was ended");
            }
            let first = sent(&mut stream);
            let whole = numbers(&first).len();
            assert!(whole > 1 && whole < 100, "{whole}");
            let is_gap = |one: &ToGateway| matches!(one, ToGateway::Truncated { session: 7, prev: u64::MAX, .. });
            assert!(first.len() == 100 && first[whole..].iter().all(is_gap), "{first:?}");
            // There is room again, and the gateway has requested the rest.
            assert!(told.tell(of(vec![stored(whole as u64 + 1)])));
            assert_eq!(numbers(&sent(&mut stream)), [whole as u64 + 1]);
        }
    }

    #[tokio::test]
    async fn a_flood_of_ephemeral_messages_costs_neither_the_stream_nor_stored_messages() {
        for at_once in [1, 1_000] {
            let (told, mut stream) = gateway_outbox(ROOM);
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
            assert!(
                !sent.iter().any(|one| matches!(one, ToGateway::Truncated { .. })),
                "a stored message was replaced by a gap"
            );
        }
    }

    #[tokio::test]
    async fn losses_are_reported_to_each_session_once_there_is_room() {
        let (told, mut stream) = gateway_outbox(ROOM);
        let flood = (0..200).map(|number| ephemeral(number % 2)).collect();
        assert!(told.tell(of(flood)));
        let sent = sent(&mut stream);
        for session in [0, 1] {
            let (delivered, lost) = (delivered(&sent, session), lost(&sent, session));
            assert!(delivered > 0 && lost > 0, "{delivered} and {lost}");
            assert_eq!(delivered + lost, 100, "each must be delivered or reported as lost");
        }
        let told_of = sent.iter().filter(|one| matches!(one, ToGateway::Lost { .. })).count();
        assert_eq!(told_of, 2, "one report for all losses of a session");
    }

    #[tokio::test]
    async fn a_loss_that_is_noted_on_an_idle_stream_wakes_it() {
        let (told, mut stream) = gateway_outbox(ROOM);
        let waiting = tokio::spawn(async move { stream.next().await });
        tokio::task::yield_now().await;
        told.losses.note(3, 1, 5);
        let down = waiting.await.unwrap().unwrap();
        let Some(Says::Batch(batch)) = down.says else { panic!("{down:?} and not a batch") };
        assert_eq!(from_batch(batch).unwrap(), of(vec![ToGateway::Lost { session: 5, count: 1 }]));
    }

    #[tokio::test]
    async fn one_payload_for_many_sessions_counts_once() {
        let (told, mut stream) = gateway_outbox(ROOM);
        let message = body(ROOM);
        let place = DeliveryPosition::Ephemeral { place: 1 };
        assert!(told.tell(of((0..100).map(|session| deliver(session, place, &message)).collect())));
        let sent = sent(&mut stream);
        assert!((0..100).all(|session| delivered(&sent, session) == 1), "{} were sent", sent.len());
    }

    #[test]
    fn losses_of_sessions_beyond_the_bound_are_not_kept() {
        let losses = Losses::default();
        for session in 0..LOSERS_MAX as u64 + 10 {
            losses.note(0, 1, session);
        }
        let mut told = 0;
        while let Some(down) = losses.take() {
            let Some(Says::Batch(batch)) = down.says else { panic!("{down:?} and not a batch") };
            told += from_batch(batch).unwrap().news.len();
        }
        assert_eq!((told, losses.table().losers), (LOSERS_MAX, 0));
    }
}
