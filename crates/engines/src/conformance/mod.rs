//! The conformance suites: the contract of each port as named properties, which run against any engine through a factory. They depend on
//! the ports, not on engines.
//!
//! A test binary of an engine names the ports that the engine has:
//!
//! ```ignore
//! whimbrel_engines::conformance_suite!([log, catalogue], MyEngine);
//! ```
//!
//! The expression creates an [`Engine`] that [`Opens`] the port. It is evaluated once per property. Each property
//! becomes a test `log::<property>`, so that a failure names the property. To add a property, write the function and add its name to the
//! list at the top of the port's module. The compiler reports an unlisted property as dead code.

pub mod catalogue;
pub mod coordination;
pub mod devices;
mod engine;
pub mod inbox;
pub mod log;
pub mod progress;
pub mod receipts;
mod seeded_random;
pub mod sessions;
mod tests_from_properties;
pub mod timers;

pub use engine::{Engine, Opened, Opens, Place};

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_model::{Clock as _, SystemClock, Timestamp};

/// The time limit of one property. A property of an engine that hangs fails under its own name, before the test runner's timeout.
pub const PROPERTY_TIME_MAX: Duration = Duration::from_secs(120);

/// Reports that tests did not run, once per reason and test binary. The report bypasses the test runner's capture, so that it is visible.
pub fn say_skipped(why: &str) {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(why.to_owned()) {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
    }
}

/// The reason to skip tests that need the servers in these variables. Without the servers they fail, unless `WHIMBREL_TEST_QUICK=1`.
pub fn missing_servers(variables: &[&str]) -> Option<String> {
    let missing: Vec<&str> = variables.iter().copied().filter(|name| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return None;
    }
    let quick = std::env::var("WHIMBREL_TEST_QUICK").is_ok_and(|value| value == "1");
    assert!(
        quick,
        "these tests need real servers ({missing:?} are not set): run `scripts/services up` and `source target/services/env`, \
         or set WHIMBREL_TEST_QUICK=1 to skip them"
    );
    Some(format!("tests with real servers need {missing:?}"))
}

/// A word that no other test of this machine uses.
pub fn unique_word() -> String {
    static WORDS: AtomicU32 = AtomicU32::new(1);
    format!("{:x}-{:x}-{}", now().as_millis(), std::process::id(), WORDS.fetch_add(1, Ordering::Relaxed))
}

fn now() -> Timestamp {
    SystemClock.now()
}
