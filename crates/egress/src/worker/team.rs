//! The workers that there are, and which of them serve the calls of a target. No call is made here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_model::ports::{Call, CallTarget, Node};
use whimbrel_model::subscription::{Strategy, WorkerChoice};

use super::limits::{GROUPS_MAX, SET_ASIDE_FOR};
use super::strategy::{Load, Turn, assign, mixed, pick};
use super::wire::target_bytes;

/// The role of members that make callbacks.
pub const WORKER_ROLE: &str = "worker";

/// What stands for all workers in a pool.
const EVERYBODY: &str = "*";

/// A worker, here or elsewhere.
pub(super) struct Colleague {
    pub(super) name: String,
    /// Where it is reached; `None` for the worker of this process.
    pub(super) address: Option<String>,
    state: Mutex<State>,
    /// Calls of this process that it has.
    given: AtomicU64,
}

struct State {
    load: Load,
    /// Calls that others had given it when it told its load.
    of_others: u64,
    /// It could not be reached: others are asked first until then.
    aside_until: Option<Instant>,
}

impl Colleague {
    fn new(name: String, address: Option<String>) -> Self {
        let state = State { load: Load::default(), of_others: 0, aside_until: None };
        Self { name, address, state: Mutex::new(state), given: AtomicU64::new(0) }
    }

    /// Takes what the worker told of itself.
    pub(super) fn told(&self, load: Load) {
        let mut state = self.state();
        state.of_others = load.in_flight.saturating_sub(self.given.load(Ordering::Relaxed));
        state.load = load;
        state.aside_until = None;
    }

    /// Whether it was not aside already.
    pub(super) fn set_aside(&self) -> bool {
        let now = Instant::now();
        let before = self.state().aside_until.replace(now + SET_ASIDE_FOR);
        before.is_none_or(|until| until < now)
    }

    /// Counts a call as given until the returned is dropped.
    pub(super) fn give(self: &Arc<Self>) -> Given {
        self.given.fetch_add(1, Ordering::Relaxed);
        Given { colleague: Arc::clone(self) }
    }

    fn is_aside(&self, now: Instant) -> bool {
        self.state().aside_until.is_some_and(|until| now < until)
    }

    /// By what it told, and what it was given here since.
    fn weight(&self) -> u32 {
        let state = self.state();
        Load { in_flight: state.of_others + self.given.load(Ordering::Relaxed), ..state.load }.weight()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Given {
    colleague: Arc<Colleague>,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.colleague.given.fetch_sub(1, Ordering::Relaxed);
    }
}

type Groups = HashMap<(usize, Arc<str>), Arc<Group>>;
type Assigned = HashMap<(Arc<str>, u32), Vec<String>>;

/// All workers as of one view of the cluster.
pub(super) struct Team {
    pub(super) colleagues: Vec<Arc<Colleague>>,
    /// The worker of this process, where it is the only one: then nothing is to be picked.
    alone: Option<String>,
    /// By the address of the target, which each group holds, and the topic.
    groups: Mutex<Groups>,
    /// Who serves topics whose pools have a number only, by topic and number: kept over the views.
    assigned: Mutex<Assigned>,
}

/// The workers that serve one target's calls of one topic.
pub(super) struct Group {
    target: Arc<CallTarget>,
    /// The target as it travels.
    pub(super) target_bytes: Bytes,
    members: Vec<Arc<Colleague>>,
    strategy: Strategy,
    turn: Mutex<Turn>,
}

impl Team {
    /// The workers among these nodes, and the one of this process. Who was there before keeps what is known of it.
    pub(super) fn new(before: Option<&Self>, here: Option<&str>, me: Option<u16>, nodes: &[Node]) -> Self {
        let mut colleagues = Vec::new();
        let mut add = |name: &str, address: Option<&str>| {
            let is_same = |each: &&Arc<Colleague>| each.name == name && each.address.as_deref() == address;
            let known = before.and_then(|before| before.colleagues.iter().find(is_same));
            let make = || Arc::new(Colleague::new(name.to_owned(), address.map(str::to_owned)));
            colleagues.push(known.cloned().unwrap_or_else(make));
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
        let alone = here.filter(|_| colleagues.len() == 1).map(str::to_owned);
        let assigned = before.map(|before| lock(&before.assigned).clone()).unwrap_or_default();
        Self { colleagues, alone, groups: Mutex::default(), assigned: Mutex::new(assigned) }
    }

    /// Whether the worker of this process is the only one, and may make this call.
    pub(super) fn is_alone_for(&self, target: &CallTarget) -> bool {
        self.alone.as_deref().is_some_and(|name| target.workers.as_ref().is_none_or(|choice| admits(choice, name)))
    }

    /// Who serves calls like this one.
    pub(super) fn group(&self, call: &Call) -> Arc<Group> {
        let key = (Arc::as_ptr(&call.target).addr(), Arc::clone(&call.topic));
        if let Some(group) = lock(&self.groups).get(&key) {
            return Arc::clone(group);
        }
        let choice = call.target.workers.clone().unwrap_or_default();
        let group = Arc::new(Group {
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

    fn members(&self, choice: &WorkerChoice, topic: &Arc<str>) -> Vec<Arc<Colleague>> {
        let admitted: Vec<_> = self.colleagues.iter().filter(|each| admits(choice, &each.name)).cloned().collect();
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

impl Group {
    /// The worker for a call that those in `tried` could not make. Who was set aside comes last.
    pub(super) fn pick(&self, tried: &[Arc<Colleague>], random: u64) -> Option<Arc<Colleague>> {
        let now = Instant::now();
        let is_tried = |each: &Arc<Colleague>| tried.iter().any(|other| Arc::ptr_eq(each, other));
        let pick_among = |takes_aside: bool| {
            let weight = |each: &Arc<Colleague>| {
                if is_tried(each) || (!takes_aside && each.is_aside(now)) { 0 } else { each.weight() }
            };
            let weights: Vec<u32> = self.members.iter().map(weight).collect();
            pick(self.strategy, &weights, &mut lock(&self.turn), mixed(random))
        };
        pick_among(false).or_else(|| pick_among(true)).map(|index| Arc::clone(&self.members[index]))
    }
}

/// Whether a worker of that name may serve: it is named, or everybody is.
fn admits(choice: &WorkerChoice, name: &str) -> bool {
    choice.pool.is_empty() || choice.pool.iter().any(|each| each == EVERYBODY || each == name)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a call may take on the way: its own time, and what the way itself takes.
pub(super) fn answer_within(call: &Call, grace: Duration) -> Duration {
    let own = call.rule.as_ref().and_then(|rule| rule.timeout_ms);
    Duration::from_millis(own.unwrap_or(call.target.endpoint.timeout_ms)).saturating_add(grace)
}
