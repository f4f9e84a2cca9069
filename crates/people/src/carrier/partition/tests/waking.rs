//! Who was sent a message that cannot be acknowledged is not woken for it.

use whimbrel_model::SessionsRule;
use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::push::{Notice, Notify, PushMessage};

use super::super::Letter;
use super::{World, message};

fn with_notice(store: bool, uids: &[&str]) -> PushMessage {
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    PushMessage { store, notify, ..message(uids) }
}

/// The notices that go out when the time for an acknowledgement is over.
fn notices(world: &mut World) -> Vec<Notice> {
    world.wait(10_000);
    for letter in std::mem::take(&mut world.letters) {
        match letter {
            Letter::Hold { task, .. } => world.append(&task, ""),
            other => world.letters.push(other),
        }
    }
    let notice = |letter: Letter| if let Letter::Notice(notice) = letter { Some(notice) } else { None };
    std::mem::take(&mut world.letters).into_iter().filter_map(notice).collect()
}

fn platform(name: &str) -> Platform {
    Platform::new(name).unwrap()
}

#[test]
fn who_was_there_for_an_ephemeral_message_is_not_woken_for_it() {
    let mut world = World::new();
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    world.push_message(with_notice(false, &["u"]), "a");
    let found = notices(&mut world);
    assert_eq!(found.len(), 1, "the user's other platforms are woken");
    assert_eq!(found[0].except_platforms, [platform("web")]);
}

#[test]
fn a_platform_that_keeps_nothing_is_not_woken_for_what_it_was_sent() {
    let mut world = World::with(PlatformSettings { store: false, ..PlatformSettings::default() });
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    world.push_message(with_notice(true, &["u"]), "a");
    assert_eq!(notices(&mut world)[0].except_platforms, [platform("web")]);
}

#[test]
fn where_everybody_whom_it_names_was_sent_it_nobody_is_woken() {
    let mut world = World::new();
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    let named = PushMessage { platforms: Some(vec![platform("web")]), ..with_notice(false, &["u"]) };
    world.push_message(named, "a");
    assert!(notices(&mut world).is_empty());
}

#[test]
fn where_a_platform_has_many_devices_the_one_that_was_sent_it_is_not_woken() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Many(3), ..PlatformSettings::default() });
    world.wait(10_000);
    world.arrive(1, "u", "web", None);
    world.push_message(with_notice(false, &["u"]), "a");
    let found = notices(&mut world);
    let devices: Vec<&str> = found[0].except_devices.iter().map(|each| each.device.as_str()).collect();
    assert_eq!((found[0].except_platforms.len(), devices), (0, vec!["d1"]));
}

#[test]
fn each_user_is_woken_but_where_that_user_was_sent_it() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.arrive(2, "v", "ios", None);
    world.arrive(3, "w", "web", None);
    world.push_message(with_notice(false, &["u", "v", "w", "x"]), "a");
    let held = world.letters.iter().filter(|letter| matches!(letter, Letter::Hold { .. })).count();
    assert_eq!(held, 3, "one for each set of platforms that were sent it");
    let mut found: Vec<(String, Vec<Platform>)> =
        notices(&mut world).into_iter().map(|notice| (notice.uid, notice.except_platforms)).collect();
    found.sort();
    let expected = [("u", vec!["web"]), ("v", vec!["ios"]), ("w", vec!["web"]), ("x", vec![])];
    let expected = expected.map(|(who, except)| (who.to_owned(), except.into_iter().map(platform).collect::<Vec<_>>()));
    assert_eq!(found, expected);
}

#[test]
fn a_notice_is_asked_for_at_once_where_nobody_is_there_and_later_where_nobody_answers() {
    let mut world = World::new();
    world.wait(10_000);
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    world.push_message(PushMessage { store: true, notify: notify.clone(), ..message(&["u"]) }, "a");
    assert!(matches!(world.letters.pop(), Some(Letter::Notice(notice)) if notice.uid == "u"));
    world.arrive(1, "v", "web", None);
    world.push_message(PushMessage { store: true, notify, ..message(&["v"]) }, "b");
    let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("the notice is held") };
    world.append(&task, "");
    assert!(matches!(world.letters.pop(), Some(Letter::Notice(notice)) if notice.except_platforms.is_empty()));
    world.ack(1, "v", 2);
    world.append(&task, "");
    let Some(Letter::Notice(notice)) = world.letters.pop() else { panic!("other platforms have not acknowledged") };
    assert_eq!(notice.except_platforms, [Platform::new("web").unwrap()]);
}

#[test]
fn where_a_platform_has_many_devices_those_that_acknowledged_are_not_woken() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Many(3), ..PlatformSettings::default() });
    for session in 1..=2 {
        world.arrive(session, "u", "web", None);
    }
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    for (platforms, seq) in [(None, 1), (Some(vec![Platform::new("web").unwrap()]), 3)] {
        let message = PushMessage { store: true, notify: notify.clone(), platforms, ..message(&["u"]) };
        world.push_message(message, "a");
        let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("the notice is held") };
        world.ack(1, "u", seq);
        world.append(&task, "");
        let Some(Letter::Notice(notice)) = world.letters.pop() else { panic!("one has not acknowledged") };
        let devices: Vec<&str> = notice.except_devices.iter().map(|each| each.device.as_str()).collect();
        assert_eq!((notice.except_platforms.len(), devices), (0, vec!["d1"]));
    }
}
