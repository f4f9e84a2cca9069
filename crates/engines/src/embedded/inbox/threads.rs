//! A thread that does one thing after the other, and something else while nothing is asked of it.
//!
//! One thread writes: the LSM lets one batch in at a time anyway, no check is overtaken by another's write, and what a thread puts into
//! the LSM's memory is given back to that thread's heap. One thread reads: the LSM lets nobody read while it notes a table that it has
//! written, and it syncs that note to the disk, which must hold up only those who asked.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use whimbrel_model::ports::InboxError;

use super::Inner;

/// Works that wait for their turn; more of them wait to be taken.
const WORKS_WAITING_MAX: usize = 1024;

type Work = Box<dyn FnOnce(&Inner) + Send>;

/// The thread, which ends when this is dropped, after the works that it took.
pub(super) struct Worker {
    works: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// While nothing is asked, `idle` does a bit of its own and says whether there is more.
    pub fn start(
        name: &str,
        inner: Arc<Inner>,
        mut idle: impl FnMut(&Inner) -> bool + Send + 'static,
    ) -> Result<Self, InboxError> {
        let (works, mut asked) = mpsc::channel::<Work>(WORKS_WAITING_MAX);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut has_more = true;
            loop {
                let next =
                    if has_more { asked.try_recv() } else { asked.blocking_recv().ok_or(TryRecvError::Disconnected) };
                match next {
                    Ok(work) => {
                        work(&inner);
                        has_more = true;
                    }
                    Err(TryRecvError::Empty) => has_more = idle(&inner),
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        });
        let thread = thread.map_err(|error| InboxError::Unavailable(error.to_string()))?;
        Ok(Self { works: Some(works), thread: Some(thread) })
    }

    /// Does it after everything that was asked before.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, InboxError> + Send + 'static,
    ) -> Result<T, InboxError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |inner| {
            // Who asked may be gone; it is done all the same.
            let _ = answer.send(work(inner));
        });
        if let Some(works) = &self.works {
            // Where the thread is gone, so is the answer.
            let _ = works.send(work).await;
        }
        answered.await.unwrap_or_else(|_| Err(InboxError::Unavailable("nobody is there any more".to_owned())))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.works.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
