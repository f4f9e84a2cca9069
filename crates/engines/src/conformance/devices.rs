//! The contract of [`Devices`], as properties that every engine must have.
//!
//! Each property has a store or a prefix of its own.

use futures_util::future::join_all;
use whimbrel_model::people::Platform;
use whimbrel_model::ports::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, Provider};

use super::sessions::uid;
use super::{Opened, Opens};

#[doc(hidden)]
#[macro_export]
macro_rules! devices_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                a_user_without_devices_has_none,
                devices_are_returned_as_they_were_put_sorted_by_name,
                a_device_replaces_the_one_of_the_same_name,
                a_device_that_was_removed_is_gone,
                a_device_is_removed_by_token_only_where_it_still_has_that,
                one_device_too_many_is_refused_and_another_can_be_replaced,
                users_have_devices_of_their_own,
                devices_survive_a_restart,
                concurrent_registrations_do_not_exceed_the_maximum,
            ]
        }
    };
}

crate::devices_properties! { conformance_exports }

/// An engine for the suite.
pub type DevicesFactory = dyn Opens<dyn Devices>;
pub type OpenDevices = Opened<dyn Devices>;

mod properties {
    use super::*;

    pub async fn a_user_without_devices_has_none(factory: &DevicesFactory) {
        let open = factory.open().await;
        assert_eq!(open.of(&uid("u")).await, Ok(vec![]));
        assert_eq!(open.remove(&uid("u"), "phone", None).await, Ok(false));
    }

    pub async fn devices_are_returned_as_they_were_put_sorted_by_name(factory: &DevicesFactory) {
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
        assert_eq!(open.of(&uid("u")).await, Ok(all.to_vec()));
    }

    pub async fn a_device_replaces_the_one_of_the_same_name(factory: &DevicesFactory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "old")).await;
        put(&open, "u", device("phone", "new")).await;
        assert_eq!(open.of(&uid("u")).await, Ok(vec![device("phone", "new")]));
    }

    pub async fn a_device_that_was_removed_is_gone(factory: &DevicesFactory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "t1")).await;
        put(&open, "u", device("tablet", "t2")).await;
        assert_eq!(open.remove(&uid("u"), "phone", None).await, Ok(true));
        assert_eq!(open.remove(&uid("u"), "phone", None).await, Ok(false));
        assert_eq!(open.of(&uid("u")).await, Ok(vec![device("tablet", "t2")]));
    }

    pub async fn a_device_is_removed_by_token_only_where_it_still_has_that(factory: &DevicesFactory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "nëw")).await;
        assert_eq!(open.remove(&uid("u"), "phone", Some("old")).await, Ok(false));
        assert_eq!(open.of(&uid("u")).await.map(|devices| devices.len()), Ok(1));
        assert_eq!(open.remove(&uid("u"), "phone", Some("nëw")).await, Ok(true));
        assert_eq!(open.of(&uid("u")).await, Ok(vec![]));
    }

    pub async fn one_device_too_many_is_refused_and_another_can_be_replaced(factory: &DevicesFactory) {
        let open = factory.open().await;
        for number in 0..DEVICES_PER_USER_MAX {
            put(&open, "u", device(&format!("device-{number}"), "t")).await;
        }
        assert_eq!(open.put(&uid("u"), device("more", "t")).await, Err(DevicesError::TooMany));
        put(&open, "u", device("device-0", "new")).await;
        assert_eq!(open.remove(&uid("u"), "device-1", None).await, Ok(true));
        put(&open, "u", device("more", "t")).await;
        assert_eq!(open.of(&uid("u")).await.map(|devices| devices.len()), Ok(DEVICES_PER_USER_MAX));
    }

    pub async fn users_have_devices_of_their_own(factory: &DevicesFactory) {
        let open = factory.open().await;
        // Ids that are prefixes of others, or that look like separators of a store.
        for name in ["u", "u1", "u}x", "{u"] {
            put(&open, name, device("phone", name)).await;
        }
        assert_eq!(open.remove(&uid("u"), "phone", None).await, Ok(true));
        for (name, count) in [("u", 0), ("u1", 1), ("u}x", 1), ("{u", 1)] {
            assert_eq!(open.of(&uid(name)).await.map(|devices| devices.len()), Ok(count), "{name}");
        }
    }

    pub async fn devices_survive_a_restart(factory: &DevicesFactory) {
        let open = factory.open().await;
        put(&open, "u", device("phone", "t")).await;
        let open = factory.reopen(open).await;
        assert_eq!(open.of(&uid("u")).await, Ok(vec![device("phone", "t")]));
    }

    pub async fn concurrent_registrations_do_not_exceed_the_maximum(factory: &DevicesFactory) {
        let open = factory.open().await;
        let user = uid("u");
        let puts = (0..DEVICES_PER_USER_MAX + 10).map(|number| open.put(&user, device(&number.to_string(), "t")));
        let refused = join_all(puts).await.into_iter().filter(|put| *put == Err(DevicesError::TooMany)).count();
        assert_eq!(refused, 10);
        assert_eq!(open.of(&user).await.map(|devices| devices.len()), Ok(DEVICES_PER_USER_MAX));
    }
}

pub fn device(name: &str, token: &str) -> Device {
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
    assert_eq!(open.put(&uid(user), device).await, Ok(()));
}
