//! The supervisor of owners: runs one task for each owned shard of a kind, on threads of its own.
//!
//! An owner that resigns or panics leaves the table, and its shard is given up, so that the shard is taken again from store and log.
//! A stopped owner has ended when [`Supervisor::end`] returns.

use std::collections::HashMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::PortFuture;

use super::Resign;

/// Runs owners. `D` is what reaches an owner: the sender of its requests.
pub struct Supervisor<D> {
    running: Arc<Mutex<HashMap<u32, RunningOwner<D>>>>,
    threads: Vec<Handle>,
    /// Gives a shard up on an owner's own initiative.
    resign: Option<Resign>,
    shutdown: CancellationToken,
}

struct RunningOwner<D> {
    epoch: u64,
    door: D,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
}

impl<D: Clone + Send + 'static> Supervisor<D> {
    /// Starts a thread of each name. No owner runs yet.
    pub fn start(thread_names: impl IntoIterator<Item = String>, resign: Option<Resign>) -> io::Result<Self> {
        let shutdown = CancellationToken::new();
        let mut threads = Vec::new();
        for name in thread_names {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.push(runtime.handle().clone());
            let ends = shutdown.clone();
            std::thread::Builder::new().name(name).spawn(move || runtime.block_on(ends.cancelled()))?;
        }
        Ok(Self { running: Arc::default(), threads, resign, shutdown })
    }

    pub fn threads(&self) -> &[Handle] {
        &self.threads
    }

    /// The thread of a shard, or of another number: always the same.
    pub fn thread_of(&self, number: u32) -> &Handle {
        &self.threads[number as usize % self.threads.len()]
    }

    /// The shards that have an owner here, in order.
    pub fn owned(&self) -> Vec<u32> {
        let mut owned: Vec<u32> = self.running().keys().copied().collect();
        owned.sort_unstable();
        owned
    }

    pub fn door(&self, shard: u32) -> Option<D> {
        self.running().get(&shard).map(|running| running.door.clone())
    }

    pub fn doors(&self) -> Vec<D> {
        self.running().values().map(|running| running.door.clone()).collect()
    }

    /// Runs an owner: `own` until its token is cancelled, then `over`, always, with the reason if the owner could not continue.
    pub fn begin<F>(
        &self,
        (shard, epoch): (u32, u64),
        door: D,
        own: impl FnOnce(CancellationToken) -> F,
        over: impl FnOnce(Option<&str>) + Send + 'static,
    ) where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        let (ended_sender, ended) = watch::channel(false);
        let stop = CancellationToken::new();
        let owning = AssertUnwindSafe(own(stop.clone())).catch_unwind();
        self.running().insert(shard, RunningOwner { epoch, door, stop, ended });
        let (running, resign) = (Arc::clone(&self.running), self.resign.clone());
        self.thread_of(shard).spawn(async move {
            // A panic must not leave a shard with an owner that answers no request.
            let why = owning.await.unwrap_or_else(|_| Some("its owner panicked".to_owned()));
            over(why.as_deref());
            if why.is_some() {
                lock(&running).extract_if(|at, entry| *at == shard && entry.epoch == epoch).for_each(drop);
                if let Some(resign) = resign {
                    resign.resign(shard, epoch);
                }
            }
            ended_sender.send_replace(true);
        });
    }

    /// Stops the owner of the shard, if there is one. Returns when it has ended.
    pub fn end(&self, shard: u32) -> PortFuture<'static, ()> {
        let running = self.running().remove(&shard);
        Box::pin(async move {
            if let Some(mut running) = running {
                running.stop.cancel();
                // An error means that the task has ended already.
                let _ = running.ended.wait_for(|ended| *ended).await;
            }
        })
    }

    /// Ends all owners, and the threads.
    pub async fn close(&self) {
        join_all(self.owned().into_iter().map(|shard| self.end(shard))).await;
        self.shutdown.cancel();
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u32, RunningOwner<D>>> {
        lock(&self.running)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::resignations;
    use super::*;

    #[tokio::test]
    async fn an_owner_that_panics_is_given_up_and_one_that_is_stopped_has_ended() {
        let (resign, mut resigned) = resignations();
        let owners = Supervisor::start(["owner".to_owned()], Some(resign)).unwrap();
        owners.begin((3, 7), (), |_| async { panic!("a panic of the test") }, |why| assert!(why.is_some()));
        assert_eq!(resigned.receiver.recv().await, Some((3, 7)));
        let own = |stop: CancellationToken| async move {
            stop.cancelled().await;
            None
        };
        owners.begin((4, 8), (), own, |why| assert_eq!(why, None));
        assert_eq!(owners.owned(), [4], "the first owner has left the table");
        owners.end(4).await;
        assert!(owners.door(4).is_none() && resigned.receiver.try_recv().is_err());
    }
}
