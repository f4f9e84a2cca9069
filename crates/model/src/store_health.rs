//! The stores of this process that cannot serve now: the engines record them, `/readyz` reports them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The reasons by store. A store that works has none.
#[derive(Debug, Default)]
pub struct StoreHealth(Mutex<BTreeMap<&'static str, String>>);

impl StoreHealth {
    /// Records why a store cannot serve.
    pub fn set_failed(&self, store: &'static str, reason: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(store, reason);
    }

    /// Records that a store serves again.
    pub fn set_working(&self, store: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(store);
    }

    /// One sentence for each store that cannot serve.
    pub fn problems(&self) -> Vec<String> {
        let stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stores.iter().map(|(store, reason)| format!("the store `{store}` is not available: {reason}")).collect()
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
}
