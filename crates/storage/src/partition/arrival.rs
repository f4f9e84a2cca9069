//! Waits for new records. The future leaves nothing behind when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::LogPartition;

/// Resolves when an offset can be read or was trimmed, or when its partition was deleted.
pub struct OffsetArrival {
    partition: Arc<LogPartition>,
    from: u64,
    /// The number of this waiter in the partition.
    number: Option<u64>,
}

impl OffsetArrival {
    pub(crate) fn new(partition: Arc<LogPartition>, from: u64) -> Self {
        Self { partition, from, number: None }
    }
}

impl Future for OffsetArrival {
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

impl Drop for OffsetArrival {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.partition.state().waiting.remove(&number);
        }
    }
}
