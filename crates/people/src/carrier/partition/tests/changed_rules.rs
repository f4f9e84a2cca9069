//! A change of a platform's `sessions` loses no messages, and keeps none for a seat that no device can take.

use std::sync::{Arc, Mutex};

use whimbrel_model::ports::{AnnouncedSession, SeatView, ToCarrier};
use whimbrel_model::{SessionsRule, Timestamp};

use super::{World, epoch};
use crate::carrier::partition::admission::REPLACED;

/// A world whose platforms follow `rule`.
struct Ruled {
    world: World,
    rule: Arc<Mutex<SessionsRule>>,
}

impl Ruled {
    fn new(rule: SessionsRule) -> Self {
        let rule = Arc::new(Mutex::new(rule));
        Self { world: World::ruled(&rule), rule }
    }

    fn rule(&self, rule: SessionsRule) {
        *self.rule.lock().unwrap() = rule;
    }

    fn arrive(&mut self, session: u64, device: &str) -> Vec<String> {
        let mut arrival = self.world.arrival(session, "u", "web", None);
        arrival.device = device.into();
        self.world.from(vec![ToCarrier::Arrive(Box::new(arrival))]);
        self.world.told(session)
    }

    /// A gateway announces the device's session, which arrived at `at`.
    fn announce(&mut self, session: u64, device: &str, at: i64, (sent, acked): (u64, u64)) -> Vec<String> {
        let mut arrival = self.world.arrival(session, "u", "web", None);
        (arrival.device, arrival.at) = (device.into(), Timestamp::from_millis(at));
        let announced = AnnouncedSession { arrival, epoch: (*epoch("u")).into(), sent, acked };
        self.world.from(vec![ToCarrier::Announce(Box::new(announced))]);
        self.world.told(session)
    }

    /// The device arrives, acknowledges and leaves.
    fn visit(&mut self, session: u64, device: &str, acks: u64) {
        self.arrive(session, device);
        self.world.ack(session, "u", acks);
        self.world.gone(session, "u");
    }

    fn seats(&mut self) -> Vec<SeatView> {
        self.world.view(0, 10).seats
    }
}

#[test]
fn the_first_of_many_devices_gets_the_backlog_of_the_single_seat() {
    let mut ruled = Ruled::new(SessionsRule::Replace);
    ruled.arrive(1, "phone");
    ["a", "b", "c"].into_iter().for_each(|body| ruled.world.push(&["u"], body));
    ruled.world.ack(1, "u", 1);
    ruled.world.gone(1, "u");
    ruled.rule(SessionsRule::Many(3));
    assert_eq!(ruled.arrive(2, "phone"), ["admitted anew at 1 head 3", "b 2 after 1", "c 3 after 2"]);
    ruled.world.ack(2, "u", 3);
    ruled.world.wait(1_000);
    assert!(ruled.world.store.own.is_empty(), "no other seat waits for it");
    assert_eq!(ruled.seats().len(), 1);
}

#[test]
fn a_session_on_the_single_seat_keeps_it_under_many() {
    let mut ruled = Ruled::new(SessionsRule::Replace);
    ruled.arrive(1, "phone");
    ruled.rule(SessionsRule::Many(3));
    ruled.arrive(2, "tablet");
    ruled.world.push(&["u"], "a");
    assert_eq!(ruled.world.told(1), ["a 1 after 0"]);
    assert_eq!(ruled.world.told(2), ["a 1 after 0"]);
    ruled.world.ack(2, "u", 1);
    ruled.world.gone(1, "u");
    // The tablet has a seat of its own; the phone's backlog remains.
    ruled.visit(3, "tablet", 1);
    assert_eq!(ruled.arrive(4, "phone"), ["admitted anew at 0 head 1", "a 1 after 0"]);
    assert_eq!(ruled.seats().len(), 2);
}

#[test]
fn a_device_continues_from_its_own_seat_when_the_platform_changes_to_one() {
    let mut ruled = Ruled::new(SessionsRule::Many(3));
    ruled.arrive(1, "phone");
    ruled.arrive(2, "tablet");
    ["a", "b", "c"].into_iter().for_each(|body| ruled.world.push(&["u"], body));
    ruled.world.ack(1, "u", 2);
    ruled.world.gone(1, "u");
    ruled.world.gone(2, "u");
    ruled.rule(SessionsRule::Replace);
    assert_eq!(ruled.arrive(3, "phone"), ["admitted anew at 2 head 3", "c 3 after 2"]);
    ruled.world.ack(3, "u", 3);
    ruled.world.wait(1_000);
    assert!(ruled.world.store.own.is_empty(), "the tablet's seat was removed");
    assert_eq!(ruled.seats().len(), 1);
}

#[test]
fn a_device_without_a_seat_takes_over_the_one_with_the_lowest_cursor() {
    let mut ruled = Ruled::new(SessionsRule::Many(3));
    ruled.arrive(1, "phone");
    ruled.arrive(2, "tablet");
    ["a", "b"].into_iter().for_each(|body| ruled.world.push(&["u"], body));
    ruled.world.ack(1, "u", 2);
    ruled.world.ack(2, "u", 1);
    ruled.world.gone(1, "u");
    ruled.world.gone(2, "u");
    ruled.rule(SessionsRule::Reject);
    assert_eq!(ruled.arrive(3, "watch"), ["admitted anew at 1 head 2", "b 2 after 1"]);
    assert_eq!(ruled.seats().len(), 1);
}

#[test]
fn a_new_owner_finds_the_seats_of_sessions_from_an_earlier_rule() {
    let mut ruled = Ruled::new(SessionsRule::Replace);
    ruled.arrive(1, "phone");
    ["a", "b"].into_iter().for_each(|body| ruled.world.push(&["u"], body));
    ruled.world.ack(1, "u", 1);
    ruled.world.wait(1_000);
    ruled.rule(SessionsRule::Many(3));
    ruled.world.take_over();
    ruled.world.news.clear();
    ruled.announce(1, "phone", 0, (2, 1));
    ruled.world.push(&["u"], "c");
    assert_eq!(ruled.world.told(1), ["c 3 after 2"]);
    ruled.world.ack(1, "u", 3);
    ruled.world.wait(1_000);
    assert!(ruled.world.store.own.is_empty());
    let seats = ruled.seats();
    assert_eq!(seats.iter().map(|seat| (&*seat.device, seat.cursor)).collect::<Vec<_>>(), [("phone", 3)]);
}

#[test]
fn a_device_without_a_name_keeps_its_seat_among_many() {
    let mut ruled = Ruled::new(SessionsRule::Many(3));
    ruled.arrive(1, "");
    ruled.world.push(&["u"], "a");
    ruled.world.gone(1, "u");
    ruled.arrive(2, "phone");
    ruled.world.ack(2, "u", 1);
    assert_eq!(ruled.arrive(3, ""), ["admitted anew at 0 head 1", "a 1 after 0"]);
    let mut devices: Vec<String> = ruled.seats().iter().map(|seat| seat.device.to_string()).collect();
    devices.sort_unstable();
    assert_eq!(devices, ["", "phone"]);
}

#[test]
fn a_seat_unseen_for_long_is_removed_although_other_devices_connect() {
    let mut ruled = Ruled::new(SessionsRule::Many(3));
    ruled.arrive(1, "phone");
    ruled.arrive(2, "tablet");
    ruled.world.gone(1, "u");
    let keep_seats = i64::try_from(ruled.world.settings.keep_seats.as_millis()).unwrap();
    ruled.world.wait(keep_seats - 10);
    ruled.visit(2, "tablet", 0);
    assert_eq!(ruled.seats().len(), 2);
    ruled.world.push(&["u"], "a");
    ruled.world.wait(11);
    ruled.visit(3, "tablet", 1);
    assert_eq!(ruled.seats().len(), 1);
    ruled.world.wait(1_000);
    assert!(ruled.world.store.own.is_empty(), "no other seat waits for it");
}

/// A phone and a newer tablet under `many`. Then the rule changes to `replace`.
fn two_sessions_under_replace() -> Ruled {
    let mut ruled = Ruled::new(SessionsRule::Many(3));
    ruled.arrive(1, "phone");
    ruled.world.wait(10);
    ruled.arrive(2, "tablet");
    ["a", "b"].into_iter().for_each(|body| ruled.world.push(&["u"], body));
    ruled.world.ack(1, "u", 2);
    ruled.world.ack(2, "u", 1);
    ruled.world.wait(1_000);
    ruled.world.news.clear();
    ruled.rule(SessionsRule::Replace);
    ruled
}

/// The tablet is connected and receives messages; the phone is not connected.
fn the_tablet_stays(ruled: &mut Ruled) {
    assert_eq!(ruled.world.core.sessions(), 1);
    ruled.world.push(&["u"], "c");
    assert_eq!((ruled.world.told(1), ruled.world.told(2)), (vec![], vec!["c 3 after 2".to_owned()]));
}

#[test]
fn after_a_change_to_replace_a_new_owner_keeps_only_the_newest_session() {
    for phone_is_first in [true, false] {
        let mut ruled = two_sessions_under_replace();
        ruled.world.take_over();
        if phone_is_first {
            assert!(ruled.announce(1, "phone", 0, (2, 2)).is_empty());
        }
        assert!(ruled.announce(2, "tablet", 10, (2, 1)).is_empty());
        let told = if phone_is_first { ruled.world.told(1) } else { ruled.announce(1, "phone", 0, (2, 2)) };
        assert_eq!(told, [format!("kick replaced {REPLACED}")]);
        the_tablet_stays(&mut ruled);
        ruled.world.ack(2, "u", 3);
        ruled.world.wait(1_000);
        assert!(ruled.world.store.own.is_empty(), "no other seat waits for it");
        let seats = ruled.seats();
        assert_eq!(seats.iter().map(|seat| (&*seat.device, seat.cursor)).collect::<Vec<_>>(), [("", 3)]);
    }
}

#[test]
fn after_a_change_to_replace_any_announcement_ends_the_older_session() {
    for is_the_older_one in [true, false] {
        let mut ruled = two_sessions_under_replace();
        let (session, device, at, acked) = if is_the_older_one { (1, "phone", 0, 2) } else { (2, "tablet", 10, 1) };
        let mut told = ruled.announce(session, device, at, (2, acked));
        told.extend(ruled.world.told(1));
        assert_eq!(told, [format!("kick replaced {REPLACED}")]);
        the_tablet_stays(&mut ruled);
    }
}
