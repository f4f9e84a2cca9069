//! A future that is finished also where its caller goes away.
//!
//! A client that disconnects drops the work of its request wherever it stands. An append cannot be undone by that, and a claim must
//! not be left half-way, so such work is wrapped: dropped after it began, it is carried on by a task of its own. As long as the
//! caller stays, it costs no task and no wake-up more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) struct Undisturbed<T: Send + 'static> {
    work: Option<Work<T>>,
    begun: bool,
}

impl<T: Send + 'static> Undisturbed<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), begun: false }
    }
}

impl<T: Send + 'static> Future for Undisturbed<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let work = self.work.as_mut().expect("a future is not polled after it ended");
        let output = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Undisturbed<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| self.begun) else { return };
        // Without a runtime the process is ending, and whatever was under way has the outcome that a crash would give it.
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
    async fn work_whose_caller_went_away_is_finished() {
        let go_on = Arc::new(Notify::new());
        let (finished, outcome) = oneshot::channel();
        let waiting = Arc::clone(&go_on);
        let mut work = Undisturbed::new(async move {
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
        drop(Undisturbed::new(async move { finished.send(()) }));
        assert!(outcome.await.is_err());
    }
}
