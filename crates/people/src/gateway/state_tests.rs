//! The decisions about one connection.

use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, Platform, Uid};
use whimbrel_model::ports::{Delivery, DeliveryPlace, OutMessage, ToCarrier};

use super::frames::Format;
use super::settings::GatewaySettings;
use super::state::{ANSWER_WAIT, Delivered, Look, Phase, State, Who};
use super::wheel::Tick;

const ROOM: usize = 1024;

fn settings() -> GatewaySettings {
    GatewaySettings::default()
}

fn who() -> Who {
    Who {
        uid: Uid::new("u1").unwrap(),
        platform: Platform::new("web").unwrap(),
        device: "".into(),
        at: Timestamp::from_millis(0),
        partition: 3,
        told: None,
        resume: None,
        epoch: None,
    }
}

fn admitted(format: Format) -> State {
    let mut state = State::new(format, true, Tick(0), &settings());
    state.arrive(who(), Tick::NEVER, Tick(0), &settings());
    assert!(state.admit(Arc::from("e"), 40));
    state
}

fn delivery(place: DeliveryPlace, bytes: usize) -> Delivery {
    let message = OutMessage { id: "m".into(), payload: vec![b'x'; bytes].into(), ..OutMessage::default() };
    Delivery { session: 1, place, again: false, message: Arc::new(message) }
}

fn stored(seq: u64) -> Delivery {
    delivery(DeliveryPlace::Stored { seq, prev: 0 }, 1)
}

fn ticks(seconds: u32) -> Tick {
    Tick(seconds * 8)
}

#[test]
fn a_number_that_was_sent_is_sent_again_only_where_that_is_wanted() {
    let mut state = admitted(Format::SocketJson);
    assert_eq!(state.deliver(&stored(40), ROOM, Tick(0)), Delivered::LeftOut);
    assert_eq!(state.deliver(&stored(42), ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.deliver(&stored(42), ROOM, Tick(0)), Delivered::LeftOut);
    let again = Delivery { again: true, ..stored(42) };
    assert_eq!(state.deliver(&again, ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.ack(42), Ok(true));
    assert_eq!(state.deliver(&again, ROOM, Tick(0)), Delivered::LeftOut);
}

#[test]
fn what_is_sent_again_and_never_came_is_a_gap_since_more_may_have_been_lost_with_it() {
    let mut state = admitted(Format::SocketJson);
    let again = |seq, prev| Delivery { again: true, ..delivery(DeliveryPlace::Stored { seq, prev }, 1) };
    assert_eq!(state.deliver(&stored(41), ROOM, Tick(0)), Delivered::Queued);
    // Between the two that are tried again there was a third: it has gone meanwhile, and the device was not told.
    assert_eq!(state.deliver(&again(41, 40), ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.deliver(&again(43, 41), ROOM, Tick(0)), Delivered::Gap);
}

#[test]
fn an_ephemeral_message_comes_once() {
    let mut state = admitted(Format::SocketJson);
    let ephemeral = |place| delivery(DeliveryPlace::Ephemeral { place }, 1);
    assert_eq!(state.deliver(&ephemeral(7), ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.deliver(&ephemeral(7), ROOM, Tick(0)), Delivered::LeftOut);
    assert_eq!(state.deliver(&ephemeral(6), ROOM, Tick(0)), Delivered::LeftOut);
    assert_eq!(state.deliver(&ephemeral(8), ROOM, Tick(0)), Delivered::Queued);
}

#[test]
fn only_what_was_sent_can_be_acknowledged_and_only_forwards() {
    let mut state = admitted(Format::SocketJson);
    assert_eq!(state.ack(41), Err(40));
    state.deliver(&stored(42), ROOM, Tick(0));
    assert_eq!(state.ack(42), Ok(true));
    assert_eq!(state.ack(42), Ok(false));
    assert_eq!(state.ack(41), Ok(false));
    state.skip_to(50);
    assert_eq!(state.ack(50), Ok(true));
}

#[test]
fn what_there_is_no_room_for_is_counted_and_told() {
    let mut state = admitted(Format::EventStream);
    let ephemeral = |place| delivery(DeliveryPlace::Ephemeral { place }, 600);
    assert_eq!(state.deliver(&ephemeral(1), ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.deliver(&ephemeral(2), ROOM, Tick(0)), Delivered::Dropped);
    assert_eq!(state.deliver(&ephemeral(3), ROOM, Tick(0)), Delivered::Dropped);
    state.take_waiting(Tick(0));
    state.tell_lost(Tick(0));
    assert_eq!(state.take_waiting(Tick(0)), b"data: {\"lost\":{\"count\":2}}\n\n");
    state.tell_lost(Tick(0));
    assert!(state.waiting().is_empty());
}

#[test]
fn a_stored_message_without_room_is_not_taken_for_sent() {
    let mut state = admitted(Format::SocketJson);
    let large = |seq| delivery(DeliveryPlace::Stored { seq, prev: 0 }, 900);
    assert_eq!(state.deliver(&large(41), ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.deliver(&large(42), ROOM, Tick(0)), Delivered::Full);
    assert_eq!(state.ack(42), Err(41));
}

#[test]
fn what_had_no_room_is_asked_for_once_when_all_that_waited_was_read() {
    let mut state = admitted(Format::SocketJson);
    let large = |seq| delivery(DeliveryPlace::Stored { seq, prev: seq - 1 }, 900);
    state.deliver(&large(41), ROOM, Tick(0));
    state.deliver(&large(42), ROOM, Tick(0));
    assert_eq!(state.deliver(&large(43), ROOM, Tick(0)), Delivered::Gap);
    assert!(!state.asks(Tick(0)) && !state.made_room(), "the device has not read yet");
    state.take_waiting(Tick(0));
    assert!(state.made_room() && state.asks(Tick(0)));
    assert!(!state.made_room() && !state.asks(Tick(0)));
}

#[test]
fn an_answer_that_is_lost_as_well_is_asked_for_again_after_a_while() {
    let mut state = admitted(Format::SocketJson);
    let later = Tick(0).after(ANSWER_WAIT);
    assert!(state.asks(Tick(0)) && !state.asks(Tick(later.0 - 1)), "what was under way before it asked is a gap too");
    assert_eq!(state.asks_at(), Some(later), "it is not left to the next message");
    assert!(state.asks(later) && state.asks_at().is_none() && !state.asks(later));
    state.was_answered();
    assert_eq!(state.asks_at(), None);
    assert!(state.asks(later), "another gap");
}

#[test]
fn an_answer_that_has_no_room_either_is_asked_for_once_more() {
    let mut state = admitted(Format::SocketJson);
    let large = |seq| delivery(DeliveryPlace::Stored { seq, prev: seq - 1 }, 900);
    assert!(state.asks(Tick(0)));
    state.deliver(&delivery(DeliveryPlace::Ephemeral { place: 1 }, 900), ROOM, Tick(0));
    assert_eq!(state.deliver(&large(41), ROOM, Tick(0)), Delivered::Full);
    state.take_waiting(Tick(0));
    assert!(state.made_room() && state.asks(Tick(0)));
}

#[test]
fn one_message_may_be_larger_than_the_room() {
    let mut state = admitted(Format::SocketJson);
    let huge = delivery(DeliveryPlace::Stored { seq: 41, prev: 40 }, 10 * ROOM);
    assert_eq!(state.deliver(&huge, ROOM, Tick(0)), Delivered::Queued);
}

#[test]
fn an_empty_queue_keeps_nothing() {
    let mut state = admitted(Format::SocketJson);
    state.deliver(&stored(41), ROOM, Tick(0));
    let waiting = state.waiting().to_vec();
    state.written(3, Tick(0));
    assert_eq!(state.waiting(), &waiting[3..]);
    state.written(waiting.len() - 3, Tick(0));
    assert!(state.waiting().is_empty());
}

#[test]
fn who_does_not_say_who_it_is_is_closed() {
    let mut state = State::new(Format::SocketJson, true, Tick(0), &settings());
    assert_eq!(state.look(ticks(9), &settings()), Look::Wait(ticks(10)));
    assert!(matches!(state.look(ticks(10), &settings()), Look::Close(CloseCode::BadFrame, _)));
}

#[test]
fn who_finds_no_owner_is_told_so() {
    let mut state = State::new(Format::SocketJson, true, Tick(0), &settings());
    state.arrive(who(), Tick::NEVER, ticks(1), &settings());
    assert_eq!(state.look(ticks(5), &settings()), Look::Wait(ticks(6)));
    assert!(matches!(state.look(ticks(6), &settings()), Look::Close(CloseCode::NoOwner, _)));
}

#[test]
fn the_silent_are_asked_and_then_closed() {
    let mut state = admitted(Format::SocketJson);
    assert_eq!(state.look(ticks(1), &settings()), Look::Wait(ticks(25)));
    assert_eq!(state.look(ticks(25), &settings()), Look::Ping);
    assert_eq!(state.look(ticks(26), &settings()), Look::Wait(ticks(35)));
    assert!(matches!(state.look(ticks(35), &settings()), Look::Close(CloseCode::Silent, _)));
}

#[test]
fn who_says_something_is_not_asked() {
    let mut state = admitted(Format::SocketJson);
    state.heard(ticks(20));
    assert_eq!(state.look(ticks(25), &settings()), Look::Wait(ticks(45)));
    assert_eq!(state.look(ticks(45), &settings()), Look::Ping);
    state.heard(ticks(46));
    assert_eq!(state.look(ticks(55), &settings()), Look::Wait(ticks(71)));
}

#[test]
fn an_event_stream_is_not_expected_to_answer() {
    let mut state = admitted(Format::EventStream);
    assert_eq!(state.look(ticks(25), &settings()), Look::Ping);
    assert_eq!(state.look(ticks(40), &settings()), Look::Wait(ticks(50)));
}

#[test]
fn a_token_ends_a_session_and_a_new_one_prolongs_it() {
    let mut state = State::new(Format::SocketJson, true, Tick(0), &settings());
    state.arrive(who(), ticks(10), Tick(0), &settings());
    state.admit(Arc::from("e"), 0);
    assert_eq!(state.look(ticks(1), &settings()), Look::Wait(ticks(10)));
    state.refreshed(ticks(12));
    assert_eq!(state.look(ticks(10), &settings()), Look::Wait(ticks(12)));
    assert!(matches!(state.look(ticks(12), &settings()), Look::Close(CloseCode::TokenExpired, _)));
}

#[test]
fn who_reads_nothing_for_long_is_closed_and_then_cut() {
    let mut state = admitted(Format::SocketJson);
    state.deliver(&stored(41), ROOM, ticks(1));
    state.heard(ticks(30));
    assert!(matches!(state.look(ticks(31), &settings()), Look::Close(CloseCode::Slow, _)));
    assert!(state.close(4103, "slow", ticks(31)));
    assert!(!state.close(4103, "slow", ticks(31)));
    assert_eq!(state.look(ticks(32), &settings()), Look::Wait(ticks(34)));
    assert_eq!(state.look(ticks(34), &settings()), Look::Cut);
}

#[test]
fn an_owner_is_told_of_an_arrival_until_it_was_let_in_and_of_where_it_stands_afterwards() {
    let mut state = State::new(Format::SocketJson, true, Tick(0), &settings());
    assert_eq!(state.introduction(9, Some(1)), None);
    state.arrive(who(), Tick::NEVER, Tick(0), &settings());
    assert!(matches!(state.introduction(9, Some(1)), Some((3, ToCarrier::Arrive(_)))));
    state.admit(Arc::from("e"), 40);
    state.deliver(&stored(42), ROOM, Tick(0));
    let Some((3, ToCarrier::Announce(announced))) = state.introduction(9, Some(2)) else { panic!("not announced") };
    assert_eq!((announced.sent, announced.acked, &*announced.epoch), (42, 40, "e"));
    assert_eq!(state.who.as_ref().unwrap().told, Some(2));
    assert_eq!(state.phase, Phase::Admitted);
}

#[test]
fn a_number_that_nobody_was_ever_sent_is_a_gap_for_everybody() {
    let mut state = admitted(Format::SocketJson);
    state.skip_to(u64::MAX - 1);
    assert!(state.is_gap(u64::MAX) && state.asks(Tick(0)));
}

#[test]
fn what_follows_something_that_was_lost_on_the_way_is_left_out_until_that_has_come() {
    let mut state = admitted(Format::SocketJson);
    let after_a_gap = Delivery { place: DeliveryPlace::Stored { seq: 43, prev: 42 }, ..stored(43) };
    assert_eq!(state.deliver(&after_a_gap, ROOM, Tick(0)), Delivered::Gap);
    let next = Delivery { place: DeliveryPlace::Stored { seq: 42, prev: 40 }, ..stored(42) };
    assert_eq!(state.deliver(&next, ROOM, Tick(0)), Delivered::Queued);
    assert_eq!(state.deliver(&after_a_gap, ROOM, Tick(0)), Delivered::Queued);
}
