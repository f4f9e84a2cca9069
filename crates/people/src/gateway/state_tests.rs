//! Tests of the decisions about one connection.

use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, Platform, Uid};
use whimbrel_model::ports::{Delivery, DeliveryPosition, OutMessage, ToCarrier};

use super::frames::Format;
use super::gap_requests::ANSWER_WAIT;
use super::settings::GatewaySettings;
use super::state::{DeliveryOutcome, DeviceIdentity, DueAction, SessionPhase, SessionState};
use super::wheel::Tick;

const ROOM: usize = 1024;

fn settings() -> GatewaySettings {
    GatewaySettings::default()
}

fn identity() -> DeviceIdentity {
    DeviceIdentity {
        uid: Uid::new("u1").unwrap(),
        platform: Platform::new("web").unwrap(),
        device: "".into(),
        at: Timestamp::from_millis(0),
        partition: 3,
        announced_in: None,
        resume: None,
        epoch: None,
    }
}

fn admitted(format: Format) -> SessionState {
    let mut state = SessionState::new(format, true, Tick(0), &settings());
    state.arrive(identity(), Tick::NEVER, Tick(0), &settings());
    assert!(state.admit(Arc::from("e"), 40));
    state
}

fn delivery(place: DeliveryPosition, bytes: usize) -> Delivery {
    let message = OutMessage { id: "m".into(), payload: vec![b'x'; bytes].into(), ..OutMessage::default() };
    Delivery { session: 1, place, again: false, message: Arc::new(message) }
}

fn stored(seq: u64) -> Delivery {
    delivery(DeliveryPosition::Stored { seq, prev: 0 }, 1)
}

fn ticks(seconds: u32) -> Tick {
    Tick(seconds * 8)
}

#[test]
fn a_sent_number_is_sent_again_only_as_a_retry() {
    let mut state = admitted(Format::SocketJson);
    assert_eq!(state.deliver(&stored(40), ROOM, Tick(0)), DeliveryOutcome::LeftOut);
    assert_eq!(state.deliver(&stored(42), ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.deliver(&stored(42), ROOM, Tick(0)), DeliveryOutcome::LeftOut);
    let again = Delivery { again: true, ..stored(42) };
    assert_eq!(state.deliver(&again, ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.ack(42), Ok(true));
    assert_eq!(state.deliver(&again, ROOM, Tick(0)), DeliveryOutcome::LeftOut);
}

#[test]
fn a_retry_of_a_message_that_never_arrived_is_a_gap() {
    let mut state = admitted(Format::SocketJson);
    let again = |seq, prev| Delivery { again: true, ..delivery(DeliveryPosition::Stored { seq, prev }, 1) };
    assert_eq!(state.deliver(&stored(41), ROOM, Tick(0)), DeliveryOutcome::Queued);
    // A third message between the two retried ones is gone meanwhile, and its loss was not reported to the device.
    assert_eq!(state.deliver(&again(41, 40), ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.deliver(&again(43, 41), ROOM, Tick(0)), DeliveryOutcome::Gap);
}

#[test]
fn an_ephemeral_message_is_delivered_once() {
    let mut state = admitted(Format::SocketJson);
    let ephemeral = |place| delivery(DeliveryPosition::Ephemeral { place }, 1);
    assert_eq!(state.deliver(&ephemeral(7), ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.deliver(&ephemeral(7), ROOM, Tick(0)), DeliveryOutcome::LeftOut);
    assert_eq!(state.deliver(&ephemeral(6), ROOM, Tick(0)), DeliveryOutcome::LeftOut);
    assert_eq!(state.deliver(&ephemeral(8), ROOM, Tick(0)), DeliveryOutcome::Queued);
}

#[test]
fn only_sent_numbers_can_be_acknowledged_and_only_forwards() {
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
fn ephemeral_messages_without_room_are_counted_and_reported() {
    let mut state = admitted(Format::EventStream);
    let ephemeral = |place| delivery(DeliveryPosition::Ephemeral { place }, 600);
    assert_eq!(state.deliver(&ephemeral(1), ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.deliver(&ephemeral(2), ROOM, Tick(0)), DeliveryOutcome::Dropped);
    assert_eq!(state.deliver(&ephemeral(3), ROOM, Tick(0)), DeliveryOutcome::Dropped);
    state.take_waiting(Tick(0));
    state.queue_losses(Tick(0));
    assert_eq!(state.take_waiting(Tick(0)), b"data: {\"lost\":{\"count\":2}}\n\n");
    state.queue_losses(Tick(0));
    assert!(state.waiting().is_empty());
}

#[test]
fn a_stored_message_without_room_does_not_count_as_sent() {
    let mut state = admitted(Format::SocketJson);
    let large = |seq| delivery(DeliveryPosition::Stored { seq, prev: 0 }, 900);
    assert_eq!(state.deliver(&large(41), ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.deliver(&large(42), ROOM, Tick(0)), DeliveryOutcome::Full);
    assert_eq!(state.ack(42), Err(41));
}

#[test]
fn a_message_without_room_is_requested_once_after_the_queue_was_read() {
    let mut state = admitted(Format::SocketJson);
    let large = |seq| delivery(DeliveryPosition::Stored { seq, prev: seq - 1 }, 900);
    state.deliver(&large(41), ROOM, Tick(0));
    state.deliver(&large(42), ROOM, Tick(0));
    assert_eq!(state.deliver(&large(43), ROOM, Tick(0)), DeliveryOutcome::Gap);
    assert!(!state.asks(Tick(0)) && !state.made_room(), "the device has not read yet");
    state.take_waiting(Tick(0));
    assert!(state.made_room() && state.asks(Tick(0)));
    assert!(!state.made_room() && !state.asks(Tick(0)));
}

#[test]
fn a_lost_answer_is_requested_again_after_a_timeout() {
    let mut state = admitted(Format::SocketJson);
    let later = Tick(0).after(ANSWER_WAIT);
    assert!(state.asks(Tick(0)) && !state.asks(Tick(later.0 - 1)), "a message sent before the request is a gap too");
    assert_eq!(state.asks_at(), Some(later), "a second request must be scheduled");
    assert!(state.asks(later) && state.asks_at().is_none() && !state.asks(later));
    state.was_answered();
    assert_eq!(state.asks_at(), None);
    assert!(state.asks(later), "another gap");
}

#[test]
fn an_answer_without_room_is_requested_once_more() {
    let mut state = admitted(Format::SocketJson);
    let large = |seq| delivery(DeliveryPosition::Stored { seq, prev: seq - 1 }, 900);
    assert!(state.asks(Tick(0)));
    state.deliver(&delivery(DeliveryPosition::Ephemeral { place: 1 }, 900), ROOM, Tick(0));
    assert_eq!(state.deliver(&large(41), ROOM, Tick(0)), DeliveryOutcome::Full);
    state.take_waiting(Tick(0));
    assert!(state.made_room() && state.asks(Tick(0)));
}

#[test]
fn one_message_may_be_larger_than_the_queue_bound() {
    let mut state = admitted(Format::SocketJson);
    let huge = delivery(DeliveryPosition::Stored { seq: 41, prev: 40 }, 10 * ROOM);
    assert_eq!(state.deliver(&huge, ROOM, Tick(0)), DeliveryOutcome::Queued);
}

#[test]
fn written_bytes_leave_the_queue() {
    let mut state = admitted(Format::SocketJson);
    state.deliver(&stored(41), ROOM, Tick(0));
    let waiting = state.waiting().to_vec();
    state.written(3, Tick(0));
    assert_eq!(state.waiting(), &waiting[3..]);
    state.written(waiting.len() - 3, Tick(0));
    assert!(state.waiting().is_empty());
}

#[test]
fn a_device_that_does_not_identify_itself_is_closed() {
    let mut state = SessionState::new(Format::SocketJson, true, Tick(0), &settings());
    assert_eq!(state.due_action(ticks(9), &settings()), DueAction::Wait(ticks(10)));
    assert!(matches!(state.due_action(ticks(10), &settings()), DueAction::Close(CloseCode::BadFrame, _)));
}

#[test]
fn a_device_without_an_owner_is_closed_as_no_owner() {
    let mut state = SessionState::new(Format::SocketJson, true, Tick(0), &settings());
    state.arrive(identity(), Tick::NEVER, ticks(1), &settings());
    assert_eq!(state.due_action(ticks(5), &settings()), DueAction::Wait(ticks(6)));
    assert!(matches!(state.due_action(ticks(6), &settings()), DueAction::Close(CloseCode::NoOwner, _)));
}

#[test]
fn a_silent_device_gets_a_ping_and_is_then_closed() {
    let mut state = admitted(Format::SocketJson);
    assert_eq!(state.due_action(ticks(1), &settings()), DueAction::Wait(ticks(25)));
    assert_eq!(state.due_action(ticks(25), &settings()), DueAction::Ping);
    assert_eq!(state.due_action(ticks(26), &settings()), DueAction::Wait(ticks(35)));
    assert!(matches!(state.due_action(ticks(35), &settings()), DueAction::Close(CloseCode::Silent, _)));
}

#[test]
fn an_active_device_gets_no_ping() {
    let mut state = admitted(Format::SocketJson);
    state.heard(ticks(20));
    assert_eq!(state.due_action(ticks(25), &settings()), DueAction::Wait(ticks(45)));
    assert_eq!(state.due_action(ticks(45), &settings()), DueAction::Ping);
    state.heard(ticks(46));
    assert_eq!(state.due_action(ticks(55), &settings()), DueAction::Wait(ticks(71)));
}

#[test]
fn an_event_stream_is_not_expected_to_answer() {
    let mut state = admitted(Format::EventStream);
    assert_eq!(state.due_action(ticks(25), &settings()), DueAction::Ping);
    assert_eq!(state.due_action(ticks(40), &settings()), DueAction::Wait(ticks(50)));
}

#[test]
fn a_token_ends_a_session_and_a_new_one_prolongs_it() {
    let mut state = SessionState::new(Format::SocketJson, true, Tick(0), &settings());
    state.arrive(identity(), ticks(10), Tick(0), &settings());
    state.admit(Arc::from("e"), 0);
    assert_eq!(state.due_action(ticks(1), &settings()), DueAction::Wait(ticks(10)));
    state.refreshed(ticks(12));
    assert_eq!(state.due_action(ticks(10), &settings()), DueAction::Wait(ticks(12)));
    assert!(matches!(state.due_action(ticks(12), &settings()), DueAction::Close(CloseCode::TokenExpired, _)));
}

#[test]
fn a_device_that_reads_nothing_is_closed_and_then_cut_off() {
    let mut state = admitted(Format::SocketJson);
    state.deliver(&stored(41), ROOM, ticks(1));
    state.heard(ticks(30));
    assert!(matches!(state.due_action(ticks(31), &settings()), DueAction::Close(CloseCode::Slow, _)));
    assert!(state.close(4103, "slow", ticks(31)));
    assert!(!state.close(4103, "slow", ticks(31)));
    assert_eq!(state.due_action(ticks(32), &settings()), DueAction::Wait(ticks(34)));
    assert_eq!(state.due_action(ticks(34), &settings()), DueAction::Cut);
}

#[test]
fn an_introduction_is_an_arrival_before_the_admission_and_an_announcement_after() {
    let mut state = SessionState::new(Format::SocketJson, true, Tick(0), &settings());
    assert_eq!(state.introduction(9, Some(1)), None);
    state.arrive(identity(), Tick::NEVER, Tick(0), &settings());
    assert!(matches!(state.introduction(9, Some(1)), Some((3, ToCarrier::Arrive(_)))));
    state.admit(Arc::from("e"), 40);
    state.deliver(&stored(42), ROOM, Tick(0));
    let Some((3, ToCarrier::Announce(announced))) = state.introduction(9, Some(2)) else { panic!("not announced") };
    assert_eq!((announced.sent, announced.acked, &*announced.epoch), (42, 40, "e"));
    assert_eq!(state.identity.as_ref().unwrap().announced_in, Some(2));
    assert_eq!(state.phase, SessionPhase::Admitted);
}

#[test]
fn a_number_beyond_every_sent_one_is_a_gap() {
    let mut state = admitted(Format::SocketJson);
    state.skip_to(u64::MAX - 1);
    assert!(state.is_gap(u64::MAX) && state.asks(Tick(0)));
}

#[test]
fn messages_after_a_gap_are_left_out_until_the_gap_is_closed() {
    let mut state = admitted(Format::SocketJson);
    let after_a_gap = Delivery { place: DeliveryPosition::Stored { seq: 43, prev: 42 }, ..stored(43) };
    assert_eq!(state.deliver(&after_a_gap, ROOM, Tick(0)), DeliveryOutcome::Gap);
    let next = Delivery { place: DeliveryPosition::Stored { seq: 42, prev: 40 }, ..stored(42) };
    assert_eq!(state.deliver(&next, ROOM, Tick(0)), DeliveryOutcome::Queued);
    assert_eq!(state.deliver(&after_a_gap, ROOM, Tick(0)), DeliveryOutcome::Queued);
}
