//! What a writer makes of packets that are late, lost, repeated or of another life.

use whimbrel_model::Timestamp;
use whimbrel_model::people::{Platform, SessionId};

use super::*;

const ONE: GatewayId = GatewayId { node: 1, incarnation: 10 };
const TWO: GatewayId = GatewayId { node: 1, incarnation: 20 };
const TIMES: LedgerTimes = LedgerTimes {
    ask_after_ms: 100,
    ask_again_ms: 300,
    picture_again_ms: 1_000,
    rest_ms: 2_000,
    silent_after_ms: 3_000,
    unseen_after_ms: 10_000,
};

fn news(session: u64) -> News {
    News {
        uid: Uid::new("eva").unwrap(),
        session: OnlineSession {
            session: SessionId { gateway: ONE, number: session },
            platform: Platform::new("web").unwrap(),
            device: "".into(),
            since: Timestamp::from_millis(0),
        },
        gone_at: None,
    }
}

fn packet(gateway: GatewayId, number: u64) -> Packet {
    Packet { gateway, address: "g".into(), number, news: vec![news(number)] }
}

fn picture(as_of: u64) -> Answer {
    Answer::Picture { as_of, sessions: Vec::new() }
}

/// A ledger that has the picture of [`ONE`] as of that number, at time zero.
fn drawn(as_of: u64) -> Ledger {
    let mut ledger = Ledger::new(TIMES);
    let ask = the_ask(&ledger.living(&[(ONE, "g".into())], 0)).ask;
    let todo = ledger.answered(ask, ONE, picture(as_of), 0);
    assert_eq!(words(&todo), [format!("replace {as_of}")]);
    ledger
}

/// What is to be done in short.
fn words(todo: &[Todo]) -> Vec<String> {
    let word = |todo: &Todo| match todo {
        Todo::Apply { number, .. } => format!("apply {number}"),
        Todo::Replace { as_of, .. } => format!("replace {as_of}"),
        Todo::Ask(Question { wanted: Wanted::Picture, attempt, .. }) => format!("ask picture {attempt}"),
        Todo::Ask(Question { wanted: Wanted::Packets(numbers), attempt, .. }) => format!("ask {numbers:?} {attempt}"),
        Todo::Void(gateway) => format!("void {}", gateway.incarnation),
    };
    todo.iter().map(word).collect()
}

fn the_ask(todo: &[Todo]) -> &Question {
    let ask = todo.iter().find_map(|todo| match todo {
        Todo::Ask(question) => Some(question),
        _ => None,
    });
    ask.expect("something is asked")
}

const NOTHING: [String; 0] = [];

#[test]
fn a_writer_that_knows_nothing_asks_for_the_whole_picture_and_goes_on_from_there() {
    let mut ledger = Ledger::new(TIMES);
    assert_eq!(words(&ledger.packet(packet(ONE, 7), 0)), NOTHING);
    let todo = ledger.living(&[(ONE, "g".into())], 0);
    assert_eq!(words(&todo), ["ask picture 0"]);
    assert_eq!(words(&ledger.packet(packet(ONE, 9), 0)), NOTHING);
    assert_eq!(words(&ledger.packet(packet(ONE, 8), 0)), NOTHING);
    assert_eq!(ledger.undrawn().collect::<Vec<_>>(), [ONE]);
    let todo = ledger.answered(the_ask(&todo).ask, ONE, picture(7), 10);
    assert_eq!(words(&todo), ["replace 7", "apply 8", "apply 9"]);
    assert_eq!(ledger.undrawn().count(), 0);
}

#[test]
fn nothing_is_told_of_a_gateway_that_the_cluster_does_not_know() {
    let mut ledger = Ledger::new(TIMES);
    assert_eq!(words(&ledger.packet(packet(ONE, 1), 0)), NOTHING);
    assert_eq!(words(&ledger.tick(5_000)), NOTHING);
    assert_eq!(words(&ledger.tick(10_000)), NOTHING);
    assert_eq!(ledger.standing(1), None);
}

#[test]
fn a_packet_that_comes_on_both_paths_is_told_once() {
    let mut ledger = drawn(0);
    assert_eq!(words(&ledger.packet(packet(ONE, 1), 0)), ["apply 1"]);
    assert_eq!(words(&ledger.packet(packet(ONE, 1), 0)), NOTHING);
    assert_eq!(words(&ledger.packet(packet(ONE, 3), 0)), NOTHING);
    assert_eq!(words(&ledger.packet(packet(ONE, 3), 0)), NOTHING);
    assert_eq!(words(&ledger.packet(packet(ONE, 2), 0)), ["apply 2", "apply 3"]);
    assert_eq!(ledger.counts.repeated, 2);
}

#[test]
fn a_gap_that_the_slower_path_closes_in_time_is_not_asked_about() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, 2), 0);
    assert_eq!(words(&ledger.tick(99)), NOTHING);
    assert_eq!(words(&ledger.packet(packet(ONE, 1), 99)), ["apply 1", "apply 2"]);
    assert_eq!(words(&ledger.tick(2_000)), NOTHING);
}

#[test]
fn a_gap_is_asked_about_three_times_then_the_picture_is() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, 2), 0);
    ledger.packet(packet(ONE, 4), 0);
    assert_eq!(words(&ledger.tick(100)), ["ask [1, 3] 0"]);
    assert_eq!(words(&ledger.tick(399)), NOTHING);
    assert_eq!(words(&ledger.tick(400)), ["ask [1, 3] 1"]);
    assert_eq!(words(&ledger.tick(700)), ["ask [1, 3] 2"]);
    assert_eq!(words(&ledger.tick(1_000)), ["ask picture 0"]);
    assert_eq!(ledger.counts.unanswered, 1);
}

#[test]
fn packets_that_were_asked_for_close_the_gap() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, 3), 0);
    let todo = ledger.tick(100);
    let answer = Answer::Packets(vec![packet(ONE, 1), packet(ONE, 2)]);
    assert_eq!(words(&ledger.answered(the_ask(&todo).ask, ONE, answer, 150)), ["apply 1", "apply 2", "apply 3"]);
    assert_eq!(words(&ledger.tick(2_000)), NOTHING);
}

#[test]
fn an_answer_that_lacks_what_was_asked_for_makes_the_picture_wanted() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, 3), 0);
    let todo = ledger.tick(100);
    let answer = Answer::Packets(vec![packet(ONE, 1)]);
    assert_eq!(words(&ledger.answered(the_ask(&todo).ask, ONE, answer, 150)), ["apply 1", "ask picture 0"]);
}

#[test]
fn a_picture_that_is_older_than_what_is_known_is_left_out() {
    let mut ledger = drawn(0);
    for number in 1..=5 {
        ledger.packet(packet(ONE, number), 0);
    }
    assert_eq!(words(&ledger.answered(99, ONE, picture(4), 0)), NOTHING);
    assert_eq!(ledger.standing(1), Some((ONE, 5, 5)));
}

#[test]
fn too_much_that_is_missing_makes_the_picture_wanted() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, ASKED_NUMBERS_MAX as u64 + 2), 0);
    assert_eq!(words(&ledger.tick(100)), ["ask picture 0"]);
}

#[test]
fn a_number_from_nowhere_costs_a_picture_and_no_more() {
    let mut ledger = drawn(5);
    ledger.packet(packet(ONE, u64::MAX / 2), 0);
    let todo = ledger.tick(100);
    assert_eq!(words(&todo), ["ask picture 0"]);
    assert_eq!(words(&ledger.answered(the_ask(&todo).ask, ONE, picture(5), 100)), ["replace 5"]);
    assert_eq!(words(&ledger.tick(300)), NOTHING);
    assert_eq!(words(&ledger.packet(packet(ONE, 6), 320)), ["apply 6"]);
}

#[test]
fn a_gateway_that_answers_nothing_is_left_alone_for_a_while_and_asked_again() {
    let mut ledger = Ledger::new(TIMES);
    assert_eq!(words(&ledger.living(&[(ONE, "g".into())], 0)), ["ask picture 0"]);
    assert_eq!(words(&ledger.tick(1_000)), ["ask picture 1"]);
    assert_eq!(words(&ledger.tick(2_000)), ["ask picture 2"]);
    assert_eq!(words(&ledger.tick(3_000)), NOTHING);
    assert_eq!(words(&ledger.tick(4_999)), NOTHING);
    assert_eq!(words(&ledger.tick(5_000)), ["ask picture 0"]);
}

#[test]
fn a_gateway_that_is_silent_is_asked_for_its_picture_and_what_comes_meanwhile_is_told() {
    let mut ledger = drawn(3);
    assert_eq!(words(&ledger.tick(2_999)), NOTHING);
    assert_eq!(words(&ledger.tick(3_000)), ["ask picture 0"]);
    assert_eq!(words(&ledger.packet(packet(ONE, 4), 3_100)), ["apply 4"]);
    assert_eq!(words(&ledger.tick(5_000)), NOTHING);
}

#[test]
fn a_lost_lease_is_void_at_once_and_nothing_of_it_is_told_again() {
    let mut ledger = drawn(3);
    assert_eq!(words(&ledger.living(&[], 10)), ["void 10"]);
    assert_eq!(words(&ledger.packet(packet(ONE, 4), 20)), NOTHING);
    assert_eq!(words(&ledger.answered(1, ONE, picture(9), 20)), NOTHING);
    assert_eq!(words(&ledger.living(&[(ONE, "g".into())], 30)), NOTHING);
    assert_eq!(ledger.counts.refused, 1);
}

#[test]
fn a_newer_incarnation_makes_the_older_void() {
    let mut ledger = drawn(3);
    assert_eq!(words(&ledger.packet(packet(TWO, 1), 10)), ["void 10"]);
    assert_eq!(words(&ledger.packet(packet(ONE, 4), 10)), NOTHING);
    assert_eq!(words(&ledger.living(&[(TWO, "g".into())], 10)), ["ask picture 0"]);
}

#[test]
fn a_gateway_that_says_it_is_another_now_is_void_and_one_that_has_not_begun_is_not() {
    let mut ledger = Ledger::new(TIMES);
    let ask = the_ask(&ledger.living(&[(ONE, "g".into())], 0)).ask;
    assert_eq!(words(&ledger.answered(ask, ONE, Answer::Other(None), 10)), NOTHING);
    let earlier = GatewayId { node: 1, incarnation: 5 };
    assert_eq!(words(&ledger.answered(ask, ONE, Answer::Other(Some(earlier)), 10)), NOTHING);
    assert_eq!(words(&ledger.tick(1_000)), ["ask picture 1"]);
    assert_eq!(words(&ledger.answered(ask, ONE, Answer::Other(Some(TWO)), 1_010)), ["void 10"]);
}

#[test]
fn what_waits_is_bounded_and_what_there_was_no_room_for_is_asked_for_later() {
    let mut ledger = drawn(0);
    let many = BUFFERED_PACKETS_MAX as u64 + 10;
    (2..=many).for_each(|number| drop(ledger.packet(packet(ONE, number), 0)));
    assert_eq!(ledger.buffered(), BUFFERED_PACKETS_MAX);
    assert_eq!(ledger.counts.overflowed, 9);
    let told = ledger.packet(packet(ONE, 1), 0);
    assert_eq!(told.len(), BUFFERED_PACKETS_MAX + 1);
    let todo = ledger.tick(100);
    assert!(matches!(&the_ask(&todo).wanted, Wanted::Packets(numbers) if numbers.len() == 9));
}

#[test]
fn a_picture_is_as_fresh_as_its_question_and_packets_are_as_they_come() {
    let mut ledger = Ledger::new(TIMES);
    assert_eq!(ledger.fresh_at(5), Some(5), "nobody is there, and that is known");
    let ask = the_ask(&ledger.living(&[(ONE, "g".into())], 10)).ask;
    ledger.packet(packet(ONE, 1), 20);
    assert_eq!(ledger.fresh_at(50), None);
    ledger.answered(ask, ONE, picture(1), 50);
    assert_eq!(ledger.fresh_at(60), Some(10));
    ledger.packet(packet(ONE, 2), 70);
    assert_eq!(ledger.fresh_at(80), Some(70));
}

#[test]
fn an_answer_counts_from_the_attempt_that_it_answers() {
    let mut ledger = Ledger::new(TIMES);
    let first = the_ask(&ledger.living(&[(ONE, "g".into())], 0)).ask;
    let second = the_ask(&ledger.tick(1_000)).ask;
    assert_ne!(first, second);
    ledger.answered(first, ONE, picture(1), 1_100);
    assert_eq!(ledger.fresh_at(1_100), Some(0));

    let mut ledger = Ledger::new(TIMES);
    ledger.living(&[(ONE, "g".into())], 0);
    let second = the_ask(&ledger.tick(1_000)).ask;
    ledger.answered(second, ONE, picture(1), 1_100);
    assert_eq!(ledger.fresh_at(1_100), Some(1_000));
}

#[test]
fn an_answer_to_a_question_that_is_over_says_nothing_about_when() {
    let mut ledger = Ledger::new(TIMES);
    let early = the_ask(&ledger.living(&[(ONE, "g".into())], 0)).ask;
    ledger.tick(1_000);
    ledger.tick(2_000);
    ledger.tick(3_000);
    ledger.tick(5_000);
    ledger.answered(early, ONE, picture(1), 5_100);
    assert_eq!(ledger.fresh_at(5_100), None);
    ledger.packet(packet(ONE, 2), 5_200);
    assert_eq!(ledger.fresh_at(5_200), Some(5_200));
}

#[test]
fn what_comes_after_a_gap_makes_nothing_fresher_until_the_gap_is_closed() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, 1), 10);
    ledger.packet(packet(ONE, 3), 30);
    assert_eq!(ledger.fresh_at(40), Some(10));
    let ask = the_ask(&ledger.tick(200)).ask;
    // The missing one was made at any time before; that after it came at 30.
    ledger.answered(ask, ONE, Answer::Packets(vec![packet(ONE, 2)]), 300);
    assert_eq!(ledger.fresh_at(300), Some(30));
}

#[test]
fn a_packet_that_closes_a_gap_late_is_older_than_what_came_before_it() {
    let mut ledger = drawn(0);
    ledger.packet(packet(ONE, 2), 20);
    ledger.packet(packet(ONE, 1), 90);
    assert_eq!(ledger.fresh_at(90), Some(20));
}

#[test]
fn one_dead_path_makes_nothing_stale_and_a_repeat_nothing_fresher() {
    let mut ledger = drawn(0);
    for number in 1..=5 {
        ledger.packet(packet(ONE, number), number * 1_000);
        assert_eq!(ledger.fresh_at(number * 1_000), Some(number * 1_000));
    }
    ledger.packet(packet(ONE, 5), 5_900);
    assert_eq!(ledger.fresh_at(6_000), Some(5_000));
}

#[test]
fn a_shard_is_as_fresh_as_the_gateway_that_was_heard_the_longest_ago_until_its_lease_goes() {
    let other = GatewayId { node: 2, incarnation: 11 };
    let both = [(ONE, "g".into()), (other, "h".into())];
    let mut ledger = drawn(0);
    let ask = the_ask(&ledger.living(&both, 100)).ask;
    assert_eq!(ledger.fresh_at(100), None, "one of them was never heard");
    ledger.answered(ask, other, picture(0), 110);
    ledger.packet(packet(ONE, 1), 4_000);
    assert_eq!(ledger.fresh_at(4_000), Some(100));
    assert_eq!(ledger.unheard(100).count(), 0);
    assert_eq!(ledger.unheard(1_000).collect::<Vec<_>>(), [other]);
    ledger.living(&both[..1], 4_100);
    assert_eq!(ledger.fresh_at(4_100), Some(4_000));
    assert_eq!(ledger.unheard(4_000).count(), 0);
}

#[test]
fn a_gateway_that_says_nothing_new_is_asked_although_its_old_packets_still_come() {
    let mut ledger = drawn(3);
    ledger.packet(packet(ONE, 3), 2_900);
    let todo = ledger.tick(3_000);
    assert_eq!(words(&todo), ["ask picture 0"]);
    // Nothing happened meanwhile, and that is known now.
    assert_eq!(words(&ledger.answered(the_ask(&todo).ask, ONE, picture(3), 3_100)), ["replace 3"]);
    assert_eq!(ledger.fresh_at(3_100), Some(3_000));
}
