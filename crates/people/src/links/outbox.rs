//! What waits to be sent on one stream: never waited for, bounded in bytes. A stream whose other end does not keep up is ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::Stream;
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Where messages are put. Cloning shares it.
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

/// What a stream sends, in order, until it is ended.
pub(super) struct Outgoing<T> {
    receiver: mpsc::UnboundedReceiver<(T, usize)>,
    waiting: Arc<AtomicUsize>,
    bytes_max: usize,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

pub(super) fn outbox<T: Message>(bytes_max: usize) -> (Outbox<T>, Outgoing<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (waiting, ended) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
    let end = Box::pin(ended.clone().cancelled_owned());
    let outgoing = Outgoing { receiver, waiting: waiting.clone(), bytes_max, ended: end };
    (Outbox { sender, waiting, bytes_max, ended }, outgoing)
}

impl<T: Message> Outbox<T> {
    /// `false` where the stream has ended, or is ended now because too much waits. A message that is alone is never too much.
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
    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes that are that part of what may wait.
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

impl<T> Outgoing<T> {
    /// Whether more than that part of what may wait does.
    pub fn is_above(&self, part: usize) -> bool {
        self.waiting.load(Ordering::Relaxed) > self.bytes_max / part
    }
}

impl<T> Stream for Outgoing<T> {
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
    use whimbrel_cluster::wire::protocol::LinkResume;

    fn of_bytes(bytes: usize) -> LinkResume {
        LinkResume { epoch: "x".repeat(bytes), cursor: 0 }
    }

    #[tokio::test]
    async fn messages_come_out_in_order_and_what_was_sent_makes_room() {
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
    async fn one_large_message_alone_goes_through() {
        let (outbox, mut outgoing) = outbox(100);
        assert!(outbox.push(of_bytes(1000)));
        assert_eq!(outgoing.next().await, Some(of_bytes(1000)));
    }
}
