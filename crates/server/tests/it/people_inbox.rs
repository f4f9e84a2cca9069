//! Delivery of pushes to devices: order, and the messages stored for offline devices. Each property is a function of a site.

use serde_json::json;
use whimbrel_client::{NewPush, Origin, PlatformBody};

use super::deliver::Site;
use super::device::{ConnectFrame, Device};
use super::server::{converse, eventually};

fn texts(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

pub fn a_push_reaches_a_connected_device(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("live", "web"));
    let id = site.push("live", &NewPush::text("hé\"llo"));
    let message = device.message();
    assert_eq!((message["id"].as_str(), message["payload"].as_str()), (Some(id.as_str()), Some("hé\"llo")));
    assert_eq!(message["stored"], json!(true));
    assert!(message["seq"].as_u64() > message["prev"].as_u64(), "{message}");
    device.ack(message["seq"].as_u64().unwrap());
    site.push("live", &NewPush::new(vec![0, 255]));
    let binary = device.message();
    assert_eq!(binary["payload_base64"], json!("AP8="));
    assert_eq!(binary["prev"], message["seq"], "the numbers are a chain");
}

pub fn every_platform_receives_a_push_and_acknowledges_separately(site: &Site) {
    let [mut web, mut ios] =
        ["web", "ios"].map(|platform| Device::connect(&site.server, &ConnectFrame::of("both", platform)));
    site.push_texts("both", ["a"]);
    assert_eq!(web.take(1), ["a"]);
    assert_eq!(ios.message()["payload"], json!("a"));
    web.leave();
    ios.leave();
    let mut web = Device::connect(&site.server, &ConnectFrame::of("both", "web"));
    web.silence();
    let mut ios = Device::connect(&site.server, &ConnectFrame::of("both", "ios"));
    assert_eq!(ios.take(1), ["a"], "only its own acknowledgement counts");
}

pub fn a_push_for_some_platforms_reaches_no_other(site: &Site) {
    let [mut web, mut ios] =
        ["web", "ios"].map(|platform| Device::connect(&site.server, &ConnectFrame::of("some", platform)));
    site.push("some", &NewPush::text("only ios").platforms(["ios"]));
    site.push("some", &NewPush { except_platforms: vec!["ios".into()], ..NewPush::text("not ios") });
    site.push("some", &NewPush::text("all"));
    assert_eq!(ios.take(2), ["only ios", "all"]);
    assert_eq!(web.take(2), ["not ios", "all"]);
}

pub fn an_offline_device_receives_everything_in_order(site: &Site) {
    Device::connect(&site.server, &ConnectFrame::of("away", "web")).leave();
    // More than a window, so that the inbox is read in pages.
    site.push_texts("away", texts(0..150));
    site.stores("away", 100);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("away", "web"));
    assert_eq!(device.take(150), texts(0..150));
    site.push_texts("away", ["live"]);
    assert_eq!(device.take(1), ["live"]);
    site.stores("away", 0);
}

pub fn a_resumed_device_gets_neither_a_gap_nor_a_repeat(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("seam", "web"));
    let epoch = device.epoch();
    site.push_texts("seam", texts(0..20));
    // The device acknowledges ten messages, and receives five more without acknowledging them.
    assert_eq!(device.take(10), texts(0..10));
    let mut cursor = 0;
    for number in 10..15 {
        let message = device.message();
        assert_eq!(message["payload"], json!(number.to_string()));
        cursor = message["seq"].as_u64().unwrap();
    }
    drop(device);
    site.push_texts("seam", texts(20..40));
    let mut device = Device::connect(&site.server, &ConnectFrame::of("seam", "web").resume(&epoch, cursor));
    assert_eq!(device.connected["resumed"], json!(true), "{}", device.connected);
    site.push_texts("seam", texts(40..50));
    let first = device.message();
    assert_eq!((first["payload"].as_str(), first["prev"].as_u64()), (Some("15"), Some(cursor)));
    device.ack(first["seq"].as_u64().unwrap());
    assert_eq!(device.take(34), texts(16..50));
    device.silence();
}

pub fn an_unknown_epoch_is_not_resumed_and_the_reason_is_reported(site: &Site) {
    site.push_texts("strange", ["kept"]);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("strange", "web").resume("another", 1_000_000));
    assert_eq!(device.connected["resumed"], json!(false));
    assert!(device.connected["why"].is_string(), "{}", device.connected);
    assert_eq!(device.take(1), ["kept"]);
}

pub fn an_ephemeral_push_reaches_connected_devices_and_is_not_stored(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("now", "web"));
    site.push("now", &NewPush::text("a").ephemeral());
    let message = device.message();
    assert_eq!(message["payload"], json!("a"));
    assert!(message.get("seq").is_none() && message.get("prev").is_none(), "{message}");
    device.leave();
    site.is_online("now", false);
    site.push("now", &NewPush::text("b").ephemeral());
    site.push("now", &NewPush::text("c"));
    // The carrier has processed both pushes before the device is back.
    site.stores("now", 1);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("now", "web"));
    assert_eq!(device.take(1), ["c"]);
    device.silence();
}

pub fn expired_messages_are_reported_as_truncated(site: &Site) {
    Device::connect(&site.server, &ConnectFrame::of("old", "web")).leave();
    site.push("old", &NewPush::text("short").ttl("100ms"));
    site.push("old", &NewPush::text("long"));
    // Expired messages are not shown either.
    eventually("the first one expires", || {
        let shown = converse(site.client().inbox("old", None)).unwrap().messages;
        shown.len() == 1 && shown[0].payload.as_deref() == Some("long")
    });
    let mut device = Device::connect(&site.server, &ConnectFrame::of("old", "web"));
    let truncated = device.frame("truncated");
    assert!(truncated["from"].as_u64() <= truncated["to"].as_u64(), "{truncated}");
    assert_eq!(device.take(1), ["long"]);
}

pub fn overflowing_messages_are_reported_as_truncated(site: &Site) {
    site.platform("small", &PlatformBody { max_stored: Some(3), ..PlatformBody::default() });
    Device::connect(&site.server, &ConnectFrame::of("much", "small")).leave();
    site.push_texts("much", texts(0..10));
    eventually("the oldest are removed", || {
        let shown = converse(site.client().inbox("much", Some("small"))).unwrap().messages;
        shown.iter().filter_map(|message| message.payload.as_deref()).eq(["7", "8", "9"])
    });
    let mut device = Device::connect(&site.server, &ConnectFrame::of("much", "small"));
    device.frame("truncated");
    assert_eq!(device.take(3), texts(7..10));
}

pub fn a_newer_message_replaces_one_with_its_collapse_key(site: &Site) {
    Device::connect(&site.server, &ConnectFrame::of("collapse", "web")).leave();
    for score in ["1:0", "1:1", "2:1"] {
        site.push("collapse", &NewPush::text(score).collapse_key("score"));
    }
    site.push_texts("collapse", ["end"]);
    site.stores("collapse", 2);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("collapse", "web"));
    let mut payloads = Vec::new();
    while payloads.len() < 2 {
        match device.next(super::server::PATIENCE) {
            super::device::DeviceEvent::Frame(frame) if frame.get("message").is_some() => {
                let message = &frame["message"];
                payloads.push(message["payload"].as_str().unwrap().to_owned());
                device.ack(message["seq"].as_u64().unwrap());
            }
            super::device::DeviceEvent::Frame(frame) => assert!(frame.get("truncated").is_some(), "{frame}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(payloads, ["2:1", "end"]);
}

pub fn a_push_repeated_under_its_id_is_delivered_once(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("again", "web"));
    let push = NewPush::text("once").id("again-1");
    assert_eq!(site.push("again", &push), "again-1");
    assert_eq!(site.push("again", &push), "again-1");
    site.push_texts("again", ["next"]);
    assert_eq!(device.take(2), ["once", "next"]);
}

pub fn a_push_repeated_under_its_origin_is_delivered_once(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("origin", "web"));
    let push = NewPush { origin: Some(Origin { server: "chat-1".into(), seq: 7 }), ..NewPush::text("once") };
    let first = site.push("origin", &push);
    assert_eq!(site.push("origin", &push), first);
    site.push_texts("origin", ["next"]);
    assert_eq!(device.take(2), ["once", "next"]);
}

pub fn a_delayed_push_arrives_at_its_due_time(site: &Site) {
    let mut device = Device::connect(&site.server, &ConnectFrame::of("later", "web"));
    site.push("later", &NewPush { delay: Some("1s".into()), ..NewPush::text("later") });
    site.push_texts("later", ["now"]);
    assert_eq!(device.take(2), ["now", "later"]);
}

pub fn a_push_to_many_reaches_each_of_them(site: &Site) {
    let uids: Vec<String> = (0..40).map(|number| format!("many-{number}")).collect();
    let mut first = Device::connect(&site.server, &ConnectFrame::of(&uids[0], "web"));
    converse(site.client().push_many(&uids, &NewPush::text("to all"))).unwrap();
    assert_eq!(first.take(1), ["to all"]);
    for uid in &uids[1..] {
        site.stores(uid, 1);
    }
    let mut last = Device::connect(&site.server, &ConnectFrame::of(&uids[39], "web"));
    assert_eq!(last.take(1), ["to all"]);
}

pub fn a_wiped_inbox_is_empty(site: &Site) {
    site.push_texts("wiped", ["a", "b"]);
    site.stores("wiped", 2);
    converse(site.client().wipe_inbox("wiped")).unwrap();
    site.stores("wiped", 0);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("wiped", "web"));
    site.push_texts("wiped", ["c"]);
    assert_eq!(device.take(1), ["c"]);
}
