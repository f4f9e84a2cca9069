//! The log with its two threads: the journal thread commits the waiting requests; the keeper thread maintains segments and checkpoints.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::clock::StorageClock;
use crate::core::OnEvent;
use crate::error::{AppendError, OpenError};
use crate::folder::DataFolder;
use crate::lanes::{CommitGroup, Lanes};
use crate::ticket::{LogTicket, TicketSlot, answer_all};
use crate::{Core, LogRecovery, LogSettings, LogWrite};

/// Time between two checks of the keeper for work.
const KEEPER_TICK: Duration = Duration::from_millis(100);
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL: Duration = Duration::from_secs(30);

/// The running log. It derefs to [`Core`], which has the reads and all other calls.
pub struct LogStore {
    shared: Arc<StoreShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct StoreShared {
    core: Core,
    clock: Arc<dyn StorageClock>,
    queue: Mutex<LogQueue>,
    /// The journal thread waits here for work.
    work_came: Condvar,
    keeper: Mutex<KeeperSignal>,
    /// The keeper thread waits here for its next tick.
    keeper_wanted: Condvar,
    /// The journal thread waits here for the keeper if memory or journal are full.
    keeper_done: Condvar,
}

#[derive(Default)]
struct LogQueue {
    lanes: Lanes<Arc<TicketSlot>>,
    /// The number of waiting requests at which the journal thread is woken; `None` while it is awake. It is not notified earlier: a
    /// notification is a system call, and a wake-up takes a processor from running threads.
    wake_at: Option<usize>,
    closing: bool,
}

#[derive(Default)]
struct KeeperSignal {
    wanted: bool,
    rounds: u64,
    closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for LogStore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.shared.core
    }
}

impl LogStore {
    pub fn open(
        folder: Arc<DataFolder>,
        settings: LogSettings,
        clock: Arc<dyn StorageClock>,
        on_event: OnEvent,
    ) -> Result<(Self, LogRecovery), OpenError> {
        let (core, recovered) = Core::open(folder, settings, clock.now_ms(), on_event)?;
        let shared = Arc::new(StoreShared {
            core,
            clock,
            queue: Mutex::default(),
            work_came: Condvar::new(),
            keeper: Mutex::default(),
            keeper_wanted: Condvar::new(),
            keeper_done: Condvar::new(),
        });
        let spawn = |name: &str, run: fn(&StoreShared)| {
            let shared = shared.clone();
            let run = move || {
                // Without its threads the log would accept appends and never answer. An abort is safe at any moment; continuing is not.
                if catch_unwind(AssertUnwindSafe(|| run(&shared))).is_err() {
                    tracing::error!("a thread of the log failed; aborting the process, so that a restart can recover");
                    std::process::abort();
                }
            };
            let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map_err(OpenError::io(format!("starting the thread {name}")))
        };
        let threads = vec![spawn("journal", StoreShared::run_journal)?, spawn("keeper", StoreShared::run_keeper)?];
        Ok((Self { shared, threads: Mutex::new(threads) }, recovered))
    }

    /// Queues a request for the next group commit. After an error nothing was written. Dropping the ticket does not cancel the request.
    /// Appends keep the order of their calls, and so do commits together with the openings of fences.
    pub fn submit(&self, work: LogWrite) -> Result<LogTicket, AppendError> {
        let size = work.size();
        let settings = self.shared.core.settings();
        if size > settings.frame_bytes_max {
            return Err(AppendError::TooLarge { size, limit: settings.frame_bytes_max });
        }
        let mut queue = lock(&self.shared.queue);
        if queue.closing {
            return Err(AppendError::Closing);
        }
        queue.lanes.admit(&work, settings.queue_bytes_max)?;
        let (ticket, pending) = TicketSlot::new();
        queue.lanes.push(work, pending);
        if queue.wake_at.is_some_and(|count| queue.lanes.len() >= count) {
            queue.wake_at = None;
            drop(queue);
            self.shared.work_came.notify_one();
        }
        Ok(ticket)
    }

    /// Commits the waiting requests, makes a last checkpoint and ends the threads. Later submissions fail.
    pub fn close(&self) {
        lock(&self.shared.queue).closing = true;
        self.shared.work_came.notify_one();
        let mut threads = lock(&self.threads).drain(..).collect::<Vec<_>>().into_iter();
        if let Some(journal) = threads.next() {
            journal.join().ok();
        }
        lock(&self.shared.keeper).closing = true;
        self.shared.keeper_wanted.notify_one();
        threads.for_each(|thread| drop(thread.join()));
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl StoreShared {
    fn run_journal(&self) {
        let mut idle_marked = true;
        let mut crowd = CallerMean::default();
        loop {
            let Some(group) = self.next_group(&mut idle_marked, crowd.group_worth_waiting_for()) else {
                return;
            };
            if group.works.is_empty() {
                self.core.mark_idle();
                // After a quiet time the next caller is expected to be alone, and does not wait for others.
                crowd = CallerMean::default();
                continue;
            }
            self.wait_for_keeper();
            let outcomes = self.core.commit(&group.works);
            crowd.saw(group.works.len() + lock(&self.queue).lanes.len());
            answer_all(group.waiting.into_iter().zip(outcomes));
            if self.core.wants_relief() || self.core.wants_checkpoint() {
                self.want_keeper();
            }
        }
    }

    /// Waits for requests and takes those of one frame. Returns an empty group after a quiet time, and `None` when the log closes.
    fn next_group(&self, idle_marked: &mut bool, worth: usize) -> Option<CommitGroup<Arc<TicketSlot>>> {
        let mut queue = lock(&self.queue);
        while queue.lanes.is_empty() {
            if queue.closing {
                return None;
            }
            queue.wake_at = Some(1);
            if *idle_marked {
                queue = self.work_came.wait(queue).unwrap_or_else(PoisonError::into_inner);
            } else {
                let idle_after = self.core.settings().idle_after;
                let waited = self.work_came.wait_timeout(queue, idle_after).unwrap_or_else(PoisonError::into_inner);
                queue = waited.0;
                if waited.1.timed_out() && queue.lanes.is_empty() {
                    *idle_marked = true;
                    return Some(CommitGroup::default());
                }
            }
        }
        *idle_marked = false;
        let target = self.core.settings().frame_bytes_target;
        queue = self.gather(queue, worth, target);
        queue.wake_at = None;
        Some(queue.lanes.take_group(target))
    }

    /// Waits up to `gather_max` for further callers: many small groups cost more than few large ones, and with many callers the processors
    /// are busy meanwhile.
    fn gather<'a>(
        &'a self,
        mut queue: MutexGuard<'a, LogQueue>,
        worth: usize,
        target: usize,
    ) -> MutexGuard<'a, LogQueue> {
        let begun = Instant::now();
        while queue.lanes.len() < worth && queue.lanes.bytes() < target && !queue.closing {
            let Some(left) =
                self.core.settings().gather_max.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            else {
                break;
            };
            queue.wake_at = Some(worth);
            queue = self.work_came.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue
    }

    /// Waits for the keeper while memory or journal are full. Meanwhile the queue fills up to its limit, then appends fail: the
    /// backpressure.
    fn wait_for_keeper(&self) {
        while self.core.must_wait() && self.core.refusal().is_none() {
            let mut keeper = lock(&self.keeper);
            keeper.wanted = true;
            self.keeper_wanted.notify_one();
            let rounds = keeper.rounds;
            while keeper.rounds == rounds && !keeper.closing {
                let waited = self.keeper_done.wait_timeout(keeper, KEEPER_TICK).unwrap_or_else(PoisonError::into_inner);
                keeper = waited.0;
            }
        }
    }

    fn want_keeper(&self) {
        let mut keeper = lock(&self.keeper);
        if !keeper.wanted {
            keeper.wanted = true;
            drop(keeper);
            self.keeper_wanted.notify_one();
        }
    }

    fn run_keeper(&self) {
        let (mut last_checkpoint, mut last_room, mut last_retention) = (Instant::now(), Instant::now(), Instant::now());
        self.core.prepare_journal();
        loop {
            let closing = self.next_round();
            let now = self.clock.now_ms();
            self.core.prepare_journal();
            let is_time =
                last_checkpoint.elapsed() >= self.core.settings().checkpoint_interval && self.core.has_written();
            // An error has already closed the log or reported a full disk; there is no caller to answer.
            if is_time || closing || self.core.wants_checkpoint() || self.core.must_wait() {
                if self.core.has_written() {
                    self.core.checkpoint(now, &mut || {}).ok();
                }
                last_checkpoint = Instant::now();
            } else if self.core.wants_relief() {
                self.core.relieve_memory(now).ok();
            }
            if last_room.elapsed() >= ROOM_INTERVAL {
                self.core.watch_room(now);
                last_room = Instant::now();
            }
            if last_retention.elapsed() >= RETENTION_INTERVAL {
                if let Err(error) = self.core.retain(self.clock.expiry_ms()) {
                    tracing::warn!(%error, "dropping old segments failed; the next pass tries again");
                }
                last_retention = Instant::now();
            }
            lock(&self.keeper).rounds += 1;
            self.keeper_done.notify_all();
            if closing {
                return;
            }
        }
    }

    /// Waits for the next tick or a request for the keeper. Returns whether the log closes.
    fn next_round(&self) -> bool {
        let mut keeper = lock(&self.keeper);
        if !keeper.wanted && !keeper.closing {
            keeper = self.keeper_wanted.wait_timeout(keeper, KEEPER_TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        keeper.wanted = false;
        keeper.closing
    }
}

/// The number of concurrent callers as the journal thread sees it: those that it answered, and those that arrived meanwhile.
#[derive(Default)]
struct CallerMean {
    /// A moving average, multiplied by [`CallerMean::SCALE`].
    scaled: usize,
}

impl CallerMean {
    const SCALE: usize = 16;

    fn saw(&mut self, callers: usize) {
        self.scaled = self.scaled - self.scaled / Self::SCALE + callers;
    }

    /// The number of requests worth waiting for. Half of the callers in one group leaves the other half to be served meanwhile. Fewer than
    /// a handful are not worth a wait.
    fn group_worth_waiting_for(&self) -> usize {
        const HANDFUL: usize = 4;
        let half = self.scaled / Self::SCALE / 2;
        if half < HANDFUL { 1 } else { half }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(callers_by_group: impl IntoIterator<Item = usize>) -> CallerMean {
        let mut crowd = CallerMean::default();
        callers_by_group.into_iter().for_each(|callers| crowd.saw(callers));
        crowd
    }

    #[test]
    fn a_single_caller_does_not_wait_for_others() {
        assert_eq!(CallerMean::default().group_worth_waiting_for(), 1);
        assert_eq!(after([1; 1000]).group_worth_waiting_for(), 1);
    }

    #[test]
    fn half_of_the_callers_are_worth_waiting_for_after_a_few_groups() {
        assert!(after([64; 4]).group_worth_waiting_for() > 1);
        assert_eq!(after([64; 1000]).group_worth_waiting_for(), 32);
    }

    #[test]
    fn the_average_falls_back_to_one_caller_when_the_others_left() {
        assert_eq!(after([64; 1000].into_iter().chain([1; 40])).group_worth_waiting_for(), 1);
    }
}
