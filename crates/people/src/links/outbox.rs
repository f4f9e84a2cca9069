//! The send queue of a stream. Pushing never blocks. The queue is bounded in bytes; a stream whose other end is too slow is ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::Stream;
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The sending side. Clones share it.
pub(super) struct Outbox<T> {
    sender: mpsc::UnboundedSender<(T, usize)>,
    waiting: Arc<AtomicUsize>,
    bytes_max: usize,
    ended: CancellationToken,
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        let Self { sender, waiting, bytes_max, ended } = self;
        Self { sender: sender.clone(), waiting: waiting.clone(), bytes_max: *bytes_max, ended: ended.clone() }
    }
}

/// The queued messages, in order, until the stream is ended.
pub(super) struct OutboxOutput<T> {
    receiver: mpsc::UnboundedReceiver<(T, usize)>,
    waiting: Arc<AtomicUsize>,
    bytes_max: usize,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

pub(super) fn outbox<T: Message>(bytes_max: usize) -> (Outbox<T>, OutboxOutput<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (waiting, ended) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
    let end = Box::pin(ended.clone().cancelled_owned());
    let outgoing = OutboxOutput { receiver, waiting: waiting.clone(), bytes_max, ended: end };
    (Outbox { sender, waiting, bytes_max, ended }, outgoing)
}

impl<T: Message> Outbox<T> {
    /// `false` if the stream has ended, or is ended now because too much waits. A message that is alone always fits.
    pub fn push(&self, message: T) -> bool {
        let bytes = message.encoded_len();
        if self.ended.is_cancelled() {
            return false;
        }
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > self.bytes_max {
            self.end();
            return false;
        }
        self.sender.send((message, bytes)).is_ok()
    }
}

impl<T> Outbox<T> {
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The size of that fraction of the queue, in bytes.
    pub fn part(&self, part: usize) -> usize {
        self.bytes_max / part
    }

    pub fn end(&self) {
        self.ended.cancel();
    }

    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl<T> OutboxOutput<T> {
    /// Whether more than that fraction of the queue is used.
    pub fn is_above(&self, part: usize) -> bool {
        self.waiting.load(Ordering::Relaxed) > self.bytes_max / part
    }
}

impl<T> Stream for OutboxOutput<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if self.ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        self.receiver.poll_recv(context).map(|next| {
            let (message, bytes) = next?;
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            Some(message)
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use whimbrel_cluster::protocol::LinkResume;

    fn of_bytes(bytes: usize) -> LinkResume {
        LinkResume { epoch: "x".repeat(bytes), cursor: 0 }
    }

    #[tokio::test]
    async fn messages_keep_their_order_and_sent_ones_make_room() {
        let (outbox, mut outgoing) = outbox(100);
        for round in 0..10 {
            let message = LinkResume { epoch: "x".repeat(60), cursor: round };
            assert!(outbox.push(message.clone()));
            assert_eq!(outgoing.next().await, Some(message));
        }
    }

    #[tokio::test]
    async fn a_queue_over_its_bound_ends_the_stream() {
        let (outbox, mut outgoing) = outbox(100);
        assert!(outbox.push(of_bytes(60)));
        assert!(!outbox.push(of_bytes(60)));
        outbox.ended().await;
        assert_eq!(outgoing.next().await, None);
        assert!(!outbox.push(of_bytes(1)), "it stays ended");
    }

    #[tokio::test]
    async fn one_message_beyond_the_bound_is_sent_if_it_is_alone() {
        let (outbox, mut outgoing) = outbox(100);
        assert!(outbox.push(of_bytes(1000)));
        assert_eq!(outgoing.next().await, Some(of_bytes(1000)));
    }
}
