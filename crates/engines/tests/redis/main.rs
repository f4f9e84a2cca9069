//! The conformance suites of the ports on a real Redis and on a real Cluster of three primaries.
//!
//! `WHIMBREL_TEST_REDIS` and `WHIMBREL_TEST_REDIS_CLUSTER` name the servers; `scripts/services up` starts them and writes the variables
//! into `target/services/env`. Without them these tests fail, unless `WHIMBREL_TEST_QUICK=1` allows missing servers.

#![cfg(feature = "redis")]

mod access;
mod claims;
mod outage;
mod people;
mod people_outage;
mod progress;
mod resharding;
mod server;
mod snapshot;
mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_engines::conformance::{self, progress::OpenProgress, receipts::OpenReceipts, timers::OpenTimers};
use whimbrel_engines::redis::{RedisConnection, RedisProgress, RedisReceipts, RedisSettings, RedisTimers};
use whimbrel_engines::stores::{ReceiptSettings, TimerSettings};
use whimbrel_model::ports::PortFuture;

mod single {
    use super::{ONE, Shared};
    whimbrel_engines::conformance_suite!(timers, Shared(ONE));
    whimbrel_engines::conformance_suite!(receipts, Shared(ONE));
    whimbrel_engines::conformance_suite!(progress, Shared(ONE));
    whimbrel_engines::conformance_suite!(inbox, Shared(ONE));
    whimbrel_engines::conformance_suite!(sessions, Shared(ONE));
    whimbrel_engines::conformance_suite!(devices, Shared(ONE));
}

mod cluster {
    use super::{CLUSTER, Shared};
    whimbrel_engines::conformance_suite!(timers, Shared(CLUSTER));
    whimbrel_engines::conformance_suite!(receipts, Shared(CLUSTER));
    whimbrel_engines::conformance_suite!(progress, Shared(CLUSTER));
    whimbrel_engines::conformance_suite!(inbox, Shared(CLUSTER));
    whimbrel_engines::conformance_suite!(sessions, Shared(CLUSTER));
    whimbrel_engines::conformance_suite!(devices, Shared(CLUSTER));
}

/// A user with exactly the rights that docs/operating/redis.md lists.
mod restricted {
    use super::{RESTRICTED, Shared};
    whimbrel_engines::conformance_suite!(timers, Shared(RESTRICTED));
    whimbrel_engines::conformance_suite!(receipts, Shared(RESTRICTED));
    whimbrel_engines::conformance_suite!(progress, Shared(RESTRICTED));
    whimbrel_engines::conformance_suite!(inbox, Shared(RESTRICTED));
    whimbrel_engines::conformance_suite!(sessions, Shared(RESTRICTED));
    whimbrel_engines::conformance_suite!(devices, Shared(RESTRICTED));
}

const ONE: &str = "WHIMBREL_TEST_REDIS";
/// The same server, as another user.
const RESTRICTED: &str = "restricted";
const CLUSTER: &str = "WHIMBREL_TEST_REDIS_CLUSTER";
const REMEMBER: Duration = Duration::from_secs(3600);
const WINDOW: Duration = Duration::from_secs(60);
/// The lease of claims in tests that wait for a lapse.
const LEASE: Duration = Duration::from_secs(1);

/// The shared servers of a variable. Each instance has a prefix of its own.
struct Shared(&'static str);

impl Shared {
    fn variable(&self) -> &'static str {
        if self.0 == RESTRICTED { ONE } else { self.0 }
    }

    fn settings(&self) -> RedisSettings {
        if self.0 == RESTRICTED {
            return access::settings(Shared(ONE).settings());
        }
        let nodes = std::env::var(self.0).expect("the servers' addresses");
        RedisSettings { prefix: new_prefix(), ..RedisSettings::new(nodes.split(',')) }
    }

    fn skip_reason(&self) -> Option<String> {
        if std::env::var_os(self.variable()).is_some() {
            return None;
        }
        let quick = std::env::var("WHIMBREL_TEST_QUICK").is_ok_and(|value| value == "1");
        assert!(
            quick,
            "these tests need Redis: run `scripts/services up` and `source target/services/env`, \
             or set WHIMBREL_TEST_QUICK=1 to skip them"
        );
        Some(format!("the tests of the Redis engine need Redis, and {} names none", self.variable()))
    }
}

impl conformance::timers::TimersFactory for Shared {
    fn open(&self) -> PortFuture<'_, OpenTimers> {
        Box::pin(open_timers(self.settings()))
    }

    fn reopen(&self, open: OpenTimers) -> PortFuture<'_, OpenTimers> {
        let settings = open.store.downcast::<RedisSettings>().expect("the suite keeps what it was given");
        drop(open.timers);
        Box::pin(async move { open_timers((*settings).clone()).await })
    }

    fn skip(&self) -> Option<String> {
        self.skip_reason()
    }
}

impl conformance::receipts::ReceiptsFactory for Shared {
    fn open(&self) -> PortFuture<'_, OpenReceipts> {
        Box::pin(async {
            let settings = ReceiptSettings { window: WINDOW, lease: LEASE, ..ReceiptSettings::default() };
            let receipts = RedisReceipts::new(connect(self.settings()).await, settings);
            OpenReceipts { receipts: Arc::new(receipts), window: WINDOW, lease: LEASE, store: Arc::new(()) }
        })
    }

    fn skip(&self) -> Option<String> {
        self.skip_reason()
    }
}

impl conformance::progress::ProgressFactory for Shared {
    fn open(&self) -> PortFuture<'_, OpenProgress> {
        Box::pin(open_progress(self.settings()))
    }

    fn reopen(&self, open: OpenProgress) -> PortFuture<'_, OpenProgress> {
        let settings = open.store.downcast::<RedisSettings>().expect("the suite keeps what it was given");
        drop(open.progress);
        Box::pin(async move { open_progress((*settings).clone()).await })
    }

    fn skip(&self) -> Option<String> {
        self.skip_reason()
    }
}

async fn open_progress(settings: RedisSettings) -> OpenProgress {
    let progress = Arc::new(RedisProgress::new(connect(settings.clone()).await));
    OpenProgress { progress, store: Arc::new(settings) }
}

async fn open_timers(settings: RedisSettings) -> OpenTimers {
    let timers = Arc::new(RedisTimers::new(connect(settings.clone()).await, TimerSettings { remember: REMEMBER }));
    OpenTimers { timers, remember: REMEMBER, store: Arc::new(settings) }
}

async fn open_receipts(settings: RedisSettings) -> RedisReceipts {
    let receipts = ReceiptSettings { window: WINDOW, ..ReceiptSettings::default() };
    RedisReceipts::new(connect(settings).await, receipts)
}

async fn connect(settings: RedisSettings) -> RedisConnection {
    RedisConnection::connect(settings).await.expect("Redis can be reached")
}

/// A prefix that no other test of this machine uses.
fn new_prefix() -> String {
    static PREFIXES: AtomicU32 = AtomicU32::new(0);
    let number = PREFIXES.fetch_add(1, Ordering::Relaxed);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("test-{:x}-{:x}-{number}", since_epoch.as_millis(), std::process::id())
}

/// Returns from a test that needs Redis if Redis is missing and may be.
macro_rules! needs_redis {
    () => {
        if let Some(why) = crate::Shared(crate::ONE).skip_reason() {
            whimbrel_engines::conformance::say_skipped(&why);
            return;
        }
    };
}
pub(crate) use needs_redis;
