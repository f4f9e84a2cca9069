//! Sessions: which are accepted, which are ended, and the reasons that devices get. Each property is a function of a site.

use serde_json::json;
use whimbrel_client::{Kick, NewPush, PlatformBody};

use super::deliver::Site;
use super::device::{ConnectFrame, Device, DeviceEvent};
use super::server::{PATIENCE, converse};

pub fn a_newer_session_replaces_that_of_the_platform(site: &Site) {
    let mut old = Device::connect(&site.server, &ConnectFrame::of("one", "web"));
    let mut new = Device::connect(&site.server, &ConnectFrame::of("one", "web"));
    assert_eq!(old.frame("kick")["code"], json!("replaced"));
    assert_eq!(old.closed().0, 4001);
    site.push_texts("one", ["a"]);
    assert_eq!(new.take(1), ["a"]);
}

pub fn a_rejecting_platform_permits_no_second_session(site: &Site) {
    site.platform("strict", &PlatformBody { sessions: Some(json!("reject")), ..PlatformBody::default() });
    let mut first = Device::connect(&site.server, &ConnectFrame::of("two", "strict"));
    let (code, reason) = Device::refused(&site.server, &ConnectFrame::of("two", "strict"));
    assert_eq!(code, 4003, "{reason}");
    site.push_texts("two", ["a"]);
    assert_eq!(first.take(1), ["a"]);
    first.leave();
    let mut second = Device::connect(&site.server, &ConnectFrame::of("two", "strict"));
    site.push_texts("two", ["b"]);
    assert_eq!(second.take(1), ["b"]);
}

pub fn a_platform_of_many_has_a_seat_for_each_device(site: &Site) {
    site.platform("lots", &PlatformBody { sessions: Some(json!({ "many": 2 })), ..PlatformBody::default() });
    let hello = |device: &str| ConnectFrame::of("three", "lots").device(device);
    let mut a = Device::connect(&site.server, &hello("a"));
    let mut b = Device::connect(&site.server, &hello("b"));
    site.push_texts("three", ["1"]);
    assert_eq!((a.take(1), b.take(1)), (vec!["1".to_owned()], vec!["1".to_owned()]));
    // After both have acknowledged it, no device gets it again.
    site.stores("three", 0);
    let mut c = Device::connect(&site.server, &hello("c"));
    assert_eq!(a.closed().0, 4001, "the oldest session ends");
    site.push_texts("three", ["2"]);
    assert_eq!((b.take(1), c.take(1)), (vec!["2".to_owned()], vec!["2".to_owned()]));
    b.leave();
    c.leave();
    let mut a = Device::connect(&site.server, &hello("a"));
    assert_eq!(a.take(1), ["2"], "each device has its own cursor");
}

pub fn a_kick_has_its_reason(site: &Site) {
    let [mut web, mut ios] =
        ["web", "ios"].map(|platform| Device::connect(&site.server, &ConnectFrame::of("kicked", platform)));
    let kick = Kick { platform: Some("ios".into()), reason: "no phones".into(), ..Kick::default() };
    converse(site.client().kick("kicked", &kick)).unwrap();
    let told = ios.frame("kick");
    assert_eq!((told["code"].as_str(), told["reason"].as_str()), (Some("kicked"), Some("no phones")));
    let (code, _) = ios.closed();
    assert_eq!(code, 4002);
    site.push_texts("kicked", ["still here"]);
    assert_eq!(web.take(1), ["still here"]);
    site.kick("kicked", "nobody");
    assert_eq!(web.frame("kick")["reason"], json!("nobody"));
    assert_eq!(web.closed().0, 4002);
    site.is_online("kicked", false);
}

pub fn a_device_that_never_acknowledges_is_closed_and_may_reconnect(site: &Site) {
    site.platform("mute", &PlatformBody { ack_timeout: Some("1s".into()), ..PlatformBody::default() });
    let mut device = Device::connect(&site.server, &ConnectFrame::of("mute", "mute"));
    site.push("mute", &NewPush::text("hello?"));
    let first = device.message();
    assert_eq!(device.closed().0, 4100);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("mute", "mute"));
    let again = device.message();
    assert_eq!((&again["id"], &again["seq"]), (&first["id"], &first["seq"]));
    device.ack(again["seq"].as_u64().unwrap());
    site.stores("mute", 0);
}

pub fn presence_reports_online_and_offline_users(site: &Site) {
    site.is_online("seen", false);
    let before = converse(site.client().presence("seen")).unwrap();
    assert!(!before.online && before.last_seen.is_none(), "{before:?}");
    let device = Device::connect(&site.server, &ConnectFrame::of("seen", "web").device("d1"));
    site.is_online("seen", true);
    let shown = converse(site.client().presence_of(&["nobody".into(), "seen".into()])).unwrap();
    assert_eq!(shown.users.iter().map(|user| user.online).collect::<Vec<_>>(), [false, true]);
    let session = &shown.users[1].sessions[0];
    assert_eq!((session.platform.as_str(), session.device.as_str()), ("web", "d1"));
    assert_eq!(session.session, device.session());
    // The connection breaks without a close frame.
    drop(device);
    site.is_online("seen", false);
    assert!(converse(site.client().presence("seen")).unwrap().last_seen.is_some());
}

pub fn an_ack_from_the_future_is_a_bad_frame(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("future", "web"));
    device.ack(1_000_000);
    let (code, reason) = device.closed();
    assert_eq!(code, 4000);
    assert!(reason.contains("1000000"), "{reason}");
}

pub fn an_invalid_or_unexpected_frame_is_a_bad_frame(site: &Site) {
    let nonsense =
        ["", "{", "[]", "{}", "{\"dance\":{}}", "{\"ack\":-1}", "{\"connect\":{\"uid\":\"u\",\"platform\":\"web\"}}"];
    for text in nonsense {
        let mut device = Device::connect(&site.server, &ConnectFrame::of("nonsense", "web"));
        device.say_text(text);
        assert_eq!(device.closed().0, 4000, "{text:?}");
    }
    for text in ["{\"ack\":1}", "{\"connect\":{}}", "{\"connect\":{\"uid\":\"\",\"platform\":\"web\"}}"] {
        let mut device = Device::open(&site.server);
        device.say_text(text);
        assert_eq!(device.closed().0, 4000, "{text:?}");
    }
    let mut device = Device::open(&site.server);
    device.say(&json!({ "connect": { "uid": "u", "platform": "No Platform" } }));
    assert_eq!(device.closed().0, 4000);
    let mut pinging = Device::connect(&site.server, &ConnectFrame::of("nonsense", "web"));
    pinging.say(&json!({ "ping": {} }));
    assert!(matches!(pinging.next(PATIENCE), DeviceEvent::Frame(frame) if frame.get("pong").is_some()));
}
