//! What answers for people in a process that has nothing to do with them: that it cannot.

use std::sync::Arc;

use tokio::sync::watch;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{
    Carriers, Device, Devices, DevicesError, NoCarrier, PeopleAsk, PeopleError, PeopleTold, PortFuture, Presence,
    PresenceAnswer, PresenceError, ToCarrier,
};

const WHY: &str = "no process that this one knows has the role for it";

/// Nobody owns users, knows who is online, or keeps devices.
pub struct NoPeople {
    pub partitions: u32,
}

impl Carriers for NoPeople {
    fn partitions(&self) -> u32 {
        self.partitions
    }

    fn tell(&self, partition: u32, _: GatewayId, _: Vec<ToCarrier>) -> Result<(), NoCarrier> {
        Err(NoCarrier(partition))
    }

    fn tenures(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>> {
        watch::channel(Arc::new(vec![None; self.partitions as usize])).1
    }

    fn ask(&self, partition: u32, _: PeopleAsk) -> PortFuture<'_, Result<PeopleTold, PeopleError>> {
        Box::pin(async move { Err(PeopleError::NoOwner(partition)) })
    }
}

impl Presence for NoPeople {
    fn of(&self, _: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>> {
        Box::pin(async { Err(PresenceError::Unavailable(WHY.to_owned())) })
    }
}

impl Devices for NoPeople {
    fn put<'a>(&'a self, _: &'a Uid, _: Device) -> PortFuture<'a, Result<(), DevicesError>> {
        Box::pin(async { Err(DevicesError::Unavailable(WHY.to_owned())) })
    }

    fn remove<'a>(&'a self, _: &'a Uid, _: &'a str, _: Option<&'a str>) -> PortFuture<'a, Result<bool, DevicesError>> {
        Box::pin(async { Err(DevicesError::Unavailable(WHY.to_owned())) })
    }

    fn of<'a>(&'a self, _: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>> {
        Box::pin(async { Err(DevicesError::Unavailable(WHY.to_owned())) })
    }
}
