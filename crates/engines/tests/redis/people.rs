//! How the suites of inboxes, sessions and devices open their stores on the shared servers.

use std::sync::Arc;

use whimbrel_engines::conformance::{self, devices::OpenDevices, inbox::OpenInbox, sessions::OpenSessions};
use whimbrel_engines::redis::{RedisDevices, RedisInbox, RedisSessions, RedisSettings};
use whimbrel_model::ports::PortFuture;

use crate::{Shared, connect};

async fn open_inbox(settings: RedisSettings) -> OpenInbox {
    let inbox = Arc::new(RedisInbox::new(connect(settings.clone()).await));
    OpenInbox { inbox, store: Arc::new(settings) }
}

impl conformance::inbox::InboxFactory for Shared {
    fn open(&self) -> PortFuture<'_, OpenInbox> {
        Box::pin(open_inbox(self.settings()))
    }

    fn reopen(&self, open: OpenInbox) -> PortFuture<'_, OpenInbox> {
        let settings = open.store.downcast::<RedisSettings>().expect("the suite keeps what it was given");
        drop(open.inbox);
        Box::pin(async move { open_inbox((*settings).clone()).await })
    }

    fn skip(&self) -> Option<String> {
        self.skip_reason()
    }
}

impl conformance::sessions::SessionsFactory for Shared {
    fn open(&self) -> PortFuture<'_, OpenSessions> {
        Box::pin(async {
            let sessions = Arc::new(RedisSessions::new(connect(self.settings()).await));
            OpenSessions { sessions, store: Arc::new(()) }
        })
    }

    fn skip(&self) -> Option<String> {
        self.skip_reason()
    }
}

async fn open_devices(settings: RedisSettings) -> OpenDevices {
    let devices = Arc::new(RedisDevices::new(connect(settings.clone()).await));
    OpenDevices { devices, store: Arc::new(settings) }
}

impl conformance::devices::DevicesFactory for Shared {
    fn open(&self) -> PortFuture<'_, OpenDevices> {
        Box::pin(open_devices(self.settings()))
    }

    fn reopen(&self, open: OpenDevices) -> PortFuture<'_, OpenDevices> {
        let settings = open.store.downcast::<RedisSettings>().expect("the suite keeps what it was given");
        drop(open.devices);
        Box::pin(async move { open_devices((*settings).clone()).await })
    }

    fn skip(&self) -> Option<String> {
        self.skip_reason()
    }
}
