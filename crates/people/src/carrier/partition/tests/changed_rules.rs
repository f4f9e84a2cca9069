//! A platform's `sessions` may change while its seats are there: nothing is lost by it, and nothing is kept for a seat that nobody can have.

use std::sync::{Arc, Mutex};

use whimbrel_model::ports::{Announced, PeopleAsk, PeopleTold, SeatView, ToCarrier};
use whimbrel_model::{SessionsRule, Timestamp};

use super::super::Input;
use super::super::admitting::REPLACED;
use super::{World, epoch, uid};

/// A world whose platforms have the rule that stands there.
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

    /// Its gateway says that the device is there, and came at `at`.
    fn announce(&mut self, session: u64, device: &str, at: i64, (sent, acked): (u64, u64)) -> Vec<String> {
        let mut arrival = self.world.arrival(session, "u", "web", None);
        (arrival.device, arrival.at) = (device.into(), Timestamp::from_millis(at));
        let announced = Announced { arrival, epoch: (*epoch("u")).into(), sent, acked };
        self.world.from(vec![ToCarrier::Announce(Box::new(announced))]);
        self.world.told(session)
    }

    /// The device comes, acknowledges and leaves.
    fn visit(&mut self, session: u64, device: &str, acks: u64) {
        self.arrive(session, device);
        self.world.ack(session, "u", acks);
        self.world.gone(session, "u");
    }

    fn seats(&mut self) -> Vec<SeatView> {
        let what = PeopleAsk::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
        self.world.step(Input::Asked { ask: 1, what, end: 0 });
        let Some(PeopleTold::Inbox(view)) = self.world.answers.pop() else { panic!("it was asked") };
        view.seats
    }
}

#[test]
fn what_the_one_seat_had_not_acknowledged_is_there_for_the_first_of_many() {
    let mut ruled = Ruled::new(SessionsRule::Replace);
    ruled.arrive(1, "phone");
    ["a", "b", "c"].into_iter().for_each(|body| ruled.world.push(&["u"], body));
    ruled.world.ack(1, "u", 1);
    ruled.world.gone(1, "u");
    ruled.rule(SessionsRule::Many(3));
    assert_eq!(ruled.arrive(2, "phone"), ["admitted anew at 1 head 3", "b 2 after 1", "c 3 after 2"]);
    ruled.world.ack(2, "u", 3);
    ruled.world.wait(1_000);
    assert!(ruled.world.store.own.is_empty(), "nobody else waits for it");
    assert_eq!(ruled.seats().len(), 1);
}

#[test]
fn a_session_on_the_one_seat_stays_on_it_when_there_may_be_many() {
    let mut ruled = Ruled::new(SessionsRule::Replace);
    ruled.arrive(1, "phone");
    ruled.rule(SessionsRule::Many(3));
    ruled.arrive(2, "tablet");
    ruled.world.push(&["u"], "a");
    assert_eq!(ruled.world.told(1), ["a 1 after 0"]);
    assert_eq!(ruled.world.told(2), ["a 1 after 0"]);
    ruled.world.ack(2, "u", 1);
    ruled.world.gone(1, "u");
    // The tablet has a seat of its own: what the phone waits for is still there for the phone.
    ruled.visit(3, "tablet", 1);
    assert_eq!(ruled.arrive(4, "phone"), ["admitted anew at 0 head 1", "a 1 after 0"]);
    assert_eq!(ruled.seats().len(), 2);
}

#[test]
fn a_device_goes_on_from_its_own_seat_when_the_platform_has_one_and_the_others_are_gone() {
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
    assert!(ruled.world.store.own.is_empty(), "the tablet's seat is nobody's");
    assert_eq!(ruled.seats().len(), 1);
}

#[test]
fn a_device_without_a_seat_takes_the_one_that_waits_for_most() {
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
fn a_new_owner_finds_the_seats_of_sessions_that_began_under_another_rule() {
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
fn a_device_that_says_no_name_keeps_its_seat_among_many() {
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
fn a_seat_that_was_not_seen_for_long_is_forgotten_although_others_come_and_go() {
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
    assert!(ruled.world.store.own.is_empty(), "it waited for nobody else");
}

/// A phone that came first and a tablet, where a platform may have many; from here on it has one.
fn two_where_there_is_one_now() -> Ruled {
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

/// The tablet is there and gets what comes; the phone is not.
fn the_tablet_stays(ruled: &mut Ruled) {
    assert_eq!(ruled.world.core.sessions(), 1);
    ruled.world.push(&["u"], "c");
    assert_eq!((ruled.world.told(1), ruled.world.told(2)), (vec![], vec!["c 3 after 2".to_owned()]));
}

#[test]
fn of_many_that_are_announced_to_a_new_owner_only_the_newest_stays_where_there_is_one_now() {
    for phone_is_first in [true, false] {
        let mut ruled = two_where_there_is_one_now();
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
        assert!(ruled.world.store.own.is_empty(), "nobody else waits for it");
        let seats = ruled.seats();
        assert_eq!(seats.iter().map(|seat| (&*seat.device, seat.cursor)).collect::<Vec<_>>(), [("", 3)]);
    }
}

#[test]
fn of_many_the_older_one_goes_when_either_is_announced_again_where_there_is_one_now() {
    for is_the_older_one in [true, false] {
        let mut ruled = two_where_there_is_one_now();
        let (session, device, at, acked) = if is_the_older_one { (1, "phone", 0, 2) } else { (2, "tablet", 10, 1) };
        let mut told = ruled.announce(session, device, at, (2, acked));
        told.extend(ruled.world.told(1));
        assert_eq!(told, [format!("kick replaced {REPLACED}")]);
        the_tablet_stays(&mut ruled);
    }
}
