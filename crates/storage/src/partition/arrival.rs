//! Waiting for more: a future that leaves nothing behind when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Partition;

/// Resolves when an offset is there to be read, was trimmed, or its partition is gone.
pub struct Arrival {
    partition: Arc<Partition>,
    from: u64,
    /// The number under which the partition knows us.
    number: Option<u64>,
}

impl Arrival {
    pub(crate) fn new(partition: Arc<Partition>, from: u64) -> Self {
        Self { partition, from, number: None }
    }
}

impl Future for Arrival {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let partition = self.partition.clone();
        let mut state = partition.state();
        if state.next > self.from || state.first > self.from || state.deleted {
            return Poll::Ready(());
        }
        let number = match self.number {
            Some(number) => number,
            None => {
                state.next_waiting += 1;
                self.number = Some(state.next_waiting);
                state.next_waiting
            }
        };
        state.waiting.insert(number, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.partition.state().waiting.remove(&number);
        }
    }
}
