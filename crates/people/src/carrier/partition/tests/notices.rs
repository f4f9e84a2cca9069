//! Notices: seats that received a message without a number get no notice for it.

use whimbrel_model::SessionsRule;
use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::push::{Notice, PushMessage};

use super::{World, with_notice};
use crate::carrier::partition::CarrierRecord;

/// The notices written after the acknowledgement timeout.
fn notices(world: &mut World) -> Vec<Notice> {
    world.wait(10_000);
    for item in std::mem::take(&mut world.outbound) {
        match item {
            CarrierRecord::Hold { task, .. } => world.append(&task, ""),
            other => world.outbound.push(other),
        }
    }
    let notice = |item: CarrierRecord| if let CarrierRecord::Notice(notice) = item { Some(notice) } else { None };
    std::mem::take(&mut world.outbound).into_iter().filter_map(notice).collect()
}

fn platform(name: &str) -> Platform {
    Platform::new(name).unwrap()
}

#[test]
fn a_platform_that_received_an_ephemeral_message_gets_no_notice() {
    let mut world = World::new();
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    world.push_message(with_notice(false, &["u"]), "a");
    let found = notices(&mut world);
    assert_eq!(found.len(), 1, "the user's other platforms get a notice");
    assert_eq!(found[0].except_platforms, [platform("web")]);
}

#[test]
fn a_platform_without_storage_gets_no_notice_for_a_delivered_message() {
    let mut world = World::with(PlatformSettings { store: false, ..PlatformSettings::default() });
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    world.push_message(with_notice(true, &["u"]), "a");
    assert_eq!(notices(&mut world)[0].except_platforms, [platform("web")]);
}

#[test]
fn no_notice_is_written_if_every_named_platform_received_the_message() {
    let mut world = World::new();
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    let named = PushMessage { platforms: Some(vec![platform("web")]), ..with_notice(false, &["u"]) };
    world.push_message(named, "a");
    assert!(notices(&mut world).is_empty());
}

#[test]
fn a_device_that_received_the_message_gets_no_notice_on_a_platform_with_many() {
    let mut world = World::with_sessions(SessionsRule::Many(3));
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    world.push_message(with_notice(false, &["u"]), "a");
    let found = notices(&mut world);
    let devices: Vec<&str> = found[0].except_devices.iter().map(|each| each.device.as_str()).collect();
    assert_eq!((found[0].except_platforms.len(), devices), (0, vec!["d1"]));
}

#[test]
fn each_user_gets_a_notice_without_the_platforms_that_received_the_message() {
    let mut world = World::connected();
    world.arrive(2, "v", "ios", None);
    world.arrive(3, "w", "web", None);
    world.push_message(with_notice(false, &["u", "v", "w", "x"]), "a");
    let held = world.outbound.iter().filter(|item| matches!(item, CarrierRecord::Hold { .. })).count();
    assert_eq!(held, 3, "one hold for each set of platforms that received it");
    let mut found: Vec<(String, Vec<Platform>)> =
        notices(&mut world).into_iter().map(|notice| (notice.uid, notice.except_platforms)).collect();
    found.sort();
    let expected = [("u", vec!["web"]), ("v", vec!["ios"]), ("w", vec!["web"]), ("x", vec![])];
    let expected = expected.map(|(who, except)| (who.to_owned(), except.into_iter().map(platform).collect::<Vec<_>>()));
    assert_eq!(found, expected);
}

#[test]
fn a_notice_is_written_at_once_for_offline_users_and_later_for_unacknowledged_messages() {
    let mut world = World::new();
    world.wait(10_000);
    world.push_message(with_notice(true, &["u"]), "a");
    assert!(matches!(world.outbound.pop(), Some(CarrierRecord::Notice(notice)) if notice.uid == "u"));
    world.arrive(1, "v", "web", None);
    world.push_message(with_notice(true, &["v"]), "b");
    let Some(CarrierRecord::Hold { task, .. }) = world.outbound.pop() else { panic!("no notice is held") };
    world.append(&task, "");
    assert!(matches!(world.outbound.pop(), Some(CarrierRecord::Notice(notice)) if notice.except_platforms.is_empty()));
    world.ack(1, "v", 2);
    world.append(&task, "");
    let Some(CarrierRecord::Notice(notice)) = world.outbound.pop() else {
        panic!("other platforms have not acknowledged")
    };
    assert_eq!(notice.except_platforms, [platform("web")]);
}

#[test]
fn devices_that_acknowledged_get_no_notice_on_a_platform_with_many() {
    let mut world = World::with_sessions(SessionsRule::Many(3));
    for session in 1..=2 {
        world.arrive(session, "u", "web", None);
    }
    for (platforms, seq) in [(None, 1), (Some(vec![platform("web")]), 3)] {
        world.push_message(PushMessage { platforms, ..with_notice(true, &["u"]) }, "a");
        let Some(CarrierRecord::Hold { task, .. }) = world.outbound.pop() else { panic!("no notice is held") };
        world.ack(1, "u", seq);
        world.append(&task, "");
        let Some(CarrierRecord::Notice(notice)) = world.outbound.pop() else {
            panic!("one device has not acknowledged")
        };
        let devices: Vec<&str> = notice.except_devices.iter().map(|each| each.device.as_str()).collect();
        assert_eq!((notice.except_platforms.len(), devices), (0, vec!["d1"]));
    }
}
