//! What every [`Devices`] must hold.
//!
//! An engine takes part by a [`Factory`]. Each property has a store of its own, or a prefix that no other has.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::join_all;
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, PortFuture, Provider};

/// Every property.
#[doc(hidden)]
#[macro_export]
macro_rules! devices_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                a_user_without_devices_has_none,
                devices_come_back_as_they_were_put_by_name,
                a_device_takes_the_place_of_the_one_of_the_same_name,
                a_device_that_was_removed_is_gone,
                a_device_is_removed_by_token_only_where_it_still_has_that,
                one_device_too_many_is_refused_and_another_can_be_replaced,
                users_have_devices_of_their_own,
                what_was_put_survives_the_process,
                of_many_that_come_at_once_no_more_than_the_maximum_stay,
            ]
        }
    };
}

crate::devices_properties! { conformance_exports }

/// Makes registries of one engine for the suite.
pub trait Factory: Send + Sync {
    /// An empty registry.
    fn open(&self) -> PortFuture<'_, OpenDevices>;

    /// The same registry, as another process finds it.
    fn reopen(&self, open: OpenDevices) -> PortFuture<'_, OpenDevices>;

    /// Why the suite cannot run here, where that is so and is allowed.
    fn skip(&self) -> Option<String> {
        None
    }
}

/// One open instance.
pub struct OpenDevices {
    pub devices: Arc<dyn Devices>,
    /// What must live as long as the instance.
    pub store: Arc<dyn Any + Send + Sync>,
}

mod properties {
    use super::*;

    pub async fn a_user_without_devices_has_none(factory: &dyn Factory) {
        let open = factory.open().await;
        assert_eq!(open.devices.of(&uid("u")).await, Ok(vec![]));
        assert_eq!(open.devices.remove(&uid("u"), "phone", None).await, Ok(false));
    }

    pub async fn devices_come_back_as_they_were_put_by_name(factory: &dyn Factory) {
        let open = factory.open().await;
        let browser = Device {
            provider: Provider::Webpush,
            p256dh: Some("key".to_owned()),
            auth: Some("secret".to_owned()),
            topic: Some("app".to_owned()),
            ..device("browser \"é\" 手", "https://push.test/1")
        };
        let all = [device("", "t0"), device("a", "t1"), browser, device("phone", "t2")];
        for each in [2, 0, 3, 1] {
            put(&open, "u", all[each].clone()).await;
        }
        assert_eq!(open.devices.of(&uid("u")).await, Ok(all.to_vec()));
    }

    pub async fn a_device_takes_the_place_of_the_one_of_the_same_name(factory: &dyn Factory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "old")).await;
        put(&open, "u", device("phone", "new")).await;
        assert_eq!(open.devices.of(&uid("u")).await, Ok(vec![device("phone", "new")]));
    }

    pub async fn a_device_that_was_removed_is_gone(factory: &dyn Factory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "t1")).await;
        put(&open, "u", device("tablet", "t2")).await;
        assert_eq!(open.devices.remove(&uid("u"), "phone", None).await, Ok(true));
        assert_eq!(open.devices.remove(&uid("u"), "phone", None).await, Ok(false));
        assert_eq!(open.devices.of(&uid("u")).await, Ok(vec![device("tablet", "t2")]));
    }

    pub async fn a_device_is_removed_by_token_only_where_it_still_has_that(factory: &dyn Factory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "nëw")).await;
        assert_eq!(open.devices.remove(&uid("u"), "phone", Some("old")).await, Ok(false));
        assert_eq!(open.devices.of(&uid("u")).await.map(|devices| devices.len()), Ok(1));
        assert_eq!(open.devices.remove(&uid("u"), "phone", Some("nëw")).await, Ok(true));
        assert_eq!(open.devices.of(&uid("u")).await, Ok(vec![]));
    }

    pub async fn one_device_too_many_is_refused_and_another_can_be_replaced(factory: &dyn Factory) {
        let open = factory.open().await;
        for number in 0..DEVICES_PER_USER_MAX {
            put(&open, "u", device(&format!("device-{number}"), "t")).await;
        }
        assert_eq!(open.devices.put(&uid("u"), device("more", "t")).await, Err(DevicesError::TooMany));
        put(&open, "u", device("device-0", "new")).await;
        assert_eq!(open.devices.remove(&uid("u"), "device-1", None).await, Ok(true));
        put(&open, "u", device("more", "t")).await;
        assert_eq!(open.devices.of(&uid("u")).await.map(|devices| devices.len()), Ok(DEVICES_PER_USER_MAX));
    }

    pub async fn users_have_devices_of_their_own(factory: &dyn Factory) {
        let open = factory.open().await;
        // Ids that begin others, and that a store's own marks could be taken for.
        for name in ["u", "u1", "u}x", "{u"] {
            put(&open, name, device("phone", name)).await;
        }
        assert_eq!(open.devices.remove(&uid("u"), "phone", None).await, Ok(true));
        for (name, count) in [("u", 0), ("u1", 1), ("u}x", 1), ("{u", 1)] {
            assert_eq!(open.devices.of(&uid(name)).await.map(|devices| devices.len()), Ok(count), "{name}");
        }
    }

    pub async fn what_was_put_survives_the_process(factory: &dyn Factory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "t")).await;
        let open = factory.reopen(open).await;
        assert_eq!(open.devices.of(&uid("u")).await, Ok(vec![device("phone", "t")]));
    }

    pub async fn of_many_that_come_at_once_no_more_than_the_maximum_stay(factory: &dyn Factory) {
        let open = factory.open().await;
        let user = uid("u");
        let puts =
            (0..DEVICES_PER_USER_MAX + 10).map(|number| open.devices.put(&user, device(&number.to_string(), "t")));
        let refused = join_all(puts).await.into_iter().filter(|put| *put == Err(DevicesError::TooMany)).count();
        assert_eq!(refused, 10);
        assert_eq!(open.devices.of(&user).await.map(|devices| devices.len()), Ok(DEVICES_PER_USER_MAX));
    }
}

fn uid(text: &str) -> Uid {
    Uid::new(text).expect("it is a good id")
}

fn device(name: &str, token: &str) -> Device {
    Device {
        device: name.to_owned(),
        platform: Platform::new("ios").expect("it is a good name"),
        provider: Provider::Apns,
        token: token.to_owned(),
        p256dh: None,
        auth: None,
        topic: None,
    }
}

async fn put(open: &OpenDevices, user: &str, device: Device) {
    assert_eq!(open.devices.put(&uid(user), device).await, Ok(()));
}
