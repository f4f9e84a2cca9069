//! The log with its two threads: the journal's, which commits what waits, and the keeper's, which keeps house behind it.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::core::OnEvent;
use crate::error::{AppendError, OpenError};
use crate::folder::DataFolder;
use crate::lanes::{Group, Lanes};
use crate::ticket::{Pending, Ticket, answer_all};
use crate::{Core, Recovered, Settings, Work};

/// How often the keeper looks whether there is something to do.
const KEEPER_TICK: Duration = Duration::from_millis(100);
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL: Duration = Duration::from_secs(30);

/// The running log. Reads and the rest are calls on [`Core`], to which it derefs.
pub struct Store {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    core: Core,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    /// The journal's thread waits here for work.
    work_came: Condvar,
    keeper: Mutex<Keeper>,
    /// The keeper waits here for its next tick.
    keeper_wanted: Condvar,
    /// The journal's thread waits here where it must not go on before the keeper has.
    keeper_done: Condvar,
}

#[derive(Default)]
struct Queue {
    lanes: Lanes<Arc<Pending>>,
    /// How many must wait before the journal's thread is woken; `None` where it does not sleep. Nobody is notified who does not
    /// sleep, or who would not go on yet: a notification is a system call, and a wake-up takes a processor from those who work.
    wake_at: Option<usize>,
    closing: bool,
}

#[derive(Default)]
struct Keeper {
    wanted: bool,
    rounds: u64,
    closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for Store {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.shared.core
    }
}

impl Store {
    pub fn open(
        folder: Arc<DataFolder>,
        settings: Settings,
        clock: Arc<dyn Clock>,
        on_event: OnEvent,
    ) -> Result<(Self, Recovered), OpenError> {
        let (core, recovered) = Core::open(folder, settings, clock.now_ms(), on_event)?;
        let shared = Arc::new(Shared {
            core,
            clock,
            queue: Mutex::default(),
            work_came: Condvar::new(),
            keeper: Mutex::default(),
            keeper_wanted: Condvar::new(),
            keeper_done: Condvar::new(),
        });
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = shared.clone();
            let run = move || {
                // Without its threads the log would take appends and never answer. Ending is safe at any moment; going on is not.
                if catch_unwind(AssertUnwindSafe(|| run(&shared))).is_err() {
                    tracing::error!("a thread of the log failed; ending, so that a restart can recover");
                    std::process::abort();
                }
            };
            let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map_err(OpenError::io(format!("starting the thread {name}")))
        };
        let threads = vec![spawn("journal", Shared::run_journal)?, spawn("keeper", Shared::run_keeper)?];
        Ok((Self { shared, threads: Mutex::new(threads) }, recovered))
    }

    /// Queues work for the next group commit. Refused here, nothing was written. Dropping the ticket does not undo.
    /// Appends keep the order of their calls among each other, and so do commits and the opening of fences.
    pub fn submit(&self, work: Work) -> Result<Ticket, AppendError> {
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
        let (ticket, pending) = Pending::new();
        queue.lanes.push(work, pending);
        if queue.wake_at.is_some_and(|count| queue.lanes.len() >= count) {
            queue.wake_at = None;
            drop(queue);
            self.shared.work_came.notify_one();
        }
        Ok(ticket)
    }

    /// Commits what waits, makes a last checkpoint and ends the threads. Later submissions are refused.
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

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn run_journal(&self) {
        let mut idle_marked = true;
        let mut crowd = Crowd::default();
        loop {
            let Some(group) = self.next_group(&mut idle_marked, crowd.group_worth_waiting_for()) else {
                return;
            };
            if group.works.is_empty() {
                self.core.mark_idle();
                // Whoever comes next comes alone, as far as anybody knows, and is not made to wait for others.
                crowd = Crowd::default();
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

    /// Waits for work and takes a frame's worth of it. Nothing in it: the journal was quiet. `None`: the log closes.
    fn next_group(&self, idle_marked: &mut bool, worth: usize) -> Option<Group<Arc<Pending>>> {
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
                    return Some(Group::default());
                }
            }
        }
        *idle_marked = false;
        let target = self.core.settings().frame_bytes_target;
        queue = self.gather(queue, worth, target);
        queue.wake_at = None;
        Some(queue.lanes.take_group(target))
    }

    /// Waits a moment for those who are on their way: many small groups cost more than few larger ones, and with many callers
    /// the processors have enough to do meanwhile.
    fn gather<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, worth: usize, target: usize) -> MutexGuard<'a, Queue> {
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

    /// Where memory or journal have no room left, the keeper goes first. Meanwhile the queue fills up to its bound, and then
    /// appends are refused: that is the backpressure.
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
            // What fails here has closed the log or says that the disk is full; there is nobody to answer.
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
                    tracing::warn!(%error, "dropping old segments failed; it is tried again");
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

    /// Waits for the next tick or for somebody who wants the keeper. Returns whether the log closes.
    fn next_round(&self) -> bool {
        let mut keeper = lock(&self.keeper);
        if !keeper.wanted && !keeper.closing {
            keeper = self.keeper_wanted.wait_timeout(keeper, KEEPER_TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        keeper.wanted = false;
        keeper.closing
    }
}

/// How many callers there are at a time, as far as the journal's thread can see: those it answered, and those who came meanwhile.
#[derive(Default)]
struct Crowd {
    /// A moving average, times [`Crowd::SCALE`].
    scaled: usize,
}

impl Crowd {
    const SCALE: usize = 16;

    fn saw(&mut self, callers: usize) {
        self.scaled = self.scaled - self.scaled / Self::SCALE + callers;
    }

    /// With half of the callers in one group, the other half is served meanwhile. A handful is not worth waiting for.
    fn group_worth_waiting_for(&self) -> usize {
        const HANDFUL: usize = 4;
        let half = self.scaled / Self::SCALE / 2;
        if half < HANDFUL { 1 } else { half }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(callers_by_group: impl IntoIterator<Item = usize>) -> Crowd {
        let mut crowd = Crowd::default();
        callers_by_group.into_iter().for_each(|callers| crowd.saw(callers));
        crowd
    }

    #[test]
    fn who_comes_alone_is_not_made_to_wait_for_others() {
        assert_eq!(Crowd::default().group_worth_waiting_for(), 1);
        assert_eq!(after([1; 1000]).group_worth_waiting_for(), 1);
    }

    #[test]
    fn half_of_a_crowd_is_worth_waiting_for_after_a_few_groups() {
        assert!(after([64; 4]).group_worth_waiting_for() > 1);
        assert_eq!(after([64; 1000]).group_worth_waiting_for(), 32);
    }

    #[test]
    fn a_crowd_that_went_is_forgotten_while_one_caller_goes_on() {
        assert_eq!(after([64; 1000].into_iter().chain([1; 40])).group_worth_waiting_for(), 1);
    }
}
