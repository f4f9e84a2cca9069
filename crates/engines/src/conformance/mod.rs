//! The conformance suites: the contract of each port as named properties, which run against any engine through a factory. They depend on
//! the ports, not on engines.
//!
//! A test binary of an engine writes one line per port:
//!
//! ```ignore
//! whimbrel_engines::conformance_suite!(log, MyLogs::new());
//! whimbrel_engines::conformance_suite!(catalogue, MyCatalogues);
//! whimbrel_engines::conformance_suite!(receipts, MyReceipts);
//! whimbrel_engines::conformance_suite!(timers, MyTimers);
//! whimbrel_engines::conformance_suite!(progress, MyProgress);
//! whimbrel_engines::conformance_suite!(inbox, MyInboxes);
//! whimbrel_engines::conformance_suite!(sessions, MySessions);
//! whimbrel_engines::conformance_suite!(devices, MyDevices);
//! ```
//!
//! The expression creates a value that implements the factory trait of the port's module. It is evaluated once per property. Each property
//! becomes a test `log::<property>`, so that a failure names the property. To add a property, write the function and add its name to the
//! list at the top of the port's module. The compiler reports an unlisted property as dead code.

pub mod catalogue;
pub mod coordination;
pub mod devices;
pub mod inbox;
pub mod log;
pub mod progress;
pub mod receipts;
mod seeded_random;
pub mod sessions;
mod tests_from_properties;
pub mod timers;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time limit of one property. A property of an engine that hangs fails under its own name, before the test runner's timeout.
pub const PROPERTY_TIME_MAX: Duration = Duration::from_secs(120);

/// Reports that tests did not run, once per reason and test binary. The report bypasses the test runner's capture, so that it is visible.
pub fn say_skipped(why: &str) {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(why.to_owned()) {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
    }
}
