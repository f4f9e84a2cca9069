//! The stores of this process that are not available: engines record them, `/readyz` reports them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The failures by store. A working store has no entry.
#[derive(Debug, Default)]
pub struct StoreHealth(Mutex<BTreeMap<&'static str, StoreFailure>>);

#[derive(Debug)]
struct StoreFailure {
    sentence: String,
    /// Whether requests fail.
    is_failure: bool,
}

impl StoreHealth {
    /// Records why a store cannot serve. `/readyz` fails until it works again.
    pub fn set_failed(&self, store: &'static str, reason: String) {
        let sentence = format!("the store `{store}` is not available: {reason}");
        self.failures().insert(store, StoreFailure { sentence, is_failure: true });
    }

    /// Records why a store cannot serve, if no request needs the store. `/readyz` lists it as a warning.
    pub fn set_degraded(&self, store: &'static str, reason: String) {
        let sentence = format!("the store `{store}` is not available: {reason}");
        self.failures().insert(store, StoreFailure { sentence, is_failure: false });
    }

    /// Records why one of the two copies of a store cannot be used. The other one serves, and `/readyz` has a warning.
    pub fn set_on_one_copy(&self, store: &'static str, reason: String) {
        let sentence = format!("the store `{store}` serves from one of its two copies: {reason}");
        self.failures().insert(store, StoreFailure { sentence, is_failure: false });
    }

    /// Records that a store serves again.
    pub fn set_working(&self, store: &'static str) {
        self.failures().remove(store);
    }

    /// One sentence for each failed store that requests need.
    pub fn problems(&self) -> Vec<String> {
        self.sentences(true)
    }

    /// One sentence for each store that cannot serve and that no request needs, or that serves from one copy.
    pub fn warnings(&self) -> Vec<String> {
        self.sentences(false)
    }

    fn sentences(&self, is_failure: bool) -> Vec<String> {
        let failures = self.failures();
        let chosen = failures.values().filter(|failure| failure.is_failure == is_failure);
        chosen.map(|failure| failure.sentence.clone()).collect()
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<&'static str, StoreFailure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_problem_until_it_works_again() {
        let health = StoreHealth::default();
        health.set_failed("holds", "no space left on device".to_owned());
        assert_eq!(health.problems(), ["the store `holds` is not available: no space left on device"]);
        health.set_working("holds");
        assert!(health.problems().is_empty());
    }

    #[test]
    fn a_store_that_no_request_needs_is_a_warning() {
        let health = StoreHealth::default();
        health.set_degraded("notebook", "no space left on device".to_owned());
        assert!(health.problems().is_empty());
        assert_eq!(health.warnings(), ["the store `notebook` is not available: no space left on device"]);
        health.set_working("notebook");
        assert!(health.warnings().is_empty());
    }

    #[test]
    fn a_store_that_serves_from_one_copy_is_a_warning() {
        let health = StoreHealth::default();
        health.set_failed("devices", "no space left on device".to_owned());
        health.set_on_one_copy("devices", "no space left on device".to_owned());
        assert!(health.problems().is_empty());
        let sentence = "the store `devices` serves from one of its two copies: no space left on device";
        assert_eq!(health.warnings(), [sentence]);
    }
}
