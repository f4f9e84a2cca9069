//! A future that completes even if its caller is cancelled.
//!
//! When a client disconnects, the server drops its request wherever it is. That cannot undo an append, and a claim must not be left
//! half-way. Such work is wrapped: if it is dropped after its start, a task of its own continues it. While the caller stays, it costs no
//! task and no extra wake-up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

type BoxedWork<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) struct CancelSafe<T: Send + 'static> {
    work: Option<BoxedWork<T>>,
    begun: bool,
}

impl<T: Send + 'static> CancelSafe<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), begun: false }
    }
}

impl<T: Send + 'static> Future for CancelSafe<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let work = self.work.as_mut().expect("a future is not polled after completion");
        let output = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for CancelSafe<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| self.begun) else { return };
        // Without a runtime the process is ending, and the work has the same outcome as after a crash.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::{Notify, oneshot};

    #[tokio::test]
    async fn work_of_a_cancelled_caller_is_finished() {
        let go_on = Arc::new(Notify::new());
        let (finished, outcome) = oneshot::channel();
        let waiting = Arc::clone(&go_on);
        let mut work = CancelSafe::new(async move {
            waiting.notified().await;
            finished.send("done").unwrap();
        });
        assert!(futures_util::poll!(&mut work).is_pending());
        drop(work);
        go_on.notify_one();
        assert_eq!(outcome.await, Ok("done"));
    }

    #[tokio::test]
    async fn work_that_never_began_is_dropped() {
        let (finished, outcome) = oneshot::channel::<()>();
        drop(CancelSafe::new(async move { finished.send(()) }));
        assert!(outcome.await.is_err());
    }
}
