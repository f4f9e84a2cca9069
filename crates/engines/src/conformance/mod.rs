//! The conformance suites: what every engine of a port must hold, one named property each, run against any engine through a
//! factory. It knows ports and nothing of engines.
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
//! The expression makes a value that implements the `Factory` of the port's module; it is evaluated once per
//! property. Each property becomes a test `log::<property>`, so that a failure names what does not hold. To add
//! a property, write the function beside its kin and its name into the list at the top of that port's module: a property that
//! is not listed is dead code, and the compiler says so.

pub mod catalogue;
pub mod coordination;
pub mod devices;
mod dice;
pub mod inbox;
pub mod log;
pub mod progress;
pub mod receipts;
pub mod sessions;
mod tests_from_properties;
pub mod timers;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long one property may take. An engine that hangs fails by name, not by the patience of whoever waits.
pub const PROPERTY_TIME_MAX: Duration = Duration::from_secs(120);

/// Reports that tests did not run, once per reason and test binary. The report bypasses the test runner's capture, so that it is visible.
pub fn say_skipped(why: &str) {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(why.to_owned()) {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
    }
}
