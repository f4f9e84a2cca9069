//! The thread that owns a mirror: it executes the calls in order, syncs, and heals failed copies.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::super::fault::StoreError;
use super::super::thread::JobThread;
use super::{LsmMirror, MirrorFault};
use crate::embedded::thread_priority::lower_priority;

/// Bound on queued calls, and on calls that share one sync; further callers wait for space in the queue.
const CALLS_WAITING_MAX: usize = 256;

/// When the calls are synced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncRule {
    /// Before they are answered; calls that wait together share a sync.
    BeforeAnswer,
    /// At most this long after they were answered.
    Within(Duration),
}

/// Does its work, and returns a function that answers the caller. It runs once it is known whether the work is on disk.
type MirrorCall = Box<dyn FnOnce(&mut LsmMirror) -> MirrorReply + Send>;
type MirrorReply = Box<dyn FnOnce(Result<(), MirrorFault>)>;

/// The thread. When this is dropped, the thread completes the queued calls and exits.
pub(crate) struct MirrorThread(JobThread<MirrorCall>);

impl MirrorThread {
    pub fn start(name: &str, mirror: LsmMirror, rule: SyncRule) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let thread =
            JobThread::start(name, CALLS_WAITING_MAX, move |calls| runtime.block_on(serve(mirror, rule, calls)))?;
        if rule != SyncRule::BeforeAnswer {
            lower_priority(name);
        }
        Ok(Self(thread))
    }

    /// Executes the call after all earlier calls, even if the caller stops waiting.
    pub async fn call<R: Send + 'static, E: StoreError + Send + 'static>(
        &self,
        work: impl FnOnce(&mut LsmMirror) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        let call = |answer: oneshot::Sender<_>| -> MirrorCall {
            Box::new(move |mirror| {
                let done = work(mirror);
                Box::new(move |settled| {
                    let done = done.and_then(|done| settled.map(|()| done).map_err(|fault| E::unavailable(fault.0)));
                    let _ = answer.send(done);
                })
            })
        };
        self.0.ask(call).await
    }
}

async fn serve(mut mirror: LsmMirror, rule: SyncRule, mut calls: mpsc::Receiver<MirrorCall>) {
    let mut sync_at: Option<Instant> = None;
    let mut answers: Vec<MirrorReply> = Vec::new();
    loop {
        let heal_at = mirror.heal_at().map(Instant::from_std);
        let wake_at = [sync_at, heal_at].into_iter().flatten().min();
        let next = match wake_at {
            None => calls.recv().await.map(Some),
            Some(at) => timeout_at(at, calls.recv()).await.map_or(Some(None), |next| next.map(Some)),
        };
        let Some(call) = next else { break };
        answers.extend(call.map(|call| call(&mut mirror)));
        while !answers.is_empty()
            && answers.len() < CALLS_WAITING_MAX
            && let Ok(call) = calls.try_recv()
        {
            answers.push(call(&mut mirror));
        }
        let now = Instant::now();
        let settled = match rule {
            SyncRule::BeforeAnswer => mirror.sync(),
            SyncRule::Within(time) => {
                if !mirror.is_synced() {
                    sync_at.get_or_insert(now + time);
                }
                Ok(())
            }
        };
        answers.drain(..).for_each(|answer| answer(settled.clone()));
        if sync_at.is_some_and(|at| at <= now) {
            sync_at = None;
            // The mirror has closed and reported a copy that cannot sync, and rebuilds it.
            let _ = mirror.sync();
        }
        if mirror.heal_at().is_some_and(|at| at <= std::time::Instant::now()) {
            mirror.heal();
        }
    }
    if let Err(fault) = mirror.sync() {
        tracing::warn!(%fault, "cannot sync a store at shutdown; its last writes may be lost with the machine's power");
    }
}
