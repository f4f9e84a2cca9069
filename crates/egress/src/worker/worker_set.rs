//! The known workers, and the ones that serve the calls of a target. This module makes no calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_model::ports::{Call, CallTarget, Node};
use whimbrel_model::subscription::{Strategy, WorkerChoice};

use super::limits::{GROUPS_MAX, SET_ASIDE_FOR};
use super::remote_call::target_bytes;
use super::strategy::{Rotation, WorkerLoad, assign, mixed, pick};

/// The role of members that make callbacks.
pub const WORKER_ROLE: &str = "worker";

/// The name that stands for all workers in a pool.
const ALL_WORKERS: &str = "*";

/// A worker of this process or of another node.
pub(super) struct PoolWorker {
    pub(super) name: String,
    /// The address of its node; `None` for the worker of this process.
    pub(super) address: Option<String>,
    state: Mutex<WorkerState>,
    /// Calls in progress that this process sent to it.
    given: AtomicU64,
}

struct WorkerState {
    load: WorkerLoad,
    /// Calls of other nodes when it reported its load.
    of_others: u64,
    /// It was not reachable: other workers are preferred until this time.
    aside_until: Option<Instant>,
}

impl PoolWorker {
    fn new(name: String, address: Option<String>) -> Self {
        let state = WorkerState { load: WorkerLoad::default(), of_others: 0, aside_until: None };
        Self { name, address, state: Mutex::new(state), given: AtomicU64::new(0) }
    }

    /// Records the load that the worker reported.
    pub(super) fn told(&self, load: WorkerLoad) {
        let mut state = self.state();
        state.of_others = load.in_flight.saturating_sub(self.given.load(Ordering::Relaxed));
        state.load = load;
        state.aside_until = None;
    }

    /// Prefers other workers for [`SET_ASIDE_FOR`]. Returns whether they were not preferred already.
    pub(super) fn set_aside(&self) -> bool {
        let now = Instant::now();
        let before = self.state().aside_until.replace(now + SET_ASIDE_FOR);
        before.is_none_or(|until| until < now)
    }

    /// Counts a call as in progress until the guard is dropped.
    pub(super) fn give(self: &Arc<Self>) -> CallGuard {
        self.given.fetch_add(1, Ordering::Relaxed);
        CallGuard { worker: Arc::clone(self) }
    }

    fn is_aside(&self, now: Instant) -> bool {
        self.state().aside_until.is_some_and(|until| now < until)
    }

    /// The weight by the reported load and the calls of this process.
    fn weight(&self) -> u32 {
        let state = self.state();
        WorkerLoad { in_flight: state.of_others + self.given.load(Ordering::Relaxed), ..state.load }.weight()
    }

    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct CallGuard {
    worker: Arc<PoolWorker>,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.worker.given.fetch_sub(1, Ordering::Relaxed);
    }
}

type Groups = HashMap<(usize, Arc<str>), Arc<WorkerGroup>>;
type Assigned = HashMap<(Arc<str>, u32), Vec<String>>;

/// All workers of one cluster view.
pub(super) struct WorkerSet {
    pub(super) workers: Vec<Arc<PoolWorker>>,
    /// The name of the worker of this process, if it is the only one: then there is no choice.
    alone: Option<String>,
    /// The groups by topic and by the address of the target, which each group holds.
    groups: Mutex<Groups>,
    /// The workers of topics whose setting has only a number, by topic and number. They are kept across views.
    assigned: Mutex<Assigned>,
}

/// The workers for the calls of one target and topic.
pub(super) struct WorkerGroup {
    target: Arc<CallTarget>,
    pub(super) target_bytes: Bytes,
    members: Vec<Arc<PoolWorker>>,
    strategy: Strategy,
    turn: Mutex<Rotation>,
}

impl WorkerSet {
    /// The workers among `nodes`, and the one of this process. Workers of `before` keep their state.
    pub(super) fn new(before: Option<&Self>, here: Option<&str>, me: Option<u16>, nodes: &[Node]) -> Self {
        let mut workers = Vec::new();
        let mut add = |name: &str, address: Option<&str>| {
            let is_same = |each: &&Arc<PoolWorker>| each.name == name && each.address.as_deref() == address;
            let known = before.and_then(|before| before.workers.iter().find(is_same));
            let make = || Arc::new(PoolWorker::new(name.to_owned(), address.map(str::to_owned)));
            workers.push(known.cloned().unwrap_or_else(make));
        };
        if let Some(name) = here {
            add(name, None);
        }
        for node in nodes.iter().filter(|node| node.member.roles.iter().any(|role| role == WORKER_ROLE)) {
            let is_here = here.is_some_and(|name| Some(node.number) == me || name == node.member.name);
            if !is_here {
                add(&node.member.name, Some(&node.member.address));
            }
        }
        let alone = here.filter(|_| workers.len() == 1).map(str::to_owned);
        let assigned = before.map(|before| lock(&before.assigned).clone()).unwrap_or_default();
        Self { workers, alone, groups: Mutex::default(), assigned: Mutex::new(assigned) }
    }

    /// Whether the worker of this process is the only one and may make calls of this target.
    pub(super) fn is_alone_for(&self, target: &CallTarget) -> bool {
        self.alone.as_deref().is_some_and(|name| target.workers.as_ref().is_none_or(|choice| admits(choice, name)))
    }

    /// The workers for calls like this one.
    pub(super) fn group(&self, call: &Call) -> Arc<WorkerGroup> {
        let key = (Arc::as_ptr(&call.target).addr(), Arc::clone(&call.topic));
        if let Some(group) = lock(&self.groups).get(&key) {
            return Arc::clone(group);
        }
        let choice = call.target.workers.clone().unwrap_or_default();
        let group = Arc::new(WorkerGroup {
            target: Arc::clone(&call.target),
            target_bytes: target_bytes(&call.target),
            members: self.members(&choice, &call.topic),
            strategy: choice.strategy,
            turn: Mutex::default(),
        });
        let mut groups = lock(&self.groups);
        if groups.len() >= GROUPS_MAX {
            groups.retain(|_, group| Arc::strong_count(&group.target) > 1);
        }
        if groups.len() >= GROUPS_MAX {
            groups.clear();
        }
        groups.insert(key, Arc::clone(&group));
        group
    }

    fn members(&self, choice: &WorkerChoice, topic: &Arc<str>) -> Vec<Arc<PoolWorker>> {
        let admitted: Vec<_> = self.workers.iter().filter(|each| admits(choice, &each.name)).cloned().collect();
        let Some(count) = choice.count else { return admitted };
        let candidates: Vec<_> = admitted.iter().map(|each| (&*each.name, each.weight())).collect();
        let mut assigned = lock(&self.assigned);
        if assigned.len() >= GROUPS_MAX {
            assigned.clear();
        }
        let present = assigned.entry((Arc::clone(topic), count)).or_default();
        let picked = assign(choice.assign.unwrap_or_default(), count as usize, topic, present, &candidates);
        let members: Vec<_> = picked.into_iter().map(|index| Arc::clone(&admitted[index])).collect();
        *present = members.iter().map(|each| each.name.clone()).collect();
        members
    }
}

impl WorkerGroup {
    /// Selects a worker that is not in `tried`. Unreachable workers come last.
    pub(super) fn pick(&self, tried: &[Arc<PoolWorker>], random: u64) -> Option<Arc<PoolWorker>> {
        let now = Instant::now();
        let is_tried = |each: &Arc<PoolWorker>| tried.iter().any(|other| Arc::ptr_eq(each, other));
        let pick_among = |takes_aside: bool| {
            let weight = |each: &Arc<PoolWorker>| {
                if is_tried(each) || (!takes_aside && each.is_aside(now)) { 0 } else { each.weight() }
            };
            let weights: Vec<u32> = self.members.iter().map(weight).collect();
            pick(self.strategy, &weights, &mut lock(&self.turn), mixed(random))
        };
        pick_among(false).or_else(|| pick_among(true)).map(|index| Arc::clone(&self.members[index]))
    }
}

/// Whether the pool contains the worker, by name or by `*`.
fn admits(choice: &WorkerChoice, name: &str) -> bool {
    choice.pool.is_empty() || choice.pool.iter().any(|each| each == ALL_WORKERS || each == name)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The timeout of a call to another node: its own timeout plus `grace` for the transfer.
pub(super) fn answer_within(call: &Call, grace: Duration) -> Duration {
    let own = call.rule.as_ref().and_then(|rule| rule.timeout_ms);
    Duration::from_millis(own.unwrap_or(call.target.endpoint.timeout_ms)).saturating_add(grace)
}
