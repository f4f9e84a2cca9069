//! Notifications to offline devices, and notices that no provider accepts. Each property is a function of a site, with a test provider.

use serde_json::{Value, json};
use whimbrel_client::{DeadLetterInfo, DeviceInfo, NewDevice, NewNotify, NewPush, PeopleLetters, PlatformBody};

use super::commands::on;
use super::deliver::Site;
use super::device::{ConnectFrame, Device};
use super::receiver::{Receiver, Reply, reply};
use super::server::{converse, eventually, stderr_of, stdout_of};

const NOTICES: &str = "_notices";
/// Permits devices to name addresses on this machine, where the test providers are.
pub const PROVIDERS_ARE_HERE: &str = "horn.allow=127.0.0.1";

impl Site {
    /// Registers a device with a notification URL, and returns the answer.
    pub fn wakes(&self, uid: &str, device: &str, platform: &str, url: String) -> DeviceInfo {
        let info = NewDevice { platform: platform.into(), provider: "http".into(), token: url, ..NewDevice::default() };
        converse(self.client().put_device(uid, device, &info)).unwrap()
    }

    /// Pushes a message with a notification to devices that have not acknowledged it after that time.
    pub fn push_waking(&self, uid: &str, text: &str, after: &str) -> String {
        let notify = Some(NewNotify { title: Some(format!("about {text}")), ..NewNotify::default() });
        self.push(uid, &NewPush { notify, notify_after: Some(after.into()), ..NewPush::text(text) })
    }

    pub fn dead(&self, of: PeopleLetters, id: &str) -> Option<DeadLetterInfo> {
        let letters = converse(self.client().people_dead_letters(of, None)).unwrap().dead_letters;
        letters.into_iter().find(|letter| letter.id == id)
    }

    /// Waits until that message is a dead letter.
    pub fn dies(&self, of: PeopleLetters, id: &str) -> DeadLetterInfo {
        eventually(&format!("{id} is a dead letter"), || self.dead(of, id).is_some());
        self.dead(of, id).unwrap()
    }

    pub fn events(&self) -> String {
        self.command(&["read", "_events", "--from", "earliest", "--limit", "1000", "--json"])
    }

    pub fn redrives(&self, of: PeopleLetters, id: &str) {
        let told = converse(self.client().redrive_people(of, &[id.to_owned()])).unwrap();
        assert_eq!((told.redriven, told.unknown), (1, Vec::new()));
    }
}

pub fn a_permanently_rejected_notice_is_dead_and_can_be_redriven(site: &Site) {
    let provider = Receiver::answering(|_| Reply { body: "no such field", ..reply(400) });
    assert_eq!(site.wakes("refused", "phone", "ios", provider.url("/notice")).warning, None);
    let id = site.push_waking("refused", "a", "50ms");
    let letter = site.dies(PeopleLetters::Notices, &id);
    let reason = letter.reason;
    assert_eq!((letter.attempts, letter.last_status, letter.key.as_deref()), (1, None, Some("refused")), "{reason}");
    assert!(reason.contains("phone (http)") && reason.contains("answered 400"), "{reason}");
    assert_eq!(provider.count(), 1, "a permanent failure is not retried");
    let lastly = format!("became dead letters; last reason: {reason}");
    eventually("an event has the reason", || site.events().contains(&lastly));

    provider.answer_with(|_| reply(200));
    site.redrives(PeopleLetters::Notices, &id);
    let woken: Value = serde_json::from_str(provider.wait_for(2)[1].text()).unwrap();
    let said = json!({ "id": id, "uid": "refused", "device": "phone", "platform": "ios", "title": "about a" });
    for (name, value) in said.as_object().unwrap() {
        assert_eq!(&woken[name], value, "{woken}");
    }
    eventually("no dead letter of it is left", || site.dead(PeopleLetters::Notices, &id).is_none());
}

pub fn a_temporarily_rejected_notice_is_retried_and_its_reason_is_shown(site: &Site) {
    let provider = Receiver::answering(|_| reply(503));
    site.wakes("busy", "pager", "ios", provider.url("/busy"));
    site.push_waking("busy", "a", "50ms");
    provider.wait_for(1);
    let last_error = || site.show(NOTICES).status.last_error;
    eventually("the failure is shown", || last_error().is_some_and(|error| error.reason.contains("pager (http)")));
    let error = last_error().unwrap();
    assert!(error.status.is_none() && error.reason.contains("URL answered 503"), "{error:?}");
    let shown = site.command(&["sub", "show", NOTICES]);
    assert!(shown.contains("pager (http)") && !shown.contains("answered 424"), "{shown}");
    provider.answer_with(|_| reply(200));
    provider.wait_for(2);
}

pub fn a_provider_without_keys_is_reported_at_registration_and_at_notification(site: &Site) {
    let token = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0";
    let put = ["device", "put", "keyless", "phone", "--platform", "ios", "--provider", "apns", "--token", token];
    let told = on(&site.server, &put);
    let said = stdout_of(&told) + &stderr_of(&told);
    assert!(told.status.success() && said.contains("horn.apns.key_file"), "{said}");

    let id = site.push_waking("keyless", "a", "50ms");
    let reason = site.dies(PeopleLetters::Notices, &id).reason;
    assert!(reason.contains("phone (apns)") && reason.contains("horn.apns.key_file"), "{reason}");
    eventually("an event names the missing settings", || site.events().contains("provider_not_configured"));
}

pub fn only_devices_that_did_not_acknowledge_are_notified(site: &Site) {
    site.platform("several", &PlatformBody { sessions: Some(json!({ "many": 3 })), ..PlatformBody::default() });
    let provider = Receiver::willing();
    let hello = |device: &str| ConnectFrame::of("both", "several").device(device);
    let mut prompt = Device::connect(&site.server, &hello("prompt"));
    let mut slow = Device::connect(&site.server, &hello("slow"));
    for device in ["prompt", "slow", "never-seen"] {
        site.wakes("both", device, "several", provider.url(&format!("/{device}")));
    }
    site.push_waking("both", "a", "1s");
    assert_eq!(prompt.take(1), ["a"]);
    assert_eq!(slow.message()["payload"], json!("a"));
    let paths = || {
        let mut paths: Vec<String> = provider.all().into_iter().map(|got| got.path).collect();
        paths.sort();
        paths
    };
    provider.wait_for(2);
    // A notice is finished when all of its devices are.
    site.caught_up(NOTICES);
    assert_eq!(paths(), ["/never-seen", "/slow"]);
}

pub fn an_acknowledgement_of_a_shared_seat_stops_notifications(site: &Site) {
    let provider = Receiver::willing();
    let mut web = Device::connect(&site.server, &ConnectFrame::of("one-seat", "web").device("laptop"));
    site.wakes("one-seat", "laptop", "web", provider.url("/web"));
    site.wakes("one-seat", "phone", "ios", provider.url("/ios"));
    site.push_waking("one-seat", "a", "1s");
    assert_eq!(web.take(1), ["a"]);
    provider.wait_for(1);
    site.caught_up(NOTICES);
    let paths: Vec<String> = provider.all().into_iter().map(|got| got.path).collect();
    assert_eq!(paths, ["/ios"]);
}

pub fn a_device_with_a_private_address_is_rejected(site: &Site) {
    for host in ["127.0.0.2", "10.0.0.1", "[::1]"] {
        let token = format!("http://{host}:9/notice");
        let put = ["device", "put", "prying", "phone", "--platform", "ios", "--provider", "http", "--token", &token];
        let told = on(&site.server, &put);
        let said = stderr_of(&told);
        assert!(!told.status.success() && said.contains("horn.allow"), "{said}");
    }
    assert!(converse(site.client().devices("prying")).unwrap().is_empty());
}
