//! The conformance suites of the ports on a real Redis and on a real Cluster of three primaries.
//!
//! `WHIMBREL_TEST_REDIS` and `WHIMBREL_TEST_REDIS_CLUSTER` name the servers; `scripts/services up` starts them and writes the variables
//! into `target/services/env`. Without them these tests fail, unless `WHIMBREL_TEST_QUICK=1` allows missing servers.

#![cfg(feature = "redis")]

mod access;
mod claims;
mod outage;
mod people_outage;
mod progress;
mod resharding;
#[path = "../services/mod.rs"]
mod services;
mod snapshot;
mod start;

use std::sync::Arc;
use std::time::Duration;

use services::OwnRedis;
use whimbrel_engines::conformance::receipts::ReceiptsFactory;
use whimbrel_engines::conformance::timers::TimersFactory;
use whimbrel_engines::conformance::{Engine, Opens, Place, missing_servers, unique_word};
use whimbrel_engines::redis::{
    RedisConnection, RedisDevices, RedisInbox, RedisProgress, RedisReceipts, RedisSessions, RedisSettings, RedisTimers,
};
use whimbrel_engines::stores::{ReceiptSettings, TimerSettings};
use whimbrel_model::ports::{Devices, Inbox, PortFuture, Progress, Receipts, Sessions, Timers};

mod single {
    use super::{ONE, Shared};
    whimbrel_engines::conformance_suite!([timers, receipts, progress, inbox, sessions, devices], Shared(ONE));
}

mod cluster {
    use super::{CLUSTER, Shared};
    whimbrel_engines::conformance_suite!([timers, receipts, progress, inbox, sessions, devices], Shared(CLUSTER));
}

/// A user with exactly the rights that docs/operating/redis.md lists.
mod restricted {
    use super::{RESTRICTED, Shared};
    whimbrel_engines::conformance_suite!([timers, receipts, progress, inbox, sessions, devices], Shared(RESTRICTED));
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
        let prefix = format!("test-{}", unique_word());
        RedisSettings { prefix, ..RedisSettings::new(nodes.split(',')) }
    }
}

impl Engine for Shared {
    fn new_place(&self) -> Place {
        Arc::new(self.settings())
    }

    fn skip(&self) -> Option<String> {
        missing_servers(&[self.variable()])
    }
}

impl Opens<dyn Timers> for Shared {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Timers>> {
        Box::pin(open_timers(settings_of(place)))
    }
}

impl TimersFactory for Shared {
    fn remember(&self) -> Duration {
        REMEMBER
    }
}

impl Opens<dyn Receipts> for Shared {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Receipts>> {
        Box::pin(async {
            let settings = ReceiptSettings { window: WINDOW, lease: LEASE, ..ReceiptSettings::default() };
            Arc::new(RedisReceipts::new(connect(settings_of(place)).await, settings)) as Arc<dyn Receipts>
        })
    }
}

impl ReceiptsFactory for Shared {
    fn window(&self) -> Duration {
        WINDOW
    }

    fn lease(&self) -> Duration {
        LEASE
    }
}

impl Opens<dyn Progress> for Shared {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Progress>> {
        Box::pin(open_progress(settings_of(place)))
    }
}

impl Opens<dyn Inbox> for Shared {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Inbox>> {
        Box::pin(async { Arc::new(RedisInbox::new(connect(settings_of(place)).await)) as Arc<dyn Inbox> })
    }
}

impl Opens<dyn Sessions> for Shared {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Sessions>> {
        Box::pin(async { Arc::new(RedisSessions::new(connect(settings_of(place)).await)) as Arc<dyn Sessions> })
    }
}

impl Opens<dyn Devices> for Shared {
    fn open_at(&self, place: Place) -> PortFuture<'_, Arc<dyn Devices>> {
        Box::pin(async { Arc::new(RedisDevices::new(connect(settings_of(place)).await)) as Arc<dyn Devices> })
    }
}

fn settings_of(place: Place) -> RedisSettings {
    place.downcast_ref::<RedisSettings>().expect("the suite keeps what it was given").clone()
}

async fn open_progress(settings: RedisSettings) -> Arc<dyn Progress> {
    Arc::new(RedisProgress::new(connect(settings).await))
}

async fn open_timers(settings: RedisSettings) -> Arc<dyn Timers> {
    Arc::new(RedisTimers::new(connect(settings).await, TimerSettings { remember: REMEMBER }))
}

async fn open_receipts(settings: RedisSettings) -> RedisReceipts {
    let receipts = ReceiptSettings { window: WINDOW, ..ReceiptSettings::default() };
    RedisReceipts::new(connect(settings).await, receipts)
}

async fn connect(settings: RedisSettings) -> RedisConnection {
    RedisConnection::connect(settings).await.expect("Redis can be reached")
}

impl OwnRedis {
    /// Settings with timeouts short enough for a test.
    fn settings(&self) -> RedisSettings {
        RedisSettings {
            connect_timeout: Duration::from_millis(300),
            response_timeout: Duration::from_millis(700),
            ..RedisSettings::new([self.address()])
        }
    }
}
