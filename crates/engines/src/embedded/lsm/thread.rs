//! A thread that executes queued work in order, and background work while the queue is empty.
//!
//! One thread writes a store. The LSM accepts one batch at a time anyway, no write comes between a check and its own write, and memory
//! that a thread puts into the LSM returns to that thread's heap. Another thread reads: the LSM blocks readers while it syncs the list
//! of its tables, which then delays only the callers that need the store.

use std::thread::JoinHandle;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::fault::StoreError;

/// A thread that takes jobs from a bounded queue. When this is dropped, the thread completes the queued jobs and exits.
pub(crate) struct JobThread<J> {
    jobs: Option<mpsc::Sender<J>>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> JobThread<J> {
    /// Starts the thread with `serve`, which must return when the queue is closed. At most `waiting_max` jobs wait; further callers wait
    /// until there is space.
    pub fn start(
        name: &str,
        waiting_max: usize,
        serve: impl FnOnce(mpsc::Receiver<J>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, handed) = mpsc::channel(waiting_max);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || serve(handed))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues the job that `job` makes for the sender of its answer, and waits for the answer.
    pub async fn ask<R, E: StoreError>(&self, job: impl FnOnce(oneshot::Sender<Result<R, E>>) -> J) -> Result<R, E> {
        let (answer, answered) = oneshot::channel();
        let job = job(answer);
        if let Some(jobs) = &self.jobs {
            // If the thread has exited, the reply channel is closed too.
            let _ = jobs.send(job).await;
        }
        answered.await.unwrap_or_else(|_| Err(E::unavailable("the thread of the store has ended".to_owned())))
    }
}

impl<J> Drop for JobThread<J> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type StoreWork<C> = Box<dyn FnOnce(&mut C) + Send>;

/// A thread that executes closures on its context.
pub(crate) struct WorkThread<C>(JobThread<StoreWork<C>>);

impl<C: Send + 'static> WorkThread<C> {
    /// Starts the thread. At most `waiting_max` pieces of work wait for it; further callers wait until there is space.
    pub fn start(name: &str, waiting_max: usize, context: C) -> std::io::Result<Self> {
        Self::start_with_idle(name, waiting_max, context, |_| false)
    }

    /// As [`Self::start`]. While no work waits, `idle` does one step of background work and returns whether there is more.
    pub fn start_with_idle(
        name: &str,
        waiting_max: usize,
        mut context: C,
        mut idle: impl FnMut(&mut C) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let serve = move |mut handed: mpsc::Receiver<StoreWork<C>>| {
            let mut has_more = true;
            loop {
                let next =
                    if has_more { handed.try_recv() } else { handed.blocking_recv().ok_or(TryRecvError::Disconnected) };
                match next {
                    Ok(work) => {
                        work(&mut context);
                        has_more = true;
                    }
                    Err(TryRecvError::Empty) => has_more = idle(&mut context),
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        };
        JobThread::start(name, waiting_max, serve).map(Self)
    }

    /// Executes the work after all earlier work, even if the caller stops waiting.
    pub async fn write<R: Send + 'static, E: StoreError + Send + 'static>(
        &self,
        work: impl FnOnce(&mut C) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        self.run(work, true).await
    }

    /// As [`Self::write`], but skips the work if the caller has stopped waiting before its turn.
    pub async fn read<R: Send + 'static, E: StoreError + Send + 'static>(
        &self,
        work: impl FnOnce(&mut C) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        self.run(work, false).await
    }

    async fn run<R: Send + 'static, E: StoreError + Send + 'static>(
        &self,
        work: impl FnOnce(&mut C) -> Result<R, E> + Send + 'static,
        is_write: bool,
    ) -> Result<R, E> {
        let job = |answer: oneshot::Sender<_>| -> StoreWork<C> {
            Box::new(move |context| {
                if is_write || !answer.is_closed() {
                    let _ = answer.send(work(context));
                }
            })
        };
        self.0.ask(job).await
    }
}
