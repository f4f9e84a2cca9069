//! The one thread that writes.
//!
//! The LSM lets one batch in at a time, so more threads would only wait for each other. And what a thread puts into the LSM's
//! memory is given back to that thread's heap when it has been written to tables: many threads, each idle after its turn, would
//! keep several times as much as the LSM itself.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use whimbrel_model::ports::TimersError;

use super::Inner;

/// Writes that wait for their turn; more of them wait to be taken.
const WRITES_WAITING_MAX: usize = 64;

type Work = Box<dyn FnOnce(&Inner) + Send>;

/// The thread, which ends when this is dropped, after the writes that it took.
pub(super) struct Writer {
    works: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub const THREAD: &str = "holds-writer";

    pub fn start(inner: Arc<Inner>) -> Result<Self, TimersError> {
        let (works, mut asked) = mpsc::channel::<Work>(WRITES_WAITING_MAX);
        let thread = std::thread::Builder::new().name(Self::THREAD.to_owned()).spawn(move || {
            while let Some(work) = asked.blocking_recv() {
                work(&inner);
            }
        });
        let thread = thread.map_err(|error| TimersError::Unavailable(error.to_string()))?;
        Ok(Self { works: Some(works), thread: Some(thread) })
    }

    /// Does it after everything that was asked before.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, TimersError> + Send + 'static,
    ) -> Result<T, TimersError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |inner| {
            // Who asked may be gone; the write is done all the same.
            let _ = answer.send(work(inner));
        });
        if let Some(works) = &self.works {
            // Where the thread is gone, so is the answer.
            let _ = works.send(work).await;
        }
        answered.await.unwrap_or_else(|_| Err(TimersError::Unavailable("nobody writes any more".to_owned())))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.works.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
