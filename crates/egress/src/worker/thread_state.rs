//! The thread-local state of a worker: prepared targets and their connections. No other thread ever waits for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use foldhash::fast::FixedState;
use whimbrel_model::ports::CallTarget;

use super::WorkerCore;
use super::failed_call::FailedCall;
use super::limits::{FORGET_UNUSED_EVERY, OWN_ORIGINS_MAX, PREPARED_TARGETS_MAX};
use super::origin_pool::OriginPool;
use super::prepared_target::{PreparedTarget, RequestTarget};
use whimbrel_api::endpoint::EndpointUrl;

thread_local! {
    /// One entry per worker. A process has one worker, tests have many.
    static STATES: RefCell<Vec<(Weak<WorkerCore>, ThreadState)>> = const { RefCell::new(Vec::new()) };
}

struct ThreadState {
    /// The prepared targets, by the address of the target. Each entry holds its target, so the address stays valid.
    targets: HashMap<*const CallTarget, Arc<PreparedTarget>, FixedState>,
    /// The origins of callbacks that messages name, by scheme, host and port.
    own_origins: HashMap<(bool, Box<str>, u16), Arc<OriginPool>>,
    looked_at: Instant,
}

/// The prepared target of this thread.
pub(super) fn prepared(
    worker: &Arc<WorkerCore>,
    target: &Arc<CallTarget>,
    now: Instant,
) -> Result<Arc<PreparedTarget>, FailedCall> {
    with_state(worker, now, |kept| {
        if let Some(prepared) = kept.targets.get(&Arc::as_ptr(target)) {
            return Ok(Arc::clone(prepared));
        }
        let prepared = Arc::new(PreparedTarget::new(target)?);
        if kept.targets.len() >= PREPARED_TARGETS_MAX {
            kept.forget_unused();
        }
        kept.targets.insert(Arc::as_ptr(target), Arc::clone(&prepared));
        Ok(prepared)
    })
}

/// The destination of a callback that a message names.
pub(super) fn own_destination(worker: &Arc<WorkerCore>, place: EndpointUrl, now: Instant) -> RequestTarget {
    with_state(worker, now, |kept| {
        if kept.own_origins.len() >= OWN_ORIGINS_MAX {
            kept.own_origins.clear();
        }
        let key = (place.is_tls, place.host.clone(), place.port);
        let origin = kept.own_origins.entry(key).or_insert_with(|| Arc::new(OriginPool::brought(&place)));
        RequestTarget { origin: Arc::clone(origin), authority: place.authority, path: place.path }
    })
}

fn with_state<T>(worker: &Arc<WorkerCore>, now: Instant, work: impl FnOnce(&mut ThreadState) -> T) -> T {
    STATES.with_borrow_mut(|all| {
        let at = all.iter().position(|(owner, _)| owner.as_ptr() == Arc::as_ptr(worker));
        let at = at.unwrap_or_else(|| {
            all.retain(|(owner, _)| owner.strong_count() > 0);
            let kept = ThreadState { targets: HashMap::default(), own_origins: HashMap::new(), looked_at: now };
            all.push((Arc::downgrade(worker), kept));
            all.len() - 1
        });
        let kept = &mut all[at].1;
        if now.saturating_duration_since(kept.looked_at) >= FORGET_UNUSED_EVERY {
            kept.looked_at = now;
            kept.forget_unused();
        }
        work(kept)
    })
}

impl ThreadState {
    /// Drops targets without other references, and their connections.
    fn forget_unused(&mut self) {
        self.targets.retain(|_, prepared| Arc::strong_count(&prepared.target) > 1);
        if self.targets.len() >= PREPARED_TARGETS_MAX {
            self.targets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::worker::prepared_target::testing::target_at;
    use crate::worker::{Worker, WorkerSettings};

    fn target() -> Arc<CallTarget> {
        Arc::new(target_at("http://127.0.0.1/"))
    }

    fn origin_of(prepared: &PreparedTarget) -> *const OriginPool {
        Arc::as_ptr(&prepared.destination.as_ref().unwrap().origin)
    }

    #[test]
    fn a_target_is_prepared_once_and_equal_targets_share_no_connections() {
        let core = Worker::new(WorkerSettings::default()).unwrap().core;
        let (one, two, now) = (target(), target(), Instant::now());
        let first = prepared(&core, &one, now).unwrap();
        assert!(Arc::ptr_eq(&first, &prepared(&core, &one, now).unwrap()));
        assert_ne!(origin_of(&first), origin_of(&prepared(&core, &two, now).unwrap()), "own connections each");
    }

    #[test]
    fn a_target_without_other_references_is_dropped() {
        let core = Worker::new(WorkerSettings::default()).unwrap().core;
        let (gone, now) = (target(), Instant::now());
        let watched = Arc::downgrade(&gone);
        prepared(&core, &gone, now).unwrap();
        drop(gone);
        assert_eq!(watched.strong_count(), 1, "it is kept for a while");
        prepared(&core, &target(), now + FORGET_UNUSED_EVERY).unwrap();
        assert_eq!(watched.strong_count(), 0);
    }

    #[test]
    fn the_state_of_dropped_workers_is_released() {
        let now = Instant::now();
        let kept = target();
        prepared(&Worker::new(WorkerSettings::default()).unwrap().core, &kept, now).unwrap();
        assert_eq!(Arc::strong_count(&kept), 2);
        let core = Worker::new(WorkerSettings::default()).unwrap().core;
        prepared(&core, &target(), now + Duration::from_millis(1)).unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
