//! The macros that turn a suite's list of properties into tests.

/// Makes one test of each property of the ports' suites: `conformance_suite!([log, catalogue], factory_expression)`.
#[macro_export]
macro_rules! conformance_suite {
    ([$($port:ident),+], $factory:expr) => {
        $($crate::conformance_suite!($port, $factory);)+
    };
    (log, $factory:expr) => {
        $crate::log_properties! { conformance_tests, log, $factory }
    };
    (catalogue, $factory:expr) => {
        $crate::catalogue_properties! { conformance_tests, catalogue, $factory }
    };
    (coordination, $factory:expr) => {
        $crate::coordination_properties! { conformance_tests, coordination, $factory }
    };
    (receipts, $factory:expr) => {
        $crate::receipts_properties! { conformance_tests, receipts, $factory }
    };
    (timers, $factory:expr) => {
        $crate::timers_properties! { conformance_tests, timers, $factory }
    };
    (progress, $factory:expr) => {
        $crate::progress_properties! { conformance_tests, progress, $factory }
    };
    (inbox, $factory:expr) => {
        $crate::inbox_properties! { conformance_tests, inbox, $factory }
    };
    (sessions, $factory:expr) => {
        $crate::sessions_properties! { conformance_tests, sessions, $factory }
    };
    (devices, $factory:expr) => {
        $crate::devices_properties! { conformance_tests, devices, $factory }
    };
}

/// Returns from a test that needs the servers in these environment variables, if they are missing and may be.
#[macro_export]
macro_rules! needs_servers {
    ($($variable:expr),+) => {
        if let Some(why) = $crate::conformance::missing_servers(&[$($variable),+]) {
            $crate::conformance::say_skipped(&why);
            return;
        }
    };
}

/// Receives a port's list of properties and writes the tests.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($port:ident, $factory:expr; $($module:ident: [$($property:ident),* $(,)?])*) => {
        mod $port {
            use super::*;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $property() {
                    let factory = $factory;
                    if let Some(why) = $crate::conformance::Engine::skip(&factory) {
                        $crate::conformance::say_skipped(&why);
                        return;
                    }
                    let property = $crate::conformance::$port::$property(&factory);
                    tokio::time::timeout($crate::conformance::PROPERTY_TIME_MAX, property)
                        .await
                        .expect("the property exceeds its time limit");
                }
            )*)*
        }
    };
}

/// Receives a port's list of properties and makes them public. An unlisted property stays private and unused.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_exports {
    ($($module:ident: [$($property:ident),* $(,)?])*) => {
        $(pub use $module::{$($property),*};)*
    };
}
